package buffer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"skerry/replication/tally"
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

func TestWhatIsStoredIsFreedAndCountedForEver(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	b := open(t, fs)
	for i := range 10 {
		must(t, b.Append(block(up.LaneEvent, fmt.Sprint("e", i), "x")))
	}
	in := b.Incarnation()
	must(t, b.Stored(in, up.LaneEvent, 7)) // inside the fourth block
	b.freeAll()
	equal(t, "left", drain(t, b, in, up.LaneEvent, 8, 1), []string{"x", "e4", "x", "e5", "x", "e6", "x", "e7", "x", "e8", "x", "e9", "x"})
	batch, _, err := b.Read(context.Background(), in, up.LaneEvent, 1, 1)
	if must(t, err); batch.First != 7 {
		t.Errorf("what is left begins at %d, want 7", batch.First)
	}
	check := func(b *Buffer, received, pending uint64) {
		t.Helper()
		for _, lane := range b.Totals() {
			if lane.Lane == up.LaneEvent && (lane.Received != received || lane.Pending != pending) {
				t.Errorf("totals %+v, want %d received, %d pending", lane, received, pending)
			}
		}
	}
	check(b, 20, 13)
	must(t, b.Stored(in, up.LaneEvent, 3)) // late: changes nothing
	check(b, 20, 13)
	must(t, b.Close())
	b = open(t, fs)
	check(b, 20, 13)
	must(t, b.Append(block(up.LaneEvent, "f")))
	must(t, b.Stored(in, up.LaneEvent, 1000)) // more than there is
	b.freeAll()
	check(b, 21, 1)
	if n := keys(t, b, prefixLog); n != 1 {
		t.Errorf("%d log entries left, want 1", n)
	}
	must(t, b.Close())
	b = open(t, fs)
	check(b, 21, 1)
	if len(b.lives) != 2 {
		t.Errorf("%d incarnations, want the last two", len(b.lives))
	}
	must(t, b.Stored(up.Incarnation{Ordinal: 1}, up.LaneEvent, 1)) // another one that claims the ordinal
	check(b, 21, 1)
}

func keys(t testing.TB, b *Buffer, prefix byte) (n int) {
	t.Helper()
	must(t, scan(b.db, []byte{prefix}, after([]byte{prefix}), func(_, _ []byte) error { n++; return nil }))
	return n
}

func TestFreedBytesComeBack(t *testing.T) {
	t.Parallel()
	b := open(t, vfs.NewMem(), func(c *Config) { c.MaxBytes = 1 << 20 })
	big := func() []byte { return blockOf(up.LaneEvent, projectA, 200<<10, "e") }
	n := 0
	for ; ; n++ {
		err := b.Append(big())
		if errors.Is(err, ErrFull) {
			break
		}
		must(t, err)
	}
	if n != 5 {
		t.Errorf("%d blocks of 200 KiB in 1 MiB, want 5", n)
	}
	must(t, b.Stored(b.Incarnation(), up.LaneEvent, 2))
	b.freeAll()
	must(t, b.Append(big()))
	must(t, b.Append(big()))
	if err := b.Append(big()); !errors.Is(err, ErrFull) {
		t.Errorf("full again: %v", err)
	}
	equal(t, "what was answered", drain(t, b, b.Incarnation(), up.LaneEvent, 3, 1), []string{"e", "e", "e", "e", "e"})
}

func TestReserveOfTheDiskIsLeftAlone(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1<<30 + 1<<20, TotalBytes: 10 << 30})
	now := noon
	b := open(t, fs, func(c *Config) { c.Now = func() time.Time { return now } })
	must(t, b.Append(block(up.LaneEvent, "e1")))
	fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1<<30 - 1, TotalBytes: 10 << 30})
	now = now.Add(time.Second)
	if err := b.Append(block(up.LaneEvent, "e2")); !errors.Is(err, ErrFull) {
		t.Errorf("below the reserve: %v", err)
	}
	if err := b.NewSpool().Block(block(up.LaneEvent, "e2")); !errors.Is(err, ErrFull) {
		t.Errorf("spool below the reserve: %v", err)
	}
	fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 2 << 30, TotalBytes: 10 << 30})
	now = now.Add(time.Second)
	must(t, b.Append(block(up.LaneEvent, "e3")))
	equal(t, "stored", everything(t, b, up.LaneEvent), []string{"e1", "e3"})
}

