package campaign

import (
	"fmt"

	"skerry/replication"
)

// seen is the highest revision that an edge has served, whatever became of it since: an
// edge serves what it has synced, so a kill takes nothing back.
type seen struct{ highest replication.Revision }

// next takes note of a revision; it says how it fell, if it did.
func (s *seen) next(revision replication.Revision) (fell string) {
	if revision.Normal < s.highest.Normal || revision.Urgent < s.highest.Urgent {
		fell = fmt.Sprintf("from %s to %s", s.highest, revision)
	}
	s.highest = s.highest.Max(revision)
	return fell
}
