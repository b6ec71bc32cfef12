package crashes

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/id"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
	"skerry/writeplane/symbols"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// desk is a project's reports in a database of the test's own.
type desk struct {
	t       *testing.T
	db      *postgres.DB
	project string
}

func newDesk(t *testing.T) *desk {
	d := &desk{t: t, db: dbtest.New(t), project: id.New()}
	organization := id.New()
	d.exec(`INSERT INTO organizations (id, name, tier) VALUES ($1, 'Example', 'pro')`, organization)
	d.exec(`INSERT INTO projects (id, organization_id, name, modules, allowlist, rate_limits, quotas)
		VALUES ($1, $2, 'Demo', '{}', '{}', '{}', '{}')`, d.project, organization)
	return d
}

func (d *desk) exec(sql string, args ...any) {
	d.t.Helper()
	dbtest.Exec(d.t, d.db.App, sql, args...)
}

func (d *desk) analyze() {
	d.t.Helper()
	if _, err := d.db.Owner.Exec(d.t.Context(), `ANALYZE crash_events`); err != nil {
		d.t.Fatal(err)
	}
}

// count is how many reports satisfy a condition.
func (d *desk) count(condition string) (n int) {
	d.t.Helper()
	err := d.db.App.QueryRow(d.t.Context(), `SELECT count(*) FROM crash_events WHERE release = '1.0' AND `+condition).Scan(&n)
	if err != nil {
		d.t.Fatal(err)
	}
	return n
}

// insert stores a report of release 1.0.
func (d *desk) insert() string {
	d.t.Helper()
	eventID := id.New()
	err := postgres.InTx(d.t.Context(), d.db.App, func(tx pgx.Tx) error {
		bad, err := Insert(d.t.Context(), tx, []Row{{
			ID: eventID, ProjectID: d.project, Environment: "live", ReceivedAt: time.Now(),
			Record: []byte(`{"release":"1.0","platform":"javascript","exception":{"type":"E","value":"v"},"frames":[{}]}`),
		}})
		if len(bad) > 0 {
			d.t.Errorf("refused: %v", bad)
		}
		return err
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return eventID
}

// waiting returns when n statements wait for locks of others.
func (d *desk) waiting(n int) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 20*time.Second)
	defer cancel()
	for found := 0; found < n; {
		err := d.db.Owner.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&found)
		if err != nil {
			d.t.Fatalf("%d statements wait, want %d: %v", found, n, err)
		}
	}
}

// Two artifacts of a release and a worker touch the same reports; whoever lost to a
// deadlock would come back after a minute.
func TestAnswersAndWishesForTheSameReportsDoNotLockEachOther(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	var list []done
	for range 3 {
		list = append(list, done{claim: claim{ID: d.insert(), Wanted: 1}, answers: []byte(`[]`)})
	}
	// As many as make PostgreSQL look each of them up, in the order given.
	d.exec(`INSERT INTO crash_events (id, project_id, environment, release, platform, distinct_id, "timestamp", received_at, debug_ids, record, settled)
		SELECT gen_random_uuid(), $1, 'live', '0.9', 'javascript', '', now(), now(), '{}', '', true FROM generate_series(1, 20000)`, d.project)
	d.analyze()
	for what, order := range map[string]func(){"as stored": func() {}, "the other way round": func() { slices.Reverse(list) }} {
		order()
		middle, err := d.db.App.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = middle.Rollback(context.WithoutCancel(t.Context())) }()
		dbtest.Exec(t, middle, `SELECT FROM crash_events WHERE id = $1 FOR UPDATE`, list[1].ID)
		ended := make(chan error, 2)
		go func() {
			ended <- postgres.InTx(t.Context(), d.db.App, func(tx pgx.Tx) error {
				err := LookAgain(t.Context(), tx, &symbols.Artifact{ProjectID: d.project, Environment: "live", Release: "1.0", DebugIDs: []string{}})
				return err
			})
		}()
		d.waiting(1)
		go func() { ended <- finish(t.Context(), d.db.App, list) }()
		d.waiting(2)
		if err := middle.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(fmt.Errorf("%s: %w", what, err))
			}
		}
		if n := d.count(`pending`); n != 3 {
			t.Errorf("%s: %d reports are looked at again, want 3", what, n)
		}
		d.exec(`UPDATE crash_events SET pending = false, wanted = 1, answers = NULL`)
	}
}

