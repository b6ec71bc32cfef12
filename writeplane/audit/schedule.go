package audit

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/id"
	"skerry/pkg/instant"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

// delivery is how a scheduled export reaches people: a letter with a link, or the
// event audit.export.delivered with a signed URL.
type delivery struct {
	Type string `json:"type"` // email or presigned_url
	To   string `json:"to,omitempty"`
}

// scheduleRow exports the period that ended, again and again.
type scheduleRow struct {
	ID             string
	OrganizationID string
	Tier           string
	Filters        filters
	Frequency      string
	Delivery       delivery
	CreatedBy      string
	CreatedEmail   *string
	CreatedAt      time.Time
	NextAt         time.Time
}

// scheduleView is the schedule as the API shows it.
type scheduleView struct {
	ID        string       `json:"id"`
	ProjectID *string      `json:"project_id"`
	Frequency string       `json:"frequency"`
	Delivery  delivery     `json:"delivery"`
	CreatedAt instant.Time `json:"created_at"`
	NextAt    instant.Time `json:"next_at"`
}

func (s scheduleRow) view() scheduleView {
	return scheduleView{s.ID, s.Filters.ProjectID, s.Frequency, s.Delivery, instant.Of(s.CreatedAt), instant.Of(s.NextAt)}
}

const scheduleSQL = `
SELECT s.id, s.organization_id, o.tier, s.filters, s.frequency, s.delivery, s.created_by, s.created_email, s.created_at, s.next_at
FROM audit_export_schedules s JOIN organizations o ON o.id = s.organization_id WHERE s.deleted_at IS NULL AND `

func scanSchedule(row pgx.CollectableRow) (s scheduleRow, err error) {
	err = row.Scan(&s.ID, &s.OrganizationID, &s.Tier, &s.Filters, &s.Frequency, &s.Delivery, &s.CreatedBy, &s.CreatedEmail, &s.CreatedAt, &s.NextAt)
	return s, err
}

// periodEnd is the end of the period of t, in UTC: the next midnight, the next Monday's,
// or that of the first of the next month.
func periodEnd(frequency string, t time.Time) time.Time {
	t = t.UTC()
	day := time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC)
	switch frequency {
	case "weekly":
		sinceMonday := (int(day.Weekday()) + 6) % 7
		return day.AddDate(0, 0, 7-sinceMonday)
	case "monthly":
		return time.Date(t.Year(), t.Month()+1, 1, 0, 0, 0, 0, time.UTC)
	}
	return day.AddDate(0, 0, 1)
}

// periodBefore is the beginning of the period that ends at end.
func periodBefore(frequency string, end time.Time) time.Time {
	switch frequency {
	case "weekly":
		return end.AddDate(0, 0, -7)
	case "monthly":
		return end.AddDate(0, -1, 0)
	}
	return end.AddDate(0, 0, -1)
}

// startDue makes the exports of schedules whose period has ended, by the database's clock
// too: periods that a clock ran ahead through would be lost. It makes one period of each;
// periods that passed while nobody ran follow in the next rounds.
func (x *Exporter) startDue(ctx context.Context) error {
	for range 50 {
		started := false
		err := x.commits.InTx(ctx, commit.Origin{Actor: commit.Actor{ID: "system:export-schedule"}}, func(tx *commit.Tx) error {
			due, ok, err := postgres.One(ctx, tx, "read due schedule", scanSchedule,
				scheduleSQL+"s.next_at <= least($1, now()) ORDER BY s.next_at LIMIT 1 FOR UPDATE OF s SKIP LOCKED", x.now())
			if err != nil || !ok {
				return err
			}
			started = true
			return x.start(ctx, tx, due)
		})
		if err != nil {
			return fmt.Errorf("start scheduled exports: %w", err)
		}
		if !started {
			return nil
		}
	}
	return nil
}

func (x *Exporter) start(ctx context.Context, tx *commit.Tx, s scheduleRow) error {
	may, err := s.makerMay(ctx, tx)
	if err != nil {
		return err
	}
	if !may {
		return s.end(ctx, tx, map[string]any{"reason": "maker_lost_access"})
	}
	_, err = tx.Exec(ctx, `UPDATE audit_export_schedules SET next_at = $2 WHERE id = $1`, s.ID, periodEnd(s.Frequency, s.NextAt))
	if err != nil {
		return err
	}
	if !canSchedule(s.Tier, s.Delivery.Type) {
		return nil // the tier was lowered since; the schedule rests until it is raised again
	}
	export := exportRow{ID: id.New(), OrganizationID: s.OrganizationID, Filters: s.Filters, Status: "pending",
		RequestedBy: s.CreatedBy, RequestedEmail: s.CreatedEmail, Delivery: &s.Delivery, CreatedAt: x.now().UTC()}
	export.Filters.Since, export.Filters.Until = periodBefore(s.Frequency, s.NextAt), s.NextAt
	return insertExport(ctx, tx, x.queue, export, &s.ID)
}

// makerMay reports whether whoever made the schedule may still read all that it exports:
// it goes on in that member's name, as tokens do, and must not bring the log to people
// who left.
func (s scheduleRow) makerMay(ctx context.Context, tx *commit.Tx) (bool, error) {
	maker, ok, err := access.MemberCaller(ctx, tx, s.OrganizationID, s.CreatedBy)
	return ok && maker.Role >= access.ProjectAdmin && covers(maker, s.Filters), err
}

// end deletes the schedule. metadata may be nil.
func (s scheduleRow) end(ctx context.Context, tx *commit.Tx, metadata map[string]any) error {
	if _, err := tx.Exec(ctx, `UPDATE audit_export_schedules SET deleted_at = now() WHERE id = $1`, s.ID); err != nil {
		return fmt.Errorf("delete schedule: %w", err)
	}
	entry := s.entry("audit.export_schedule.deleted", s.view(), nil)
	entry.Metadata = metadata
	tx.Audit(entry)
	return nil
}

// canSchedule reports whether a tier includes a kind of delivery (specification: Growth
// and above for URLs).
func canSchedule(tier, delivery string) bool {
	if delivery == "presigned_url" {
		return access.TierAtLeast(tier, access.Growth)
	}
	return canExport(tier)
}
