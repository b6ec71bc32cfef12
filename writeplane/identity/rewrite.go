package identity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/replication/up"
	"skerry/writeplane/postgres"
)

// Lease lets one process rewrite at a time.
type Lease interface {
	Acquire(ctx context.Context, name string, term time.Duration) (bool, error)
	Release(ctx context.Context, name string) error
}

const (
	leaseName  = "identity/rewrite"
	leaseTerm  = 30 * time.Second
	workEvery  = time.Second
	minGroup   = 200    // aliases rewritten together, at first and when that takes long
	maxGroup   = 10_000 // at most
	groupTime  = 10 * time.Second
	eraseSize  = 1_000 // identifiers whose events are erased together
	firstBatch = 2_000
	minBatch   = 100
	maxBatch   = 50_000
	// aimedAt is how long a transaction should take. Links and receivers of the same
	// scopes may wait for it, and none may take a second.
	aimedAt = 200 * time.Millisecond
)

// Worker rewrites the history of linked identifiers and removes what was erased.
//
// It goes partition by partition, in transactions of some rows. Each looks only for rows
// that still carry an alias, so whoever starts again after a kill finds what is left. An
// alias is done when no partition has a row of it any more, except rows that an erasure
// covers; none can come later, because receivers store resolved identifiers.
type Worker struct {
	pool    *pgxpool.Pool
	lease   Lease
	renewed time.Time     // the lease
	batch   int           // rows that a transaction may change
	group   int           // aliases that go through the partitions together
	longest time.Duration // of the group's transactions

	mu     sync.Mutex
	status WorkerStatus
}

// WorkerStatus is the rewriting's progress. Counters are of this process.
type WorkerStatus struct {
	Waiting          int64   `json:"waiting"`            // aliases whose history is not rewritten yet
	OldestSeconds    float64 `json:"oldest_seconds"`     // how long the first of them has waited
	Partition        string  `json:"partition"`          // at work on; empty when idle
	Rewritten        int64   `json:"rewritten"`          // events
	Erased           int64   `json:"erased"`             // events
	LongestTxSeconds float64 `json:"longest_tx_seconds"` // of all transactions so far
	Fault            string  `json:"fault,omitempty"`
}

// NewWorker returns a worker on the application's pool.
func NewWorker(pool *pgxpool.Pool, lease Lease) *Worker {
	return &Worker{pool: pool, lease: lease, batch: firstBatch, group: minGroup}
}

