package webhooks

import (
	"context"
	"fmt"
	"time"
)

// Retention of the delivery log.
const (
	keepDelivered   = 30 * 24 * time.Hour
	keepDead        = 90 * 24 * time.Hour
	cleanupInterval = 10 * time.Minute
	cleanupBatch    = 5000
)

// cleanup forgets old deliveries and the messages that no delivery needs any more, in
// bounded steps.
func (d *Dispatcher) cleanup(ctx context.Context) error {
	now := d.now()
	if _, err := d.pool.Exec(ctx, `
		DELETE FROM webhook_deliveries WHERE id IN (
			SELECT id FROM webhook_deliveries
			WHERE (status = 'delivered' AND updated_at < $1) OR (status = 'dead' AND updated_at < $2) LIMIT $3)`,
		now.Add(-keepDelivered), now.Add(-keepDead), cleanupBatch); err != nil {
		return fmt.Errorf("delete old deliveries: %w", err)
	}
	_, err := d.pool.Exec(ctx, `
		DELETE FROM webhook_messages WHERE id IN (
			SELECT m.id FROM webhook_messages m
			WHERE m.created_at < $1 AND NOT EXISTS (SELECT FROM webhook_deliveries d WHERE d.message_id = m.id) LIMIT $2)`,
		now.Add(-keepDelivered), cleanupBatch)
	if err != nil {
		return fmt.Errorf("delete old messages: %w", err)
	}
	return nil
}
