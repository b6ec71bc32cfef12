package down

import (
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"skerry/replication"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// message is a document as a reader meets it, and whether all is whole after it.
type message struct {
	seq             uint64
	position        replication.Position
	txLast, through replication.Position
	whole           bool
}

func TestReaderStopsWhereTransactionsAreWhole(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		at       replication.Position // where the reader stands
		end      uint64               // the stream's end when asked
		messages []message
		asked    int
	}{
		{"one after the other", 0, 9, []message{{1, 1, 1, 1, true}, {2, 2, 3, 3, false}, {3, 3, 3, 3, true}}, 0},
		{
			// Transaction 1..2 changed a and b, transaction 3..4 then a and c: a's first version is gone.
			"a version was taken out of the stream", 0, 4,
			[]message{{2, 2, 2, 2, false}, {3, 3, 4, 4, false}, {4, 4, 4, 4, true}}, 1,
		},
		{
			// The publisher read 2 when 1 had already been replaced by 4, which it had not sent yet.
			"a version was gone when the publisher read", 0, 1,
			[]message{{1, 2, 2, 4, false}, {2, 3, 3, 4, false}, {3, 4, 4, 4, true}}, 1,
		},
		{
			"a second gap on the way to the end", 0, 3,
			[]message{{1, 2, 2, 2, false}, {3, 4, 4, 4, true}}, 2,
		},
		{
			"the last position of a transaction was replaced", 0, 2,
			[]message{{1, 1, 2, 2, false}, {2, 3, 3, 3, true}}, 1,
		},
		{"going on from a cursor", 7, 9, []message{{8, 8, 8, 8, true}}, 0},
		{"away for a while", 7, 12, []message{{11, 20, 20, 20, false}, {12, 21, 21, 21, true}}, 1},
	} {
		f, asked := fold{at: c.at}, 0
		for i, m := range c.messages {
			d := replication.Document{Position: m.position, TxFirst: m.position, TxLast: m.txLast, Through: m.through}
			whole, err := f.read(&d, m.seq, func() (uint64, error) { asked++; return c.end, nil })
			if err != nil || whole != m.whole {
				t.Errorf("%s: after message %d whole is %v, %v", c.name, i, whole, err)
			}
		}
		if asked != c.asked {
			t.Errorf("%s: the stream was asked %d times, want %d", c.name, asked, c.asked)
		}
	}
}

