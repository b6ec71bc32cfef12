package identity

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"skerry/replication/up"
	"skerry/writeplane/lease"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

// was is when the events of these tests were received.
var was = time.Now().UTC().Add(-time.Hour).Truncate(time.Millisecond)

// received stores n events of an identifier, without a partition of their own.
func received(t *testing.T, db *postgres.DB, s Scope, id string, at time.Time, n int) {
	t.Helper()
	_, err := db.App.Exec(t.Context(), `
		INSERT INTO events (received_at, timestamp, id, project_id, number, environment, rewritten, edge, event_name, distinct_id)
		SELECT $1, $1, gen_random_uuid(), $2, i, $3, false, 'edge-1', 'e', $4 FROM generate_series(1, $5::int) i`,
		at, s.Project, int16(s.Environment), id, n)
	if err != nil {
		t.Fatal(err)
	}
}

// eraseNow erases a person as the API does.
func eraseNow(t *testing.T, db *postgres.DB, s Scope, id string) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), db.App, func(tx pgx.Tx) error {
		members, err := erase(t.Context(), tx, s, id)
		if err == nil && members == nil {
			err = fmt.Errorf("nobody is called %q", id)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func number(t *testing.T, db *postgres.DB, sql string, args ...any) int64 {
	t.Helper()
	return dbtest.One[int64](t, db.App, sql, args...)
}

// waiting returns when so many wait for others' locks.
func waiting(t *testing.T, db *postgres.DB, n int64) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		if number(t, db, `SELECT count(*) FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
			OR NOT granted AND locktype = 'transactionid' AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())`) >= n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("there are no %d who wait for others", n)
		}
	}
}

// A worker that was stopped for longer than its lease is still at its rows when the next one comes to them.
func TestAWorkerThatMeetsAnotherLeavesNothingUndone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(t *testing.T, db *postgres.DB, s Scope)
		other   func(tx pgx.Tx, s Scope) error
		open    string
	}{
		"rewriting": {
			func(t *testing.T, db *postgres.DB, s Scope) { apply(t, db, s, [][2]string{{"anon", "user"}}, 1) },
			func(tx pgx.Tx, s Scope) error {
				_, err := tx.Exec(t.Context(), fmt.Sprintf(rewriteSQL, "events_default"),
					[]uuid.UUID{s.Project}, []int16{int16(s.Environment)}, []string{"anon"}, firstBatch)
				return err
			},
			`SELECT count(*) FROM rewrites WHERE project_id = $1`,
		},
		"erasing": {
			func(t *testing.T, db *postgres.DB, s Scope) { eraseNow(t, db, s, "anon") },
			func(tx pgx.Tx, s Scope) error {
				_, err := tx.Exec(t.Context(), fmt.Sprintf(removeSQL, "events_default"),
					[]uuid.UUID{s.Project}, []int16{int16(s.Environment)}, []string{"anon"}, []time.Time{time.Now()}, firstBatch)
				return err
			},
			`SELECT count(*) FROM erasures WHERE project_id = $1 AND done_at IS NULL`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, s := dbtest.New(t), Scope{uuid.New(), up.Live}
			received(t, db, s, "anon", was, firstBatch+500)
			c.prepare(t, db, s)
			other, err := db.App.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			dbtest.Exec(t, other, plannerSQL)
			if err := c.other(other, s); err != nil {
				t.Fatal(err)
			}
			worked := make(chan error)
			go func() { worked <- NewWorker(db.App, lease.New(db.App, "second")).Work(t.Context()) }()
			waiting(t, db, 1)
			if err := other.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-worked; err != nil {
				t.Fatal(err)
			}
			if left := number(t, db, `SELECT count(*) FROM events WHERE project_id = $1 AND distinct_id = 'anon'`, s.Project); left != 0 {
				t.Errorf("%d events are left", left)
			}
			if open := number(t, db, c.open, s.Project); open != 0 {
				t.Errorf("%d are still open", open)
			}
		})
	}
}

