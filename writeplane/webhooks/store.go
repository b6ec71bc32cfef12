package webhooks

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/instant"
	"skerry/pkg/seal"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

// resourceType is what audit entries call a subscription.
const resourceType = "webhook"

// subscription is a row: what is shown, whose it is, and its sealed secrets.
type subscription struct {
	Subscription
	OrganizationID string
	secret         []byte
	previousSecret []byte
	previousUntil  *time.Time
}

const subscriptionColumns = `s.id::text, s.url, s.events, s.description, s.enabled, s.rate_limit_per_second, s.project_id::text, s.environment,
	s.disabled_reason, s.created_at, s.updated_at, s.organization_id::text, s.secret, s.previous_secret, s.previous_until`

func scanSubscription(row pgx.CollectableRow) (subscription, error) {
	var s subscription
	err := row.Scan(&s.ID, &s.URL, &s.Events, &s.Description, &s.Enabled, &s.RateLimitPerSecond, &s.ProjectID, &s.Environment,
		&s.DisabledReason, &s.CreatedAt.Time, &s.UpdatedAt.Time, &s.OrganizationID, &s.secret, &s.previousSecret, &s.previousUntil)
	return s, err
}

// oneSubscription reads a subscription that is not deleted; access.ErrNotFound when
// there is none.
func oneSubscription(ctx context.Context, q postgres.Querier, where string, args ...any) (subscription, error) {
	found, ok, err := postgres.One(ctx, q, "read subscription", scanSubscription,
		"SELECT "+subscriptionColumns+" FROM webhook_subscriptions s WHERE s.deleted_at IS NULL AND "+where, args...)
	if err == nil && !ok {
		return found, access.ErrNotFound
	}
	return found, err
}

// lockSubscription reads one for changing it. It leaves the row's key unlocked, so
// mutations that queue deliveries to it do not wait: they may hold the audit chain that
// the change of the subscription will ask for.
func lockSubscription(ctx context.Context, tx pgx.Tx, id string) (subscription, error) {
	return oneSubscription(ctx, tx, "s.id = $1 FOR NO KEY UPDATE", id)
}

// insertSubscription stores a new one with its pace and audits it.
func insertSubscription(ctx context.Context, tx *commit.Tx, s *subscription) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO webhook_subscriptions (id, organization_id, project_id, environment, url, events, description, enabled,
			rate_limit_per_second, secret, created_at, updated_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $11)`,
		s.ID, s.OrganizationID, s.ProjectID, s.Environment, s.URL, s.Events, s.Description, s.Enabled,
		s.RateLimitPerSecond, s.secret, s.CreatedAt.Time)
	if err != nil {
		return fmt.Errorf("insert subscription: %w", err)
	}
	if _, err := tx.Exec(ctx, "INSERT INTO webhook_pace (subscription_id) VALUES ($1)", s.ID); err != nil {
		return fmt.Errorf("insert pace: %w", err)
	}
	tx.Audit(s.entry("webhook.subscription.created", nil, s.Subscription))
	return nil
}

// saveSubscription stores a changed row and audits the change.
func saveSubscription(ctx context.Context, tx *commit.Tx, before Subscription, s *subscription, now time.Time) error {
	s.UpdatedAt = instant.Of(now)
	_, err := tx.Exec(ctx, `
		UPDATE webhook_subscriptions SET project_id = $2, environment = $3, url = $4, events = $5, description = $6, enabled = $7,
			rate_limit_per_second = $8, disabled_reason = $9, updated_at = $10 WHERE id = $1`,
		s.ID, s.ProjectID, s.Environment, s.URL, s.Events, s.Description, s.Enabled, s.RateLimitPerSecond, s.DisabledReason, now)
	if err != nil {
		return fmt.Errorf("update subscription: %w", err)
	}
	if s.Enabled && !before.Enabled { // a fresh start: old failures do not disable it again at once
		if _, err := tx.Exec(ctx, "UPDATE webhook_pace SET failing_since = NULL WHERE subscription_id = $1", s.ID); err != nil {
			return fmt.Errorf("reset failures: %w", err)
		}
	}
	tx.Audit(s.entry("webhook.subscription.updated", before, s.Subscription))
	return nil
}

func (s *subscription) entry(action string, before, after any) commit.Entry {
	e := commit.Entry{
		OrganizationID: s.OrganizationID, Action: action, ResourceType: resourceType, ResourceID: s.ID, Before: before, After: after,
	}
	if s.ProjectID != nil {
		e.ProjectID = *s.ProjectID
	}
	return e
}

// newSecret returns a fresh secret as it is shown once, and as it is stored.
func newSecret(sealer *seal.Sealer, subscriptionID string) (shown string, sealed []byte) {
	raw := make([]byte, 32)
	_, _ = rand.Read(raw) // never fails, it ends the process instead
	return "whsec_" + base64.StdEncoding.EncodeToString(raw), sealer.Seal(secretPurpose(subscriptionID), raw)
}

const deliveryColumns = `d.id::text, d.event, d.status, d.attempts, d.next_attempt_at, d.last_status_code, d.last_error, d.response_head, d.created_at`

func scanDelivery(row pgx.CollectableRow) (Delivery, error) {
	var d Delivery
	var next *time.Time
	err := row.Scan(&d.ID, &d.Event, &d.Status, &d.Attempts, &next, &d.LastStatusCode, &d.LastError, &d.ResponseHead, &d.CreatedAt.Time)
	d.NextAttemptAt = instant.OfPtr(next)
	return d, err
}

// oneDelivery runs a statement that gives one delivery; access.ErrNotFound when it
// gives none.
func oneDelivery(ctx context.Context, q postgres.Querier, sql string, args ...any) (Delivery, error) {
	found, ok, err := postgres.One(ctx, q, "read delivery", scanDelivery, sql, args...)
	if err == nil && !ok {
		return found, access.ErrNotFound
	}
	return found, err
}

// projectOrganization is the organization of a project that exists.
func projectOrganization(ctx context.Context, q postgres.Querier, projectID string) (string, error) {
	organization, ok, err := postgres.One(ctx, q, "read project", pgx.RowTo[string],
		"SELECT organization_id::text FROM projects WHERE id = $1 AND deleted_at IS NULL", projectID)
	if err == nil && !ok {
		return "", access.ErrNotFound
	}
	return organization, err
}
