package view

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/singleflight"
)

// filled is a cache of values that are read from disk, bounded by their total weight. The
// disk may change while a value is being read, and a value of before the change must not
// be kept after it. So every shard counts how often something was dropped from it, and a
// value is kept only if that count is what it was before the read. Values are shared:
// they must not change.
//
// When there is no room, arbitrary values are evicted, not the oldest: a map needs no
// bookkeeping for that, and a value that is in use is soon read again.
type filled[K comparable, V any] struct {
	seed   maphash.Seed
	room   int64 // of one shard
	weigh  func(V) int64
	shards []shard[K, V]
	flight singleflight.Group
	// reads counts loads, for tests and metrics.
	reads atomic.Int64
}

type shard[K comparable, V any] struct {
	mu      sync.RWMutex
	values  map[K]V
	weight  int64
	dropped uint64 // rises whenever something is dropped because it changed
	_       [16]byte
}

// newFilled divides the room into shards. Readers of one share a lock, and what a shard
// holds must fit into its part of the room: many are good for many small values, few for
// large ones.
func newFilled[K comparable, V any](room int64, shards int, weigh func(V) int64) *filled[K, V] {
	f := &filled[K, V]{seed: maphash.MakeSeed(), room: max(room/int64(shards), 1), weigh: weigh, shards: make([]shard[K, V], shards)}
	for i := range f.shards {
		f.shards[i].values = make(map[K]V)
	}
	return f
}

func (f *filled[K, V]) shard(key K) *shard[K, V] {
	return &f.shards[maphash.Comparable(f.seed, key)%uint64(len(f.shards))]
}

// get returns a kept value.
func (f *filled[K, V]) get(key K) (V, bool) {
	s := f.shard(key)
	s.mu.RLock()
	v, ok := s.values[key]
	s.mu.RUnlock()
	return v, ok
}

// load reads a value, once however many ask under this name, and keeps it if read says
// that it exists.
func (f *filled[K, V]) load(key K, name string, read func() (V, bool, error)) (V, bool, error) {
	type result struct {
		value V
		ok    bool
	}
	r, err, _ := f.flight.Do(name, func() (any, error) {
		s := f.shard(key)
		s.mu.RLock()
		before := s.dropped
		s.mu.RUnlock()
		f.reads.Add(1)
		v, ok, err := read()
		if err == nil && ok {
			f.keep(s, key, v, before)
		}
		return result{v, ok}, err
	})
	got, _ := r.(result)
	return got.value, got.ok, err
}

func (f *filled[K, V]) keep(s *shard[K, V], key K, v V, before uint64) {
	weight := f.weigh(v)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped != before {
		return // it may have changed since it was read
	}
	if old, ok := s.values[key]; ok {
		s.weight -= f.weigh(old)
	}
	s.values[key] = v
	s.weight += weight
	for other, value := range s.values {
		if s.weight <= f.room || len(s.values) == 1 {
			return
		}
		if other != key {
			delete(s.values, other)
			s.weight -= f.weigh(value)
		}
	}
}

// drop forgets a value that has changed.
func (f *filled[K, V]) drop(key K) {
	s := f.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped++
	if old, ok := s.values[key]; ok {
		s.weight -= f.weigh(old)
		delete(s.values, key)
	}
}

// dropAll forgets everything.
func (f *filled[K, V]) dropAll() {
	for i := range f.shards {
		s := &f.shards[i]
		s.mu.Lock()
		s.dropped++
		s.weight = 0
		clear(s.values)
		s.mu.Unlock()
	}
}