// An identifier may be linked to somebody else the moment after its person was erased, before the rows are removed.
func TestWhatWasErasedDoesNotComeBackUnderAnotherPerson(t *testing.T) {
	t.Parallel()
	db, s := dbtest.New(t), Scope{uuid.New(), up.Live}
	received(t, db, s, "device", was, 3)
	apply(t, db, s, [][2]string{{"device", "old"}}, 1)
	eraseNow(t, db, s, "old")
	apply(t, db, s, [][2]string{{"device", "new"}}, 1)
	worker := NewWorker(db.App, lease.New(db.App, "worker"))
	if _, err := worker.rewriteGroup(t.Context()); err != nil { // it was between its two tasks
		t.Fatal(err)
	}
	if n := number(t, db, `SELECT count(*) FROM events e WHERE project_id = $1 AND `+HideErased, s.Project); n != 0 {
		t.Errorf("%d erased events are shown again", n)
	}
	if err := worker.Work(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := number(t, db, `SELECT count(*) FROM events WHERE project_id = $1`, s.Project); n != 0 {
		t.Errorf("%d erased events are kept", n)
	}
}

// Somebody who signs in again the moment after the erasure brings along what the new device did before.
func TestAnErasureTakesNothingOfAnIDThatIsLinkedLater(t *testing.T) {
	t.Parallel()
	db, s := dbtest.New(t), Scope{uuid.New(), up.Live}
	received(t, db, s, "old-device", was, 2)
	received(t, db, s, "user", was, 4)
	apply(t, db, s, [][2]string{{"old-device", "user"}}, 1)
	worker := NewWorker(db.App, lease.New(db.App, "worker"))
	if err := worker.Work(t.Context()); err != nil {
		t.Fatal(err)
	}
	received(t, db, s, "new-device", was, 3)
	eraseNow(t, db, s, "user")
	apply(t, db, s, [][2]string{{"new-device", "user"}}, 1)
	if _, err := worker.rewriteGroup(t.Context()); err != nil { // it was between its two tasks
		t.Fatal(err)
	}
	if n := number(t, db, `SELECT count(*) FROM events e WHERE project_id = $1 AND `+HideErased, s.Project); n != 3 {
		t.Errorf("%d events are shown, want the new device's 3", n)
	}
	if err := worker.Work(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := number(t, db, `SELECT count(*) FROM events WHERE project_id = $1 AND distinct_id = 'user' AND anon_id = 'new-device'`, s.Project); n != 3 {
		t.Errorf("%d events are kept, want the new device's 3", n)
	}
	if n := number(t, db, `SELECT count(*) FROM events WHERE project_id = $1`, s.Project); n != 3 {
		t.Errorf("%d events in all", n)
	}
}

// An edge's clock may be ahead of the database's.
func TestWhatIsStoredIsErasedWhateverItsClockSaid(t *testing.T) {
	t.Parallel()
	db, s := dbtest.New(t), Scope{uuid.New(), up.Live}
	received(t, db, s, "user", time.Now().Add(time.Hour), 2)
	received(t, db, s, "other", time.Now().Add(time.Hour), 1)
	eraseNow(t, db, s, "user")
	for range 2 {
		if n := number(t, db, `SELECT count(*) FROM events e WHERE project_id = $1 AND `+HideErased, s.Project); n != 1 {
			t.Errorf("%d events are shown, want the other's", n)
		}
		if err := NewWorker(db.App, lease.New(db.App, "worker")).Work(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if known, err := exists(t.Context(), db.App, s, []string{"user"}); err != nil || known {
		t.Errorf("the erased person is known: %v, %v", known, err)
	}
}

// An event lies under the person's canonical identifier and is hidden by the one it was received under.
func TestAllIDsOfAPersonAreErasedTogether(t *testing.T) {
	t.Parallel()
	db, s := dbtest.New(t), Scope{uuid.New(), up.Live}
	received(t, db, s, "other", was, 1)
	eraseNow(t, db, s, "other")
	var claims [][2]string
	for i := range eraseSize + 200 {
		device := fmt.Sprint("device-", i)
		claims = append(claims, [2]string{device, "user"})
		received(t, db, s, device, was, 1)
	}
	apply(t, db, s, claims, len(claims))
	worker := NewWorker(db.App, lease.New(db.App, "worker"))
	if err := worker.Work(t.Context()); err != nil {
		t.Fatal(err)
	}
	eraseNow(t, db, s, "device-7")
	open, err := worker.openErasures(t.Context())
	if want := len(claims) + 1; err != nil || len(open.ids) != want {
		t.Fatalf("%d erasures at once, want the person's %d: %v", len(open.ids), want, err)
	}
	if err := worker.removeErased(t.Context(), open, 0, eraseSize); err != nil {
		t.Fatal(err)
	}
	if n := number(t, db, `SELECT count(*) FROM events e WHERE project_id = $1 AND `+HideErased, s.Project); n != 0 {
		t.Errorf("half-way, %d events are shown", n)
	}
	if err := worker.Work(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := number(t, db, `SELECT (SELECT count(*) FROM events WHERE project_id = $1) + (SELECT count(*) FROM erasures WHERE done_at IS NULL)`, s.Project); n != 0 {
		t.Errorf("%d events or open erasures are left", n)
	}
}

// leases is a Lease that counts how often it is asked for.
type leases struct {
	asked int
	gone  bool
}

func (l *leases) Acquire(context.Context, string, time.Duration) (bool, error) {
	l.asked++
	return !l.gone, nil
}

func (l *leases) Release(context.Context, string) error { return nil }

func TestTheLeaseIsKeptThroughManySmallBatches(t *testing.T) {
	t.Parallel()
	db, held := dbtest.New(t), &leases{}
	worker := NewWorker(db.App, held)
	nothing := func(tx pgx.Tx, partition string, limit int) (batch, error) {
		worker.renewed = worker.renewed.Add(-leaseTerm) // it has taken long
		return batch{}, nil
	}
	for round := range 3 {
		if err := worker.inPartitions(t.Context(), func(int64) {}, nothing); err != nil || held.asked <= round {
			t.Fatalf("asked for the lease %d times in round %d: %v", held.asked, round, err)
		}
	}
	held.gone = true
	if err := worker.inPartitions(t.Context(), func(int64) {}, nothing); err == nil {
		t.Error("the worker goes on without the lease")
	}
}

func TestEventsAreLookedForWhereTheyLie(t *testing.T) {
	t.Parallel()
	db, s := dbtest.New(t), Scope{uuid.New(), up.Live}
	worker := NewWorker(db.App, lease.New(db.App, "worker"))
	apply(t, db, s, [][2]string{{"first", "user"}, {"second", "user"}}, 2)
	if err := worker.Work(t.Context()); err != nil {
		t.Fatal(err)
	}
	apply(t, db, s, [][2]string{{"third", "first"}, {"stranger", "other"}}, 2)
	for _, id := range []string{"user", "first", "third"} {
		if got, err := Holding(t.Context(), db.App, s, id); err != nil || fmt.Sprint(got) != "[user third]" {
			t.Errorf("%s: %q, %v", id, got, err)
		}
	}
	if got, err := Holding(t.Context(), db.App, s, "nobody"); err != nil || fmt.Sprint(got) != "[nobody]" {
		t.Errorf("an identifier without links: %q, %v", got, err)
	}
}

// An edge that drains after a year has one day made after the other.
func TestDaysThatAreMadeMeanwhileAreVisitedAndNoOtherAgain(t *testing.T) {
	t.Parallel()
	db, s := dbtest.New(t), Scope{uuid.New(), up.Live}
	makeDay := func(ago int) {
		day := was.AddDate(0, 0, -ago).Truncate(24 * time.Hour)
		_, err := db.Owner.Exec(t.Context(), fmt.Sprintf(`
			CREATE TABLE events_%[1]s (LIKE events INCLUDING ALL);
			GRANT ALL ON events_%[1]s TO skerry_app;
			WITH moved AS (DELETE FROM events_default WHERE received_at >= '%[2]s' AND received_at < '%[3]s' RETURNING *) INSERT INTO events_%[1]s SELECT * FROM moved;
			ALTER TABLE events ATTACH PARTITION events_%[1]s FOR VALUES FROM ('%[2]s') TO ('%[3]s')`,
			day.Format("20060102"), day.Format(time.DateOnly), day.AddDate(0, 0, 1).Format(time.DateOnly)))
		if err != nil {
			t.Fatal(err)
		}
	}
	for ago := range 4 {
		received(t, db, s, "device", was.AddDate(0, 0, -ago), 1)
	}
	makeDay(0)
	worker := NewWorker(db.App, lease.New(db.App, "worker"))
	var visited []string
	taken := int64(0)
	err := worker.inPartitions(t.Context(), func(int64) {}, func(tx pgx.Tx, partition string, _ int) (b batch, err error) {
		if visited = append(visited, partition); len(visited) < 4 {
			makeDay(len(visited))
		}
		tag, err := tx.Exec(t.Context(), `DELETE FROM `+partition)
		taken += tag.RowsAffected()
		return b, err
	})
	if err != nil || len(visited) != 5 || taken != 4 {
		t.Errorf("visited %q and found %d events, want four days and the default, each once, and 4 events: %v", visited, taken, err)
	}
}

// An erasure takes the rows of a person in another order than the worker closes them in.
func TestTheWorkersEndOfAGroupAndAnErasureDoNotDeadlock(t *testing.T) {
	t.Parallel()
	db, s := dbtest.New(t), Scope{uuid.New(), up.Live}
	apply(t, db, s, [][2]string{{"b", "user"}, {"a", "user"}}, 1)
	other, err := db.App.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dbtest.Exec(t, other, `SELECT FROM rewrites WHERE alias_id = 'b' FOR UPDATE`)
	done := make(chan error, 2)
	go func() {
		_, err := NewWorker(db.App, lease.New(db.App, "worker")).rewriteGroup(t.Context())
		done <- err
	}()
	waiting(t, db, 1)
	go func() {
		done <- pgx.BeginFunc(t.Context(), db.App, func(tx pgx.Tx) error {
			_, err := erase(t.Context(), tx, s, "user")
			return err
		})
	}()
	waiting(t, db, 2)
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// Going through the partitions costs the same for one alias as for hundreds.
func TestManyAliasesGoThroughThePartitionsTogether(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		group, aliases int
		longest, took  time.Duration
		want           int
	}{
		"a full group that took little is followed by a larger one": {200, 200, aimedAt, groupTime/2 - 1, 400},
		"one that was not full says nothing":                        {400, 399, aimedAt, time.Second, 400},
		"one that took half its time is right":                      {400, 400, aimedAt, groupTime / 2, 400},
		"there is a largest one":                                    {maxGroup - 1, maxGroup - 1, aimedAt, time.Second, maxGroup},
		"one that took too long is followed by a smaller one":       {400, 400, aimedAt, groupTime + 1, 200},
		"others waited too long for one of its transactions":        {4000, 10, 2*aimedAt + 1, time.Second, 2000},
		"there is a smallest one":                                   {minGroup, 1, time.Second, time.Hour, minGroup},
	} {
		w := &Worker{group: c.group, longest: c.longest}
		if w.fitGroup(c.aliases, c.took); w.group != c.want {
			t.Errorf("%s: the next one is of %d, want %d", name, w.group, c.want)
		}
	}
}

func TestABacklogLargerThanAGroupIsWorkedOff(t *testing.T) {
	t.Parallel()
	const people = 3*minGroup + 7
	db, s := dbtest.New(t), Scope{uuid.New(), up.Live}
	var claims [][2]string
	for i := range people {
		device := fmt.Sprint("device-", i)
		claims = append(claims, [2]string{device, fmt.Sprint("user-", i)})
		received(t, db, s, device, was, 2)
	}
	received(t, db, s, "stranger", was, 1)
	apply(t, db, s, claims, len(claims))
	if err := NewWorker(db.App, lease.New(db.App, "worker")).Work(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := number(t, db, `SELECT count(*) FROM events WHERE project_id = $1 AND rewritten
		AND replace(anon_id, 'device', 'user') = distinct_id`, s.Project); n != 2*people {
		t.Errorf("%d of %d events are rewritten", n, 2*people)
	}
	if n := number(t, db, `SELECT count(*) FROM rewrites`); n != 0 {
		t.Errorf("%d rewrites are left", n)
	}
}
