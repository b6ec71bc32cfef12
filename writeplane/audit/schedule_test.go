package audit

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/id"
	"skerry/writeplane/postgres/dbtest"
)

func TestSchedulesExportThePeriodThatEnded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ frequency, now, since, until string }{
		{"daily", "2026-03-02T10:00:00Z", "2026-03-02T00:00:00Z", "2026-03-03T00:00:00Z"},
		{"daily", "2026-02-28T00:00:00Z", "2026-02-28T00:00:00Z", "2026-03-01T00:00:00Z"},
		{"weekly", "2026-03-02T00:00:00Z", "2026-03-02T00:00:00Z", "2026-03-09T00:00:00Z"}, // a Monday
		{"weekly", "2026-03-08T23:59:59Z", "2026-03-02T00:00:00Z", "2026-03-09T00:00:00Z"}, // the Sunday after
		{"monthly", "2026-01-31T10:00:00Z", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"},
		{"monthly", "2026-12-15T10:00:00+02:00", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"},
	} {
		now, _ := time.Parse(time.RFC3339, c.now)
		end := periodEnd(c.frequency, now)
		if got := end.Format(time.RFC3339); got != c.until {
			t.Errorf("%s %s ends %s, want %s", c.frequency, c.now, got, c.until)
		}
		if got := periodBefore(c.frequency, end).Format(time.RFC3339); got != c.since {
			t.Errorf("%s %s begins %s, want %s", c.frequency, c.now, got, c.since)
		}
	}
}

func TestEachMissedPeriodIsExportedOnce(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "growth")
	p := newPress(t, tr, nil)
	clock := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	p.exporter.now = func() time.Time { return clock }
	insert := func(kind string, next time.Time) {
		_, err := tr.db.App.Exec(t.Context(), `
			INSERT INTO audit_export_schedules (id, organization_id, filters, frequency, delivery, created_by, created_at, next_at)
			VALUES ($1, $2, $3, 'daily', $4, 'user-1', now(), $5)`, id.New(), tr.organization, filters{}, delivery{Type: kind}, next)
		if err != nil {
			t.Fatal(err)
		}
	}
	insert("presigned_url", time.Date(2026, 3, 8, 0, 0, 0, 0, time.UTC)) // nobody ran for two days
	for range 2 {
		if err := p.exporter.startDue(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := tr.db.App.Query(t.Context(), exportSQL+"true ORDER BY filters->>'since'")
	if err != nil {
		t.Fatal(err)
	}
	made, err := pgx.CollectRows(rows, scanExport)
	if err != nil {
		t.Fatal(err)
	}
	var since []string
	for _, export := range made {
		since = append(since, export.Filters.Since.Format("01-02"))
	}
	if !slices.Equal(since, []string{"03-07", "03-08", "03-09"}) {
		t.Errorf("%v", since)
	}
	// A clock that runs ahead alone ends no period.
	clock = time.Now().AddDate(1, 0, 0)
	dbtest.Exec(t, tr.db.App, `UPDATE audit_export_schedules SET next_at = now() + interval '1 day'`)
	if err := p.exporter.startDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	exports := func() int { return dbtest.One[int](t, tr.db.App, `SELECT count(*) FROM audit_exports`) }
	if count := exports(); count != 3 {
		t.Fatalf("%d exports", count)
	}
	clock = time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	dbtest.Exec(t, tr.db.App, `UPDATE audit_export_schedules SET next_at = '2026-03-11'`)
	// A tier that no longer includes it: the schedule rests and does not pile up.
	dbtest.Exec(t, tr.db.App, `UPDATE organizations SET tier = 'pro'`)
	clock = clock.AddDate(0, 0, 2)
	if err := p.exporter.startDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if count := exports(); count != 3 {
		t.Errorf("%d exports", count)
	}
}
