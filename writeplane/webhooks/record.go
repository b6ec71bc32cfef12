package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/writeplane/access"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

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

// finishSQL ends an attempt, unless another has begun since: its lease ran out, or somebody
// asked for a retry, with which attempts are counted anew from another first one.
const finishSQL = `
UPDATE webhook_deliveries SET status = $3, next_attempt_at = $4, in_flight = false, last_status_code = nullif($5, 0),
       last_error = nullif($6, ''), response_head = $7, updated_at = $8
WHERE id = $1 AND attempts = $2 AND first_attempt_at = $9 AND in_flight`

func finishArgs(c claimed, result outcome, status string, at *time.Time, now time.Time) []any {
	return []any{c.ID, c.Attempts, status, at, result.status, result.fault, result.head, now, c.FirstAttemptAt}
}

// finish ends an attempt with finishArgs, and tells whether it was still the last one.
func finish(ctx context.Context, tx pgx.Tx, args []any) (ours bool, err error) {
	tag, err := tx.Exec(ctx, finishSQL, args...)
	if err != nil {
		return false, fmt.Errorf("store attempt: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

// recordSuccess takes one round trip: nothing of it is waited for but that it was done.
func (d *Dispatcher) recordSuccess(ctx context.Context, c claimed, result outcome, now time.Time) error {
	return postgres.InPipeline(ctx, d.pool, func(tx *postgres.Pipeline) error {
		tx.Later("set commit", "SET LOCAL synchronous_commit = off")
		tx.Later("store attempt", finishSQL, finishArgs(c, result, "delivered", nil, now)...)
		tx.Later("note success", `
			UPDATE webhook_pace SET proven = true, failing_since = NULL
			WHERE subscription_id = $1 AND (NOT proven OR failing_since IS NOT NULL)`, c.SubscriptionID)
		return nil
	})
}

// failSQL keeps when a run of failures began. A time ahead was noted before the clock was
// set back.
const failSQL = `
UPDATE webhook_pace SET proven = false, failing_since = least(failing_since, $2)
WHERE subscription_id = $1 RETURNING failing_since`

func (d *Dispatcher) recordFailure(ctx context.Context, c claimed, result outcome, now, at time.Time) error {
	return d.store.InTx(ctx, system, func(tx *commit.Tx) error {
		ours, err := finish(ctx, tx, finishArgs(c, result, "failed", &at, now))
		if err != nil || !ours {
			return err
		}
		return d.noteFailure(ctx, tx, c, now, "")
	})
}

// recordDeath moves a delivery to the dead letters and says so once.
func (d *Dispatcher) recordDeath(ctx context.Context, c claimed, result outcome, now time.Time) error {
	return d.store.InTx(ctx, system, func(tx *commit.Tx) error {
		ours, err := finish(ctx, tx, finishArgs(c, result, "dead", nil, now))
		if err != nil || !ours {
			return err
		}
		if !tellsOfFailure(c) {
			tellFailure(tx, c, result)
		}
		reason := ""
		if result.status == http.StatusGone {
			reason = "the target answered 410 Gone"
		}
		return d.noteFailure(ctx, tx, c, now, reason)
	})
}

func tellFailure(tx *commit.Tx, c claimed, result outcome) {
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
}

// tellsOfFailure reports whether a message says that a delivery became a dead letter: the
// event, or its audit entry. Should it become one too, that is not told: subscriptions that
// all fail would tell each other so without end, each time one message for every other.
func tellsOfFailure(c claimed) bool {
	if c.Event != EventAuditEntry {
		return c.Event == EventDeliveryFailed
	}
	var told struct {
		Data struct {
			Action string `json:"action"`
		} `json:"data"`
	}
	return json.Unmarshal(c.Body, &told) == nil && told.Data.Action == EventDeliveryFailed
}

// disableAfter is how long nothing but failures must last before the program disables
// a subscription.
const disableAfter = 5 * 24 * time.Hour

// noteFailure keeps the subscription's run of failures and disables it when that has
// lasted too long, or at once for a reason given.
func (d *Dispatcher) noteFailure(ctx context.Context, tx *commit.Tx, c claimed, now time.Time, reason string) error {
	// The subscription before its pace, in the order of whoever enables it.
	row, err := lockSubscription(ctx, tx, c.SubscriptionID)
	if errors.Is(err, access.ErrNotFound) { // deleted meanwhile
		return nil
	}
	if err != nil {
		return err
	}
	var since time.Time
	if err := tx.QueryRow(ctx, failSQL, c.SubscriptionID, now).Scan(&since); err != nil {
		return fmt.Errorf("note failure: %w", err)
	}
	if reason == "" && now.Sub(since) >= disableAfter {
		reason = "nothing but failures for 5 days"
	}
	if reason == "" || !row.Enabled {
		return nil
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
