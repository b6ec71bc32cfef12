package postgres

import (
	"context"
	"embed"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/tern/v2/migrate"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

//go:embed migrations/*.sql
var embedded embed.FS

const versionTable = "public.schema_version"

// Migrate brings the schema up to this program's version. Two processes may start
// at once: an advisory lock lets one migrate and the other find it done. A database
// that is newer than the program is refused.
func Migrate(ctx context.Context, rawURL string) error {
	conn, err := pgx.Connect(ctx, rawURL)
	if err != nil {
		return fmt.Errorf("reach postgres at %s: %w", address(rawURL), redact(rawURL, err))
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()

	// tern takes a lock of its own around its work, but not around the creation of
	// its version table; this one covers that and the job queue's tables too.
	const lock = 0x736b65727279 // "skerry"
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", int64(lock)); err != nil {
		return fmt.Errorf("lock migrations: %w", err)
	}
	defer func() {
		_, _ = conn.Exec(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock($1)", int64(lock))
	}()

	migrator, known, err := newMigrator(ctx, conn)
	if err != nil {
		return err
	}
	if err := checkVersion(ctx, migrator, known, false); err != nil {
		return err
	}
	if err := migrator.Migrate(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
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
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("check schema version: %w", err)
	}
	defer conn.Release()
	migrator, known, err := newMigrator(ctx, conn.Conn())
	if err != nil {
		return err
	}
	return checkVersion(ctx, migrator, known, true)
}

func newMigrator(ctx context.Context, conn *pgx.Conn) (*migrate.Migrator, int32, error) {
	migrations, err := fs.Sub(embedded, "migrations")
	if err != nil {
		return nil, 0, fmt.Errorf("open embedded migrations: %w", err)
	}
	migrator, err := migrate.NewMigrator(ctx, conn, versionTable)
	if err != nil {
		return nil, 0, fmt.Errorf("prepare migrations: %w", err)
	}
	if err := migrator.LoadMigrations(migrations); err != nil {
		return nil, 0, fmt.Errorf("load migrations: %w", err)
	}
	return migrator, int32(len(migrator.Migrations)), nil
}

func checkVersion(ctx context.Context, migrator *migrate.Migrator, known int32, exact bool) error {
	current, err := migrator.GetCurrentVersion(ctx)
	if err != nil {
		return fmt.Errorf("read schema version: %w", err)
	}
	switch {
	case current > known:
		return fmt.Errorf("the database's schema is at version %d, this program knows only up to %d: start a newer skerry", current, known)
	case exact && current < known:
		return fmt.Errorf("the database's schema is at version %d of %d: run `skerry migrate` first", current, known)
	}
	return nil
}
