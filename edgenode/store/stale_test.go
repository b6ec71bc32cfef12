package store

import (
	"testing"

	"skerry/replication"
)

// TestOlderMessagesAtTheEndHoldNothingBack: a former publisher's message stands behind a newer one, and nothing behind it.
// An edge that was away reads as far as the stream went when it met the gap, and that is the older message.
func TestOlderMessagesAtTheEndHoldNothingBack(t *testing.T) {
	t.Parallel()
	h := newByHand(t)
	flag := func(key string) replication.Subject { return replication.FlagSubject(project, "live", key) }
	h.put(flag("a"), 101, 101, 101, "1")
	h.marker(replication.Normal, 102, "100")
	h.marker(replication.Urgent, 102, "100")
	h.edge.start()
	h.serves(102, nil)
	h.edge.stop()
	h.put(flag("c"), 105, 105, 105, "1") // 103 and 104 have changed again
	h.put(flag("b"), 104, 104, 104, "0")
	h.edge.start()
	h.serves(105, nil)
}
