package faults

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"skerry/replication/up"
)

var (
	seeds    = flag.Int("seeds", 3, "how many seeds to try")
	only     = flag.Int("seed", -1, "try this seed alone")
	talk     = flag.Bool("talk", false, "show the parts' own log")
	drainFor = 90 * time.Second
)

func TestMain(m *testing.M) {
	flag.Parse()
	if !*talk {
		slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	}
	code := m.Run()
	// The server in this process keeps a clock of its own, and ends a deleted stream's flusher late.
	err := goleak.Find(goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		// A client whose publisher is cleaned up while it begins waits for ever on what was cleaned.
		goleak.IgnoreAnyFunction("github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect"))
	if err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// TestEveryAnsweredOperationIsStoredOnce breaks edges, shippers, receivers, streams and
// the database at random, then lets all of it be well and drain.
func TestEveryAnsweredOperationIsStoredOnce(t *testing.T) {
	list := make([]int, *seeds)
	for i := range list {
		list[i] = i
	}
	if *only >= 0 {
		list = []int{*only}
	}
	database := startDatabase(t)
	for _, seed := range list {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { tryOne(t, database, uint64(seed)) })
	}
}

func tryOne(t *testing.T, database *database, seed uint64) {
	started := time.Now()
	w := newWorld(t, database, seed)
	defer w.end()
	w.rage(8 + w.rng.IntN(8))
	w.heal()
	w.drain()
	w.compare()
	t.Logf("seed %d: %s; %d operations answered, %d in doubt; %s", seed, strings.Join(w.did, " "),
		w.ledger.answered(), w.ledger.doubtful(), time.Since(started).Round(10*time.Millisecond))
}

// rage does n faults while every edge is being written to.
func (w *world) rage(n int) {
	ctx, stop := context.WithCancel(w.ctx)
	done := make(chan struct{})
	for _, e := range w.edges {
		go func() {
			e.write(ctx, w.ledger)
			done <- struct{}{}
		}()
	}
	faults := []struct {
		name   string
		weight int
		do     func()
	}{
		{"edge-crash", 3, func() { w.anEdge().crash(w.rng) }},
		{"shipper-restart", 2, func() { e := w.anEdge(); e.stopShipper(); e.startShipper() }},
		{"receiver-restart", 2, func() { r := w.aReceiver(); r.stop(); r.start() }},
		{"receiver-gone", 1, func() { w.aReceiver().stop() }},
		{"nats-restart", 2, func() { w.nats.Stop(); w.wait(200); w.nats.Start() }},
		{"stream-purged", 1, w.purge},
		{"stream-deleted", 1, w.deleteStream},
		{"message-lost", 2, w.loseMessage},
		{"postgres-restart", 1, func() { w.database.stop(); w.wait(300); w.database.start() }},
		{"postgres-killed", 1, func() { w.database.kill(); w.wait(300); w.database.start() }},
		{"sessions-killed", 2, w.killSessions},
	}
	var deck []int
	for i, f := range faults {
		deck = append(deck, slices.Repeat([]int{i}, f.weight)...)
	}
	for range n {
		w.wait(150)
		f := faults[deck[w.rng.IntN(len(deck))]]
		w.did = append(w.did, f.name)
		f.do()
	}
	w.wait(100)
	stop()
	for range w.edges {
		<-done
	}
}

// wait lets time pass, up to so many milliseconds: faults have to fall at random times.
func (w *world) wait(ms int) {
	timer := time.NewTimer(time.Duration(w.rng.IntN(ms*1000)) * time.Microsecond)
	defer timer.Stop()
	<-timer.C
}

// heal makes sure that every part runs.
func (w *world) heal() {
	for _, r := range w.receivers {
		r.start()
	}
}

