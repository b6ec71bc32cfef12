package quota

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"skerry/pkg/natsserver/natstest"
	"skerry/pkg/state"
	"skerry/replication"
	"skerry/replication/tally"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

func TestMain(m *testing.M) {
	// The NATS server in this process keeps a clock of its own.
	dbtest.Main(m, goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"))
}

// bundle is a project with a quota of 1000 events, and what was audited.
type bundle struct {
	*Totaller
	pool    *commit.Store
	project uuid.UUID
	audited *[]commit.Entry
}

func newBundle(t *testing.T) *bundle {
	t.Helper()
	db := dbtest.New(t)
	project, organization := uuid.New(), uuid.New()
	err := pgx.BeginFunc(t.Context(), db.App, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `INSERT INTO organizations (id, name, tier) VALUES ($1, 'o', 'enterprise')`, organization); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), `INSERT INTO projects (id, organization_id, name, modules, allowlist, rate_limits, quotas)
			VALUES ($1, $2, 'p', '{}', '{}', '{}', '{"events":1000,"handshakes":null,"responses":null}')`, project, organization)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	audited := &[]commit.Entry{}
	store := commit.New(db.App, commit.Sinks{
		Audit: func(_ *postgres.Pipeline, _ commit.Origin, entries []commit.Entry) (func(context.Context) ([]commit.StoredEntry, error), error) {
			*audited = append(*audited, entries...)
			return func(context.Context) ([]commit.StoredEntry, error) { return nil, nil }, nil
		},
		Deliveries: func(ctx context.Context, tx *postgres.Pipeline, _ []commit.Event, _ []commit.Entry) (func([]commit.StoredEntry) error, error) {
			return func([]commit.StoredEntry) error { return nil }, tx.Settle(ctx)
		},
	})
	b := &bundle{Totaller: New(store), pool: store, project: project, audited: audited}
	b.now = func() time.Time { return time.Date(2026, 3, 31, 23, 0, 0, 0, time.UTC) }
	return b
}

var march = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

