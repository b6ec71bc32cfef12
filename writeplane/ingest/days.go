package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/replication/up"
	"skerry/writeplane/identity"
	"skerry/writeplane/postgres"
)

const (
	daysAhead = 3
	// oldestDay bounds for which days a table is made, when retention does not: an edge
	// whose clock stands in 1970 must not make ten thousand.
	oldestDay = 400
	dayLock   = 0x736b_6461_79 // "skday": one process makes tables at a time
)

// days makes and drops the partitions of events. What has no day of its own goes to the
// default partition, so a missing day never holds anything up.
type days struct {
	owner     *pgxpool.Pool
	retention int // days; 0: for ever

	mu    sync.Mutex
	known map[time.Time]time.Time // day → when to look again: zero, never; else making it failed
}

func dayOf(t time.Time) time.Time {
	t = t.UTC()
	return time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC)
}

func partitionOf(day time.Time) string { return "events_" + day.Format("20060102") }

// wanted tells whether a day gets a table of its own.
func (d *days) wanted(day, now time.Time) bool {
	back := oldestDay
	if d.retention > 0 {
		back = d.retention
	}
	today := dayOf(now)
	return !day.After(today.AddDate(0, 0, daysAhead)) && !day.Before(today.AddDate(0, 0, -back))
}

// ensure makes the tables of the given days where they are missing. It never fails for
// long: what cannot be made now is stored in the default partition.
func (d *days) ensure(ctx context.Context, needed map[time.Time]bool) {
	now := time.Now()
	for day := range needed {
		d.mu.Lock()
		again, known := d.known[day]
		d.mu.Unlock()
		if known && (again.IsZero() || now.Before(again)) || !d.wanted(day, now) {
			continue
		}
		err := d.create(ctx, day)
		if ctx.Err() != nil {
			return // nothing is known of the day
		}
		again = time.Time{}
		if err != nil {
			slog.Warn("make a partition; its events go to the default one meanwhile", "day", day.Format(time.DateOnly), "error", err)
			again = now.Add(time.Minute)
		}
		d.mu.Lock()
		if d.known == nil {
			d.known = map[time.Time]time.Time{}
		}
		d.known[day] = again
		d.mu.Unlock()
	}
}

// create makes a day's table, brings over what the default partition already holds of
// the day, and attaches it.
func (d *days) create(ctx context.Context, day time.Time) error {
	name := partitionOf(day)
	from, to := day.Format(time.DateOnly), day.AddDate(0, 0, 1).Format(time.DateOnly)
	return pgx.BeginFunc(ctx, d.owner, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '2s'`); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(dayLock)); err != nil {
			return fmt.Errorf("wait for another process: %w", err)
		}
		var there bool
		if err := tx.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, name).Scan(&there); err != nil || there {
			return err
		}
		for _, sql := range []string{
			`CREATE TABLE ` + name + ` (LIKE events INCLUDING ALL)`,
			`GRANT SELECT, INSERT, UPDATE, DELETE ON ` + name + ` TO skerry_app`,
			`WITH moved AS (DELETE FROM events_default WHERE received_at >= '` + from + `' AND received_at < '` + to + `' RETURNING *)
			 INSERT INTO ` + name + ` SELECT * FROM moved`,
			`ALTER TABLE events ATTACH PARTITION ` + name + ` FOR VALUES FROM ('` + from + `') TO ('` + to + `')`,
		} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return fmt.Errorf("make partition %s: %w", name, err)
			}
		}
		return nil
	})
}

// Maintain makes the next days' tables, drops those past retention, sums up the time
// index, and forgets insert_ids that are too old to matter.
func (s *Store) Maintain(ctx context.Context) error { return s.maintainAt(ctx, time.Now()) }

// maintainAt is Maintain by a process's clock. What is removed is old by the
// database's too.
func (s *Store) maintainAt(ctx context.Context, now time.Time) error {
	today := dayOf(now)
	ahead := map[time.Time]bool{}
	for i := -1; i <= daysAhead; i++ {
		ahead[today.AddDate(0, 0, i)] = true
	}
	s.days.ensure(ctx, ahead)
	agreed, err := postgres.Earlier(ctx, s.db.App, now)
	if err != nil {
		return err
	}
	return errors.Join(s.days.drop(ctx, dayOf(agreed)), s.days.summarize(ctx, today), s.forgetInsertIDs(ctx, agreed))
}

func (d *days) drop(ctx context.Context, today time.Time) error {
	if d.retention == 0 {
		return nil
	}
	oldest := today.AddDate(0, 0, -d.retention)
	names, err := identity.Partitions(ctx, d.owner)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name >= partitionOf(oldest) { // the default's name sorts behind all days
			continue
		}
		if err := d.dropOne(ctx, name); err != nil {
			return err
		}
	}
	return inSteps(ctx, d.owner, `DELETE FROM events_default WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM events_default WHERE received_at < $1 LIMIT $2))`, oldest)
}

func (d *days) dropOne(ctx context.Context, name string) error {
	err := pgx.BeginFunc(ctx, d.owner, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '2s'`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `DROP TABLE `+name)
		return err
	})
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "42P01" {
		return nil // another process was faster
	}
	if err != nil {
		return fmt.Errorf("drop partition %s: %w", name, err)
	}
	slog.Info("partition dropped by retention", "partition", name)
	return nil
}

