package buffer

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"skerry/replication/up"
)

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