func (b *bundle) report(t *testing.T, source string, month time.Time, metric tally.Metric, value uint64) {
	t.Helper()
	c := counts{}
	c.add(tally.Report{Edge: "e", Source: source, Counts: []tally.Count{{Project: b.project, Month: month, Metric: metric, Value: value}}})
	if err := b.total(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

func (b *bundle) document(t *testing.T) (u state.Usage, position int64) {
	t.Helper()
	var body []byte
	err := b.pool.Pool().QueryRow(t.Context(), `SELECT body, position FROM documents WHERE subject = $1`,
		string(replication.UsageSubject(b.project.String()))).Scan(&body, &position)
	if err == pgx.ErrNoRows {
		return u, 0
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(body, &u); err != nil {
		t.Fatal(err)
	}
	return u, position
}

func TestTotalsAddSourcesAndNeverFall(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	b.report(t, "e1.a", march, tally.Events, 300)
	b.report(t, "e2.a", march, tally.Events, 200)
	b.report(t, "e1.a", march, tally.Events, 250) // late
	u, _ := b.document(t)
	if u.Month != "2026-03" || u.Events != 500 || u.EventsBy["e1.a"] != 300 || u.EventsBy["e2.a"] != 200 {
		t.Errorf("usage %+v", u)
	}
	b.report(t, "e1.b", march, tally.Events, 10) // a lost disk is a new source
	if u, _ := b.document(t); u.Events != 510 {
		t.Errorf("usage %+v", u)
	}
}

// Reports come again, so that nothing is lost by giving up; by waiting, no total would go down.
func TestASilentDatabaseIsNotWaitedForWithoutAnEnd(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	link := dbtest.NewLink(t, b.pool.Pool().Config().ConnString())
	pool, err := pgxpool.New(t.Context(), link.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	away := &Totaller{store: commit.New(pool, commit.Sinks{}), now: b.now, patience: 50 * time.Millisecond}
	c := counts{}
	c.add(tally.Report{Edge: "e", Source: "e.a", Counts: []tally.Count{{Project: b.project, Month: march, Metric: tally.Events, Value: 1}}})
	if err := pool.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	link.Hold(true)
	if err := away.total(t.Context(), c); err == nil {
		t.Error("totalled by a silent database")
	}
	link.Release()
}

func TestWhatFailsForSomeProjectsIsDoneForTheOthers(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	_, err := b.pool.Pool().Exec(t.Context(), `
		INSERT INTO projects (id, organization_id, name, modules, allowlist, rate_limits, quotas)
		SELECT ('00000000-0000-7000-8000-' || lpad(i::text, 12, '0'))::uuid, p.organization_id, 'p' || i, '{}', '{}', '{}',
			CASE i WHEN 1 THEN '"not to be read"'::jsonb ELSE p.quotas END
		FROM projects p, generate_series(1, $2::int) i WHERE p.id = $1`, b.project, chunk)
	if err != nil {
		t.Fatal(err)
	}
	c := counts{}
	reported := tally.Report{Edge: "e", Source: "e.a", Counts: []tally.Count{{Project: b.project, Month: march, Metric: tally.Events, Value: 7}}}
	for i := range chunk {
		id := uuid.MustParse(fmt.Sprintf("00000000-0000-7000-8000-%012d", i+1))
		reported.Counts = append(reported.Counts, tally.Count{Project: id, Month: march, Metric: tally.Events, Value: 1})
	}
	c.add(reported)
	if err := b.total(t.Context(), c); err == nil || !strings.Contains(err.Error(), "100 projects from 00000000-0000-7000-8000-000000000001") {
		t.Errorf("the failure is told as %v", err)
	}
	if u, _ := b.document(t); u.Events != 7 {
		t.Errorf("the total of a project behind those that fail is %d, want 7", u.Events)
	}
}

// The total of a project that is just being deleted would be left at the edges.
func TestNoTotalComesBehindTheDeletionOfItsProject(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	c := counts{}
	c.add(tally.Report{Edge: "e", Source: "e.a", Counts: []tally.Count{{Project: b.project, Month: march, Metric: tally.Events, Value: 7}}})
	deletion, err := b.pool.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{`SELECT FROM projects WHERE id = $1 FOR UPDATE`, `UPDATE projects SET deleted_at = now() WHERE id = $1`} {
		if _, err := deletion.Exec(t.Context(), sql, b.project); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- b.total(t.Context(), c) }()
	for waiting := 0; waiting == 0 && len(done) == 0; {
		err := b.pool.Pool().QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE NOT granted
			AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := deletion.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if u, _ := b.document(t); u.Events != 0 {
		t.Errorf("edges hear of %d events", u.Events)
	}
}

func TestEdgesHearOnlyWhatMatters(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	b.report(t, "e1.a", march, tally.Events, 100)
	_, first := b.document(t)
	if first == 0 {
		t.Fatal("the first total was not sent")
	}
	b.report(t, "e1.a", march, tally.Events, 105)
	if _, position := b.document(t); position != first {
		t.Error("half a percent was sent at once")
	}
	b.report(t, "e1.a", march, tally.Events, 110)
	if u, _ := b.document(t); u.Events != 110 {
		t.Error("a percent was not sent")
	}
	b.report(t, "e1.a", march, tally.Events, 850)
	b.report(t, "e1.a", march, tally.Events, 851)
	if u, _ := b.document(t); u.Events != 851 {
		t.Error("a single event near the quota was not sent")
	}
	_, before := b.document(t)
	b.report(t, "e1.a", march, tally.Handshakes, 1_000_000)
	if _, position := b.document(t); position != before {
		t.Error("what has no quota was sent")
	}
	b.report(t, "e1.a", march.AddDate(0, -1, 0), tally.Events, 5000)
	if _, position := b.document(t); position != before {
		t.Error("a past month was sent")
	}
}

func TestASmallChangeIsSentAfterAWhile(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	b.report(t, "e1.a", march, tally.Events, 100)
	later := b.now().Add(31 * time.Second)
	b.now = func() time.Time { return later }
	b.report(t, "e1.a", march, tally.Events, 101)
	if u, _ := b.document(t); u.Events != 101 {
		t.Errorf("usage %+v", u)
	}
}

func TestEachLevelIsWarnedOfOnceAMonth(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	for _, n := range []uint64{799, 800, 801, 949} {
		b.report(t, "e1.a", march, tally.Events, n)
	}
	if len(*b.audited) != 1 {
		t.Fatalf("%d entries below 95%%", len(*b.audited))
	}
	b.report(t, "e1.a", march, tally.Events, 950)
	b.report(t, "e1.a", march, tally.Events, 2000)
	if len(*b.audited) != 2 {
		t.Fatalf("%d entries", len(*b.audited))
	}
	e := (*b.audited)[1]
	after, _ := json.Marshal(e.After)
	if e.Action != "project.quota.warned" || e.Actor.ID != "system:quota" || e.ResourceType != "project" || e.ResourceID != b.project.String() ||
		string(after) != `{"current":950,"level":95,"limit":1000,"metric":"events","month":"2026-03"}` {
		t.Errorf("entry %+v %s", e, after)
	}
	april := march.AddDate(0, 1, 0)
	b.now = func() time.Time { return april }
	b.report(t, "e1.a", april, tally.Events, 999)
	if len(*b.audited) != 4 {
		t.Errorf("%d entries in the next month, want two more", len(*b.audited)-2)
	}
}

func TestReportsOverTheConnectionAreTotalled(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	ns := natstest.New(t)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	nc := ns.Connect(t)
	go func() { done <- b.Run(ctx, nc) }()
	report := tally.Report{Edge: "e1", Source: "e1.a", Counts: []tally.Count{{Project: b.project, Month: march, Metric: tally.Events, Value: 7}}}
	edge := ns.Connect(t)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for {
		if err := edge.Publish(tally.ReportSubject("e1"), report.Encode()); err != nil {
			t.Fatal(err)
		}
		if err := edge.Publish(tally.ReportSubject("e2"), report.Encode()); err != nil { // not its own
			t.Fatal(err)
		}
		if u, _ := b.document(t); u.Events == 7 {
			break
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the report was not totalled")
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
