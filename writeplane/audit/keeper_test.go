package audit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"skerry/writeplane/postgres/dbtest"
)

func TestRetentionDropsMonthsAndLeavesAnchors(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "hobby")
	tr.logAt(t, days(400), days(399), days(200), days(1))
	// Upgraded for a while: entries of two classes along one chain.
	dbtest.Exec(t, tr.db.App, `UPDATE organizations SET tier = 'pro'`)
	tr.logAt(t, days(1), days(0.5))
	other := tr.another(t, "enterprise")
	other.logAt(t, days(400), days(1))

	log, mirror, mirrorer := tr.mirrored(t)
	keeper := NewKeeper(tr.db.Owner, mirror)
	if err := keeper.Keep(t.Context()); !errors.Is(err, errUnmirrored) {
		t.Fatalf("a month was dropped before the mirror had it: %v", err)
	}
	copyAll(t, mirrorer)
	for range 2 {
		if err := keeper.Keep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	stored := func(organization string) []int64 {
		rows, err := tr.db.App.Query(t.Context(), `SELECT seq FROM audit_entries WHERE organization_id = $1 ORDER BY seq`, organization)
		if err != nil {
			t.Fatal(err)
		}
		got, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := stored(tr.organization); !slices.Equal(got, []int64{4, 5, 6}) {
		t.Errorf("hobby keeps 90 days: %v", got)
	}
	if got := stored(other.organization); !slices.Equal(got, []int64{1, 2}) {
		t.Errorf("enterprise keeps 7 years: %v", got)
	}
	for _, organization := range []string{tr.organization, other.organization} {
		if verdict, err := log.Verify(t.Context(), organization); err != nil || !verdict.OK {
			t.Errorf("%+v, %v", verdict, err)
		}
	}
	// The mirror keeps two years on every tier.
	if got := seqs(t, log, Query{OrganizationID: tr.organization}); !slices.Equal(got, []int64{6, 5, 4, 3, 2, 1}) {
		t.Errorf("with the mirror: %v", got)
	}
	// The chain goes on over the gap, and the gap hides nothing.
	tr.logMany(t, 1)
	if verdict, _ := log.Verify(t.Context(), tr.organization); !verdict.OK || verdict.Entries != 4 {
		t.Errorf("%+v", verdict)
	}
	dbtest.Exec(t, tr.db.Owner, `DELETE FROM audit_entries WHERE organization_id = $1 AND seq = 4`, tr.organization)
	if verdict, _ := log.Verify(t.Context(), tr.organization); verdict.OK || *verdict.FirstBrokenSeq != 4 {
		t.Errorf("an entry right behind the anchors is gone: %+v", verdict)
	}
}

// A process whose clock runs ahead would drop for good what is still to be kept.
func TestClockThatRunsAheadAloneDropsNothing(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	tr.logAt(t, days(100), days(1))
	_, mirror, mirrorer := tr.mirrored(t)
	copyAll(t, mirrorer)
	keeper := NewKeeper(tr.db.Owner, mirror)
	keeper.now = func() time.Time { return time.Now().AddDate(9, 0, 0) }
	if err := keeper.Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := dbtest.One[int](t, tr.db.App, `SELECT count(*) FROM audit_entries`); left != 2 || tr.inMirror(t) != 2 {
		t.Errorf("%d entries of 2 are left and %d in the mirror", left, tr.inMirror(t))
	}
}

// Every process of the plane keeps, and they may well do so at once.
func TestKeepersThatMeetDoNotFail(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "hobby")
	tr.logAt(t, days(400), days(350), days(300), days(250), days(1))
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if err := NewKeeper(tr.db.Owner, nil).Keep(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	// Whoever came late left it to the first: what is over goes now.
	if err := NewKeeper(tr.db.Owner, nil).Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	var left, anchored int
	err := tr.db.Owner.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM audit_entries), (SELECT sum(last_seq - first_seq + 1) FROM audit_anchors)`).Scan(&left, &anchored)
	if err != nil || left != 1 || anchored != 4 {
		t.Errorf("%d entries are left and %d anchored, %v; want 1 and 4", left, anchored, err)
	}
}

// Mutations queue behind whoever waits for a reader to change the partitions.
func TestKeeperDoesNotWaitLongForAReader(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	reader, err := tr.db.App.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Rollback(context.WithoutCancel(t.Context())) }()
	dbtest.Exec(t, reader, `SELECT FROM audit_entries LIMIT 1`)
	keeper := NewKeeper(tr.db.Owner, nil)
	keeper.now = func() time.Time { return time.Now().AddDate(1, 0, 0) }
	begun := time.Now()
	var refused *pgconn.PgError
	if err := keeper.MakeMonths(t.Context()); !errors.As(err, &refused) || refused.Code != "55P03" || time.Since(begun) > 6*time.Second {
		t.Errorf("after %s: %v; want it given up well before the 10 s for which mutations wait", time.Since(begun), err)
	}
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := keeper.MakeMonths(t.Context()); err != nil {
		t.Error(err)
	}
}
