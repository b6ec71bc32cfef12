package cohorts

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/semaphore"

	"skerry/pkg/jsonbody"
	"skerry/pkg/problem"
)

const (
	// allRoom is how many bytes of long lists are worked on at once. What they become takes
	// a few times as much of the process's memory.
	allRoom = 2 * maxBody
	// firstRoom is what a body waits for that proves longer than a usual one.
	firstRoom = 32 << 20
	// roomPatience is how long it waits.
	roomPatience = 10 * time.Second
)

// share is a request's part of the room. It grows with what has come, so that who announces
// much and sends little keeps nobody out. Nobody waits who has a part already, or all might
// wait for each other.
type share struct {
	of    *semaphore.Weighted
	taken int64
}

// errNoRoom is the 503 of a list that comes while there is no room for it.
var errNoRoom = problem.Newf(problem.Unavailable, "Service temporarily unavailable",
	"too many long lists of members are at work; nothing was done")

// grow takes what a body needs of which so many bytes are read.
func (s *share) grow(ctx context.Context, read int64) error {
	for read > jsonbody.Limit && read > s.taken {
		more := min(max(s.taken, firstRoom), max(maxBody-s.taken, firstRoom))
		if s.taken > 0 {
			if !s.of.TryAcquire(more) {
				return errNoRoom
			}
		} else if err := s.wait(ctx, more); err != nil {
			return err
		}
		s.taken += more
	}
	return nil
}

func (s *share) wait(ctx context.Context, n int64) error {
	patient, cancel := context.WithTimeout(ctx, roomPatience)
	defer cancel()
	err := s.of.Acquire(patient, n)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return errNoRoom
	}
	return err
}

// release gives the part back.
func (s *share) release() {
	s.of.Release(s.taken)
	s.taken = 0
}
