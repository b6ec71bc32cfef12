package webhooks

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/pkg/seal"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

// claimed is a delivery under lease, with all that its attempt needs.
type claimed struct {
	ID             string
	MessageID      string
	SubscriptionID string
	OrganizationID string
	ProjectID      *string
	Event          string
	Attempts       int // this one included
	FirstAttemptAt time.Time
	CreatedAt      time.Time
	URL            string
	Body           []byte
	Secret         []byte // sealed
	PreviousSecret []byte // sealed, may be nil
	PreviousUntil  *time.Time
}

// claimSQL leases what is due. The lock on a subscription's pace row makes its limits
// (attempts in flight, requests a second) hold over all processes; a row that another
// process holds is skipped, its work is being claimed there.
const claimSQL = `
WITH lane AS (
	SELECT p.subscription_id AS id,
	       CASE WHEN p.proven THEN $5 ELSE 1 END AS width,
	       CASE WHEN s.rate_limit_per_second IS NULL THEN $5::float8
	            ELSE least(s.rate_limit_per_second, p.tokens + extract(epoch FROM $1 - p.tokens_at)::float8 * s.rate_limit_per_second) END AS tokens
	FROM webhook_pace p JOIN webhook_subscriptions s ON s.id = p.subscription_id
	WHERE p.proven = $3 AND ($2::uuid IS NULL OR p.subscription_id = $2)
	  AND EXISTS (SELECT FROM webhook_deliveries d
	              WHERE d.subscription_id = p.subscription_id AND d.next_attempt_at <= $1
	                AND ((s.enabled AND s.deleted_at IS NULL) OR d.event = '` + EventTest + `'))
	LIMIT $4
	FOR UPDATE OF p SKIP LOCKED
), due AS (
	SELECT d.id, lane.id AS lane
	FROM lane JOIN webhook_subscriptions s ON s.id = lane.id
	CROSS JOIN LATERAL (
		SELECT d.id FROM webhook_deliveries d
		WHERE d.subscription_id = lane.id AND d.next_attempt_at <= $1
		  AND ((s.enabled AND s.deleted_at IS NULL) OR d.event = '` + EventTest + `')
		ORDER BY d.next_attempt_at, d.id
		LIMIT greatest(0, least(floor(lane.tokens)::int, lane.width - (
			SELECT count(*)::int FROM webhook_deliveries f
			WHERE f.subscription_id = lane.id AND f.in_flight AND f.next_attempt_at > $1)))
		FOR UPDATE SKIP LOCKED
	) d
	LIMIT $4
), paced AS (
	UPDATE webhook_pace p SET tokens = lane.tokens - taken.n, tokens_at = $1
	FROM lane JOIN (SELECT lane, count(*) AS n FROM due GROUP BY lane) taken ON taken.lane = lane.id
	WHERE p.subscription_id = lane.id
), leased AS (
	UPDATE webhook_deliveries d SET attempts = attempts + 1, first_attempt_at = coalesce(first_attempt_at, $1),
	       next_attempt_at = $6, in_flight = true, updated_at = $1
	FROM due WHERE d.id = due.id
	RETURNING d.id, d.message_id, d.subscription_id, d.event, d.attempts, d.first_attempt_at, d.created_at
)
SELECT l.id::text, l.message_id::text, l.subscription_id::text, s.organization_id::text, s.project_id::text, l.event, l.attempts,
       l.first_attempt_at, l.created_at, s.url, m.body, s.secret, s.previous_secret, s.previous_until
FROM leased l JOIN webhook_subscriptions s ON s.id = l.subscription_id JOIN webhook_messages m ON m.id = l.message_id`

// claim leases up to limit due deliveries of proven or unproven targets, of one
// subscription or ("") of all.
func claim(ctx context.Context, pool *pgxpool.Pool, now time.Time, subscription string, proven bool, limit int) ([]claimed, error) {
	var found []claimed
	err := postgres.InTx(ctx, pool, func(tx pgx.Tx) error {
		// A lease lost with the server's last milliseconds only repeats an attempt.
		if _, err := tx.Exec(ctx, "SET LOCAL synchronous_commit = off"); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, claimSQL, now, optional(subscription), proven, limit, perSubscription, now.Add(lease))
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[claimed])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claim deliveries: %w", err)
	}
	return found, nil
}

// secretPurpose binds a sealed secret to its subscription, so that rows cannot be swapped.
func secretPurpose(subscription string) string { return "webhook-secret:" + subscription }

// openSecrets returns the secrets that sign now, the newest first.
func openSecrets(box *seal.Sealer, c claimed, now time.Time) ([][]byte, error) {
	newest, err := box.Open(secretPurpose(c.SubscriptionID), c.Secret)
	if err != nil {
		return nil, err
	}
	secrets := [][]byte{newest}
	if c.PreviousSecret != nil && c.PreviousUntil != nil && now.Before(*c.PreviousUntil) {
		previous, err := box.Open(secretPurpose(c.SubscriptionID), c.PreviousSecret)
		if err != nil {
			return nil, err
		}
		secrets = append(secrets, previous)
	}
	return secrets, nil
}

