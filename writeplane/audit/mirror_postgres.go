package audit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/writeplane/postgres"
)

// PostgresMirror is a Mirror in a schema of its own, in the central database or in
// another one. It makes and keeps its tables itself, when it is first written.
type PostgresMirror struct {
	pool *pgxpool.Pool

	mu   sync.Mutex
	made bool // the tables are there, for all that is known; guarded by mu
}

// mirrorTable is the log's shape without its chains: partitions by month.
const (
	mirrorTable  = "skerry_audit_mirror.entries"
	mirrorSchema = `
CREATE SCHEMA IF NOT EXISTS skerry_audit_mirror;
CREATE TABLE IF NOT EXISTS skerry_audit_mirror.entries (
    organization_id uuid NOT NULL,
    seq             bigint NOT NULL,
    id              uuid NOT NULL,
    project_id      uuid,
    actor_id        text NOT NULL,
    actor_email     text,
    action          text COLLATE "C" NOT NULL,
    resource_type   text COLLATE "C" NOT NULL,
    resource_id     text NOT NULL,
    before          json,
    after           json,
    metadata        json NOT NULL,
    created_at      timestamptz NOT NULL,
    retention       text NOT NULL,
    hash            bytea NOT NULL,
    PRIMARY KEY (organization_id, created_at, seq)
) PARTITION BY RANGE (created_at);
CREATE INDEX IF NOT EXISTS entries_by_project ON skerry_audit_mirror.entries (organization_id, project_id, created_at, seq);
CREATE INDEX IF NOT EXISTS entries_by_actor ON skerry_audit_mirror.entries (organization_id, actor_id, created_at, seq);
CREATE INDEX IF NOT EXISTS entries_by_action ON skerry_audit_mirror.entries (organization_id, action, created_at, seq);
CREATE INDEX IF NOT EXISTS entries_by_type ON skerry_audit_mirror.entries (organization_id, resource_type, created_at, seq);
DO $$
BEGIN
    IF to_regclass('skerry_audit_mirror.reached') IS NULL THEN
        -- How far the mirror has each chain: to be compared with what the log's database thinks.
        CREATE TABLE skerry_audit_mirror.reached (
            organization_id uuid PRIMARY KEY,
            seq             bigint NOT NULL,
            at              timestamptz NOT NULL
        ) WITH (fillfactor = 50);
        -- A mirror of an earlier release: one look into the index for each organization.
        INSERT INTO skerry_audit_mirror.reached
        WITH RECURSIVE organizations AS (
            (SELECT organization_id FROM skerry_audit_mirror.entries ORDER BY organization_id LIMIT 1)
            UNION ALL
            SELECT (SELECT e.organization_id FROM skerry_audit_mirror.entries e WHERE e.organization_id > o.organization_id ORDER BY e.organization_id LIMIT 1)
            FROM organizations o WHERE o.organization_id IS NOT NULL
        )
        SELECT o.organization_id, last.seq, last.created_at FROM organizations o, LATERAL (
            SELECT e.seq, e.created_at FROM skerry_audit_mirror.entries e
            WHERE e.organization_id = o.organization_id ORDER BY e.created_at DESC, e.seq DESC LIMIT 1
        ) AS last;
    END IF;
END $$`
	mirrorLock = 0x6175646974 // "audit": one process at a time changes the mirror's tables
)

// NewPostgresMirror returns the mirror. pool logs in as a role that may create its schema.
func NewPostgresMirror(pool *pgxpool.Pool) *PostgresMirror { return &PostgresMirror{pool: pool} }

// prepare makes the schema where it is not there yet.
func (m *PostgresMirror) prepare(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.made {
		return nil
	}
	err := m.exclusively(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, mirrorSchema, pgx.QueryExecModeSimpleProtocol)
		return err
	})
	if err != nil {
		return fmt.Errorf("make audit mirror: %w", err)
	}
	m.made = true
	return nil
}

// doubt lets the next write look whether the tables are there.
func (m *PostgresMirror) doubt() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.made = false
}

func (m *PostgresMirror) exclusively(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, m.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(mirrorLock)); err != nil {
			return err
		}
		return fn(tx)
	})
}

// Write implements Mirror.
func (m *PostgresMirror) Write(ctx context.Context, b Batch) error {
	if err := m.prepare(ctx); err != nil {
		return err
	}
	err := m.write(ctx, b)
	var behind *Behind
	if err != nil && !errors.As(err, &behind) {
		m.doubt()
	}
	return err
}

