package ingest

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"skerry/replication/up"
	"skerry/writeplane/identity"
	"skerry/writeplane/postgres/dbtest"
)

// The digests are those of the migration's test, made by another program's SHA-256.
func TestDigestOfAnInsertID(t *testing.T) {
	t.Parallel()
	project := uuid.MustParse("0190a3c1-7d2e-7c3a-9f10-0a1b2c3d4e5f")
	for _, c := range []struct {
		environment    up.Environment
		insertID, want string
	}{
		{up.Live, "order-1", "2f12921f-3167-dacb-b5c1-d329a1ce40a1"},
		{up.Test, "order-1", "6744d866-8cfd-8646-e697-6cdd216bb067"},
		{up.Live, "Größe ✓", "f21e9adc-f8b8-cba9-b0d3-68aed323423d"},
	} {
		if got := uuid.UUID(keyOf(identity.Scope{Project: project, Environment: c.environment}, []byte(c.insertID))); got.String() != c.want {
			t.Errorf("%s of %s: %s, want %s", c.insertID, c.environment, got, c.want)
		}
	}
}

// An edge that was away for weeks sends in one transaction what came to it over all of them.
func TestInsertIDsOfATransactionThatSpansWeeksAreCompared(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	const day = 24 * time.Hour
	b.send(t, "e1", up.LaneEvent,
		in(projectA, noon.Add(-30*day), track("first month", "u", insertID("report"))),
		in(projectA, noon.Add(-30*day+time.Minute), track("first month, again", "u", insertID("report"))),
		in(projectA, noon.Add(-day), track("second month", "u", insertID("report"))),
		in(projectA, noon, track("second month, again", "u", insertID("report"))))
	b.send(t, "e2", up.LaneEvent, in(projectA, noon.Add(time.Minute), track("second month, another edge", "u", insertID("report"))))
	b.expect(t, []string{"first month", "second month"}, `SELECT event_name FROM events ORDER BY event_name`)
	if got := b.books(t, "e1", up.LaneEvent) + ", " + b.books(t, "e2", up.LaneEvent); got != "2 2 0 0, 0 1 0 0" {
		t.Errorf("books %s", got)
	}
}

func TestAnEdgeThatIsBackAfterMonthsStillFindsItsOwnDuplicates(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	const age = 60 * 24 * time.Hour
	if err := b.Report(t.Context(), "e1", []up.Totals{{Lane: up.LaneEvent, Received: 2, Pending: 2, OldestAge: age}}); err != nil {
		t.Fatal(err)
	}
	b.send(t, "e1", up.LaneEvent, in(projectA, noon.Add(-age), track("sent", "u", insertID("i"))))
	if err := b.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.send(t, "e1", up.LaneEvent, in(projectA, noon.Add(-age+time.Minute), track("sent again", "u", insertID("i"))))
	b.expect(t, []string{"sent"}, `SELECT event_name FROM events`)
}

// An edge that never comes back must not keep them for ever.
func TestInsertIDsWaitThirtyDaysForAnEdgeThatIsSilent(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	const day = 24 * time.Hour
	for _, age := range []time.Duration{60 * day, 37 * day} {
		b.send(t, "e1", up.LaneEvent, in(projectA, time.Now().Add(-age), track("e", "u", insertID(age.String()))))
	}
	if err := b.Report(t.Context(), "e9", []up.Totals{{Lane: up.LaneEvent, Received: 1, Pending: 1, OldestAge: 100 * day}}); err != nil {
		t.Fatal(err)
	}
	left := func(want ...string) {
		t.Helper()
		if err := b.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.expect(t, want, `SELECT extract(day FROM now() - received_at)::text FROM insert_ids ORDER BY received_at`)
	}
	left("60", "37")
	dbtest.Exec(t, b.db.App, `UPDATE ingest_reports SET reported_at = reported_at - interval '2 days'`)
	left("37")
	dbtest.Exec(t, b.db.App, `INSERT INTO ingest_retired (edge) VALUES ('e9')`)
	left()
}

func TestARefusedEventIsStoredByItsReplayAndNotTakenForItsOwnDuplicate(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	b.refuse(t, "refuse me")
	b.send(t, "e1", up.LaneEvent, in(projectA, noon, track("refuse me", "u1", insertID("i")), track("fine", "u", insertID("j"))))
	b.expect(t, []string{"refused_23514"}, `SELECT reason FROM dead_letters`)
	b.refuse(t, "nothing")
	b.replayAll(t)
	b.expect(t, []string{"fine", "refuse me"}, `SELECT event_name FROM events ORDER BY event_name`)
	b.send(t, "e1", up.LaneEvent, in(projectA, noon.Add(time.Minute), track("again", "u", insertID("i"))))
	b.expect(t, []string{"fine", "refuse me"}, `SELECT event_name FROM events ORDER BY event_name`)
	if got := b.books(t, "e1", up.LaneEvent); got != "2 1 0 0" {
		t.Errorf("books %s", got)
	}
}

// A client that mends what was refused may send it under the same insert_id.
func TestAnEventBehindARefusedOneOfItsInsertIDIsStored(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	b.send(t, "e1", up.LaneEvent, in(projectA, noon, track("bad", "u", insertID("i"), properties(`{"a":`))))
	b.send(t, "e1", up.LaneEvent, in(projectA, noon.Add(time.Minute), track("good", "u", insertID("i"))))
	b.expect(t, []string{"good"}, `SELECT event_name FROM events`)
	if got := b.books(t, "e1", up.LaneEvent); got != "1 0 0 1" {
		t.Errorf("books %s", got)
	}
}

// refuse lets PostgreSQL refuse events of one name, and of no other.
func (b *bundle) refuse(t *testing.T, name string) {
	t.Helper()
	_, err := b.db.Owner.Exec(t.Context(), `ALTER TABLE events DROP CONSTRAINT IF EXISTS refused, ADD CONSTRAINT refused CHECK (event_name <> '`+name+`') NOT VALID`)
	if err != nil {
		t.Fatal(err)
	}
}

func (b *bundle) replayAll(t *testing.T) {
	t.Helper()
	rows, err := b.db.App.Query(t.Context(), `SELECT `+letterColumns+` FROM dead_letters d`)
	if err != nil {
		t.Fatal(err)
	}
	letters, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (letter, error) { return scanLetter(row) })
	if err != nil {
		t.Fatal(err)
	}
	for i := range letters {
		if err := b.replay(t.Context(), &letters[i]); err != nil {
			t.Fatal(err)
		}
	}
}
