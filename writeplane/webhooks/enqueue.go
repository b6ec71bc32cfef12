package webhooks

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/id"
	"skerry/pkg/instant"
	"skerry/writeplane/commit"
)

// channel wakes dispatchers when deliveries were committed.
const channel = "skerry_deliveries"

// envelope is the body of every event but the audit stream's.
type envelope struct {
	ID             string       `json:"id"`
	Event          string       `json:"event"`
	OrganizationID string       `json:"organization_id"`
	ProjectID      *string      `json:"project_id"`
	Environment    *string      `json:"environment"`
	EmittedAt      instant.Time `json:"emitted_at"`
	Data           any          `json:"data"`
}

// auditEnvelope has exactly the specification's members, and the id.
type auditEnvelope struct {
	ID             string          `json:"id"`
	Event          string          `json:"event"`
	OrganizationID string          `json:"organization_id"`
	EmittedAt      instant.Time    `json:"emitted_at"`
	Data           json.RawMessage `json:"data"`
}

// message is one event ready to be stored for those who want it.
type message struct {
	id, organization, event string
	project, environment    *string
	body                    []byte
	except                  *string // the subscription whose own failure this is about
}

// Enqueue stores the messages and deliveries of one mutation in its transaction. It
// is the commit.Sinks' Deliveries.
func Enqueue(ctx context.Context, tx pgx.Tx, events []commit.Event, entries []commit.StoredEntry) error {
	now := time.Now()
	messages := make([]message, 0, len(events)+len(entries))
	for _, e := range events {
		m, err := eventMessage(e, now)
		if err != nil {
			return err
		}
		messages = append(messages, m)
	}
	for _, e := range entries {
		m, err := auditMessage(e, now)
		if err != nil {
			return err
		}
		messages = append(messages, m)
	}
	var batch pgx.Batch
	for _, m := range messages {
		batch.Queue(enqueueSQL, m.id, m.organization, m.event, m.body, now, m.project, m.environment, m.except, m.event == EventAuditEntry)
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("store %d messages: %w", len(messages), err)
	}
	return nil
}

func eventMessage(e commit.Event, now time.Time) (message, error) {
	m := message{id: id.New(), organization: e.OrganizationID, event: e.Name, project: optional(e.ProjectID), environment: optional(e.Environment)}
	if failed, ok := e.Data.(deliveryFailed); ok {
		m.except = &failed.SubscriptionID
	}
	body, err := json.Marshal(envelope{
		ID: m.id, Event: e.Name, OrganizationID: e.OrganizationID, ProjectID: m.project, Environment: m.environment,
		EmittedAt: instant.Of(now), Data: e.Data,
	})
	if err != nil {
		return m, fmt.Errorf("marshal event %s: %w", e.Name, err)
	}
	m.body = body
	return m, nil
}

func auditMessage(e commit.StoredEntry, now time.Time) (message, error) {
	m := message{id: id.New(), organization: e.OrganizationID, event: EventAuditEntry, project: optional(e.ProjectID)}
	if e.Action == EventDeliveryFailed {
		m.except = optional(e.ResourceID)
	}
	body, err := json.Marshal(auditEnvelope{
		ID: m.id, Event: EventAuditEntry, OrganizationID: e.OrganizationID, EmittedAt: instant.Of(now), Data: e.Body,
	})
	if err != nil {
		return m, fmt.Errorf("marshal audit entry: %w", err)
	}
	m.body = body
	return m, nil
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// enqueueSQL matches subscriptions and stores the message only when there is one.
// The audit stream is matched by its full name alone, and only for tiers that have it.
const enqueueSQL = `
WITH wanted AS (
	SELECT s.id FROM webhook_subscriptions s
	WHERE s.organization_id = $2 AND s.enabled AND s.deleted_at IS NULL
	  AND (s.project_id IS NULL OR s.project_id = $6::uuid)
	  AND (s.environment IS NULL OR s.environment = $7)
	  AND s.id IS DISTINCT FROM $8::uuid
	  AND CASE WHEN $9 THEN
			$3 = ANY (s.events) AND EXISTS (SELECT FROM organizations o WHERE o.id = $2 AND o.tier <> 'hobby')
		ELSE
			$3 = ANY (s.events) OR '*' = ANY (s.events)
			OR EXISTS (SELECT FROM unnest(s.events) p WHERE right(p, 2) = '.*' AND starts_with($3, left(p, -1)))
		END
), message AS (
	INSERT INTO webhook_messages (id, organization_id, event, body, created_at)
	SELECT $1, $2, $3, $4, $5 WHERE EXISTS (SELECT FROM wanted)
	RETURNING id
), queued AS (
	INSERT INTO webhook_deliveries (message_id, subscription_id, event, status, next_attempt_at, created_at, updated_at)
	SELECT message.id, wanted.id, $3, 'pending', $5, $5, $5 FROM message, wanted
	RETURNING id
)
SELECT pg_notify('` + channel + `', '') WHERE EXISTS (SELECT FROM queued)`

// deliveryFailed is the data of webhook.delivery.failed.
type deliveryFailed struct {
	SubscriptionID string  `json:"subscription_id"`
	DeliveryID     string  `json:"delivery_id"`
	FailedEvent    string  `json:"failed_event"`
	Attempts       int     `json:"attempts"`
	LastStatusCode *int    `json:"last_status_code"`
	LastError      *string `json:"last_error"`
}
