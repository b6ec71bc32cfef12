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
	Body           []byte // nil: a large one, which is read for its attempt
	BodySize       int64
	Secret         []byte // sealed
	PreviousSecret []byte // sealed, may be nil
	PreviousUntil  *time.Time
	leased         time.Time // until when nobody else may attempt it
}

// What the statements of a claim ask of a pace p and its subscription s; $1 is now, $5 how
// many attempts a proven target may have in flight.
const (
	dueSQL = `d.subscription_id = p.subscription_id AND d.next_attempt_at <= $1 AND s.deleted_at IS NULL AND (s.enabled OR d.event = '` + EventTest + `')`

	// Tokens that were counted further ahead than a lease lasts are of a clock that has
	// been set back since: they would stop the subscription until it is there again.
	tokensSQL = `
		CASE WHEN s.rate_limit_per_second IS NULL THEN $5::float8
		     WHEN p.tokens_at > $1::timestamptz + interval '30 s' THEN s.rate_limit_per_second
		     ELSE least(s.rate_limit_per_second, p.tokens + extract(epoch FROM $1 - p.tokens_at)::float8 * s.rate_limit_per_second) END`

	// An attempt whose lease ran out is not in flight any more: it has timed out
	// long before.
	roomSQL = `
		least(floor(` + tokensSQL + `)::int, CASE WHEN p.proven THEN $5::int ELSE 1 END - (
			SELECT count(*)::int FROM webhook_deliveries f
			WHERE f.subscription_id = p.subscription_id AND f.in_flight AND f.next_attempt_at > $1))`
)

// laneSQL locks the paces of subscriptions that have something due and room for it. Their
// locks make the limits (attempts in flight, requests a second) hold over all processes; a
// row that another process holds is skipped, its work is being claimed there. One without
// room is passed over, or the many of them would use up the limit of a claim.
const laneSQL = `
SELECT p.subscription_id::text
FROM webhook_pace p JOIN webhook_subscriptions s ON s.id = p.subscription_id
WHERE p.proven = $3 AND ($2::uuid IS NULL OR p.subscription_id = $2)
  AND EXISTS (SELECT FROM webhook_deliveries d WHERE ` + dueSQL + `) AND ` + roomSQL + ` > 0
LIMIT $4
FOR UPDATE OF p SKIP LOCKED`

// claimSQL leases what is due in locked lanes. It is a statement behind the one that took
// the locks, so its snapshot shows what was claimed by whoever held them before. The order
// is an index's: with the id behind it, each claim would sort all that fell due at once, as
// it does by a recovery (of 200,000: 259 ms a claim instead of 8).
const claimSQL = `
WITH lane AS (
	SELECT p.subscription_id AS id, ` + tokensSQL + ` AS tokens
	FROM webhook_pace p JOIN webhook_subscriptions s ON s.id = p.subscription_id
	WHERE p.subscription_id = ANY ($2::uuid[])
), due AS (
	SELECT d.id, p.subscription_id AS lane
	FROM webhook_pace p JOIN webhook_subscriptions s ON s.id = p.subscription_id
	CROSS JOIN LATERAL (
		SELECT d.id FROM webhook_deliveries d WHERE ` + dueSQL + `
		ORDER BY d.next_attempt_at
		LIMIT greatest(0, ` + roomSQL + `)
		FOR UPDATE SKIP LOCKED
	) d
	WHERE p.subscription_id = ANY ($2::uuid[])
	LIMIT $3
), paced AS (
	UPDATE webhook_pace p SET tokens = lane.tokens - taken.n, tokens_at = $1
	FROM lane JOIN (SELECT lane, count(*) AS n FROM due GROUP BY lane) taken ON taken.lane = lane.id
	WHERE p.subscription_id = lane.id
), leased AS (
	UPDATE webhook_deliveries d SET attempts = attempts + 1, first_attempt_at = coalesce(first_attempt_at, $1),
	       next_attempt_at = $4, in_flight = true, updated_at = $1
	FROM due WHERE d.id = due.id
	RETURNING d.id, d.message_id, d.subscription_id, d.event, d.attempts, d.first_attempt_at, d.created_at
)
SELECT l.id::text, l.message_id::text, l.subscription_id::text, s.organization_id::text, s.project_id::text, l.event, l.attempts,
       l.first_attempt_at, l.created_at, s.url, CASE WHEN octet_length(m.body) <= $6 THEN m.body END, octet_length(m.body), s.secret, s.previous_secret, s.previous_until
FROM leased l JOIN webhook_subscriptions s ON s.id = l.subscription_id JOIN webhook_messages m ON m.id = l.message_id`

// wanted says which due deliveries to claim.
type wanted struct {
	subscription string   // of which they are; "" means of all
	of           standing // of their targets
	limit        int
}

// claim leases due deliveries.
func claim(ctx context.Context, pool *pgxpool.Pool, now time.Time, w wanted) ([]claimed, error) {
	var found []claimed
	end := now.Add(lease)
	err := postgres.InPipeline(ctx, pool, func(tx *postgres.Pipeline) error {
		// A lease lost with the server's last milliseconds only repeats an attempt.
		tx.Later("set commit", "SET LOCAL synchronous_commit = off")
		lanes, err := postgres.All(ctx, tx, "lock subscriptions", pgx.RowTo[string], laneSQL, now, optional(w.subscription), w.of == proven, w.limit, perSubscription)
		if err != nil || len(lanes) == 0 {
			return err
		}
		found, err = postgres.All(ctx, tx, "lease deliveries", pgx.RowToStructByPos[claimed], claimSQL, now, lanes, w.limit, end, perSubscription, smallBody)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claim deliveries: %w", err)
	}
	for i := range found {
		found[i].leased = end.Round(0) // the monotonic clock stands while a host is suspended
	}
	return found, nil
}

// loadBody reads a body that was too large to be claimed with its delivery, once there is
// room for it, which release gives back. It takes no longer than the lease leaves for it.
func (d *Dispatcher) loadBody(ctx context.Context, c *claimed) (release func(), err error) {
	if c.Body != nil {
		return func() {}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.leased.Sub(d.now())-attemptTimeout)
	defer cancel()
	room := min(c.BodySize, largeRoom)
	if err := d.large.Acquire(ctx, room); err != nil {
		return nil, fmt.Errorf("wait for room for a body of %d bytes: %w", c.BodySize, err)
	}
	if err := d.pool.QueryRow(ctx, "SELECT body FROM webhook_messages WHERE id = $1", c.MessageID).Scan(&c.Body); err != nil {
		d.large.Release(room)
		return nil, fmt.Errorf("read body: %w", err)
	}
	return func() {
		c.Body = nil
		d.large.Release(room)
	}, nil
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
