package identity_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"skerry/replication/up"
	"skerry/writeplane/blobs"
	"skerry/writeplane/identity"
	"skerry/writeplane/ingest"
	"skerry/writeplane/lease"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

var at = time.Now().UTC().Truncate(time.Second)

// edges sends operations to a real store, each edge in its own lanes.
type edges struct {
	store   *ingest.Store
	db      *postgres.DB
	worker  *identity.Worker
	project uuid.UUID

	mu   sync.Mutex
	next map[string]uint64
}

func newEdges(t testing.TB) *edges {
	t.Helper()
	db := dbtest.New(t)
	place, err := blobs.Open(t.Context(), blobs.Config{URL: t.TempDir()}, db.App)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = place.Close() })
	store, err := ingest.NewStore(ingest.Config{}, db, place, func(context.Context, pgx.Tx, []ingest.CrashRow) ([]ingest.BadCrash, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	return &edges{store: store, db: db, worker: identity.NewWorker(db.App, lease.New(db.App, t.Name())), project: uuid.New(), next: map[string]uint64{}}
}

func (e *edges) send(t testing.TB, edge string, lane up.Lane, received time.Time, ops ...up.Operation) {
	t.Helper()
	e.mu.Lock()
	key := fmt.Sprint(edge, lane)
	first := e.next[key] + 1
	e.next[key] += uint64(len(ops))
	e.mu.Unlock()
	var w up.BlockWriter
	w.Reset(up.Header{Lane: lane, Environment: up.Live, ReceivedAt: received.UnixMicro(), Project: e.project})
	for i := range ops {
		w.Append(&ops[i])
	}
	b := up.Batch{Incarnation: up.Incarnation{ID: [16]byte{1}, Ordinal: 1}, Lane: lane, First: first, Count: uint32(len(ops)), Data: w.Bytes()}
	up.SetFirst(b.Data, first)
	outcome, err := e.store.Store(t.Context(), edge, []up.Batch{b})
	if err != nil || outcome.Taken != 1 {
		t.Errorf("store %s: %+v, %v", lane, outcome, err)
	}
}

func event(name, distinct string, anon *string) up.Operation {
	op := up.Operation{EventName: []byte(name), DistinctID: []byte(distinct), Timestamp: at.UnixMicro()}
	if anon != nil {
		op.AnonID = []byte(*anon)
	}
	return op
}

func link(alias, distinct string) up.Operation {
	return up.Operation{AliasID: []byte(alias), DistinctID: []byte(distinct), Timestamp: at.UnixMicro()}
}

func (e *edges) events(t testing.TB) (got [][4]*string) {
	t.Helper()
	rows, err := e.db.App.Query(t.Context(), `SELECT event_name, distinct_id, anon_id, sent_anon_id FROM events WHERE project_id = $1 ORDER BY event_name`, e.project)
	if err != nil {
		t.Fatal(err)
	}
	got, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r [4]*string, err error) {
		return r, row.Scan(&r[0], &r[1], &r[2], &r[3])
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func (e *edges) count(t testing.TB, sql string, args ...any) int {
	t.Helper()
	return dbtest.One[int](t, e.db.App, sql, args...)
}

func (e *edges) work(t testing.TB) {
	t.Helper()
	if err := e.worker.Work(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestHistoryFollowsTheVectors(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/history.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []struct {
			Name  string `json:"name"`
			Steps []struct {
				Alias *[2]string  `json:"alias"`
				Event *[3]*string `json:"event"`
			} `json:"steps"`
			Events [][4]*string `json:"events"`
		} `json:"cases"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	e := newEdges(t)
	for _, c := range file.Cases {
		for _, workOften := range []bool{false, true} {
			e.project = uuid.New()
			for i, step := range c.Steps {
				edge := fmt.Sprint("edge-", i%2)
				if step.Alias != nil {
					e.send(t, edge, up.LaneAlias, at, link(step.Alias[0], step.Alias[1]))
				} else {
					e.send(t, edge, up.LaneEvent, at, event(*step.Event[0], *step.Event[1], step.Event[2]))
				}
				if workOften {
					e.work(t)
				}
			}
			e.work(t)
			got, _ := json.Marshal(e.events(t))
			want, _ := json.Marshal(c.Events)
			if string(got) != string(want) {
				t.Errorf("%s: events %s, want %s", c.Name, got, want)
			}
		}
	}
}

func TestNothingEscapesBetweenEventsAndAliases(t *testing.T) {
	t.Parallel()
	e := newEdges(t)
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	worked := make(chan struct{})
	go func() {
		defer close(worked)
		_ = e.worker.Run(ctx)
	}()
	const ids, rounds = 20, 10
	for edge := range 3 {
		running.Go(func() {
			for range rounds {
				var ops []up.Operation
				for i := range ids {
					ops = append(ops, event("e", fmt.Sprint("a", i), nil))
				}
				e.send(t, fmt.Sprint("edge-", edge), up.LaneEvent, at.AddDate(0, 0, -edge), ops...)
			}
		})
	}
	running.Go(func() {
		for i := range ids {
			e.send(t, "edge-0", up.LaneAlias, at, link(fmt.Sprint("a", i), fmt.Sprint("u", i)))
			if i%2 == 0 {
				e.send(t, "edge-0", up.LaneAlias, at, link(fmt.Sprint("u", i), fmt.Sprint("v", i)))
			}
		}
	})
	running.Wait()
	stop()
	<-worked
	e.work(t)
	if n := e.count(t, `SELECT count(*) FROM events WHERE distinct_id LIKE 'a%' OR anon_id NOT LIKE 'a%'
		OR substr(distinct_id, 2) <> substr(anon_id, 2) OR (substr(distinct_id, 2)::int % 2 = 0) <> (distinct_id LIKE 'v%')`); n != 0 {
		t.Errorf("%d events have the wrong identity", n)
	}
	if n := e.count(t, `SELECT count(*) FROM events`); n != 3*ids*rounds {
		t.Errorf("%d events", n)
	}
	if n := e.count(t, `SELECT count(*) FROM rewrites`); n != 0 {
		t.Errorf("%d rewrites are left", n)
	}
}

func TestRewritingCanBeKilledAnywhere(t *testing.T) {
	t.Parallel()
	e := newEdges(t)
	for day := range 3 {
		var ops []up.Operation
		for range 3000 {
			ops = append(ops, event("e", "anon", nil))
		}
		e.send(t, "edge-0", up.LaneEvent, at.AddDate(0, 0, -day), ops...)
	}
	e.send(t, "edge-0", up.LaneAlias, at, link("anon", "user"))
	for try := 0; e.count(t, `SELECT count(*) FROM rewrites`) > 0; try++ {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(try+1)*15*time.Millisecond)
		_ = e.worker.Work(ctx) // killed, at another place each time
		cancel()
		if try > 200 {
			t.Fatal("rewriting does not come to an end")
		}
	}
	if n := e.count(t, `SELECT count(*) FROM events WHERE distinct_id = 'user' AND anon_id = 'anon' AND rewritten`); n != 9000 {
		t.Errorf("%d of 9000 events are rewritten", n)
	}
}

func TestOneWorkerRewritesAtATime(t *testing.T) {
	t.Parallel()
	e := newEdges(t)
	held, err := lease.New(e.db.App, "another").Acquire(t.Context(), "identity/rewrite", time.Minute)
	if err != nil || !held {
		t.Fatal(held, err)
	}
	e.send(t, "edge-0", up.LaneEvent, at, event("e", "a", nil))
	e.send(t, "edge-0", up.LaneAlias, at, link("a", "u"))
	e.work(t)
	if n := e.count(t, `SELECT count(*) FROM rewrites`); n != 1 {
		t.Errorf("the history was rewritten without the lease")
	}
}

// People are erased while their events come in, while they and others are linked, and while history is rewritten.
func TestAnErasureBesideEverythingTakesWhatCameBeforeAndNothingElse(t *testing.T) {
	t.Parallel()
	e := newEdges(t)
	ctx, stop := context.WithCancel(t.Context())
	worked := make(chan struct{})
	go func() {
		defer close(worked)
		_ = e.worker.Run(ctx)
	}()
	const people = 12
	times := func(n int, op up.Operation) (ops []up.Operation) { return slices.Repeat([]up.Operation{op}, n) }
	var running sync.WaitGroup
	for i := range people {
		running.Go(func() {
			id := func(kind string) string { return fmt.Sprint(kind, "-", i) }
			edge, second := id("edge"), id("second")
			e.send(t, edge, up.LaneEvent, at, append(times(20, event("old", id("device"), nil)), times(5, event("old", id("user"), nil))...)...)
			e.send(t, edge, up.LaneEvent, at, times(3, event("kept", id("other"), nil))...)
			e.send(t, edge, up.LaneAlias, at, link(id("device"), id("user")))
			err := pgx.BeginFunc(t.Context(), e.db.App, func(tx pgx.Tx) error {
				_, err := identity.Erase(t.Context(), tx, identity.Scope{Project: e.project, Environment: up.Live}, id("device"))
				return err
			})
			if err != nil {
				t.Error(err)
			}
			erased := time.Now()
			running.Go(func() {
				e.send(t, second, up.LaneEvent, at, append(times(5, event("late", id("user"), nil)), times(5, event("late", id("device"), nil))...)...)
			})
			e.send(t, edge, up.LaneAlias, erased, link(id("device"), id("next")), link(id("other"), id("user")))
			e.send(t, edge, up.LaneEvent, erased, times(4, event("new", id("device"), nil))...)
		})
	}
	running.Wait()
	stop()
	<-worked
	e.work(t)
	if n := e.count(t, `SELECT count(*) FROM events WHERE split_part(anon_id, '-', 2) = split_part(distinct_id, '-', 2) AND
		(event_name = 'kept' AND distinct_id LIKE 'user-%' AND anon_id LIKE 'other-%' OR event_name = 'new' AND distinct_id LIKE 'next-%' AND anon_id LIKE 'device-%')`); n != 7*people {
		t.Errorf("%d events are as they should be, want %d", n, 7*people)
	}
	if n := e.count(t, `SELECT (SELECT count(*) FROM events) + (SELECT count(*) FROM rewrites) + (SELECT count(*) FROM erasures WHERE done_at IS NULL)`); n != 7*people {
		t.Errorf("%d events, rewrites and open erasures, want %d events", n, 7*people)
	}
}

// BenchmarkRewrite rewrites a million events of one alias; it reports the longest transaction.
func BenchmarkRewrite(b *testing.B) {
	e := newEdges(b)
	for b.Loop() {
		b.StopTimer()
		e.project = uuid.New()
		properties := []byte(`{"$session_id":"s-0123456789abcdef","path":"/products/123","referrer":"` + strings.Repeat("x", 150) + `"}`)
		for range 50 {
			ops := make([]up.Operation, 20_000)
			for i := range ops {
				ops[i] = event("page_viewed", "anon", nil)
				ops[i].Properties = properties
			}
			e.send(b, "edge-0", up.LaneEvent, at, ops...)
		}
		e.send(b, "edge-0", up.LaneAlias, at, link("anon", "user"))
		b.StartTimer()
		e.work(b)
	}
	status := e.worker.Status()
	b.ReportMetric(status.LongestTxSeconds, "longest-tx-s")
	b.ReportMetric(float64(status.Rewritten)/b.Elapsed().Seconds(), "events/s")
}

// An id may have any number of blanks around its 200 characters, and the index of events
// takes a few bytes less than that of links.
func TestAnIDThatEventsCannotHaveHoldsNothingUp(t *testing.T) {
	t.Parallel()
	e := newEdges(t)
	for _, length := range []int{identity.MaxIDBytes, identity.MaxIDBytes + 1, 2672, 2673, 2674, 2675, 2676} {
		padded := make([]byte, length)
		rng := rand.New(rand.NewPCG(1, uint64(length)))
		for i := range padded {
			padded[i] = byte('0' + rng.IntN(75)) // as hard to compress as blanks of many kinds
		}
		device := fmt.Sprint("device-", length)
		e.send(t, "edge-0", up.LaneEvent, at, event("e", device, nil))
		e.send(t, "edge-0", up.LaneAlias, at, link(device, string(padded)))
	}
	e.work(t)
	if n := e.count(t, `SELECT count(*) FROM events WHERE rewritten`); n != 1 {
		t.Errorf("%d events are rewritten, want that of the longest id", n)
	}
}
