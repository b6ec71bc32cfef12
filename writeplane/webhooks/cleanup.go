package webhooks

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"skerry/writeplane/postgres"
)

// Retention of the delivery log.
const (
	keepDelivered   = 30 * 24 * time.Hour
	keepDead        = 90 * 24 * time.Hour
	cleanupInterval = 10 * time.Minute
	cleanupBatch    = 5000
)

// keepClean cleans up from time to time until ctx ends.
func (d *Dispatcher) keepClean(ctx context.Context) {
	tick := time.NewTicker(cleanupInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := d.cleanup(ctx); err != nil && ctx.Err() == nil {
			slog.Warn("webhook log not cleaned", "error", err)
		}
	}
}

// Ids sort by the time of their making, so those under the bound $1 are all that can be
// old enough, and the primary key finds them. A delivery that somebody is about to retry
// is locked and passed over.
const (
	oldDeliveriesSQL = `
DELETE FROM webhook_deliveries WHERE id IN (
	SELECT d.id FROM webhook_deliveries d JOIN webhook_subscriptions s ON s.id = d.subscription_id
	WHERE d.id < $1 AND (d.status = 'delivered' AND d.updated_at < $2 OR d.status = 'dead' AND d.updated_at < $3 OR s.deleted_at IS NOT NULL)
	LIMIT $4 FOR UPDATE OF d SKIP LOCKED)`

	oldMessagesSQL = `
DELETE FROM webhook_messages WHERE id IN (
	SELECT m.id FROM webhook_messages m
	WHERE m.id < $1 AND NOT EXISTS (SELECT FROM webhook_deliveries d WHERE d.message_id = m.id) LIMIT $2)`
)

// aheadSQL makes deliveries due at once that are due later than any schedule reaches
// ($2): they were queued, put off or leased by a clock that has been set back since.
const aheadSQL = `UPDATE webhook_deliveries SET next_attempt_at = $1, in_flight = false WHERE next_attempt_at > $2`

// cleanup forgets old deliveries, what deleted subscriptions have left, and the messages
// that no delivery needs any more, in bounded steps. Old is what the database's clock calls
// old, too.
func (d *Dispatcher) cleanup(ctx context.Context) error {
	now := d.now()
	agreed, err := postgres.Earlier(ctx, d.pool, now)
	if err != nil {
		return err
	}
	bound := firstID(agreed.Add(-keepDelivered))
	if err := d.deleteAll(ctx, oldDeliveriesSQL, bound, agreed.Add(-keepDelivered), agreed.Add(-keepDead), cleanupBatch); err != nil {
		return fmt.Errorf("delete old deliveries: %w", err)
	}
	if err := d.deleteAll(ctx, oldMessagesSQL, bound, cleanupBatch); err != nil {
		return fmt.Errorf("delete old messages: %w", err)
	}
	if _, err := d.pool.Exec(ctx, aheadSQL, now, now.Add(2*horizon)); err != nil {
		return fmt.Errorf("bring deliveries back: %w", err)
	}
	return nil
}

// deleteAll runs a statement until it finds less than a batch.
func (d *Dispatcher) deleteAll(ctx context.Context, sql string, args ...any) error {
	for {
		done, err := d.pool.Exec(ctx, sql, args...)
		if err != nil || done.RowsAffected() < cleanupBatch {
			return err
		}
	}
}

// firstID is before every id that was made at a time or later.
func firstID(at time.Time) string {
	var first uuid.UUID
	binary.BigEndian.PutUint64(first[:8], uint64(at.UnixMilli())<<16)
	return first.String()
}
