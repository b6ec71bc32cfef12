package intake

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"skerry/replication/up"
)

// heldDisk is a file system on which syncs of the buffer's log wait while it is held.
type heldDisk struct {
	held    atomic.Bool
	reached chan struct{} // one for every sync that waits
	release chan struct{}
}

func (d *heldDisk) fs() vfs.FS {
	return errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		sync := op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo
		if sync && d.held.Load() && strings.Contains(op.Path, "/buffer/") && strings.HasSuffix(op.Path, ".log") {
			d.reached <- struct{}{}
			<-d.release
		}
		return nil
	}))
}

// The memory of a request goes to the next one while the first waits for the disk: none is answered early, and none is
// stored with another's bytes.
func TestNothingIsAnsweredBeforeItIsOnTheDisk(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path   string
		lane   up.Lane
		bodies [2]string
		want   [2]string
	}{
		{"/api/v1/track", up.LaneEvent, [2]string{track, strings.ReplaceAll(track, "u1", "u2")},
			[2]string{`a u1 {"n":1e999}`, `a u2 {"n":1e999}`}},
		{"/api/v1/people", up.LanePeople, [2]string{people, strings.ReplaceAll(people, "u1", "u2")},
			[2]string{`u1 {"plan":"pro"}`, `u2 {"plan":"pro"}`}},
		{"/api/v1/batch", up.LaneEvent, [2]string{
			`{"operations":[{"type":"track","payload":` + track + `}]}`,
			`{"operations":[{"type":"track","payload":` + strings.ReplaceAll(track, "u1", "u2") + `}]}`},
			[2]string{`a u1 {"n":1e999}`, `a u2 {"n":1e999}`}},
	} {
		d := &heldDisk{reached: make(chan struct{}), release: make(chan struct{})}
		w := newWorld(t, settings{fs: d.fs(), dir: "data"})
		d.held.Store(true)
		answers := make(chan int, 2)
		send := func(body string) {
			status, _ := w.send(c.path, strings.NewReader(body))
			answers <- status
		}
		go send(c.bodies[0])
		<-d.reached
		first := w.buffer.Status().Bytes
		go send(c.bodies[1])
		for w.buffer.Status().Bytes == first { // until the second one has its place behind the first
			select {
			case status := <-answers:
				t.Fatalf("%s: answered %d before the sync", c.path, status)
			default:
			}
		}
		d.held.Store(false)
		d.release <- struct{}{}
		for range 2 {
			if status := <-answers; status != 200 {
				t.Errorf("%s: %d", c.path, status)
			}
		}
		w.wantStored(c.path, c.lane, c.want[0], c.want[1])
	}
}