// drain waits until no edge holds anything that is not stored.
func (w *world) drain() {
	w.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(drainFor)
	for {
		pending := uint64(0)
		for _, e := range w.edges {
			for _, total := range e.buffer.Totals() {
				pending += total.Pending
			}
		}
		if pending == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			for _, e := range w.edges {
				w.t.Logf("edge %s: %+v\nshipper: %+v", e.id, e.buffer.Totals(), e.shipper.Status())
			}
			for _, r := range w.receivers {
				w.t.Logf("receiver %s: %+v", r.name, r.receiver.Status())
			}
			w.t.Fatalf("%d operations are still pending after %s; faults: %s", pending, drainFor, strings.Join(w.did, " "))
		}
	}
}

// compare holds what is stored against what was answered.
func (w *world) compare() {
	w.t.Helper()
	found := w.count(`SELECT event_name, count(*) FROM events GROUP BY 1`)
	w.ledger.check(w.t, "event", found)
	// Of the events that share an insert_id, one is stored.
	w.ledger.check(w.t, "insert_id", w.count(`SELECT insert_id, count(*) FROM events WHERE insert_id IS NOT NULL GROUP BY 1`))
	w.ledger.check(w.t, "alias", w.count(`SELECT alias_id, count(*) FROM aliases GROUP BY 1`))
	w.ledger.check(w.t, "trait", w.count(`SELECT name, count(*) FROM profile_values GROUP BY 1`))
	w.ledger.check(w.t, "letter", w.count(`SELECT convert_from(payload, 'UTF8'), count(*) FROM dead_letters GROUP BY 1`))
	w.balance()
}

// balance checks the books: what an edge's log ever took is what the store has taken.
func (w *world) balance() {
	w.t.Helper()
	edges, err := w.receivers[0].store.Lag(w.ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range w.edges {
		for _, total := range e.buffer.Totals() {
			i := slices.IndexFunc(edges, func(l lag) bool { return l.EdgeID == e.id })
			if i < 0 {
				w.t.Errorf("the books know nothing of edge %s", e.id)
				continue
			}
			for _, lane := range edges[i].Lanes {
				if lane.Lane != total.Lane.String() {
					continue
				}
				taken := lane.Stored + lane.Duplicate + lane.Erased + lane.Dead
				if lane.Received != taken+lane.Pending {
					w.t.Errorf("books of %s %s do not balance: %+v", e.id, lane.Lane, lane)
				}
				// A crash may have taken back from the disk what was already on its way; nobody was answered for it.
				if uint64(taken) < total.Received || uint64(taken) > total.Received+e.lost[total.Lane] {
					w.t.Errorf("edge %s has received %d of lane %s, the store has taken %d", e.id, total.Received, lane.Lane, taken)
				}
			}
		}
	}
}

func (w *world) count(sql string) map[string]int {
	w.t.Helper()
	rows, err := w.receivers[0].db.App.Query(w.ctx, sql)
	if err != nil {
		w.t.Fatal(err)
	}
	counts := map[string]int{}
	var name string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&name, &n}, func() error { counts[name] = n; return nil }); err != nil {
		w.t.Fatal(err)
	}
	return counts
}

func (w *world) purge() {
	stream, err := w.js.Stream(w.ctx, w.aLane().Stream())
	if err == nil {
		err = stream.Purge(w.ctx)
	}
	w.may(err)
}

func (w *world) deleteStream() { w.may(w.js.DeleteStream(w.ctx, w.aLane().Stream())) }

// loseMessage removes one message out of the middle of a stream.
func (w *world) loseMessage() {
	stream, err := w.js.Stream(w.ctx, up.LaneEvent.Stream())
	if err == nil {
		state := stream.CachedInfo().State
		if state.Msgs > 0 {
			err = stream.DeleteMsg(w.ctx, state.FirstSeq+w.rng.Uint64N(state.LastSeq-state.FirstSeq+1))
		}
	}
	w.may(err)
}

func (w *world) aLane() up.Lane { return up.Lanes[w.rng.IntN(3)] }

// may takes the error of a fault that could not be done just now: another is in the way.
func (w *world) may(err error) {
	if err != nil {
		w.did[len(w.did)-1] += "(not)"
	}
}
