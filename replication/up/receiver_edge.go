package up

import (
	"sync"
	"sync/atomic"
	"time"
)

// edge is one edge, as this process knows it.
type edge struct {
	id      string
	gone    chan struct{}
	greeted chan struct{} // one slot: hello is new
	// returns counts how often the store was away: another one may have taken its place,
	// which has come less far.
	returns atomic.Uint64

	mu        sync.Mutex
	since     time.Time // known to this process
	lastHello time.Time
	hello     hello
	lanes     map[Lane]*ReceivedLane // of the lanes at work
}

func newEdge(id string) *edge {
	return &edge{id: id, gone: make(chan struct{}), greeted: make(chan struct{}, 1), since: time.Now(), lanes: map[Lane]*ReceivedLane{}}
}

func (e *edge) hear(h hello, at time.Time) {
	e.mu.Lock()
	e.hello, e.lastHello = h, at
	e.mu.Unlock()
	select {
	case e.greeted <- struct{}{}:
	default:
	}
}

func (e *edge) heard() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lastHello.IsZero() {
		return e.since
	}
	return e.lastHello
}

func (e *edge) alive() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Since(e.lastHello) < aliveFor
}

func (e *edge) said(lane Lane) (l laneHello, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.hello.Lanes {
		if l.Lane == lane.String() {
			return l, true
		}
	}
	return laneHello{}, false
}

func (e *edge) totals() []Totals {
	e.mu.Lock()
	defer e.mu.Unlock()
	var totals []Totals
	for _, l := range e.hello.Lanes {
		lane, _ := ParseLane(l.Lane)
		totals = append(totals, Totals{
			Lane: lane, Log: l.Log, Received: l.Received, Pending: l.Pending, PendingBytes: l.PendingBytes,
			OldestAge: time.Duration(l.OldestMS) * time.Millisecond,
		})
	}
	return totals
}

func (e *edge) show(lane Lane, change func(*ReceivedLane)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.lanes[lane]
	if l == nil {
		l = &ReceivedLane{Edge: e.id, Lane: lane.String()}
		e.lanes[lane] = l
	}
	change(l)
}

func (e *edge) status() []ReceivedLane {
	e.mu.Lock()
	defer e.mu.Unlock()
	var lanes []ReceivedLane
	for _, l := range e.lanes {
		lanes = append(lanes, *l)
	}
	return lanes
}
