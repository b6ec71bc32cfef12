// Package lease lets one of several write plane processes do what only one may do
// at a time.
//
// A lease is a row with an end, by the database's clock. Whoever holds it renews it well
// before the end; whoever was stopped for longer has lost it without noticing, so what a
// lease guards must also be safe against a holder that comes back: a lease makes
// conflicts rare, it does not settle them.
package lease

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Store takes leases for one holder.
type Store struct {
	pool   *pgxpool.Pool
	holder string
}

// New returns a Store for a holder, whose name must be unique among living processes.
func New(pool *pgxpool.Pool, holder string) *Store { return &Store{pool: pool, holder: holder} }

// patience is how long Acquire waits for the database at most.
const patience = 10 * time.Second

// Acquire takes or renews the lease for a term from now; false: another holds it. It does
// not wait for an answer that would come when the term is over.
func (s *Store) Acquire(ctx context.Context, name string, term time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, min(term, patience))
	defer cancel()
	tag, err := s.pool.Exec(ctx, `
		INSERT INTO leases (name, holder, expires_at) VALUES ($1, $2, clock_timestamp() + $3)
		ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at
		WHERE leases.holder = excluded.holder OR leases.expires_at < clock_timestamp()`, name, s.holder, term)
	if err != nil {
		return false, fmt.Errorf("acquire lease %s: %w", name, err)
	}
	return tag.RowsAffected() == 1, nil
}

// Release gives the lease back, if it is ours.
func (s *Store) Release(ctx context.Context, name string) error {
	if _, err := s.pool.Exec(ctx, `DELETE FROM leases WHERE name = $1 AND holder = $2`, name, s.holder); err != nil {
		return fmt.Errorf("release lease %s: %w", name, err)
	}
	return nil
}
