package postgres

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/pgserver/pgtest"
)

// The insert_ids of an older version still make duplicates: the digests are those of the
// ingest package's test, made by another program's SHA-256.
func TestInsertIDsOfOlderVersionsAreDigested(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, pgtest.NewEmpty(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if err := ensureAppRole(ctx, conn); err != nil {
		t.Fatal(err)
	}
	steps, err := migrations()
	if err != nil {
		t.Fatal(err)
	}
	const texts = 13 // the last version that kept them
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range steps[:texts] {
		exec(step.sql)
	}
	exec(`INSERT INTO insert_ids (project_id, environment, insert_id, received_at) VALUES
		('0190a3c1-7d2e-7c3a-9f10-0a1b2c3d4e5f', 1, 'order-1', '2026-11-20T01:00:00Z'),
		('0190a3c1-7d2e-7c3a-9f10-0a1b2c3d4e5f', 2, 'order-1', '2026-11-20T02:00:00Z'),
		('0190a3c1-7d2e-7c3a-9f10-0a1b2c3d4e5f', 1, 'Größe ✓', '2026-11-20T03:00:00Z')`)
	exec(steps[texts].sql)
	rows, err := conn.Query(ctx, `SELECT digest::text || extract(hour FROM received_at AT TIME ZONE 'UTC')::text FROM insert_ids ORDER BY received_at`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	want := []string{"2f12921f-3167-dacb-b5c1-d329a1ce40a11", "6744d866-8cfd-8646-e697-6cdd216bb0672", "f21e9adc-f8b8-cba9-b0d3-68aed323423d3"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("digests %v, %v; want %v", got, err, want)
	}
}
