package postgres_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/pgserver/pgtest"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

func TestMigrationsRunOnceWhenProcessesStartTogether(t *testing.T) {
	t.Parallel()
	url := pgtest.NewEmpty(t).URL
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if err := postgres.Migrate(t.Context(), url); err != nil {
				t.Errorf("migrate: %v", err)
			}
		})
	}
	group.Wait()
	db, err := postgres.Open(t.Context(), postgres.Config{URL: url, MaxConns: 2})
	if err != nil {
		t.Fatalf("open after migration: %v", err)
	}
	db.Close()
}

func TestOpenNamesTheCommandThatMigrates(t *testing.T) {
	t.Parallel()
	_, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.NewEmpty(t).URL})
	if err == nil || !strings.Contains(err.Error(), "skerry migrate") {
		t.Fatalf("open of an empty database: %v, want a hint at `skerry migrate`", err)
	}
}

func TestNewerDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	db, url := dbtest.NewURL(t)
	dbtest.Exec(t, db.Owner, "UPDATE schema_version SET version = 9999")
	for name, open := range map[string]func() error{
		"migrate": func() error { return postgres.Migrate(t.Context(), url) },
		"open": func() error {
			_, err := postgres.Open(t.Context(), postgres.Config{URL: url})
			return err
		},
	} {
		if err := open(); err == nil || !strings.Contains(err.Error(), "start a newer skerry") {
			t.Errorf("%s against schema 9999: %v, want a refusal", name, err)
		}
	}
}

func TestUnreachableServerIsNamedWithoutItsPassword(t *testing.T) {
	t.Parallel()
	_, err := postgres.Open(t.Context(), postgres.Config{URL: "postgres://someone:hunter2@127.0.0.1:1/none"})
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") || strings.Contains(err.Error(), "hunter2") {
		t.Fatalf("unreachable server: %v", err)
	}
}

func TestApplicationRoleCannotAlterTables(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	for _, sql := range []string{"DROP TABLE projects", "DELETE FROM organizations", "CREATE TABLE x (y int)", "TRUNCATE documents"} {
		if _, err := db.App.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "42501") {
			t.Errorf("%s as the application's role: %v, want SQLSTATE 42501", sql, err)
		}
	}
}

func TestUnavailableTellsAnAbsentServerFromARefusedStatement(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	_, refused := db.App.Exec(t.Context(), "SELECT 1/0")
	if postgres.Unavailable(refused) {
		t.Errorf("division by zero counts as an absent server: %v", refused)
	}
	if postgres.Unavailable(pgx.ErrNoRows) || postgres.Unavailable(context.Canceled) || postgres.Unavailable(nil) {
		t.Error("no rows, a cancelled caller or success count as an absent server")
	}
	// A channel is no parameter: pgx refuses it before anything is sent, as it would again.
	_, ours := db.App.Exec(t.Context(), "SELECT $1::int", make(chan int))
	if ours == nil || postgres.Unavailable(ours) {
		t.Errorf("a fault of the program counts as an absent server: %v", ours)
	}
	if postgres.Unavailable(errors.New("seal is broken")) {
		t.Error("an error of unknown origin counts as an absent server")
	}
	late, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	if _, err := db.App.Exec(late, "SELECT 1"); !postgres.Unavailable(err) {
		t.Errorf("a server that does not answer in time counts as a refused statement: %v", err)
	}
	if _, err := pgx.Connect(t.Context(), "postgres://someone@127.0.0.1:1/none"); !postgres.Unavailable(err) {
		t.Errorf("a refused connection counts as a refused statement: %v", err)
	}
	db.App.Close()
	_, err := db.App.Exec(t.Context(), "SELECT 1")
	if !postgres.Unavailable(err) {
		t.Errorf("a closed pool counts as a refused statement: %v", err)
	}
}
