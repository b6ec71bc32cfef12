package access

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// lastUsed collects when keys were used and writes it in batches: a row update per
// request would make the busiest key's row the slowest thing of the plane.
type lastUsed struct {
	pool *pgxpool.Pool

	mu   sync.Mutex
	seen map[string]time.Time // key id → latest use not yet written
}

const (
	lastUsedEvery = 5 * time.Second
	lastUsedFinal = 2 * time.Second
)

func newLastUsed(pool *pgxpool.Pool) *lastUsed {
	return &lastUsed{pool: pool, seen: map[string]time.Time{}}
}

func (l *lastUsed) mark(keyID string, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.After(l.seen[keyID]) {
		l.seen[keyID] = at
	}
}

func (l *lastUsed) run(ctx context.Context) error {
	ticker := time.NewTicker(lastUsedEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			l.flush(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastUsedFinal)
			defer cancel()
			l.flush(last)
			return nil
		}
	}
}

// flush writes what was collected. What cannot be written is kept for the next time:
// it is a hint for people, so a failure is logged and nothing else.
func (l *lastUsed) flush(ctx context.Context) {
	l.mu.Lock()
	batch := l.seen
	l.seen = map[string]time.Time{}
	l.mu.Unlock()
	if len(batch) == 0 {
		return
	}
	ids, times := make([]string, 0, len(batch)), make([]time.Time, 0, len(batch))
	for keyID, at := range batch {
		ids, times = append(ids, keyID), append(times, at)
	}
	_, err := l.pool.Exec(ctx, `
		UPDATE api_keys k SET last_used_at = u.at FROM unnest($1::uuid[], $2::timestamptz[]) AS u (id, at)
		WHERE k.id = u.id AND (k.last_used_at IS NULL OR k.last_used_at < u.at)`, ids, times)
	if err == nil {
		return
	}
	slog.Warn("last use of api keys not written, will be tried again", "keys", len(ids), "error", err)
	for keyID, at := range batch {
		l.mark(keyID, at)
	}
}
