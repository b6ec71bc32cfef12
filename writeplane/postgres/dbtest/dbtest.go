// Package dbtest gives the write plane's tests a real, migrated PostgreSQL database
// each: one server per test process, one clone of a template per test.
package dbtest

import (
	"testing"

	"go.uber.org/goleak"

	"skerry/pkg/pgserver/pgtest"
	"skerry/writeplane/postgres"
)

// Main runs a package's tests with a database server behind them.
func Main(m *testing.M, options ...goleak.Option) { pgtest.Main(m, postgres.Migrate, options...) }

// New returns the two pools of a database of the test's own.
func New(t testing.TB) *postgres.DB {
	t.Helper()
	db, _ := NewURL(t)
	return db
}

// NewURL is New, and the owner's URL for tests that open it themselves.
func NewURL(t testing.TB) (*postgres.DB, string) {
	t.Helper()
	url := pgtest.New(t).URL
	db, err := postgres.Open(t.Context(), postgres.Config{URL: url, MaxConns: 8})
	if err != nil {
		t.Fatalf("open test database: %v", err)
	}
	t.Cleanup(db.Close)
	return db, url
}
