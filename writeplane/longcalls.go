package writeplane

import (
	"context"
	"slices"
	"sync"
	"time"

	"skerry/pkg/problem"
)

// longCalls bounds the calls at work that may keep a connection to the database for long:
// walks of the audit log, sparse filters, sums, member lists. Without a bound those of one
// organization could hold every connection, and a halt of another would wait for one.
//
// There are places for all together, and half of them for one organization. Beyond
// that calls wait in line, and are then refused. Next is who has fewest at work, the
// oldest first.
type longCalls struct {
	places   int
	patience time.Duration

	mu      sync.Mutex
	atWork  map[string]int // by organization
	total   int
	waiting []*longCall // oldest first
}

type longCall struct {
	organization string
	turn         chan struct{} // closed when it has its place
}

func newLongCalls(places int, patience time.Duration) *longCalls {
	return &longCalls{places: places, patience: patience, atWork: map[string]int{}}
}

// errManyLong is the 503 of a call that found no place.
var errManyLong = problem.Newf(problem.Unavailable, errUnavailable.Code,
	"too many calls that take long (audit log, events, summaries, member lists) are at work; nothing was done")

// enter waits for a place of an organization. leave gives it back.
func (l *longCalls) enter(ctx context.Context, organization string) (leave func(), err error) {
	call := &longCall{organization, make(chan struct{})}
	l.mu.Lock()
	l.waiting = append(l.waiting, call)
	l.serveLocked()
	l.mu.Unlock()
	over := time.NewTimer(l.patience)
	defer over.Stop()
	select {
	case <-call.turn:
		return func() { l.leave(organization) }, nil
	case <-over.C:
		err = errManyLong
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting, call); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
		return nil, err
	}
	return func() { l.leave(organization) }, nil // its turn came at that very moment
}

func (l *longCalls) leave(organization string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.atWork[organization]--; l.atWork[organization] == 0 {
		delete(l.atWork, organization)
	}
	l.serveLocked()
}

func (l *longCalls) serveLocked() {
	for l.total < l.places {
		next := -1
		for i, call := range l.waiting {
			n := l.atWork[call.organization]
			if n < max(l.places/2, 1) && (next < 0 || n < l.atWork[l.waiting[next].organization]) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		call := l.waiting[next]
		l.waiting = slices.Delete(l.waiting, next, next+1)
		l.total++
		l.atWork[call.organization]++
		close(call.turn)
	}
}