// summarize brings the time index of the newest days up to date; until then a query
// reads the rows it does not cover.
func (d *days) summarize(ctx context.Context, today time.Time) error {
	for i := -1; i <= 0; i++ {
		_, err := d.owner.Exec(ctx, `
			SELECT brin_summarize_new_values(i.indexrelid) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
			WHERE i.indrelid = to_regclass($1) AND a.amname = 'brin'`, partitionOf(today.AddDate(0, 0, i)))
		if err != nil {
			return fmt.Errorf("sum up the time index: %w", err)
		}
	}
	return nil
}

// forgetInsertIDs removes what is older than the window, and older than anything an
// edge may still hold: its events meet the insert_ids of their own time. An edge that
// is heard of sends what it holds, however old; one that is not may never come back.
func (s *Store) forgetInsertIDs(ctx context.Context, now time.Time) error {
	var heard, silent *time.Time
	err := s.db.App.QueryRow(ctx, `
		SELECT min(oldest_at) FILTER (WHERE reported_at > now() - interval '1 day'), min(oldest_at)
		FROM ingest_reports WHERE lane = $1 AND pending > 0 AND edge NOT IN (SELECT edge FROM ingest_retired)`,
		int16(up.LaneEvent)).Scan(&heard, &silent)
	if err != nil {
		return fmt.Errorf("read the oldest pending event: %w", err)
	}
	held := max(heldSince(heard, now, oldestDay*24*time.Hour), heldSince(silent, now, silentInsertIDs))
	return inSteps(ctx, s.db.App, `DELETE FROM insert_ids WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM insert_ids WHERE received_at < $1 LIMIT $2))`, now.Add(-insertIDWindow-24*time.Hour-held))
}

// silentInsertIDs is for how much longer insert_ids are kept for edges that are silent.
const silentInsertIDs = 30 * 24 * time.Hour

// heldSince is how long an edge has held its oldest event, between 0 and most.
func heldSince(oldest *time.Time, now time.Time, most time.Duration) time.Duration {
	if oldest == nil {
		return 0
	}
	return min(max(now.Sub(*oldest), 0), most)
}

// inSteps repeats a statement, each time for at most some rows, until none are left.
func inSteps(ctx context.Context, pool *pgxpool.Pool, sql string, before time.Time) error {
	const step = 20_000
	for {
		tag, err := pool.Exec(ctx, sql, before, step)
		if err != nil {
			return fmt.Errorf("remove what is too old: %w", err)
		}
		if tag.RowsAffected() < step {
			return nil
		}
	}
}

// Run keeps the store tidy until ctx ends: at the start, then every minute.
func (s *Store) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		if err := s.Maintain(ctx); err != nil && ctx.Err() == nil {
			slog.Warn("maintain the event store", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
