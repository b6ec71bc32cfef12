package responses

import "testing"

// What waits for the analytics copy is bounded in bytes: its writes may be slower than
// submissions, and one of those may be as large as a body.
func TestMirrorQueueIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	m := newMirror(nil)
	for _, size := range []int{mirrorBytes + 1, 1, mirrorBytes, 1} { // one alone may be larger
		m.add(&submission{size: size})
	}
	if queued, dropped := len(m.queue), m.dropped.Load(); queued != 1 || dropped != 3 {
		t.Errorf("%d queued and %d dropped, want 1 and 3", queued, dropped)
	}
}
