package dbtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"skerry/writeplane/postgres"
)

// Exec runs a statement that must succeed, on a pool, a connection or in a transaction.
func Exec(t testing.TB, db interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// One is the only value that a query answers.
func One[T any](t testing.TB, db postgres.Querier, sql string, args ...any) T {
	t.Helper()
	rows, _ := db.Query(t.Context(), sql, args...) // the rows carry its error
	value, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatal(err)
	}
	return value
}
