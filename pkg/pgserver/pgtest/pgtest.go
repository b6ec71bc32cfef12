// Package pgtest gives every test its own database on a real PostgreSQL
// server: one server per test process, started at the first use, one template
// migrated once, one clone per test.
//
//	func TestMain(m *testing.M) { pgtest.Main(m, postgres.Migrate) }
//
//	func TestSomething(t *testing.T) {
//		db := pgtest.New(t)
//		pool := db.Pool(t)
//
// The server is without fsync and lives in the temporary folder; Main stops
// it, removes it, and then looks for goroutines that the tests left behind.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"skerry/pkg/pgserver"
)

// Migrate brings an empty database at url to the newest schema.
type Migrate func(ctx context.Context, url string) error

// Database is the database of one test.
type Database struct {
	// URL includes the password.
	URL string
}

// Main runs the tests and exits. migrate fills the template; nil leaves it
// empty. opts go to goleak.
func Main(m *testing.M, migrate Migrate, opts ...goleak.Option) {
	home.mu.Lock()
	home.ready, home.migrate = true, migrate
	home.mu.Unlock()
	code := m.Run()
	if err := home.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		code = 1
	}
	if err := goleak.Find(opts...); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "pgtest: goroutines left:", err)
		code = 1
	}
	os.Exit(code)
}

// New returns a fresh database with the migrated schema, dropped when the
// test ends.
func New(t testing.TB) *Database { return create(t, template) }

// NewEmpty returns a fresh database without any schema.
func NewEmpty(t testing.TB) *Database { return create(t, "template1") }

// Pool opens a pool on the database and closes it when the test ends.
func (d *Database) Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), d.URL)
	if err != nil {
		t.Fatalf("open pool: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

const template = "skerry_template"

// server is the process's one server. It has to be a package variable: tests
// of a package share nothing else. mu guards all of it, and is held while a
// database is copied, because a template must have no other sessions.
type server struct {
	mu      sync.Mutex
	ready   bool // Main has been called
	migrate Migrate
	pg      *pgserver.Server
	dir     string
	err     error // of the first start: later tests fail at once
	made    int
}

var home server

func create(t testing.TB, from string) *Database {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	home.mu.Lock()
	defer home.mu.Unlock()
	if !home.ready {
		t.Fatal("BUG: TestMain has to call pgtest.Main")
	}
	if home.pg == nil && home.err == nil {
		home.err = home.startLocked(ctx)
	}
	if home.err != nil {
		t.Fatalf("start the test database: %v", home.err)
	}
	home.made++
	name := "t_" + strconv.Itoa(home.made)
	if err := home.execLocked(ctx, `create database `+name+` template `+from); err != nil {
		t.Fatalf("create the test's database: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		home.mu.Lock()
		defer home.mu.Unlock()
		if err := home.execLocked(ctx, `drop database if exists `+name+` with (force)`); err != nil {
			t.Logf("drop the test's database: %v", err)
		}
	})
	return &Database{URL: home.urlLocked(name)}
}

func (s *server) startLocked(ctx context.Context) error {
	removeStale()
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		return err
	}
	s.dir = dir
	cache := filepath.Join(os.TempDir(), "skerry-initdb-"+strconv.Itoa(os.Geteuid()))
	pg, err := pgserver.Start(ctx, pgserver.Config{Dir: dir, Database: template, InitCache: cache})
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	s.pg = pg
	if s.migrate == nil {
		return nil
	}
	if err := s.migrate(ctx, pg.URL()); err != nil {
		return fmt.Errorf("migrate the template: %w", err)
	}
	return nil
}

func (s *server) execLocked(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, s.urlLocked("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

func (s *server) urlLocked(database string) string {
	return pgserver.WithDatabase(s.pg.URL(), database)
}

func (s *server) stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pg == nil {
		return nil
	}
	return errors.Join(s.pg.Stop(), os.RemoveAll(s.dir))
}

const prefix = "skerry-pgtest-"

// removeStale removes what killed test processes left: folders whose lock
// nobody holds. A young one may belong to a process that is about to lock it.
func removeStale() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	for _, dir := range dirs {
		fi, err := os.Lstat(dir)
		if err != nil || time.Since(fi.ModTime()) < time.Minute {
			continue
		}
		lock, err := os.Open(filepath.Join(dir, "lock"))
		if err != nil {
			continue
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			os.RemoveAll(dir)
		}
		lock.Close()
	}
}
