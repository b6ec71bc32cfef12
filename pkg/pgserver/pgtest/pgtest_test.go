package pgtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) {
	Main(m, func(ctx context.Context, url string) error {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, `create table things (id int primary key)`)
		return err
	})
}

func TestEveryTestHasTheSchemaToItself(t *testing.T) {
	t.Parallel()
	for range 3 {
		t.Run("one of three", func(t *testing.T) {
			t.Parallel()
			pool := New(t).Pool(t)
			if _, err := pool.Exec(t.Context(), `insert into things values (1)`); err != nil {
				t.Fatal(err)
			}
			var n int
			if err := pool.QueryRow(t.Context(), `select count(*) from things`).Scan(&n); err != nil || n != 1 {
				t.Fatalf("count %d, %v; want 1: databases are shared", n, err)
			}
		})
	}
}

func TestEmptyDatabaseHasNoSchema(t *testing.T) {
	t.Parallel()
	var n int
	err := NewEmpty(t).Pool(t).QueryRow(t.Context(), `select count(*) from pg_tables where schemaname = 'public'`).Scan(&n)
	if err != nil || n != 0 {
		t.Fatalf("tables: %d, %v; want none", n, err)
	}
}