func (m *PostgresMirror) write(ctx context.Context, b Batch) error {
	months := map[time.Time]bool{}
	for i := range b.Entries {
		months[monthOf(b.Entries[i].CreatedAt)] = true
	}
	for month := range months {
		if err := m.makeMonth(ctx, month); err != nil {
			return err
		}
	}
	err := pgx.BeginFunc(ctx, m.pool, func(tx pgx.Tx) error {
		has := beginning()
		err := tx.QueryRow(ctx, `SELECT seq, at FROM skerry_audit_mirror.reached WHERE organization_id = $1 FOR UPDATE`, b.OrganizationID).Scan(&has.Seq, &has.At)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if has.Seq < b.After.Seq {
			return &Behind{has}
		}
		if err := insertMirrored(ctx, tx, b.Entries); err != nil || has.Seq >= b.Reached.Seq {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO skerry_audit_mirror.reached (organization_id, seq, at) VALUES ($1, $2, $3)
			ON CONFLICT (organization_id) DO UPDATE SET seq = excluded.seq, at = excluded.at`, b.OrganizationID, b.Reached.Seq, b.Reached.At)
		return err
	})
	if err != nil {
		return fmt.Errorf("write entries: %w", err)
	}
	return nil
}

// Reached implements Mirror.
func (m *PostgresMirror) Reached(ctx context.Context) (map[string]Position, error) {
	if err := m.prepare(ctx); err != nil {
		return nil, err
	}
	reached := map[string]Position{}
	rows, err := m.pool.Query(ctx, `SELECT organization_id, seq, at FROM skerry_audit_mirror.reached`)
	if err != nil {
		return nil, fmt.Errorf("read how far the mirror is: %w", err)
	}
	var organizationID string
	var has Position
	_, err = pgx.ForEachRow(rows, []any{&organizationID, &has.Seq, &has.At}, func() error {
		reached[organizationID] = has
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read how far the mirror is: %w", err)
	}
	return reached, nil
}

func insertMirrored(ctx context.Context, tx pgx.Tx, entries []Entry) error {
	batch := &pgx.Batch{}
	for i := range entries {
		e := &entries[i]
		batch.Queue(`INSERT INTO `+mirrorTable+` (organization_id, seq, id, project_id, actor_id, actor_email, action, resource_type, resource_id,
				before, after, metadata, created_at, retention, hash)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::text::json, $11::text::json, $12::text::json, $13, $14, $15) ON CONFLICT DO NOTHING`,
			e.OrganizationID, e.Seq, e.ID, e.ProjectID, e.ActorID, e.ActorEmail, e.Action, e.ResourceType, e.ResourceID,
			text(e.Before), text(e.After), text(e.Metadata), e.CreatedAt, e.Retention, e.Hash)
	}
	return tx.SendBatch(ctx, batch).Close()
}

// makeMonth makes a month's partition unless it is there.
func (m *PostgresMirror) makeMonth(ctx context.Context, month time.Time) error {
	name := "skerry_audit_mirror.entries_" + month.Format("200601")
	var there bool
	if err := m.pool.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, name).Scan(&there); err != nil || there {
		return err
	}
	err := m.exclusively(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, fmt.Sprintf(`CREATE TABLE IF NOT EXISTS %s PARTITION OF %s FOR VALUES FROM ('%s') TO ('%s')`,
			name, mirrorTable, month.Format(time.RFC3339), month.AddDate(0, 1, 0).Format(time.RFC3339)))
		return err
	})
	if err != nil {
		return fmt.Errorf("make month: %w", err)
	}
	return nil
}

// Read implements Mirror.
func (m *PostgresMirror) Read(ctx context.Context, q Query, fn func(*Entry) error) error {
	return stream(ctx, m.pool, mirrorTable, q, fn)
}

// Find implements Mirror.
func (m *PostgresMirror) Find(ctx context.Context, organizationID, id string) (found Entry, ok bool, err error) {
	at, ok := timeOf(id)
	if !ok {
		return Entry{}, false, nil
	}
	ok = false
	q := Query{OrganizationID: organizationID, Since: at, Until: at.Add(time.Millisecond)}
	err = m.Read(ctx, q, func(e *Entry) error {
		if e.ID == id {
			found, ok = *e, true
		}
		return nil
	})
	return found, ok, err
}

// Keep implements Mirror: it drops the months that ended before the time.
func (m *PostgresMirror) Keep(ctx context.Context, before time.Time) error {
	names, err := postgres.All(ctx, m.pool, "list the mirror's months", pgx.RowTo[string], `
		SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent = to_regclass($1)`, mirrorTable)
	if err != nil {
		return err
	}
	var faults []error
	for _, name := range names {
		month, err := time.Parse("entries_200601", name)
		if err != nil || month.AddDate(0, 1, 0).After(before) {
			continue
		}
		faults = append(faults, m.exclusively(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `DROP TABLE IF EXISTS skerry_audit_mirror.`+pgx.Identifier{name}.Sanitize())
			return err
		}))
	}
	return errors.Join(faults...)
}
