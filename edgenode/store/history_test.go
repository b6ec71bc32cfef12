package store

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"skerry/replication"
	"skerry/replication/down"
)

// history is what edges have served at which position, of each part of each lane.
type history struct {
	mu       sync.Mutex
	contents map[string][sha256.Size]byte
}

// parts are the documents of each part of environment live, by their subjects' beginnings.
var parts = []struct {
	lane   replication.Lane
	part   Part
	prefix string
}{
	{replication.Normal, Flags, replication.EnvironmentPrefix(replication.Normal, project, "live") + "flag."},
	{replication.Normal, Items, replication.EnvironmentPrefix(replication.Normal, project, "live") + "config."},
	{replication.Normal, Surveys, replication.ProjectPrefix(replication.Normal, project) + "survey."},
	{replication.Normal, Settings, string(replication.ProjectSubject(project))},
	{replication.Urgent, Flags, replication.EnvironmentPrefix(replication.Urgent, project, "live")},
}

// watch looks at every state that an edge serves: no revision falls, and none stands for two contents, on all edges.
func (h *history) watch(e *edge) {
	var mu sync.Mutex
	var last [replication.Lanes]Positions
	e.also = func() {
		mu.Lock()
		defer mu.Unlock()
		_ = e.disk.Read(func(look *Snapshot) error {
			for _, p := range parts {
				at, err := look.Positions(p.lane, project, "live")
				if err != nil {
					return err
				}
				if at[p.part] < last[p.lane][p.part] {
					e.t.Errorf("%s of lane %s fell from %d to %d", p.prefix, p.lane, last[p.lane][p.part], at[p.part])
				}
				last[p.lane][p.part] = at[p.part]
				content := sha256.New()
				err = look.Scan(p.lane, p.prefix, func(s replication.Subject, entry Entry) error {
					_, err := fmt.Fprintf(content, "%s=%q ", s, entry.Body)
					return err
				})
				if err != nil {
					return err
				}
				h.check(e.t, fmt.Sprintf("%s at %d", p.prefix, at[p.part]), [sha256.Size]byte(content.Sum(nil)))
			}
			return nil
		})
	}
}

func (h *history) check(t *testing.T, of string, content [sha256.Size]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if before, seen := h.contents[of]; seen && before != content {
		t.Errorf("%s stands for two contents", of)
	}
	h.contents[of] = content
}

// TestTwoEdgesAndOneHistory does everything at once that TestOneHistoryOneAnswer does one by one, most of it without
// waiting for what was before: publishers follow each other while messages are under way.
func TestTwoEdgesAndOneHistory(t *testing.T) {
	for seed := uint64(1); seed <= 3; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 9))
			w := newWorld(t, r.IntN(4), down.FollowerConfig{Batch: []int{0, 1, 3}[r.IntN(3)], MaxPending: []int{0, 300, 5000}[r.IntN(3)]})
			second := &edge{t: t, fs: vfs.NewMem(), conn: w.connect(), config: down.FollowerConfig{Batch: 2}}
			t.Cleanup(second.stop)
			h := history{contents: map[string][sha256.Size]byte{}}
			h.watch(w.edge)
			h.watch(second)
			w.edge.start()
			for n := range 200 {
				w.ledger.Commit(w.transaction(r, n))
				if r.IntN(5) == 0 {
					<-time.After(time.Duration(r.IntN(3000)) * time.Microsecond)
				}
				w.disturb(r, second, n)
			}
			if second.disk == nil {
				second.start()
			}
			w.settled()
			w.edge = second
			w.settled()
		})
	}
}

// disturb makes something happen now and then.
func (w *world) disturb(r *rand.Rand, second *edge, n int) {
	switch r.IntN(60) {
	case 0:
		second.stop()
	case 1, 2:
		if second.disk == nil {
			second.start()
		}
	case 3:
		restartEdge(w.t, w, n)
	case 4:
		restartStreams(w.t, w, n)
	case 5:
		wipeStreams(w.t, w, n)
	case 6:
		restoreDatabase(w.t, w, n)
	case 7, 8:
		w.stop()
		w.config.Sweep, w.config.Age = 20*time.Millisecond, time.Duration(r.IntN(100))*time.Millisecond+1
		w.publish()
	case 9:
		w.edge.disk.suspect(fmt.Errorf("a test says so: %w", pebble.ErrCorruption))
	}
}
