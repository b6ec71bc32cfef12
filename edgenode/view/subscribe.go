package view

import (
	"sync"
	"sync/atomic"
)

// Subscription tells that something of an environment has changed: a set of modules and a
// channel of one slot. However slow its reader is, nothing waits for it and nothing piles
// up; changes it did not take in between are one.
type Subscription struct {
	c       chan struct{}
	changed atomic.Uint32
	from    *subscribers
	of      envKey
}

// C has a value when something has changed since the last Take. It is never closed.
func (s *Subscription) C() <-chan struct{} { return s.c }

// Take returns which modules have changed since the last Take. What it announces can be
// read at once.
func (s *Subscription) Take() ModuleSet { return ModuleSet(s.changed.Swap(0)) }

// Close ends the subscription.
func (s *Subscription) Close() { s.from.remove(s) }

func (s *Subscription) mark(changed ModuleSet) {
	s.changed.Or(uint32(changed))
	select {
	case s.c <- struct{}{}:
	default: // it has not looked since the last one
	}
}

// Subscribe announces changes of one environment of a project, which need not exist.
func (s *Store) Subscribe(project, env string) *Subscription {
	return s.subscribers.add(envKey{project, env})
}

type subscribers struct {
	mu sync.Mutex
	of map[envKey]map[*Subscription]struct{}
}

func (s *subscribers) add(of envKey) *Subscription {
	sub := &Subscription{c: make(chan struct{}, 1), from: s, of: of}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[of] == nil {
		s.of[of] = make(map[*Subscription]struct{})
	}
	s.of[of][sub] = struct{}{}
	return sub
}

func (s *subscribers) remove(sub *Subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of[sub.of], sub)
	if len(s.of[sub.of]) == 0 {
		delete(s.of, sub.of)
	}
}

func (s *subscribers) announce(of envKey, changed ModuleSet) {
	if changed == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for sub := range s.of[of] {
		sub.mark(changed)
	}
}

func (s *subscribers) announceAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, subs := range s.of {
		for sub := range subs {
			sub.mark(SwitchChanged | ConfigChanged | PulseChanged | CohortsChanged | SettingsChanged)
		}
	}
}
