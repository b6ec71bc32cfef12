// Package jobs runs the plane's background jobs on river: the exports of the audit log.
// What recurs (deliveries, symbolication, rewriting, cleanup) has loops of its own, which
// look at their tables.
//
// A job is inserted in the transaction that makes it necessary and runs at least
// once, on any process of the plane. A process that dies leaves its jobs to the
// others after RescueAfter; whoever needs it sooner notices by itself and inserts
// the job again. So every worker must bear being run twice.
package jobs

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
)

const (
	// Timeout ends a job that has no Timeout method of its own.
	Timeout = 10 * time.Minute
	// RescueAfter is when a job of a process that died runs again.
	RescueAfter = 15 * time.Minute
	// workers is how many jobs a process runs at once.
	workers = 4
	// stopWithin is how long running jobs may go on when the process ends.
	stopWithin = 3 * time.Second
)

// Registrar registers a module's workers: river.AddWorker(w, …) for each.
type Registrar func(w *river.Workers)

// Queue inserts and runs jobs.
type Queue struct{ client *river.Client[pgx.Tx] }

// New returns the queue of a process. pool logs in as the owner of river's tables.
func New(pool *pgxpool.Pool, modules ...Registrar) (*Queue, error) {
	registered := river.NewWorkers()
	for _, register := range modules {
		register(registered)
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}},
		Workers: registered, JobTimeout: Timeout, RescueStuckJobsAfter: RescueAfter, SoftStopTimeout: stopWithin,
		Logger: slog.New(quiet{slog.Default().Handler()}),
	})
	if err != nil {
		return nil, fmt.Errorf("make job queue: %w", err)
	}
	return &Queue{client: client}, nil
}

// Insert makes the job a part of the transaction. options may be nil.
func (q *Queue) Insert(ctx context.Context, tx pgx.Tx, args river.JobArgs, options *river.InsertOpts) error {
	if _, err := q.client.InsertTx(ctx, tx, args, options); err != nil {
		return fmt.Errorf("insert job %s: %w", args.Kind(), err)
	}
	return nil
}

// Run runs jobs until ctx ends; those under way then get a moment to end.
func (q *Queue) Run(ctx context.Context) error {
	if err := q.client.Start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // it was to end before it had begun
		}
		return fmt.Errorf("start job queue: %w", err)
	}
	<-q.client.Stopped()
	return nil
}

// quiet lowers river's own news to the level of debugging; its warnings stay.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, level slog.Level) bool {
	if level == slog.LevelInfo {
		level = slog.LevelDebug
	}
	return q.Handler.Enabled(ctx, level)
}

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }
func (q quiet) WithGroup(name string) slog.Handler       { return quiet{q.Handler.WithGroup(name)} }
