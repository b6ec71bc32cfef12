package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

//go:embed migrations/*.sql
var embedded embed.FS

// Migrate brings the schema up to this program's version. Two processes may start
// at once: an advisory lock lets one migrate and the other find it done. A database
// that is newer than the program is refused.
func Migrate(ctx context.Context, rawURL string) error {
	conn, err := pgx.Connect(ctx, rawURL)
	if err != nil {
		return fmt.Errorf("reach postgres at %s: %w", address(rawURL), redact(rawURL, err))
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()

	// Held over the version table's creation and the job queue's tables too.
	const lock = 0x736b65727279 // "skerry"
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", int64(lock)); err != nil {
		return fmt.Errorf("lock migrations: %w", err)
	}
	defer func() {
		_, _ = conn.Exec(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock($1)", int64(lock))
	}()

	if err := ensureAppRole(ctx, conn); err != nil {
		return err
	}
	const versionTable = `
		CREATE TABLE IF NOT EXISTS public.schema_version (version int4 NOT NULL);
		INSERT INTO public.schema_version SELECT 0 WHERE NOT EXISTS (SELECT FROM public.schema_version)`
	if _, err := conn.Exec(ctx, versionTable); err != nil {
		return fmt.Errorf("make the schema's version table: %w", err)
	}
	current, err := schemaVersion(ctx, conn)
	if err != nil {
		return err
	}
	steps, err := migrations()
	if err != nil {
		return err
	}
	if current > len(steps) {
		return tooNew(current, len(steps))
	}
	for i, step := range steps[current:] {
		if err := step.apply(ctx, conn, current+i+1); err != nil {
			return err
		}
	}
	return migrateJobs(ctx, rawURL)
}

// migrateJobs lets river, which runs the background jobs, make its tables. The
// application's role works with them like with our own.
func migrateJobs(ctx context.Context, rawURL string) error {
	pool, err := pgxpool.New(ctx, rawURL)
	if err != nil {
		return fmt.Errorf("open postgres for the job tables: %w", redact(rawURL, err))
	}
	defer pool.Close()
	jobs, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return fmt.Errorf("prepare job tables: %w", err)
	}
	if _, err := jobs.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("migrate job tables: %w", err)
	}
	_, err = pool.Exec(ctx, `
		DO $$
		DECLARE job_table text;
		BEGIN
			FOR job_table IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename LIKE 'river\_%' LOOP
				EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %I TO skerry_app', job_table);
			END LOOP;
		END $$;
		GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO skerry_app`)
	if err != nil {
		return fmt.Errorf("grant job tables: %w", err)
	}
	return nil
}

// CheckVersion fails unless the schema is exactly the one this program knows.
func CheckVersion(ctx context.Context, pool *pgxpool.Pool) error {
	steps, err := migrations()
	if err != nil {
		return err
	}
	current, err := schemaVersion(ctx, pool)
	switch {
	case err != nil:
		return err
	case current > len(steps):
		return tooNew(current, len(steps))
	case current < len(steps):
		return fmt.Errorf("the database's schema is at version %d of %d: run `skerry migrate` first", current, len(steps))
	}
	return nil
}

func tooNew(current, known int) error {
	return fmt.Errorf("the database's schema is at version %d, this program knows only up to %d: start a newer skerry", current, known)
}

// schemaVersion is the number of the last migration applied, 0 for a database that
// has seen none.
func schemaVersion(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (version int, err error) {
	err = db.QueryRow(ctx, "SELECT version FROM public.schema_version").Scan(&version)
	var refused *pgconn.PgError
	const undefinedTable = "42P01"
	if errors.As(err, &refused) && refused.Code == undefinedTable {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read schema version: %w", err)
	}
	return version, nil
}

// A migration is one file of the folder migrations, `NNN_topic.sql`; the numbers
// rise by one from 001. What has been released is never edited.
type migration struct {
	name string
	sql  string
}

func migrations() ([]migration, error) {
	entries, err := fs.ReadDir(embedded, "migrations") // in order of name
	if err != nil {
		return nil, fmt.Errorf("open embedded migrations: %w", err)
	}
	steps := make([]migration, len(entries))
	for i, entry := range entries {
		number, _, _ := strings.Cut(entry.Name(), "_")
		if n, err := strconv.Atoi(number); err != nil || n != i+1 {
			return nil, fmt.Errorf("migration %s: want number %03d", entry.Name(), i+1)
		}
		sql, err := embedded.ReadFile("migrations/" + entry.Name())
		if err != nil {
			return nil, fmt.Errorf("read migration %s: %w", entry.Name(), err)
		}
		steps[i] = migration{name: entry.Name(), sql: string(sql)}
	}
	return steps, nil
}

// apply runs the migration and counts it in one transaction: a process that dies
// here leaves the schema as it was.
func (m migration) apply(ctx context.Context, conn *pgx.Conn, version int) error {
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, m.sql); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE public.schema_version SET version = $1", version)
		return err
	})
	if err != nil {
		return fmt.Errorf("migration %s: %w", m.name, err)
	}
	return nil
}