func TestSecondProcessIsRefused(t *testing.T) {
	t.Parallel()
	for name, fs := range map[string]vfs.FS{"memory": vfs.NewMem(), "disk": vfs.Default} {
		cfg := Config{Dir: t.TempDir() + "/buffer", Edge: "edge-1", FS: fs, Log: quiet()}
		first, err := Open(cfg)
		must(t, err)
		must(t, first.Append(block(up.LaneEvent, "e1")))
		if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "in use by another process") {
			t.Errorf("%s: second: %v", name, err)
		}
		must(t, first.Append(block(up.LaneEvent, "e2")))
		must(t, first.Close())
		again, err := Open(cfg)
		must(t, err)
		equal(t, name, everything(t, again, up.LaneEvent), []string{"e1", "e2"})
		if len(again.Status().Damaged) != 0 {
			t.Errorf("%s: set aside %v", name, again.Status().Damaged)
		}
		must(t, again.Close())
	}
}

func TestDamagedStoreIsSetAside(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(name string, data []byte) []byte{
		"manifest flipped": func(n string, d []byte) []byte { return when(strings.HasPrefix(n, "MANIFEST"), flip(d), d) },
		"manifest gone":    func(n string, d []byte) []byte { return when(strings.HasPrefix(n, "MANIFEST"), nil, d) },
		"marker gone":      func(n string, d []byte) []byte { return when(strings.HasPrefix(n, "marker.manifest"), nil, d) },
		"table flipped":    func(n string, d []byte) []byte { return when(strings.HasSuffix(n, ".sst"), flip(d), d) },
		"table gone":       func(n string, d []byte) []byte { return when(strings.HasSuffix(n, ".sst"), nil, d) },
	} {
		fs := vfs.NewMem()
		b := open(t, fs)
		for i := range 2000 {
			must(t, b.Append(blockOf(up.LaneEvent, projectA, 100, fmt.Sprint("e", i))))
		}
		must(t, b.db.Flush())
		must(t, b.Close())
		names, err := fs.List("data/buffer")
		must(t, err)
		for _, n := range names {
			rewrite(t, fs, "data/buffer/"+n, func(d []byte) []byte { return damage(n, d) })
		}
		b = open(t, fs)
		aside := b.Status().Damaged
		if len(aside) != 1 {
			t.Errorf("%s: set aside %v", name, aside)
			continue
		}
		if left, err := fs.List(aside[0]); err != nil || len(left) < len(names)-1 {
			t.Errorf("%s: %d of %d files kept, %v", name, len(left), len(names), err)
		}
		must(t, b.Append(block(up.LaneEvent, "new")))
		equal(t, name, everything(t, b, up.LaneEvent), []string{"new"})
	}
}

func TestDamageFoundWhileRunningIsReportedAndSetAsideAtTheNextStart(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	b := open(t, fs)
	must(t, b.Append(block(up.LaneEvent, "old")))
	must(t, b.db.Flush())
	b.reportDamage("000006.sst", errors.New("checksum mismatch"))
	b.reportDamage("000006.sst", errors.New("checksum mismatch"))
	if d := b.Status().Damaged; len(d) != 1 || !strings.Contains(d[0], "000006.sst") {
		t.Errorf("status tells %v", d)
	}
	must(t, b.Append(block(up.LaneEvent, "more")))
	must(t, b.Close())
	b = open(t, fs)
	if d := b.Status().Damaged; len(d) != 1 || !strings.Contains(d[0], ".damaged-") {
		t.Errorf("status tells %v", d)
	}
	equal(t, "new store", everything(t, b, up.LaneEvent), nil)
}

func when(is bool, a, b []byte) []byte {
	if is {
		return a
	}
	return b
}

func flip(d []byte) []byte {
	d = bytes.Clone(d)
	for i := range d {
		d[i] ^= 0x55
	}
	return d
}

