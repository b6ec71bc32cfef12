package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Querier is what a pool and a transaction have in common.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// All reads every row of a query; doing says what for, in errors ("list flags").
func All[T any](ctx context.Context, q Querier, doing string, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	found, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	return found, nil
}

// One reads the only row of a query; ok is false when there is none.
func One[T any](ctx context.Context, q Querier, doing string, scan pgx.RowToFunc[T], sql string, args ...any) (row T, ok bool, err error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return row, false, fmt.Errorf("%s: %w", doing, err)
	}
	found, err := pgx.CollectExactlyOneRow(rows, scan)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return row, false, nil
	case err != nil:
		return row, false, fmt.Errorf("%s: %w", doing, err)
	}
	return found, true, nil
}

// Earlier is the earlier one of a process's clock and the database's. Whoever removes what
// is old goes by it: what one clock that runs ahead takes away, nothing brings back.
func Earlier(ctx context.Context, q Querier, own time.Time) (time.Time, error) {
	found, err := All(ctx, q, "read the database's clock", pgx.RowTo[time.Time], `SELECT least($1::timestamptz, now())`, own)
	if err != nil {
		return time.Time{}, err
	}
	return found[0].UTC(), nil
}