// heavy stores a pending report whose record weighs 10 MiB.
func (d *desk) heavy() {
	d.exec(`INSERT INTO crash_events (id, project_id, environment, release, platform, distinct_id, "timestamp", received_at, debug_ids, record)
		VALUES ($1, $2, 'live', '1.0', 'javascript', '', now(), now(), '{}', convert_to(repeat('x', 10 << 20), 'UTF8'))`, id.New(), d.project)
}

func TestARoundAndAPageEndWhereReportsAreHeavy(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for range 6 {
		d.heavy()
	}
	for _, want := range []int{4, 2, 0} { // three weigh less than 32 MiB, the fourth is the one more
		taken, err := take(t.Context(), d.db.App, atOnce, time.Hour)
		if err != nil || len(taken) != want {
			t.Errorf("%d reports are taken, want %d; %v", len(taken), want, err)
		}
	}
	f := filter{Values: url.Values{"project": {d.project}, "environment": {"live"}}}
	after, seen := position{}, map[string]bool{}
	for _, want := range []int{2, 2, 2} { // one weighs less than 16 MiB
		found, more, err := page(t.Context(), d.db.App, f, after, 50)
		if err != nil || len(found) != want || more != (len(seen) < 4) {
			t.Fatalf("%d reports on a page, want %d, more is %v; %v", len(found), want, more, err)
		}
		for _, e := range found {
			seen[e.ID], after = true, position{e.Timestamp, e.ID}
		}
	}
	if len(seen) != 6 {
		t.Errorf("%d reports on all pages, want 6", len(seen))
	}
}

func TestAReportStaysTakenUnlessItIsAskedForAgain(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	kept, wanted := d.insert(), d.insert()
	if taken, err := take(t.Context(), d.db.App, atOnce, takeFor); err != nil || len(taken) != 2 {
		t.Fatal(len(taken), err)
	}
	d.exec(`UPDATE crash_events SET taken_until = '-infinity' WHERE id = $1`, wanted) // as LookAgain does
	if err := renew(t.Context(), d.db.App, []string{kept, wanted}, time.Hour); err != nil {
		t.Fatal(err)
	}
	if taken, err := take(t.Context(), d.db.App, atOnce, takeFor); err != nil || len(taken) != 1 || taken[0].ID != wanted {
		t.Errorf("%v, %v; want the one that was asked for", taken, err)
	}
	if n := d.count(`taken_until > now() + interval '30 minutes'`); n != 1 {
		t.Errorf("%d reports are kept, want 1", n)
	}
}

// A worker that stood still for longer than its claim lasts, and comes to its end behind
// the one that took its place.
func TestAnOvertakenLookTakesNothingBack(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.insert()
	var looks [2][]claim
	for i := range looks {
		var err error
		if looks[i], err = take(t.Context(), d.db.App, atOnce, takeFor); err != nil || len(looks[i]) != 1 {
			t.Fatal(len(looks[i]), err)
		}
		d.exec(`UPDATE crash_events SET taken_until = '-infinity'`)
	}
	for i, answers := range []string{"readable", "no longer"} {
		if err := finish(t.Context(), d.db.App, []done{{claim: looks[i][0], answers: []byte(answers)}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := d.count(`answers = 'readable' AND NOT pending`); n != 1 {
		t.Error("what was readable was taken back")
	}
	d.exec(`UPDATE crash_events SET pending = true`)
	again, err := take(t.Context(), d.db.App, atOnce, takeFor)
	if err != nil || len(again) != 1 {
		t.Fatal(len(again), err)
	}
	if err := finish(t.Context(), d.db.App, []done{{claim: again[0], answers: []byte("more")}}); err != nil {
		t.Fatal(err)
	}
	if n := d.count(`answers = 'more'`); n != 1 {
		t.Error("the next look stored nothing")
	}
}
