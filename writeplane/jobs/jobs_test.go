package jobs_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"skerry/writeplane/jobs"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

type greet struct {
	Name string `json:"name"`
}

func (greet) Kind() string { return "greet" }

type greeter struct {
	river.WorkerDefaults[greet]
	greeted chan string
}

func (g *greeter) Work(ctx context.Context, job *river.Job[greet]) error {
	select {
	case g.greeted <- job.Args.Name:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestJobRunsWhenItsTransactionCommitsAndOnlyThen(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	worker := &greeter{greeted: make(chan string, 1)}
	queue, err := jobs.New(db.Owner, func(w *river.Workers) { river.AddWorker(w, worker) })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- queue.Run(ctx) }()

	lost := errors.New("rolled back")
	insert := func(name string, end error) error {
		return postgres.InTx(t.Context(), db.App, func(tx pgx.Tx) error {
			if err := queue.Insert(t.Context(), tx, greet{name}, nil); err != nil {
				return err
			}
			return end
		})
	}
	if err := insert("nobody", lost); !errors.Is(err, lost) {
		t.Fatal(err)
	}
	if err := insert("somebody", nil); err != nil {
		t.Fatal(err)
	}
	if got := <-worker.greeted; got != "somebody" {
		t.Error(got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
