package intake

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"skerry/edgenode/buffer"
	"skerry/replication/up"
)

// peak samples the heap until stop is called and tells the highest growth. The collector
// works more eagerly meanwhile, so that what is in use is measured and not what a busy
// machine has not yet swept.
func peak() (stop func() uint64) {
	percent := debug.SetGCPercent(20)
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	before := m.HeapInuse
	var most atomic.Uint64
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			runtime.ReadMemStats(&m)
			most.Store(max(most.Load(), m.HeapInuse))
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() uint64 {
		cancel()
		<-done
		debug.SetGCPercent(percent)
		return most.Load() - min(before, most.Load())
	}
}

func TestBodyOf500MB(t *testing.T) {
	if testing.Short() {
		t.Skip("writes a gigabyte")
	}
	w := newWorld(t, settings{fs: vfs.Default, dir: t.TempDir()})
	properties := `{"x":"` + strings.Repeat("y", 900) + `"}`
	each := func(i int) string {
		return fmt.Sprintf(`{"type":"track","payload":{"event_name":"e","distinct_id":"u%07d","properties":%s}}`, i, properties)
	}
	size := 499 << 20
	if raced {
		size /= 10
	}
	n := size / (len(each(0)) + 1)
	stop := peak()
	began := time.Now()
	status, answer := w.send("/api/v1/batch", &operationsReader{n: n, each: each, end: "]}"})
	took, most := time.Since(began), stop()
	if status != 200 || !strings.Contains(answer, fmt.Sprintf(`"events_received":%d`, n)) {
		t.Fatalf("%d %s", status, answer)
	}
	t.Logf("%d operations in %s; heap at most %d MiB more", n, took.Round(time.Millisecond), most>>20)
	// Pebble's memtables (four of 32 MiB lie outside the heap) and the client's own part are in it.
	// The race detector makes sync.Pool forget at random, so only the other build is held to it.
	if !raced && most > 64<<20 {
		t.Errorf("heap grew by %d MiB", most>>20)
	}
	count := 0
	in := w.buffer.Incarnation()
	for from := uint64(1); ; {
		batch, ok, err := w.buffer.Read(context.Background(), in, up.LaneEvent, from, up.PackBudget)
		w.must(err)
		if !ok {
			break
		}
		count += int(batch.Count)
		from = batch.End()
	}
	if count != n {
		t.Errorf("%d operations come out, want %d", count, n)
	}
	fault := `,{"type":"track","payload":{}}]}`
	if status, answer := w.send("/api/v1/batch", &operationsReader{n: n, each: each, end: fault}); status != 400 || answer != `{"error":"Invalid track payload"}` {
		t.Errorf("a fault in the last operation: %d %s", status, answer)
	}
	if in := w.stored(up.LaneEvent); len(in) != n {
		t.Errorf("%d operations after a refused batch, want %d", len(in), n)
	}
}

func TestPropertyOf100MB(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 200 MB")
	}
	var uploaded int64
	var sum [32]byte
	w := newWorld(t, settings{fs: vfs.Default, dir: t.TempDir(), buffer: buffer.Config{
		Upload: func(_ context.Context, _ string, size int64, want [32]byte, r io.Reader) error {
			h := sha256.New()
			n, err := io.Copy(h, r)
			uploaded = n
			if sum = [32]byte(h.Sum(nil)); sum != want || n != size {
				t.Error("another payload than was announced")
			}
			return err
		}}})
	mega := strings.Repeat("x", 1<<20)
	parts := []io.Reader{strings.NewReader(`{"event_name":"big","properties":{"x":"`)}
	for range 100 {
		parts = append(parts, strings.NewReader(mega))
	}
	parts = append(parts, strings.NewReader(`"},"distinct_id":"u1"}`))
	stop := peak()
	status, answer := w.send("/api/v1/track", io.MultiReader(parts...))
	most := stop()
	if status != 200 || answer != `{"ok":true}` {
		t.Fatalf("%d %s", status, answer)
	}
	t.Logf("heap at most %d MiB more", most>>20)
	batch, ok, err := w.buffer.Read(context.Background(), w.buffer.Incarnation(), up.LaneEvent, 1, 1)
	w.must(err)
	blocks, err := batch.Blocks()
	w.must(err)
	var op up.Operation
	ops := blocks[0].Operations()
	if !ok || !ops.Next(&op) || op.Ref == nil || string(op.EventName) != "big" || string(op.DistinctID) != "u1" {
		t.Fatalf("operation %+v, %v", op, ops.Err())
	}
	const before, behind = len(`{"event_name":"big","properties":`), len(`,"distinct_id":"u1"}`)
	if op.Ref.Size != uploaded || op.Ref.Properties != (up.Span{Offset: int64(before), Length: uploaded - int64(before+behind)}) {
		t.Errorf("reference %+v of %d bytes", op.Ref, uploaded)
	}
}
