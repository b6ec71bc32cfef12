package store

import (
	"testing"

	"skerry/replication"
)

// TestTombstonePurgedBeforeItWasRead: a transaction deletes both documents of a pair; the edge reads the first deletion,
// and before it reads the second one this is purged for its age. The marker that stood in the stream before the purge says
// so, and the edge must not take the gap for a version that was replaced.
func TestTombstonePurgedBeforeItWasRead(t *testing.T) {
	t.Parallel()
	h := newByHand(t)
	h.put(left(0), 101, 101, 102, "1")
	h.put(right(0), 102, 101, 102, "1")
	h.marker(replication.Normal, 103, "100")
	h.marker(replication.Urgent, 101, "100")
	h.edge.start()
	pair := func(served bool) func(*Snapshot) string {
		return func(look *Snapshot) string {
			_, okL, _ := look.Get(left(0))
			_, okR, _ := look.Get(right(0))
			if okL != served || okR != served {
				return "the edge serves something else"
			}
			return ""
		}
	}
	h.serves(103, pair(true))

	normal := h.streams[replication.Normal]
	old, err := normal.GetLastMsgForSubject(t.Context(), string(right(0)))
	if err != nil {
		t.Fatal(err)
	}
	if err := normal.DeleteMsg(t.Context(), old.Sequence); err != nil {
		t.Fatal(err)
	}
	h.put(left(0), 104, 104, 105, "") // 105, the other deletion, is purged
	h.marker(replication.Normal, 106, "105")
	h.serves(106, pair(false))

	h.put(left(1), 107, 107, 108, "2")
	h.put(right(1), 108, 107, 108, "2")
	h.serves(108, pair(false))
	if resets := h.edge.followers[replication.Normal].Status().Resets; resets != 2 {
		t.Errorf("state was taken anew %d times, want 2: at the start and for the purge", resets)
	}
}
