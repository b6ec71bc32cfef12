package postgres_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

func TestOneTellsNoRowFromFault(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t).App
	one := func(sql string) (int64, bool, error) {
		return postgres.One(t.Context(), pool, "count sheep", pgx.RowTo[int64], sql)
	}
	if n, ok, err := one("SELECT 7::bigint"); n != 7 || !ok || err != nil {
		t.Errorf("one row: %d %t %v, want 7 true", n, ok, err)
	}
	if n, ok, err := one("SELECT 7::bigint WHERE false"); n != 0 || ok || err != nil {
		t.Errorf("no row: %d %t %v, want 0 false", n, ok, err)
	}
	for name, sql := range map[string]string{"two rows": "VALUES (7::bigint), (8)", "no table": "SELECT n FROM sheep", "another type": "SELECT 'x'"} {
		if _, ok, err := one(sql); ok || err == nil || !strings.HasPrefix(err.Error(), "count sheep: ") {
			t.Errorf("%s: %t %v, want a fault of counting sheep", name, ok, err)
		}
	}
}

func TestAllKeepsTheOrderOfTheRows(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t).App
	found, err := postgres.All(t.Context(), pool, "count sheep", pgx.RowTo[int64], "SELECT generate_series(3, $1, -1)::bigint", 1)
	if err != nil || !slices.Equal(found, []int64{3, 2, 1}) {
		t.Errorf("%v %v, want 3 2 1", found, err)
	}
	// A fault that shows only after the first row.
	if _, err := postgres.All(t.Context(), pool, "divide sheep", pgx.RowTo[int64], "SELECT (6 / n)::bigint FROM (VALUES (2), (0)) v (n)"); err == nil || !strings.HasPrefix(err.Error(), "divide sheep: ") {
		t.Errorf("division by zero: %v", err)
	}
}
