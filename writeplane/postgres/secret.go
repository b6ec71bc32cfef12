package postgres

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Secret returns the installation's secret of that name: size random bytes, made
// once by whichever process asks first, the same for all of them and for ever.
func Secret(ctx context.Context, pool *pgxpool.Pool, name string, size int) ([]byte, error) {
	fresh := make([]byte, size)
	_, _ = rand.Read(fresh) // never fails, it ends the process instead
	if _, err := pool.Exec(ctx, `INSERT INTO installation (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING`, name, fresh); err != nil {
		return nil, fmt.Errorf("make secret %s: %w", name, err)
	}
	var secret []byte
	if err := pool.QueryRow(ctx, `SELECT value FROM installation WHERE name = $1`, name).Scan(&secret); err != nil {
		return nil, fmt.Errorf("read secret %s: %w", name, err)
	}
	return secret, nil
}