func rewrite(t *testing.T, fs vfs.FS, path string, change func([]byte) []byte) {
	t.Helper()
	f, err := fs.Open(path)
	must(t, err)
	data, err := io.ReadAll(f)
	must(t, err)
	must(t, f.Close())
	changed := change(data)
	if changed == nil {
		must(t, fs.Remove(path))
		return
	}
	g, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	must(t, err)
	_, err = g.Write(changed)
	must(t, err)
	must(t, g.Close())
}

func TestNewerFormatIsRefusedAndLeftAlone(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	b := open(t, fs)
	must(t, b.db.Set([]byte{prefixFormat}, u64(format+1), pebble.Sync))
	must(t, b.Close())
	if _, err := Open(b.cfg); !errors.Is(err, errNewerFormat) {
		t.Errorf("got %v", err)
	}
	if names, err := fs.List("data"); err != nil || len(names) != 1 {
		t.Errorf("folder holds %v, %v", names, err)
	}
}

// Pebble has no type for this error, so it is known by its text, which may change with a version of Pebble.
func TestNewerFormatOfPebbleIsRefusedAndLeftAlone(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	b := open(t, fs)
	must(t, b.Close())
	names, err := fs.List(b.cfg.Dir)
	must(t, err)
	i := slices.IndexFunc(names, func(name string) bool { return strings.HasPrefix(name, "marker.format-version.") })
	if i < 0 {
		t.Fatalf("no marker of the format among %v", names)
	}
	newer := strings.TrimSuffix(names[i], path.Ext(names[i])) + ".999"
	must(t, fs.Rename(path.Join(b.cfg.Dir, names[i]), path.Join(b.cfg.Dir, newer)))
	if _, err := Open(b.cfg); !errors.Is(err, errNewerFormat) {
		t.Errorf("got %v", err)
	}
	if names, err := fs.List("data"); err != nil || len(names) != 1 {
		t.Errorf("folder holds %v, %v", names, err)
	}
}

func TestUsageOfOldMonthsIsNotToldForEver(t *testing.T) {
	t.Parallel()
	var month atomic.Int64
	b := open(t, vfs.NewMem(), func(c *Config) {
		c.Now = func() time.Time { return time.Date(2026, time.Month(month.Load()), 15, 12, 0, 0, 0, time.UTC) }
	})
	for range 7 {
		month.Add(1) // without a restart
		must(t, b.Add(projectA, tally.Handshakes, b.cfg.Now(), 1))
	}
	for _, c := range b.Counts() {
		if c.Month.Before(time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)) {
			t.Errorf("in July, the count of %s is still told", c.Month.Format("2006-01"))
		}
	}
	if n := len(b.Counts()); n != 4 {
		t.Errorf("%d months are told, want April to July", n)
	}
}

