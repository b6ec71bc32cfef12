package postgres_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/pkg/pgserver/pgtest"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

// counted is a pool of one connection that counts how often an answer was awaited.
func counted(t *testing.T) (*pgxpool.Pool, *atomic.Int64) {
	t.Helper()
	config, err := pgxpool.ParseConfig(pgtest.NewEmpty(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	trips := dbtest.CountTrips(config)
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	dbtest.Exec(t, pool, `CREATE TABLE notes (n int PRIMARY KEY, text text)`)
	return pool, trips
}

func notes(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT n || text FROM notes ORDER BY n`)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(found, " ")
}

const add = `INSERT INTO notes VALUES ($1, $2)`

func TestPipelineWaitsOnlyForAnswersThatAreRead(t *testing.T) {
	t.Parallel()
	pool, trips := counted(t)
	var seen int
	change := func(n int) {
		err := postgres.InPipeline(t.Context(), pool, func(tx *postgres.Pipeline) error {
			tx.Later("note", add, n, "a")
			tx.Later("note", add, n+1, "b")
			if err := tx.QueryRow(t.Context(), `SELECT count(*) FROM notes`).Scan(&seen); err != nil {
				return err
			}
			tx.Later("note", add, n+2, "c")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	change(1) // prepares the statements
	begun := trips.Load()
	change(4)
	if got := trips.Load() - begun; got != 2 {
		t.Errorf("%d round trips, want 2: BEGIN to the query, then the rest to COMMIT", got)
	}
	if seen != 5 {
		t.Errorf("the query saw %d rows, want 5: those before it", seen)
	}
	if got, want := notes(t, pool), "1a 2b 3c 4a 5b 6c"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestPipelineReadsOnTheWayWhatWasAsked(t *testing.T) {
	t.Parallel()
	pool, trips := counted(t)
	var asked, seen int
	change := func(n int) error {
		return postgres.InPipeline(t.Context(), pool, func(tx *postgres.Pipeline) error {
			tx.Later("note", add, n, "a")
			tx.Ask("count", func(rows pgx.Rows) error {
				_, err := pgx.ForEachRow(rows, []any{&asked}, func() error { return nil })
				return err
			}, `SELECT count(*) FROM notes`)
			tx.Later("note", add, n+1, "b")
			return tx.QueryRow(t.Context(), `SELECT count(*) FROM notes`).Scan(&seen)
		})
	}
	if err := change(1); err != nil { // prepares the statements
		t.Fatal(err)
	}
	begun := trips.Load()
	if err := change(3); err != nil {
		t.Fatal(err)
	}
	if got := trips.Load() - begun; got != 2 {
		t.Errorf("%d round trips, want 2: BEGIN to the query, then COMMIT", got)
	}
	if asked != 3 || seen != 4 {
		t.Errorf("saw %d, then %d rows; want 3 and 4: each those before it", asked, seen)
	}

	no := errors.New("no")
	err := postgres.InPipeline(t.Context(), pool, func(tx *postgres.Pipeline) error {
		tx.Later("note", add, 5, "a")
		tx.Ask("look", func(pgx.Rows) error { return no }, `SELECT n FROM notes`)
		return nil
	})
	if !errors.Is(err, no) || err.Error() != "look: no" {
		t.Errorf("a reader that refuses: %v", err)
	}
	if got, want := notes(t, pool), "1a 2b 3a 4b"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestPipelineThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	pool, _ := counted(t)
	no := errors.New("no")
	for name, c := range map[string]struct {
		fn   func(tx *postgres.Pipeline) error
		want string
	}{
		"the function": {func(tx *postgres.Pipeline) error {
			tx.Later("note", add, 1, "a")
			if _, err := tx.Exec(t.Context(), add, 2, "b"); err != nil {
				return err
			}
			return no
		}, "no"},
		"the function before anything was sent": {func(tx *postgres.Pipeline) error {
			tx.Later("note", add, 1, "a")
			return no
		}, "no"},
		"a statement that waited for a query": {func(tx *postgres.Pipeline) error {
			tx.Later("first note", add, 1, "a")
			tx.Later("second note", add, 1, "b")
			var n int
			return tx.QueryRow(t.Context(), `SELECT 1`).Scan(&n)
		}, "second note: ERROR: duplicate key"},
		"a statement that waited for COMMIT": {func(tx *postgres.Pipeline) error {
			tx.Later("first note", add, 1, "a")
			tx.Later("second note", add, 1, "b")
			return nil
		}, "second note: ERROR: duplicate key"},
		"the query": {func(tx *postgres.Pipeline) error {
			tx.Later("note", add, 1, "a")
			var n int
			return tx.QueryRow(t.Context(), `SELECT 1 / (SELECT 0 FROM notes LIMIT 1)`).Scan(&n)
		}, "division by zero"},
		"a failure that the function passed over": {func(tx *postgres.Pipeline) error {
			tx.Later("note", add, 1, "a")
			_, _ = tx.Exec(t.Context(), `SELECT 1 / (SELECT 0 FROM notes LIMIT 1)`)
			return nil
		}, pgx.ErrTxCommitRollback.Error()},
	} {
		// One connection: it must come back fit for use.
		err := postgres.InPipeline(t.Context(), pool, c.fn)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s failed: %v, want %q", name, err, c.want)
		}
		if got := notes(t, pool); got != "" {
			t.Errorf("%s failed, and left %q", name, got)
		}
	}
}

func TestPipelineIsATransactionForOthers(t *testing.T) {
	t.Parallel()
	pool, _ := counted(t)
	err := postgres.InPipeline(t.Context(), pool, func(tx *postgres.Pipeline) error {
		tx.Later("note", add, 1, "a")
		// A savepoint that fails takes back what was done in it, and nothing before.
		failed := pgx.BeginFunc(t.Context(), tx, func(inner pgx.Tx) error {
			if _, err := inner.Exec(t.Context(), add, 2, "b"); err != nil {
				return err
			}
			_, err := inner.Exec(t.Context(), add, 1, "again")
			return err
		})
		var refused *pgconn.PgError
		if !errors.As(failed, &refused) || refused.Code != "23505" {
			t.Errorf("savepoint: %v, want a duplicate key", failed)
		}
		tx.Later("note", add, 3, "c")
		if _, err := tx.CopyFrom(t.Context(), pgx.Identifier{"notes"}, []string{"n", "text"}, pgx.CopyFromRows([][]any{{4, "d"}})); err != nil {
			return err
		}
		tx.Later("note", add, 5, "e")
		batch := &pgx.Batch{}
		batch.Queue(`UPDATE notes SET text = 'E' WHERE n = 5`)
		if err := tx.SendBatch(t.Context(), batch).Close(); err != nil {
			return err
		}
		tx.Later("note", `UPDATE notes SET text = 'C' WHERE n = 3`)
		rows, err := tx.Query(t.Context(), `SELECT n FROM notes ORDER BY n`)
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[int])
		if len(found) != 4 {
			t.Errorf("%v rows, want four", found)
		}
		if err != nil {
			return err
		}
		tx.Later("note", add, 6, "f")
		_, err = tx.Exec(t.Context(), `UPDATE notes SET text = $1 WHERE n = 6`, pgx.QueryExecModeExec, "F")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := notes(t, pool), "1a 3C 4d 5E 6F"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestUnansweredCommitLeavesItsFateOpen(t *testing.T) {
	t.Parallel()
	direct, _ := counted(t)
	link := dbtest.NewLink(t, direct.Config().ConnString())
	pool, err := pgxpool.New(t.Context(), link.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)

	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- postgres.InPipeline(ctx, pool, func(tx *postgres.Pipeline) error {
			_, err := tx.Exec(ctx, add, 1, "a")
			link.Hold(false) // COMMIT arrives, its answer does not
			return err
		})
	}()
	eventually(t, "committed", func() bool { return notes(t, direct) == "1a" })
	leave()
	if err := <-ended; !postgres.FateUnknown(err) {
		t.Errorf("committed without an answer: %v", err)
	}
	link.Release()

	ctx, leave = context.WithCancel(t.Context())
	err = postgres.InPipeline(ctx, pool, func(tx *postgres.Pipeline) error {
		_, err := tx.Exec(ctx, add, 2, "b")
		leave() // before COMMIT is sent
		return err
	})
	if err == nil || postgres.FateUnknown(err) {
		t.Errorf("never committed: %v", err)
	}
	err = postgres.InPipeline(t.Context(), pool, func(tx *postgres.Pipeline) error {
		tx.Later("note", add, 1, "twice")
		return nil
	})
	if err == nil || postgres.FateUnknown(err) {
		t.Errorf("refused with its commit: %v", err)
	}
}
