package access

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"skerry/replication/tally"
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

// keyUseQueue lets one process of the plane hear each report.
const keyUseQueue = "skerry-key-use"

// HearUses takes edges' reports of used keys until ctx ends. A clock that is ahead at
// an edge does not date a use into the future.
func (s *Store) HearUses(ctx context.Context, nc *nats.Conn) error {
	reports := make(chan *nats.Msg, 256)
	subscription, err := nc.ChanQueueSubscribe(tally.KeyUseSubjects, keyUseQueue, reports)
	if err != nil {
		return fmt.Errorf("hear of key use: %w", err)
	}
	defer func() { _ = subscription.Unsubscribe() }()
	for {
		select {
		case message := <-reports:
			report, err := tally.DecodeKeyUse(message.Data)
			if err != nil {
				slog.Warn("report of key use not understood", "error", err)
				continue
			}
			at := report.At
			if now := time.Now(); at.After(now) {
				at = now
			}
			for _, key := range report.Keys {
				s.used.mark(key, at)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// noteUsesSQL locks the keys in the order of their ids, as whoever changes several of
// them does, so that they do not wait for each other.
const noteUsesSQL = `
WITH used AS MATERIALIZED (
	SELECT k.id, u.at FROM api_keys k JOIN unnest($1::uuid[], $2::timestamptz[]) AS u (id, at) ON k.id = u.id
	WHERE k.last_used_at IS NULL OR k.last_used_at < u.at
	ORDER BY k.id FOR NO KEY UPDATE OF k
)
UPDATE api_keys k SET last_used_at = used.at FROM used WHERE k.id = used.id`

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
	_, err := l.pool.Exec(ctx, noteUsesSQL, ids, times)
	if err == nil {
		return
	}
	slog.Warn("last use of api keys not written, will be tried again", "keys", len(ids), "error", err)
	for keyID, at := range batch {
		l.mark(keyID, at)
	}
}
