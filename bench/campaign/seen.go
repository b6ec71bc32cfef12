package campaign

import (
	"fmt"
	"time"

	"skerry/replication"
)

// seen is what an edge has served. While it lives its revision does not fall. An edge
// that is killed may have served what its state store had not written yet, for it
// writes at most 50 ms later; it comes back with the older state, serves it under the
// older revision, and has caught up a moment later. So over a kill only what was served
// a second before counts.
type seen struct {
	life             int64
	highest          replication.Revision
	settled, waiting replication.Revision // highest as of more, and of less, than a second ago
	since            time.Time            // when waiting was highest
}

// next takes note of a revision; it says how it fell, if it did.
func (s *seen) next(life int64, revision replication.Revision, now time.Time) (fell string) {
	if life != s.life {
		s.life, s.highest, s.waiting = life, s.settled, s.settled
	}
	if revision.Normal < s.highest.Normal || revision.Urgent < s.highest.Urgent {
		fell = fmt.Sprintf("from %s to %s", s.highest, revision)
	}
	s.highest = s.highest.Max(revision)
	if now.Sub(s.since) > time.Second {
		s.settled, s.waiting, s.since = s.waiting, s.highest, now
	}
	return fell
}
