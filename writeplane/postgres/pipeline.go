package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Pipeline is a transaction that spares round trips: a statement of which only
// success matters waits, and travels with the next one whose answer somebody needs.
// BEGIN waits too, and COMMIT travels with the last. Statements run in the order in
// which they were given, and none runs behind one that failed.
//
// It is a pgx.Tx for code that takes one, but its end is InPipeline's alone. It is
// used by one goroutine, and rows of it must be closed before its next statement.
type Pipeline struct {
	conn    *pgxpool.Conn
	tx      pgx.Tx // nil until BEGIN was sent
	waiting []statement
}

var _ pgx.Tx = (*Pipeline)(nil)

// statement is one that waits; what says in errors what it was meant to do. read takes
// its rows; nil where only success matters.
type statement struct {
	what string
	sql  string
	args []any
	read func(pgx.Rows) error
}

// answered takes the answer to the statement from a batch's results.
func (s statement) answered(results pgx.BatchResults) error {
	if s.read == nil {
		_, err := results.Exec()
		return err
	}
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	return s.read(rows)
}

// InPipeline runs fn in a transaction of its own: committed when fn returns nil,
// rolled back otherwise.
func InPipeline(ctx context.Context, pool *pgxpool.Pool, fn func(*Pipeline) error) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	// A connection that still stands in a transaction is closed by its release.
	defer conn.Release()
	p := &Pipeline{conn: conn}
	if err := fn(p); err != nil {
		return p.rolledBack(ctx, err)
	}
	if err := p.hear(ctx); err != nil {
		return p.rolledBack(ctx, err)
	}
	if err := p.commit(ctx); err != nil {
		return p.rolledBack(ctx, undecided(err))
	}
	return nil
}

// undecided marks the failure of a COMMIT that was sent and not answered: the transaction
// may have taken effect.
func undecided(err error) error {
	var refused *pgconn.PgError
	if errors.As(err, &refused) || errors.Is(err, pgx.ErrTxCommitRollback) || pgconn.SafeToRetry(err) ||
		!errors.Is(err, context.Canceled) && !Unavailable(err) {
		return err
	}
	return fateError{err}
}

// fateError is an error after which nobody can tell whether the transaction took effect.
type fateError struct{ error }

func (e fateError) Unwrap() error { return e.error }

// FateUnknown reports whether err leaves open if its transaction took effect.
func FateUnknown(err error) bool {
	var fate fateError
	return errors.As(err, &fate)
}

// rolledBack ends the transaction because of the cause, and returns it.
func (p *Pipeline) rolledBack(ctx context.Context, cause error) error {
	switch p.conn.Conn().PgConn().TxStatus() {
	case 'T', 'E':
		// If even that fails, the connection's end rolls back.
		_, _ = p.conn.Exec(ctx, "rollback")
	}
	return cause
}

// Later leaves a statement of which only success matters to travel with the next. A
// failure is told by whatever sends it, as "what: …".
func (p *Pipeline) Later(what, sql string, args ...any) {
	p.waiting = append(p.waiting, statement{what: what, sql: sql, args: args})
}

// Ask is Later for a query: read is given the rows when the statement has travelled, and
// reads them to their end. So a lock and what is to be read behind it take one round trip.
func (p *Pipeline) Ask(what string, read func(pgx.Rows) error, sql string, args ...any) {
	p.waiting = append(p.waiting, statement{what: what, sql: sql, args: args, read: read})
}

// send sends what waits and the statement behind it. The results are to be closed;
// when the error is not nil, they answer with it.
func (p *Pipeline) send(ctx context.Context, sql string, args []any) (pgx.BatchResults, error) {
	batch := &pgx.Batch{}
	begins := p.tx == nil
	if begins {
		batch.BeginTx(pgx.TxOptions{})
	}
	for _, each := range p.waiting {
		batch.Queue(each.sql, each.args...)
	}
	batch.Queue(sql, args...)
	waited := p.waiting
	p.waiting = nil
	results := p.conn.SendBatch(ctx, batch)
	if begins {
		if _, err := results.Exec(); err != nil {
			return results, fmt.Errorf("begin: %w", err)
		}
		p.tx = results.Tx()
	}
	for _, each := range waited {
		if err := each.answered(results); err != nil {
			return results, fmt.Errorf("%s: %w", each.what, err)
		}
	}
	return results, nil
}

