package ingest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/replication/up"
	"skerry/writeplane/blobs"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

var (
	projectA = uuid.MustParse("018f0000-0000-7000-8000-00000000000a")
	projectB = uuid.MustParse("018f0000-0000-7000-8000-00000000000b")
	life1    = up.Incarnation{ID: [16]byte{1}, Ordinal: 1}
	life2    = up.Incarnation{ID: [16]byte{2}, Ordinal: 2}
)

// bundle is a Store on a database of its own.
type bundle struct {
	*Store
	db    *postgres.DB
	blobs *blobs.Store
	next  map[string]uint64
}

func newBundle(t testing.TB, config Config) *bundle {
	t.Helper()
	db := dbtest.New(t)
	place, err := blobs.Open(t.Context(), blobs.Config{URL: t.TempDir()}, db.App)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = place.Close() })
	store, err := NewStore(config, db, place, keepCrashes)
	if err != nil {
		t.Fatal(err)
	}
	return &bundle{Store: store, db: db, blobs: place, next: map[string]uint64{}}
}

// keepCrashes stores crash reports in a table of the test's own and refuses some.
func keepCrashes(ctx context.Context, tx pgx.Tx, rows []CrashRow) (bad []BadCrash, err error) {
	for i, r := range rows {
		if strings.Contains(string(r.Record), "refuse me") {
			bad = append(bad, BadCrash{Index: i, Reason: "malformed"})
			continue
		}
		if _, err := tx.Exec(ctx, `INSERT INTO installation (name, value) VALUES ('crash ' || $1, $2)`, r.ID, r.Record); err != nil {
			return bad, err
		}
	}
	return bad, nil
}

// request is a block to be: operations that came in one request.
type request struct {
	project    uuid.UUID
	env        up.Environment
	receivedAt time.Time
	ops        []up.Operation
}

func in(project uuid.UUID, at time.Time, ops ...up.Operation) request {
	return request{project: project, env: up.Live, receivedAt: at, ops: ops}
}

// batch packs requests under the given first number.
func batch(life up.Incarnation, lane up.Lane, first uint64, requests ...request) up.Batch {
	b := up.Batch{Incarnation: life, Lane: lane, First: first}
	var w up.BlockWriter
	for _, r := range requests {
		w.Reset(up.Header{Lane: lane, Environment: r.env, ReceivedAt: r.receivedAt.UnixMicro(), Project: r.project})
		for i := range r.ops {
			w.Append(&r.ops[i])
		}
		start := len(b.Data)
		b.Data = append(b.Data, w.Bytes()...)
		up.SetFirst(b.Data[start:], first+uint64(b.Count))
		b.Count += w.Count()
	}
	return b
}

// send stores requests as the edge's next numbers and checks that they were taken.
func (b *bundle) send(t testing.TB, edge string, lane up.Lane, requests ...request) {
	t.Helper()
	key := fmt.Sprint(edge, lane)
	one := batch(life1, lane, b.next[key]+1, requests...)
	outcome, err := b.Store.Store(t.Context(), edge, []up.Batch{one})
	if err != nil {
		t.Fatalf("store %s: %v", lane, err)
	}
	if outcome.Taken != 1 || outcome.Stored != one.End()-1 {
		t.Fatalf("store %s %d: outcome %+v", lane, one.First, outcome)
	}
	b.next[key] = one.End() - 1
}

func track(name, distinct string, more ...func(*up.Operation)) up.Operation {
	op := up.Operation{EventName: []byte(name), DistinctID: []byte(distinct), Timestamp: noon.UnixMicro(), Properties: []byte(`{"n": 1}`)}
	for _, f := range more {
		f(&op)
	}
	return op
}

func anon(id string) func(*up.Operation) { return func(op *up.Operation) { op.AnonID = []byte(id) } }

func insertID(id string) func(*up.Operation) {
	return func(op *up.Operation) { op.InsertID = []byte(id) }
}

func properties(raw string) func(*up.Operation) {
	return func(op *up.Operation) { op.Properties = []byte(raw) }
}

func alias(aliasID, distinct string) up.Operation {
	return up.Operation{AliasID: []byte(aliasID), DistinctID: []byte(distinct), Timestamp: noon.UnixMicro()}
}

// noon is today's, so that it lies in a partition that is made ahead.
var noon = dayOf(time.Now()).Add(12 * time.Hour)

// strings reads one text column.
func texts(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func (b *bundle) expect(t testing.TB, want []string, sql string, args ...any) {
	t.Helper()
	got := texts(t, b.db.App, sql, args...)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s\n got %q\nwant %q", sql, got, want)
	}
}

const eventsSQL = `SELECT concat_ws('|', event_name, distinct_id, coalesce(anon_id, '-'), coalesce(sent_anon_id, '-')) FROM events ORDER BY edge, number`

// books reads a lane's counts: stored, duplicate, erased, dead.
func (b *bundle) books(t testing.TB, edge string, lane up.Lane) string {
	t.Helper()
	return strings.Join(texts(t, b.db.App, `SELECT concat_ws(' ', sum(stored), sum(duplicate), sum(erased), sum(dead)) FROM ingest_cursors WHERE edge = $1 AND lane = $2`, edge, int16(lane)), "")
}

// randomEvents makes n events as clients send them, some 300 bytes each.
func randomEvents(n int, withInsertID bool) []request {
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	var requests []request
	for i := 0; i < n; i += 100 {
		r := in(projectA, noon.Add(time.Duration(i)*time.Millisecond))
		for j := i; j < min(i+100, n); j++ {
			op := track("page_viewed", fmt.Sprintf("user-%08d", rng.IntN(200_000)), properties(fmt.Sprintf(
				`{"$session_id":"s-%016x","path":"/products/%d","referrer":"https://example.com/search?q=%x","price":%d.%02d,"currency":"EUR","plan":"pro"}`,
				rng.Uint64(), rng.IntN(10_000), rng.Uint64(), rng.IntN(500), rng.IntN(100))))
			op.DefaultProperties = []byte(`{"$os":"iOS 19.1","$device_model":"iPhone17,2"}`)
			op.LibVersion = []byte("swift 3.2.1")
			if withInsertID {
				op.InsertID = []byte(uuid.NewString())
			}
			r.ops = append(r.ops, op)
		}
		requests = append(requests, r)
	}
	return requests
}
