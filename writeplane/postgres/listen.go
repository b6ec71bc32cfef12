package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Listen calls wake for every notification on a channel, and once when it begins to
// hear them, until ctx ends or the connection is lost. It holds one connection.
func Listen(ctx context.Context, pool *pgxpool.Pool, channel string, wake func()) error {
	pooled, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", channel, err)
	}
	conn := pooled.Hijack() // it goes on listening, so it must not return among the others
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return fmt.Errorf("listen on %s: %w", channel, err)
	}
	for {
		wake()
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return fmt.Errorf("listen on %s: %w", channel, err)
		}
	}
}
