package buffer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"skerry/replication/up"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	projectA = [16]byte{0xA}
	projectB = [16]byte{0xB}
	noon     = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func open(t testing.TB, fs vfs.FS, change ...func(*Config)) *Buffer {
	t.Helper()
	cfg := Config{Dir: "data/buffer", Edge: "edge-1", FS: fs, Log: quiet(), Now: func() time.Time { return noon }}
	for _, f := range change {
		f(&cfg)
	}
	b, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func header(lane up.Lane, project [16]byte) up.Header {
	return up.Header{Lane: lane, Environment: up.Live, ReceivedAt: noon.UnixMicro(), Project: project}
}

// block makes a block of events or aliases with these ids.
func block(lane up.Lane, ids ...string) []byte { return blockOf(lane, projectA, 0, ids...) }

func blockOf(lane up.Lane, project [16]byte, padding int, ids ...string) []byte {
	var w up.BlockWriter
	w.Reset(header(lane, project))
	for _, id := range ids {
		op := up.Operation{DistinctID: []byte(id), EventName: []byte("e"), AliasID: []byte("a"), Raw: []byte(id)}
		if padding > 0 {
			op.Properties = bytes.Repeat([]byte("x"), padding)
		}
		w.Append(&op)
	}
	return bytes.Clone(w.Bytes())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// drain reads a lane of an incarnation from a number on and returns the ids, having checked the numbers.
func drain(t testing.TB, b *Buffer, in up.Incarnation, lane up.Lane, from uint64, budget int) (ids []string) {
	t.Helper()
	for {
		batch, ok, err := b.Read(context.Background(), in, lane, from, budget)
		must(t, err)
		if !ok {
			return ids
		}
		blocks, err := batch.Blocks()
		must(t, err)
		if batch.First > from || batch.Incarnation != in {
			t.Fatalf("%s: batch begins at %d, wanted %d", lane, batch.First, from)
		}
		for i := range blocks {
			ops := blocks[i].Operations()
			var op up.Operation
			for ops.Next(&op) {
				if ops.Number() >= from {
					ids = append(ids, id(lane, &op))
				}
			}
			must(t, ops.Err())
		}
		from = batch.End()
	}
}

func id(lane up.Lane, op *up.Operation) string {
	if lane == up.LaneCrash {
		return string(op.Raw)
	}
	return string(op.DistinctID)
}

// everything is what all incarnations hold of the lane, oldest first.
func everything(t testing.TB, b *Buffer, lane up.Lane) (ids []string) {
	t.Helper()
	for _, in := range b.Pending(lane) {
		ids = append(ids, drain(t, b, in, lane, 1, up.PackBudget)...)
	}
	return ids
}

func equal(t testing.TB, what string, got, want []string) {
	t.Helper()
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("%s: %.300v, want %.300v", what, got, want)
	}
}

func TestLanesKeepTheirOrderAndNumbersOfTheirOwn(t *testing.T) {
	t.Parallel()
	b := open(t, vfs.NewMem())
	must(t, b.Append(block(up.LaneEvent, "e1", "e2"), block(up.LaneAlias, "a1")))
	must(t, b.Append(block(up.LaneEvent, "e3")))
	must(t, b.Append(block(up.LaneAlias, "a2"), block(up.LaneCrash, "c1")))
	equal(t, "events", drain(t, b, b.Incarnation(), up.LaneEvent, 1, 1<<20), []string{"e1", "e2", "e3"})
	equal(t, "events from 2", drain(t, b, b.Incarnation(), up.LaneEvent, 2, 1<<20), []string{"e2", "e3"})
	equal(t, "events from 3", drain(t, b, b.Incarnation(), up.LaneEvent, 3, 1<<20), []string{"e3"})
	equal(t, "events, one block at a time", drain(t, b, b.Incarnation(), up.LaneEvent, 1, 1), []string{"e1", "e2", "e3"})
	equal(t, "aliases", drain(t, b, b.Incarnation(), up.LaneAlias, 1, 1<<20), []string{"a1", "a2"})
	equal(t, "crashes", drain(t, b, b.Incarnation(), up.LaneCrash, 1, 1<<20), []string{"c1"})
	equal(t, "people", drain(t, b, b.Incarnation(), up.LanePeople, 1, 1<<20), nil)
}

func TestRestartBeginsANewIncarnationAndKeepsTheOld(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	b := open(t, fs)
	must(t, b.Append(block(up.LaneEvent, "e1", "e2")))
	first := b.Incarnation()
	must(t, b.Close())
	b = open(t, fs)
	second := b.Incarnation()
	if second.Ordinal != first.Ordinal+1 || second.ID == first.ID {
		t.Errorf("incarnations %s and %s", first, second)
	}
	must(t, b.Append(block(up.LaneEvent, "e3")))
	if got := b.Pending(up.LaneEvent); len(got) != 2 || got[0] != first || got[1] != second {
		t.Errorf("pending %v", got)
	}
	equal(t, "old", drain(t, b, first, up.LaneEvent, 1, 1), []string{"e1", "e2"})
	equal(t, "new", drain(t, b, second, up.LaneEvent, 1, 1), []string{"e3"})
}

func keys(t testing.TB, b *Buffer, prefix byte) (n int) {
	t.Helper()
	must(t, scan(b.db, []byte{prefix}, after([]byte{prefix}), func(_, _ []byte) error { n++; return nil }))
	return n
}

func TestAppendAfterCloseIsRefused(t *testing.T) {
	t.Parallel()
	b := open(t, vfs.NewMem())
	must(t, b.Close())
	must(t, b.Close())
	if err := b.Append(block(up.LaneEvent, "e")); !errors.Is(err, ErrClosed) {
		t.Errorf("append: %v", err)
	}
	if err := b.NewSpool().Block(block(up.LaneEvent, "e")); !errors.Is(err, ErrClosed) {
		t.Errorf("spool: %v", err)
	}
	if _, _, err := b.Read(context.Background(), b.Incarnation(), up.LaneEvent, 1, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("read: %v", err)
	}
}

func TestPutGivesTheBlocksBackAtOnce(t *testing.T) {
	t.Parallel()
	b := open(t, vfs.NewMem())
	mine := block(up.LaneEvent, "first")
	var waits []Pending
	for _, id := range []string{"second", "third"} {
		p, err := b.Put(mine)
		must(t, err)
		waits = append(waits, p)
		mine = append(mine[:0], block(up.LaneEvent, id)...)
	}
	for _, p := range waits {
		must(t, p.Wait())
	}
	equal(t, "stored", everything(t, b, up.LaneEvent), []string{"first", "second"})
	must(t, b.Close())
	if _, err := b.Put(mine); !errors.Is(err, ErrClosed) {
		t.Errorf("put after Close: %v", err)
	}
}

func TestAppendWakesTheShipper(t *testing.T) {
	t.Parallel()
	b := open(t, vfs.NewMem())
	wake, other := b.Appended(up.LaneAlias), b.Appended(up.LanePeople)
	must(t, b.Append(block(up.LaneAlias, "a")))
	<-wake
	select {
	case <-other:
		t.Error("another lane was woken")
	default:
	}
}

// TestOneHistoryManySettings: whatever the budget, the restarts and the freeing between, one history comes out.
func TestOneHistoryManySettings(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		fs := vfs.NewMem()
		b := open(t, fs)
		var want, got []string
		next := map[up.Incarnation]uint64{}
		take := func() {
			for _, in := range b.Pending(up.LaneEvent) {
				from := max(next[in], 1)
				ids := drain(t, b, in, up.LaneEvent, from, 1+r.IntN(2000))
				got = append(got, ids...)
				next[in] = from + uint64(len(ids))
				if r.IntN(3) > 0 {
					must(t, b.Stored(in, up.LaneEvent, next[in]-1))
				}
			}
		}
		for i := range 200 {
			ids := make([]string, 1+r.IntN(4))
			for j := range ids {
				ids[j] = fmt.Sprintf("%d.%d", i, j)
			}
			switch r.IntN(20) {
			case 0:
				must(t, b.Close())
				b = open(t, fs)
			case 1:
				take()
			case 2:
				b.freeAll()
			case 3:
				s := b.NewSpool()
				must(t, s.Block(block(up.LaneEvent, "never")))
				must(t, s.Abort())
			case 4:
				s := b.NewSpool()
				for _, id := range ids {
					must(t, s.Block(block(up.LaneEvent, id)))
				}
				must(t, s.Commit())
				want = append(want, ids...)
			default:
				must(t, b.Append(block(up.LaneEvent, ids...)))
				want = append(want, ids...)
			}
		}
		take()
		equal(t, fmt.Sprint("seed ", seed), got, want)
		must(t, b.Close())
	}
}

func TestConcurrentAppendsAreAllThereOnce(t *testing.T) {
	t.Parallel()
	b := open(t, vfs.NewMem())
	var wait sync.WaitGroup
	for w := range 16 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for i := range 200 {
				if err := b.Append(block(up.LaneEvent, fmt.Sprintf("%d-%d", w, i))); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wait.Wait()
	seen := map[string]bool{}
	for _, id := range everything(t, b, up.LaneEvent) {
		if seen[id] {
			t.Errorf("%s twice", id)
		}
		seen[id] = true
	}
	if len(seen) != 3200 {
		t.Errorf("%d of 3200", len(seen))
	}
}