// alone reports whether the next statement has nothing to take along. One that comes
// with pgx's own options cannot take anything: what waits is sent before it.
func (p *Pipeline) alone(ctx context.Context, args []any) (bool, error) {
	if len(args) > 0 {
		switch args[0].(type) {
		case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
			return true, p.Settle(ctx)
		}
	}
	return p.tx != nil && len(p.waiting) == 0, nil
}

// Settle sends what is queued, for a caller who has no further statement to send it with.
func (p *Pipeline) Settle(ctx context.Context) error {
	if p.tx != nil && len(p.waiting) == 0 {
		return nil
	}
	_, err := p.Exec(ctx, "SELECT")
	return err
}

// hear lets what was asked be read before COMMIT is sent: a reader may refuse.
func (p *Pipeline) hear(ctx context.Context) error {
	if slices.ContainsFunc(p.waiting, func(s statement) bool { return s.read != nil }) {
		return p.Settle(ctx)
	}
	return nil
}

func (p *Pipeline) commit(ctx context.Context) error {
	if p.tx == nil && len(p.waiting) == 0 {
		return nil // nothing was ever said
	}
	done, err := p.Exec(ctx, "commit")
	if err == nil && done.String() == "ROLLBACK" {
		return pgx.ErrTxCommitRollback
	}
	return err
}

// Exec runs a statement.
func (p *Pipeline) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if alone, err := p.alone(ctx, args); err != nil {
		return pgconn.CommandTag{}, err
	} else if alone {
		return p.tx.Exec(ctx, sql, args...)
	}
	results, err := p.send(ctx, sql, args)
	if err != nil {
		_ = results.Close()
		return pgconn.CommandTag{}, err
	}
	done, err := results.Exec()
	if failed := results.Close(); err == nil {
		err = failed
	}
	return done, err
}

// Query runs a statement for its rows.
func (p *Pipeline) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if alone, err := p.alone(ctx, args); err != nil {
		return nil, err
	} else if alone {
		return p.tx.Query(ctx, sql, args...)
	}
	results, err := p.send(ctx, sql, args)
	rows, failed := results.Query()
	if err == nil {
		err = failed
	}
	if err != nil {
		_ = results.Close()
		return rows, err
	}
	return &lastRows{Rows: rows, results: results}, nil
}

// QueryRow runs a statement for one row.
func (p *Pipeline) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := p.Query(ctx, sql, args...)
	return lastRow{rows, err}
}

// SendBatch sends a batch behind what waits.
func (p *Pipeline) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	if err := p.Settle(ctx); err != nil {
		return pgx.FailedBatchResults(batch, err)
	}
	return p.tx.SendBatch(ctx, batch)
}

// CopyFrom copies rows into a table behind what waits.
func (p *Pipeline) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, from pgx.CopyFromSource) (int64, error) {
	if err := p.Settle(ctx); err != nil {
		return 0, err
	}
	return p.tx.CopyFrom(ctx, table, columns, from)
}

// Begin opens a savepoint behind what waits. Until it ends, only the returned
// transaction may be used.
func (p *Pipeline) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := p.Settle(ctx); err != nil {
		return nil, err
	}
	return p.tx.Begin(ctx)
}

// Prepare prepares a statement.
func (p *Pipeline) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := p.Settle(ctx); err != nil {
		return nil, err
	}
	return p.tx.Prepare(ctx, name, sql)
}

// Commit is not for those who were given the transaction.
func (p *Pipeline) Commit(context.Context) error { panic("BUG: InPipeline ends the transaction") }

// Rollback is not for those who were given the transaction.
func (p *Pipeline) Rollback(context.Context) error { panic("BUG: InPipeline ends the transaction") }

// LargeObjects are not for pipelines.
func (p *Pipeline) LargeObjects() pgx.LargeObjects { panic("BUG: large objects in a pipeline") }

// Conn is for what libraries ask of a connection's settings; a statement given to it
// would overtake those that wait.
func (p *Pipeline) Conn() *pgx.Conn { return p.conn.Conn() }

// lastRows are the rows of a batch's last statement; the batch ends with them.
type lastRows struct {
	pgx.Rows
	results pgx.BatchResults
	err     error
}

func (r *lastRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *lastRows) Close() {
	r.Rows.Close()
	r.err = r.results.Close()
}

func (r *lastRows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.err
}

// lastRow is the only row that is wanted of rows.
type lastRow struct {
	rows pgx.Rows
	err  error
}

// Scan returns pgx.ErrNoRows when there is none.
func (r lastRow) Scan(into ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(into...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}
