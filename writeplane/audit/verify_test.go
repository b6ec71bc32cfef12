package audit

import (
	"context"
	"fmt"
	"testing"
	"time"

	"skerry/writeplane/postgres/dbtest"
)

// What a transaction sees of rows stands still while it runs; which partitions there are does not.
func TestMonthThatIsDroppedDuringAVerifyIsNoBreak(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "hobby")
	tr.logAt(t, days(400), days(1))
	keeper := NewKeeper(tr.db.Owner, nil)
	held, err := tr.db.Owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback(context.WithoutCancel(t.Context())) }()
	dbtest.Exec(t, held, `LOCK TABLE audit_chains IN ACCESS EXCLUSIVE MODE`)
	verified := make(chan Verdict, 1)
	go func() {
		verdict, err := NewLog(tr.db.App, nil).Verify(t.Context(), tr.organization)
		if err != nil {
			t.Error(err)
		}
		verified <- verdict
	}()
	await(t, func() bool { // it has begun and waits for the chain's head
		var waiting bool
		err := tr.db.Owner.QueryRow(t.Context(), `
			SELECT EXISTS (SELECT FROM pg_locks JOIN pg_database d ON d.oid = database
			               WHERE relation = 'audit_chains'::regclass AND NOT granted AND datname = current_database())`).Scan(&waiting)
		return err == nil && waiting
	})
	_ = keeper.Keep(t.Context()) // drops the month now, or finds it in use
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if verdict := <-verified; !verdict.OK {
		t.Errorf("%+v, first broken %d", verdict, *verdict.FirstBrokenSeq)
	}
	if err := keeper.Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if verdict, err := NewLog(tr.db.App, nil).Verify(t.Context(), tr.organization); err != nil || !verdict.OK || verdict.Entries != 1 {
		t.Errorf("afterwards: %+v, %v", verdict, err)
	}
}

func TestVerifyNamesTheFirstBrokenEntry(t *testing.T) {
	t.Parallel()
	seven := func(n int64) *int64 { return &n }
	for name, c := range map[string]struct {
		tamper string
		first  *int64
		left   int64
	}{
		"untouched":                {`SELECT 1`, nil, 7},
		"an action altered":        {`UPDATE audit_entries SET action = 'x' WHERE seq = 3`, seven(3), 7},
		"a snapshot altered":       {`UPDATE audit_entries SET after = '{"n":4.0}' WHERE seq = 4`, seven(4), 7},
		"an actor removed":         {`UPDATE audit_entries SET actor_email = NULL WHERE seq = 2`, seven(2), 7},
		"a project changed":        {`UPDATE audit_entries SET project_id = NULL WHERE seq = 5`, seven(5), 7},
		"an id changed":            {`UPDATE audit_entries SET id = gen_random_uuid() WHERE seq = 5`, seven(5), 7},
		"a time moved":             {`UPDATE audit_entries SET created_at = created_at + interval '1 microsecond' WHERE seq = 7`, seven(7), 7},
		"a class changed":          {`UPDATE audit_entries SET retention = 'hobby' WHERE seq = 6`, seven(6), 7},
		"the hash rewritten":       {`UPDATE audit_entries SET hash = '\x00' WHERE seq = 6`, seven(6), 7},
		"the first deleted":        {`DELETE FROM audit_entries WHERE seq = 1`, seven(1), 6},
		"a middle one deleted":     {`DELETE FROM audit_entries WHERE seq = 4`, seven(4), 6},
		"the tail deleted":         {`DELETE FROM audit_entries WHERE seq >= 6`, seven(6), 5},
		"all deleted":              {`DELETE FROM audit_entries`, seven(1), 0},
		"two exchanged":            {`UPDATE audit_entries SET seq = CASE seq WHEN 2 THEN 5 ELSE 2 END WHERE seq IN (2, 5)`, seven(2), 7},
		"times exchanged":          {`UPDATE audit_entries a SET created_at = b.created_at FROM audit_entries b WHERE (a.seq, b.seq) IN ((3, 6), (6, 3))`, seven(3), 7},
		"one copied":               {`INSERT INTO audit_entries SELECT * FROM audit_entries WHERE seq = 3`, seven(3), 8},
		"one added at the end":     {`INSERT INTO audit_entries SELECT organization_id, 8, id, project_id, actor_id, actor_email, action, resource_type, resource_id, before, after, metadata, created_at + interval '1 second', retention, hash FROM audit_entries WHERE seq = 7`, seven(8), 8},
		"tail and head taken back": {`WITH d AS (DELETE FROM audit_entries WHERE seq = 7) UPDATE audit_chains SET seq = 6`, seven(6), 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := newTrail(t, "pro")
			start := days(2).Truncate(time.Second)
			var times []time.Time
			for i := range 7 {
				times = append(times, start.Add(time.Duration(i)*time.Minute))
			}
			tr.logAt(t, times...)
			if name == "an actor removed" || name == "a snapshot altered" {
				tr = newTrail(t, "pro")
				tr.logMany(t, 7) // with email and snapshots, at times of their own
			}
			dbtest.Exec(t, tr.db.Owner, c.tamper)
			got, err := NewLog(tr.db.App, nil).Verify(t.Context(), tr.organization)
			if err != nil {
				t.Fatal(err)
			}
			if got.Entries != c.left || got.OK != (c.first == nil) || (c.first != nil && (got.FirstBrokenSeq == nil || *got.FirstBrokenSeq != *c.first)) {
				first := "none"
				if got.FirstBrokenSeq != nil {
					first = fmt.Sprint(*got.FirstBrokenSeq)
				}
				t.Errorf("ok %v, %d entries, first broken %s; want %v", got.OK, got.Entries, first, c.first)
			}
		})
	}
}
