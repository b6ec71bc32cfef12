package buffer

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"skerry/replication/tally"
	"skerry/replication/up"
)

// A disk that is full to the last byte, whatever was asked of it before: who waits for it
// is answered, who comes meanwhile is refused at once, and when there is space everything
// that was confirmed is there, once, and the buffer goes on.
func TestADiskThatIsFullEndsNothing(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite && full.Load() {
			return syscall.ENOSPC
		}
		return nil
	}))
	b := open(t, fs)
	must(t, b.Append(block(up.LaneEvent, "before")))

	full.Store(true)
	surprised := make(chan error, 1)
	go func() { surprised <- b.Append(block(up.LaneEvent, "surprised")) }()
	for !b.space.Waiting() {
		runtime.Gosched()
	}
	for i := range 3 {
		if err := b.Append(block(up.LaneEvent, fmt.Sprint("meanwhile ", i))); !errors.Is(err, ErrFull) {
			t.Errorf("a request that comes meanwhile: %v", err)
		}
	}
	if err := b.Add(projectA, tally.Handshakes, time.Now(), 1); !errors.Is(err, ErrFull) {
		t.Errorf("usage that comes meanwhile: %v", err)
	}
	if err := <-surprised; !errors.Is(err, ErrFull) {
		t.Errorf("the request that found the disk full: %v", err)
	}

	full.Store(false)
	for err := ErrFull; err != nil; err = b.Append(block(up.LaneEvent, "after")) {
		if !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
	}
	// The surprised one was told that nobody knows.
	equal(t, "events", everything(t, b, up.LaneEvent), []string{"before", "surprised", "after"})
	must(t, b.Close())
}