// Run works until ctx ends.
func (w *Worker) Run(ctx context.Context) error {
	tick := time.NewTicker(workEvery)
	defer tick.Stop()
	defer func() {
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = w.lease.Release(release, leaseName) // it ends by itself otherwise
	}()
	for {
		if err := w.Work(ctx); err != nil && ctx.Err() == nil {
			slog.Warn("rewrite history", "error", err)
			w.show(func(s *WorkerStatus) { s.Fault = err.Error() })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Work does all that there is to do now, if the lease is ours.
func (w *Worker) Work(ctx context.Context) error {
	defer w.show(func(s *WorkerStatus) { s.Partition = "" })
	for {
		held, err := w.acquire(ctx)
		if err != nil || !held {
			return err
		}
		removed, err := w.eraseGroup(ctx)
		if err != nil {
			return err
		}
		if err := w.look(ctx); err != nil {
			return err
		}
		rewritten, err := w.rewriteGroup(ctx)
		if err != nil {
			return err
		}
		w.show(func(s *WorkerStatus) { s.Fault = "" })
		if !removed && !rewritten {
			return nil
		}
	}
}

// Status tells the progress.
func (w *Worker) Status() WorkerStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

func (w *Worker) show(change func(*WorkerStatus)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.status)
}

func (w *Worker) look(ctx context.Context) error {
	var waiting int64
	var oldest float64
	err := w.pool.QueryRow(ctx, `
		SELECT count(*), coalesce(extract(epoch FROM now() - min(queued_at)), 0)::float8 FROM rewrites`).Scan(&waiting, &oldest)
	if err != nil {
		return fmt.Errorf("count rewrites: %w", err)
	}
	w.show(func(s *WorkerStatus) { s.Waiting, s.OldestSeconds = waiting, oldest })
	return nil
}

// group is some aliases whose history is rewritten together.
type group struct {
	scopes   []Scope    // each once
	projects [][16]byte // in this form pgx needs a tenth of the time
	environs []int16
	aliases  []string
	queued   []time.Time
}

func (w *Worker) rewriteGroup(ctx context.Context) (did bool, err error) {
	g, err := w.nextGroup(ctx)
	if err != nil || len(g.aliases) == 0 {
		return false, err
	}
	started := time.Now()
	w.longest = 0
	count := func(n int64) { w.show(func(s *WorkerStatus) { s.Rewritten += n }) }
	err = w.inPartitions(ctx, count, func(tx pgx.Tx, partition string, limit int) (b batch, err error) {
		if err := LockShared(ctx, tx, g.scopes); err != nil {
			return b, err
		}
		err = tx.QueryRow(ctx, fmt.Sprintf(rewriteSQL, partition), g.projects, g.environs, g.aliases, limit).Scan(&b.found, &b.changed)
		return b, err
	})
	if err != nil {
		return false, fmt.Errorf("rewrite history: %w", err)
	}
	err = w.finish(ctx, g.scopes, finishSQL, g.projects, g.environs, g.aliases, g.queued)
	if err != nil {
		return false, fmt.Errorf("finish rewrites: %w", err)
	}
	w.fitGroup(len(g.aliases), time.Since(started))
	return true, nil
}

// fitGroup makes the next group fit the time that one of so many aliases took. A pass
// costs something for each partition, of which a year has hundreds, however few aliases
// are looked for; of many, a transaction looks for too many.
func (w *Worker) fitGroup(aliases int, took time.Duration) {
	switch {
	case w.longest > 2*aimedAt || took > groupTime:
		w.group = max(w.group/2, minGroup)
	case aliases == w.group && took < groupTime/2:
		w.group = min(w.group*2, maxGroup)
	}
}

// finishSQL takes the aliases out of the queue. One that was queued again meanwhile keeps
// its place.
const finishSQL = `
DELETE FROM rewrites WHERE ctid = ANY (ARRAY(
	SELECT r.at FROM unnest($1::uuid[], $2::smallint[], $3::text[], $4::timestamptz[]) AS d (project_id, environment, alias_id, queued_at)
	CROSS JOIN LATERAL (
		SELECT ctid AS at, queued_at FROM rewrites
		WHERE project_id = d.project_id AND environment = d.environment AND alias_id = d.alias_id OFFSET 0
	) r
	WHERE r.queued_at = d.queued_at))`

// finish closes what is done, and never meets an erasure of the same people: that would
// lock their rows in another order.
func (w *Worker) finish(ctx context.Context, scopes []Scope, sql string, args ...any) error {
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if err := LockShared(ctx, tx, scopes); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, plannerSQL); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sql, args...)
		return err
	})
}

func (w *Worker) nextGroup(ctx context.Context) (g group, err error) {
	rows, err := w.pool.Query(ctx, `
		SELECT project_id, environment, alias_id, queued_at FROM rewrites ORDER BY queued_at LIMIT $1`, w.group)
	if err != nil {
		return g, fmt.Errorf("read rewrites: %w", err)
	}
	var project uuid.UUID
	var environment int16
	var alias string
	var queued time.Time
	seen := map[Scope]bool{}
	_, err = pgx.ForEachRow(rows, []any{&project, &environment, &alias, &queued}, func() error {
		if s := (Scope{project, up.Environment(environment)}); !seen[s] {
			seen[s] = true
			g.scopes = append(g.scopes, s)
		}
		g.projects, g.environs = append(g.projects, project), append(g.environs, environment)
		g.aliases, g.queued = append(g.aliases, alias), append(g.queued, queued)
		return nil
	})
	if err != nil {
		return g, fmt.Errorf("read rewrites: %w", err)
	}
	return g, nil
}

// rewriteSQL gives some of a partition's rows their canonical identifier. The sent one
// goes into anon_id, once; another anon_id that it was sent with moves over. What was
// erased stays where its erasure looks for it.
//
// Most of a group's aliases have nothing in most partitions. So the first look is for an
// event, one id after the other as in resolveSQL: of tables that have just grown the
// planner may think that reading all of them is as good.
const rewriteSQL = `
WITH victims AS (
	SELECT e.at AS ctid, a.canonical_id
	FROM unnest($1::uuid[], $2::smallint[], $3::text[]) AS k (project_id, environment, alias_id)
	CROSS JOIN LATERAL (
		SELECT canonical_id FROM aliases
		WHERE project_id = k.project_id AND environment = k.environment AND alias_id = k.alias_id AND EXISTS (
			SELECT FROM %[1]s WHERE project_id = k.project_id AND environment = k.environment AND distinct_id = k.alias_id)
		OFFSET 0
	) a
	CROSS JOIN LATERAL (
		SELECT e.ctid AS at FROM %[1]s e
		WHERE e.project_id = k.project_id AND e.environment = k.environment AND e.distinct_id = k.alias_id AND NOT ` + erased + `
		OFFSET 0
	) e
	LIMIT $4
), rewritten AS (
	UPDATE %[1]s e SET
		distinct_id = v.canonical_id,
		anon_id = CASE WHEN e.rewritten THEN e.anon_id ELSE e.distinct_id END,
		sent_anon_id = CASE WHEN e.rewritten OR e.anon_id = e.distinct_id THEN e.sent_anon_id ELSE e.anon_id END,
		rewritten = true
	FROM victims v WHERE e.ctid = v.ctid RETURNING 1
)
SELECT (SELECT count(*) FROM victims), (SELECT count(*) FROM rewritten)`

