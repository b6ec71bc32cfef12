package buffer

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"skerry/replication/tally"
	"skerry/replication/up"
)

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