// record stores an attempt's result.
func (d *Dispatcher) record(ctx context.Context, c claimed, result outcome) error {
	now := d.now()
	if result.ok {
		d.attempts.WithLabelValues("delivered").Inc()
		return d.recordSuccess(ctx, c, result, now)
	}
	at, again := next(now, c.FirstAttemptAt, c.Attempts, result.retryAfter)
	if result.status == http.StatusGone {
		again = false
	}
	if again {
		d.attempts.WithLabelValues("failed").Inc()
		return d.recordFailure(ctx, c, result, now, at)
	}
	d.attempts.WithLabelValues("dead").Inc()
	return d.recordDeath(ctx, c, result, now)
}

// finishSQL ends an attempt, unless its lease ran out and another attempt began.
const finishSQL = `
UPDATE webhook_deliveries SET status = $3, next_attempt_at = $4, in_flight = false, last_status_code = nullif($5, 0),
       last_error = nullif($6, ''), response_head = $7, updated_at = $8
WHERE id = $1 AND attempts = $2 AND in_flight`

func finish(ctx context.Context, tx pgx.Tx, c claimed, result outcome, status string, at *time.Time, now time.Time) (ours bool, err error) {
	tag, err := tx.Exec(ctx, finishSQL, c.ID, c.Attempts, status, at, result.status, result.fault, result.head, now)
	if err != nil {
		return false, fmt.Errorf("store attempt: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

func (d *Dispatcher) recordSuccess(ctx context.Context, c claimed, result outcome, now time.Time) error {
	return postgres.InTx(ctx, d.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL synchronous_commit = off"); err != nil {
			return err
		}
		if _, err := finish(ctx, tx, c, result, "delivered", nil, now); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			UPDATE webhook_pace SET proven = true, failing_since = NULL
			WHERE subscription_id = $1 AND (NOT proven OR failing_since IS NOT NULL)`, c.SubscriptionID)
		return err
	})
}

const failSQL = `
UPDATE webhook_pace SET proven = false, failing_since = coalesce(failing_since, $2)
WHERE subscription_id = $1 RETURNING failing_since`

func (d *Dispatcher) recordFailure(ctx context.Context, c claimed, result outcome, now, at time.Time) error {
	return d.store.InTx(ctx, system, func(tx *commit.Tx) error {
		ours, err := finish(ctx, tx, c, result, "failed", &at, now)
		if err != nil || !ours {
			return err
		}
		return d.noteFailure(ctx, tx, c, now, "")
	})
}

// recordDeath moves a delivery to the dead letters and says so once.
func (d *Dispatcher) recordDeath(ctx context.Context, c claimed, result outcome, now time.Time) error {
	return d.store.InTx(ctx, system, func(tx *commit.Tx) error {
		ours, err := finish(ctx, tx, c, result, "dead", nil, now)
		if err != nil || !ours {
			return err
		}
		failed := deliveryFailed{
			SubscriptionID: c.SubscriptionID, DeliveryID: c.ID, FailedEvent: c.Event, Attempts: c.Attempts,
			LastStatusCode: optionalInt(result.status), LastError: optional(result.fault),
		}
		project := ""
		if c.ProjectID != nil {
			project = *c.ProjectID
		}
		tx.Audit(commit.Entry{
			OrganizationID: c.OrganizationID, ProjectID: project, Action: EventDeliveryFailed,
			ResourceType: resourceType, ResourceID: c.SubscriptionID, After: failed,
		})
		tx.Emit(commit.Event{Name: EventDeliveryFailed, OrganizationID: c.OrganizationID, ProjectID: project, Data: failed})
		reason := ""
		if result.status == http.StatusGone {
			reason = "the target answered 410 Gone"
		}
		return d.noteFailure(ctx, tx, c, now, reason)
	})
}

// disableAfter is how long nothing but failures must last before the program disables
// a subscription.
const disableAfter = 5 * 24 * time.Hour

// noteFailure keeps the subscription's run of failures and disables it when that has
// lasted too long, or at once for a reason given.
func (d *Dispatcher) noteFailure(ctx context.Context, tx *commit.Tx, c claimed, now time.Time, reason string) error {
	var since time.Time
	if err := tx.QueryRow(ctx, failSQL, c.SubscriptionID, now).Scan(&since); err != nil {
		return fmt.Errorf("note failure: %w", err)
	}
	if reason == "" && now.Sub(since) >= disableAfter {
		reason = "nothing but failures for 5 days"
	}
	if reason == "" {
		return nil
	}
	row, err := lockSubscription(ctx, tx, c.SubscriptionID)
	if errors.Is(err, access.ErrNotFound) || err == nil && !row.Enabled {
		return nil
	}
	if err != nil {
		return err
	}
	before := row.Subscription
	row.Enabled, row.DisabledReason = false, &reason
	return saveSubscription(ctx, tx, before, &row, now)
}

var system = commit.Origin{Actor: commit.Actor{ID: "system:webhooks"}}

func optionalInt(n int) *int {
	if n == 0 {
		return nil
	}
	return &n
}

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
