package crashes

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/writeplane/postgres"
)

const (
	forgetEvery = time.Hour
	forgetStep  = 1000 // reports of one statement: they are large, and others wait for their pages
)

// Retention removes crash reports that were received longer ago than they are kept.
// Any number of processes may run one.
type Retention struct {
	owner *pgxpool.Pool
	days  int
}

// NewRetention keeps reports for so many days, by receipt; 0 keeps them for ever. The
// pool logs in as the owner of the tables: the application itself removes no reports.
func NewRetention(owner *pgxpool.Pool, days int) *Retention {
	return &Retention{owner: owner, days: days}
}

// Run removes what is too old until ctx ends: at the start, then every hour.
func (r *Retention) Run(ctx context.Context) error {
	if r.days == 0 {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(forgetEvery)
	defer tick.Stop()
	for {
		n, err := r.Forget(ctx, time.Now())
		switch {
		case err != nil && ctx.Err() == nil:
			slog.Warn("crash retention was put off", "error", err)
		case n > 0:
			slog.Info("crash reports removed by retention", "reports", n)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// forgetSQL passes over what a worker holds just now: the next round has it.
const forgetSQL = `
DELETE FROM crash_events WHERE id = ANY (ARRAY(
	SELECT id FROM crash_events WHERE received_at < $1 ORDER BY received_at LIMIT $2 FOR UPDATE SKIP LOCKED))`

// Forget removes the reports that are too old at the given time, and by the database's
// clock as well. It returns how many it removed.
func (r *Retention) Forget(ctx context.Context, now time.Time) (removed int64, err error) {
	if r.days == 0 {
		return 0, nil
	}
	agreed, err := postgres.Earlier(ctx, r.owner, now)
	if err != nil {
		return 0, err
	}
	before := agreed.AddDate(0, 0, -r.days)
	for {
		tag, err := r.owner.Exec(ctx, forgetSQL, before, forgetStep)
		if err != nil {
			return removed, fmt.Errorf("remove old crash reports: %w", err)
		}
		removed += tag.RowsAffected()
		if tag.RowsAffected() < forgetStep {
			return removed, nil
		}
	}
}