// A floor at or below the position before the first gap is no news: what was purged had been read.
func TestWhatAFloorMayHaveTakenUnread(t *testing.T) {
	t.Parallel()
	read := func(f *fold, position, txLast replication.Position, seq, end uint64) {
		d := replication.Document{Position: position, TxLast: txLast, Through: txLast}
		if _, err := f.read(&d, seq, func() (uint64, error) { return end, nil }); err != nil {
			t.Error(err)
		}
	}
	for _, c := range []struct {
		name      string
		read      func(f *fold)
		p, floor  replication.Position
		mayBeLost bool
	}{
		{"nothing missing", func(f *fold) { read(f, 8, 8, 8, 8) }, 9, 8, false},
		{"a gap in front of the marker", func(f *fold) { read(f, 8, 9, 8, 8) }, 10, 9, true},
		{"a gap in front of the marker, the floor before it", func(f *fold) { read(f, 8, 9, 8, 8) }, 10, 8, false},
		{"a gap further up", func(f *fold) { read(f, 9, 9, 9, 12) }, 10, 8, true},
		{"of two gaps the first counts", func(f *fold) { read(f, 9, 9, 9, 12); read(f, 11, 11, 11, 12) }, 12, 8, true},
		{"a gap behind which all is whole again", func(f *fold) { read(f, 9, 9, 9, 9) }, 10, 8, false},
		{"the first document of all", func(f *fold) { *f = fold{} }, 10, 9, false},
	} {
		f := fold{at: 7}
		c.read(&f)
		if got := f.missed(c.p, c.floor); got != c.mayBeLost {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestReaderThatCannotAskIsNotWhole(t *testing.T) {
	t.Parallel()
	var f fold
	gone := errors.New("gone")
	if whole, err := f.read(&replication.Document{Position: 5, TxLast: 5}, 5, func() (uint64, error) { return 0, gone }); whole || !errors.Is(err, gone) {
		t.Errorf("%v, %v", whole, err)
	}
}

func TestWhatBreaksAnEpoch(t *testing.T) {
	t.Parallel()
	epoch, other := replication.Epoch{1}, replication.Epoch{2}
	good := Head{Epoch: epoch, Position: 10, Published: 8, Seq: 5, Held: true, Timeline: "00000001", Present: "00000001"}
	last := replication.Document{Epoch: epoch, Position: 8}
	for _, c := range []struct {
		name     string
		bend     func(h *Head, seq, messages *uint64, last *replication.Document, found *bool)
		contains string
	}{
		{"nothing amiss", func(*Head, *uint64, *uint64, *replication.Document, *bool) {}, ""},
		{"more than was recorded", func(_ *Head, seq, _ *uint64, last *replication.Document, _ *bool) { *seq, last.Position = 6, 9 }, ""},
		{"first start", func(h *Head, _, _ *uint64, _ *replication.Document, _ *bool) { h.Timeline = "" }, "declared"},
		{"promoted replica", func(h *Head, _, _ *uint64, _ *replication.Document, _ *bool) { h.Present = "00000002" }, "timeline"},
		{"stream cut short", func(_ *Head, seq, _ *uint64, _ *replication.Document, _ *bool) { *seq = 4 }, "ends before"},
		{"stream emptied", func(_ *Head, _, n *uint64, _ *replication.Document, found *bool) { *n, *found = 0, false }, "emptied"},
		{"nothing published yet", func(h *Head, _, n *uint64, _ *replication.Document, found *bool) {
			*n, *found, h.Held = 0, false, false
		}, ""},
		{"foreign message", func(_ *Head, _, _ *uint64, _ *replication.Document, found *bool) { *found = false }, "no document"},
		{"other epoch", func(_ *Head, _, _ *uint64, last *replication.Document, _ *bool) { last.Epoch = other }, "another epoch"},
		{"older than published", func(_ *Head, _, _ *uint64, last *replication.Document, _ *bool) { last.Position = 7 }, "older"},
		{"a new epoch that was not finished", func(h *Head, _, _ *uint64, _ *replication.Document, _ *bool) { h.Unpurged = true }, "not finished"},
	} {
		h, seq, messages, d, found := good, uint64(5), uint64(3), last, true
		c.bend(&h, &seq, &messages, &d, &found)
		got := breach(h, seq, messages, d, found)
		if (got == "") != (c.contains == "") || !strings.Contains(got, c.contains) {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

func TestOneStrayHeartbeatEndsNoSession(t *testing.T) {
	t.Parallel()
	epoch, other := replication.Epoch{1}, replication.Epoch{2}
	type beat struct {
		of   replication.Epoch
		says uint64
		read uint64
		ends bool
	}
	for name, beats := range map[string][]beat{
		"in step":                        {{epoch, 5, 5, false}, {epoch, 6, 6, false}},
		"late heartbeat":                 {{epoch, 5, 5, false}, {epoch, 5, 9, false}, {epoch, 9, 9, false}},
		"stream made anew":               {{epoch, 900, 900, false}, {epoch, 3, 900, true}},
		"one of another epoch":           {{epoch, 5, 5, false}, {other, 5, 5, false}, {epoch, 5, 5, false}, {other, 5, 5, false}},
		"two of another epoch":           {{other, 5, 5, false}, {other, 6, 5, true}},
		"behind, but reading":            {{epoch, 10, 1, false}, {epoch, 20, 2, false}, {epoch, 30, 3, false}, {epoch, 40, 4, false}, {epoch, 50, 5, false}, {epoch, 60, 6, false}},
		"behind, and nothing is read":    {{epoch, 10, 1, false}, {epoch, 10, 1, false}, {epoch, 10, 1, false}, {epoch, 10, 1, false}, {epoch, 10, 1, false}, {epoch, 10, 1, true}},
		"nothing read yet, epoch is new": {{other, 0, 0, false}},
	} {
		var c contradiction
		for i, b := range beats {
			err := c.judge(Heartbeat{Epoch: b.of.String(), Seq: b.says}, epoch, b.read)
			if (err != nil) != b.ends {
				t.Errorf("%s: heartbeat %d: %v", name, i, err)
			}
		}
	}
}
