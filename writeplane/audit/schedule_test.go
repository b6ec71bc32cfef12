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

// member is a new member of the organization.
func (tr *trail) member(t *testing.T, role string, projects ...string) (memberID string) {
	t.Helper()
	memberID = id.New()
	dbtest.Exec(t, tr.db.App, `INSERT INTO members (id, organization_id, email, role, project_ids, created_at, updated_at)
		VALUES ($1, $2, $1::uuid::text || '@example.com', $3, coalesce($4::uuid[], '{}'), now(), now())`, memberID, tr.organization, role, projects)
	return memberID
}

// schedule is a new daily schedule of a member's.
func (tr *trail) schedule(t *testing.T, maker string, f filters, next time.Time) (scheduleID string) {
	t.Helper()
	scheduleID = id.New()
	dbtest.Exec(t, tr.db.App, `
		INSERT INTO audit_export_schedules (id, organization_id, filters, frequency, delivery, created_by, created_at, next_at)
		VALUES ($1, $2, $3, 'daily', $4, $5, now(), $6)`, scheduleID, tr.organization, f, delivery{Type: "presigned_url"}, maker, next)
	return scheduleID
}

func TestASchedulesMakerMustStillBeAllowedToReadIt(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "growth")
	p := newPress(t, tr, nil)
	clock := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	p.exporter.now = func() time.Time { return clock }
	whole, one := filters{}, filters{Projects: []string{tr.project}, ProjectID: &tr.project}
	for name, c := range map[string]struct {
		filters filters
		maker   func() string
		ends    bool
	}{
		"an admin of the organization": {whole, func() string { return tr.member(t, "org_admin") }, false},
		"an admin of the project":      {one, func() string { return tr.member(t, "project_admin", tr.project) }, false},
		"one who was removed": {one, func() string {
			maker := tr.member(t, "owner")
			dbtest.Exec(t, tr.db.App, `UPDATE members SET removed_at = now() WHERE id = $1`, maker)
			return maker
		}, true},
		"one who is an editor now":             {one, func() string { return tr.member(t, "editor", tr.project) }, true},
		"one who has another project now":      {one, func() string { return tr.member(t, "project_admin", id.New()) }, true},
		"one who has but a project now":        {whole, func() string { return tr.member(t, "project_admin", tr.project) }, true},
		"a member of another organization":     {one, func() string { return tr.another(t, "growth").member(t, "owner") }, true},
		"somebody of whom nothing is known":    {one, func() string { return id.New() }, true},
		"one whose name is no member's at all": {one, func() string { return "system:x" }, true},
	} {
		schedule := tr.schedule(t, c.maker(), c.filters, clock.Add(-time.Hour))
		for range 2 {
			if err := p.exporter.startDue(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		exports := dbtest.One[int](t, tr.db.App, `SELECT count(*) FROM audit_exports WHERE schedule_id = $1`, schedule)
		entries := dbtest.One[int](t, tr.db.App, `SELECT count(*) FROM audit_entries WHERE resource_id = $1 AND actor_id = 'system:export-schedule'
			AND action = 'audit.export_schedule.deleted' AND metadata->>'reason' = 'maker_lost_access' AND before->>'id' = $1::text`, schedule)
		lives := dbtest.One[int](t, tr.db.App, `SELECT count(*) FROM audit_export_schedules WHERE id = $1 AND deleted_at IS NULL`, schedule)
		if want := map[bool][3]int{false: {1, 0, 1}, true: {0, 1, 0}}[c.ends]; [3]int{exports, entries, lives} != want {
			t.Errorf("of %s: exports, entries and schedules %v, want %v", name, [3]int{exports, entries, lives}, want)
		}
	}
}

func TestEachMissedPeriodIsExportedOnce(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "growth")
	p := newPress(t, tr, nil)
	clock := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	p.exporter.now = func() time.Time { return clock }
	tr.schedule(t, tr.member(t, "org_admin"), filters{}, time.Date(2026, 3, 8, 0, 0, 0, 0, time.UTC)) // nobody ran for two days
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
