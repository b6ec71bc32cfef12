package intake

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"skerry/edgenode/buffer"
	"skerry/pkg/event"
	"skerry/replication/up"
)

// The disk may fall below its reserve between the last piece of a large request and its commit.
func TestALargeRequestThatTheDiskRefusesAtItsEndLeavesNothing(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	var now atomic.Int64 // seconds
	fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 10 << 30, TotalBytes: 10 << 30})
	b, err := buffer.Open(buffer.Config{Dir: "buffer", Edge: "e1", FS: fs, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return time.Unix(now.Load(), 0) }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	l := lanes{buffer: b}
	l.begin(up.Header{Environment: up.Live, ReceivedAt: 1})
	payload := make([]byte, 600<<10)
	if err := errors.Join(l.Large(payload), l.Operation(&event.Operation{Kind: event.Track, Large: true})); err != nil {
		t.Fatal(err)
	}
	if held := b.Status().Bytes; held < int64(len(payload)) {
		t.Fatalf("%d bytes are held while the request is checked", held)
	}
	fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 20, TotalBytes: 10 << 30})
	now.Add(1)
	if _, err := l.commit(); !errors.Is(err, buffer.ErrFull) {
		t.Fatalf("commit: %v", err)
	}
	if err := l.abort(); err != nil {
		t.Fatal(err)
	}
	if held := b.Status().Bytes; held != 0 {
		t.Errorf("%d bytes stay held of a request that was refused", held)
	}
}