// plannerSQL keeps the planner at the index: with a LIMIT it likes to scan the table
// from its start, which for the last rows of many is all of it, again and again; and a
// plan that was made for a short table is kept when it has grown long.
const plannerSQL = `SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off`

// batch is what one transaction has done: the rows that it found to be changed, and how
// many of them it changed. Another transaction may have been faster with the rest, and
// then there may be more behind them.
type batch struct{ found, changed int64 }

// inPartitions brings a statement to every partition, until none has rows for it any
// more. A day that is made meanwhile takes its rows out of the default partition, which
// comes last: whoever has not been there finds them in the new day.
func (w *Worker) inPartitions(ctx context.Context, count func(int64), statement func(tx pgx.Tx, partition string, limit int) (batch, error)) error {
	for visited := map[string]bool{}; ; {
		partitions, err := Partitions(ctx, w.pool)
		if err != nil {
			return err
		}
		partitions = slices.DeleteFunc(partitions, func(name string) bool { return visited[name] })
		if len(partitions) == 0 {
			return nil
		}
		for _, partition := range partitions {
			visited[partition] = true
			w.show(func(s *WorkerStatus) { s.Partition = partition })
			err := w.inBatches(ctx, count, func(tx pgx.Tx, limit int) (batch, error) { return statement(tx, partition, limit) })
			if err != nil {
				return fmt.Errorf("%s: %w", partition, err)
			}
		}
	}
}

// inBatches repeats a statement in transactions of its own until it has done all that
// it found and found less than it may take, and makes their size fit the time they take.
func (w *Worker) inBatches(ctx context.Context, count func(int64), statement func(tx pgx.Tx, limit int) (batch, error)) error {
	for {
		if err := w.renew(ctx); err != nil {
			return err
		}
		limit := w.batch
		started := time.Now()
		var b batch
		err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) (err error) {
			if _, err := tx.Exec(ctx, plannerSQL); err != nil {
				return err
			}
			b, err = statement(tx, limit)
			return err
		})
		if err != nil {
			return err
		}
		took := time.Since(started)
		w.longest = max(w.longest, took)
		count(b.changed)
		w.show(func(s *WorkerStatus) { s.LongestTxSeconds = max(s.LongestTxSeconds, took.Seconds()) })
		if took > aimedAt {
			w.batch = max(limit/2, minBatch)
		} else if b.found == int64(limit) && took < aimedAt/2 {
			w.batch = min(limit*3/2, maxBatch)
		}
		if b.found < int64(limit) && b.changed == b.found {
			return nil
		}
	}
}

// renew keeps the lease while there is work.
func (w *Worker) renew(ctx context.Context) error {
	if time.Since(w.renewed) < leaseTerm/4 {
		return nil
	}
	held, err := w.acquire(ctx)
	if err == nil && !held {
		err = errors.New("the lease went to another process")
	}
	return err
}

func (w *Worker) acquire(ctx context.Context) (held bool, err error) {
	w.renewed = time.Now()
	return w.lease.Acquire(ctx, leaseName, leaseTerm)
}

var partitionName = regexp.MustCompile(`^events_(default|[0-9]{8})$`)

// Partitions lists the tables that hold events, the newest day first, the default last.
func Partitions(ctx context.Context, q Querier) ([]string, error) {
	names, err := postgres.All(ctx, q, "list partitions", pgx.RowTo[string], `
		SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent = 'events'::regclass ORDER BY c.relname = 'events_default', c.relname DESC`)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if !partitionName.MatchString(name) {
			return nil, fmt.Errorf("events has a partition %q that nobody here made", name)
		}
	}
	return names, nil
}
