package webhooks

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/pkg/seal"
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