func TestUsageGrowsWithWhatIsAcceptedAndSurvivesRestart(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	b := open(t, fs)
	must(t, b.Append(block(up.LaneEvent, "e1", "e2"), block(up.LaneAlias, "a"), block(up.LanePeople, "p")))
	must(t, b.Append(blockOf(up.LaneEvent, projectB, 0, "e3")))
	must(t, b.Add(projectA, tally.Handshakes, noon, 7))
	s := b.NewSpool()
	must(t, s.Block(block(up.LaneEvent, "e4")))
	must(t, s.Block(block(up.LaneEvent, "e5", "e6")))
	if n := b.Used(projectA, tally.Events, noon); n != 2 {
		t.Errorf("unfinished spool counts: %d, want 2", n)
	}
	must(t, s.Commit())
	source := b.Source()
	if !strings.HasPrefix(source, "edge-1.") || len(source) != len("edge-1.")+16 {
		t.Errorf("source %q", source)
	}
	for range 2 {
		for _, c := range []struct {
			project [16]byte
			metric  tally.Metric
			want    uint64
		}{{projectA, tally.Events, 5}, {projectB, tally.Events, 1}, {projectA, tally.Handshakes, 7}, {projectB, tally.Handshakes, 0}} {
			if n := b.Used(c.project, c.metric, noon); n != c.want {
				t.Errorf("%x kind %d: %d, want %d", c.project[0], c.metric, n, c.want)
			}
		}
		if n := b.Used(projectA, tally.Events, noon.AddDate(0, 0, 1)); n != 0 {
			t.Errorf("next month: %d", n)
		}
		must(t, b.Close())
		b = open(t, fs)
		if b.Source() != source {
			t.Errorf("source became %q", b.Source())
		}
	}
	if list := b.Counts(); len(list) != 3 || !list[0].Month.Equal(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("usage %+v", list)
	}
	must(t, b.Close())
	b = open(t, fs, func(c *Config) { c.Now = func() time.Time { return noon.AddDate(0, 4, 0) } })
	if list := b.Counts(); len(list) != 0 {
		t.Errorf("four months later: %+v", list)
	}
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

func TestTimeToFullFollowsThePaceOfTheLastMinute(t *testing.T) {
	t.Parallel()
	var g growth
	if in := g.fullIn(5, 10); in != nil {
		t.Errorf("before the first second: %v", *in)
	}
	for i := range int64(200) {
		g.sample(i * 100) // 100 bytes a second
	}
	if in := g.fullIn(20_000, 50_000); in == nil || *in != 300 {
		t.Errorf("30,000 bytes at 100 a second: %v, want 300 s", in)
	}
	if in := g.fullIn(14_000, 50_000); in != nil {
		t.Errorf("no growth: %v", *in)
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

func TestSpooledPayloadsArriveWhole(t *testing.T) {
	t.Parallel()
	uploads := map[string][]byte{}
	fail := errors.New("write plane is away")
	b := open(t, vfs.NewMem(), func(c *Config) {
		c.Upload = func(_ context.Context, key string, size int64, sum [32]byte, r io.Reader) error {
			if fail != nil {
				return fail
			}
			data, err := io.ReadAll(r)
			if int64(len(data)) != size || sha256.Sum256(data) != sum {
				t.Errorf("uploaded %d bytes, announced %d, or another sum", len(data), size)
			}
			uploads[key] = data
			return err
		}
	})
	s := b.NewSpool()
	payload := func(n int) (string, up.Span) {
		properties := `{"x":"` + strings.Repeat("y", n) + `"}`
		return `{"properties":` + properties + `}`, up.Span{Offset: 14, Length: int64(len(properties))}
	}
	write := func(text string) {
		for rest := text; len(rest) > 0; {
			n := min(len(rest), 500_000)
			must(t, s.Piece([]byte(rest[:n])))
			rest = rest[n:]
		}
	}
	must(t, s.Block(block(up.LaneEvent, "e1")))
	write("dropped")
	must(t, s.DropPieces())
	inlined, at := payload(2 << 20)
	write(inlined)
	must(t, s.Large(header(up.LaneEvent, projectA), up.Operation{DistinctID: []byte("e2"), EventName: []byte("n")}, at, up.Span{}))
	must(t, s.Block(block(up.LaneEvent, "e3")))
	huge, hugeAt := payload(17 << 20)
	write(huge)
	must(t, s.Large(header(up.LaneEvent, projectA), up.Operation{DistinctID: []byte("e4"), EventName: []byte("n")}, hugeAt, up.Span{}))
	write(inlined)
	must(t, s.Large(header(up.LanePeople, projectA), up.Operation{DistinctID: []byte("p1"), Unstorable: up.ReasonNUL}, at, up.Span{}))
	must(t, s.Block(block(up.LaneEvent, "e5")))
	must(t, s.Commit())

	in := b.Incarnation()
	equal(t, "up to the failing upload", ids(t, b, in, 1, 3), []string{"e1", "e2", "e3"})
	if _, _, err := b.Read(context.Background(), in, up.LaneEvent, 4, 1); !errors.Is(err, fail) {
		t.Errorf("the upload's fault: %v", err)
	}
	fail = nil
	equal(t, "all", drain(t, b, in, up.LaneEvent, 1, up.PackBudget), []string{"e1", "e2", "e3", "e4", "e5"})
	if op := one(t, b, in, up.LaneEvent, 2); string(op.Properties) != inlined[14:len(inlined)-1] {
		t.Error("payload under 16 MiB is not as sent")
	}
	op := one(t, b, in, up.LaneEvent, 4)
	key := fmt.Sprintf("ingest/edge-1/%x/event/4", in.ID)
	if op.Ref == nil || op.Ref.Key != key || string(uploads[key]) != huge || op.Ref.Properties != hugeAt || len(uploads) != 1 {
		t.Errorf("reference %+v of %d uploads", op.Ref, len(uploads))
	}
	if op := one(t, b, in, up.LanePeople, 1); op.Unstorable != up.ReasonNUL || string(op.Raw) != inlined {
		t.Error("unstorable payload is not as sent")
	}
	must(t, b.Stored(in, up.LaneEvent, 5))
	b.freeAll()
	if n := keys(t, b, prefixPiece); n != 5 { // those of the people lane
		t.Errorf("%d pieces left, want 5", n)
	}
	must(t, b.Stored(in, up.LanePeople, 1))
	b.freeAll()
	if n := keys(t, b, prefixPiece) + keys(t, b, prefixChunk) + keys(t, b, prefixSpooled); n != 0 || b.Status().Bytes != 0 {
		t.Errorf("%d keys and %d bytes left", n, b.Status().Bytes)
	}
}

// The centre removes an uploaded payload when it has stored it. A database that is taken back in time wants it again.
func TestPayloadOfWhatWasStoredIsUploadedAgain(t *testing.T) {
	t.Parallel()
	uploads := 0
	b := open(t, vfs.NewMem(), func(c *Config) {
		c.Upload = func(_ context.Context, _ string, _ int64, _ [32]byte, r io.Reader) error {
			uploads++
			_, err := io.Copy(io.Discard, r)
			return err
		}
	})
	s := b.NewSpool()
	for range 2 { // in one entry, of which nothing is freed before all is stored
		for range 17 {
			must(t, s.Piece(make([]byte, 1<<20)))
		}
		must(t, s.Large(header(up.LaneEvent, projectA), up.Operation{DistinctID: []byte("u1"), EventName: []byte("n")}, up.Span{}, up.Span{}))
	}
	must(t, s.Commit())
	in := b.Incarnation()
	for _, want := range []int{1, 1} { // once, however often it is read because the stream did not take it
		if one(t, b, in, up.LaneEvent, 1); uploads != want {
			t.Errorf("%d uploads, want %d", uploads, want)
		}
	}
	must(t, b.Stored(in, up.LaneEvent, 1))
	if one(t, b, in, up.LaneEvent, 1); uploads != 2 {
		t.Errorf("%d uploads after it was stored and is wanted again, want 2", uploads)
	}
}

func ids(t *testing.T, b *Buffer, in up.Incarnation, from, to uint64) (out []string) {
	for n := from; n <= to; n++ {
		op := one(t, b, in, up.LaneEvent, n)
		out = append(out, string(op.DistinctID))
	}
	return out
}

// one reads a single operation.
func one(t *testing.T, b *Buffer, in up.Incarnation, lane up.Lane, n uint64) (op up.Operation) {
	t.Helper()
	batch, ok, err := b.Read(context.Background(), in, lane, n, 1)
	must(t, err)
	blocks, err := batch.Blocks()
	must(t, err)
	if !ok || len(blocks) == 0 {
		t.Fatalf("nothing at %d", n)
	}
	ops := blocks[0].Operations()
	for ops.Next(&op) {
		if ops.Number() == n {
			return op
		}
	}
	t.Fatalf("no number %d: %v", n, ops.Err())
	return op
}

func TestUnfinishedSpoolIsGoneAfterAStart(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	b := open(t, fs)
	kept, lost := b.NewSpool(), b.NewSpool()
	must(t, kept.Block(block(up.LaneEvent, "kept")))
	must(t, lost.Block(block(up.LaneEvent, "lost")))
	must(t, lost.Piece([]byte("lost")))
	must(t, kept.Commit())
	must(t, b.Close())
	b = open(t, fs)
	equal(t, "events", everything(t, b, up.LaneEvent), []string{"kept"})
	if c, p := keys(t, b, prefixChunk), keys(t, b, prefixPiece); c != 1 || p != 0 {
		t.Errorf("%d chunks and %d pieces, want 1 and 0", c, p)
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
