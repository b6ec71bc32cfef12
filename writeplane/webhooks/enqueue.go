package webhooks

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"skerry/pkg/id"
	"skerry/pkg/instant"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
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
func Enqueue(_ context.Context, tx *postgres.Pipeline, events []commit.Event, entries []commit.StoredEntry) error {
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
	store(tx, messages, now)
	return nil
}

// store writes all messages in one statement: a transaction that stores many survey
// responses has an event for each.
func store(tx *postgres.Pipeline, messages []message, now time.Time) {
	n := len(messages)
	ids, organizations, names, bodies := make([]string, n), make([]string, n), make([]string, n), make([][]byte, n)
	projects, environments, excepts, audits := make([]*string, n), make([]*string, n), make([]*string, n), make([]bool, n)
	for i, m := range messages {
		ids[i], organizations[i], names[i], bodies[i] = m.id, m.organization, m.event, m.body
		projects[i], environments[i], excepts[i], audits[i] = m.project, m.environment, m.except, m.event == EventAuditEntry
	}
	tx.Later("store messages", enqueueSQL, ids, organizations, names, bodies, projects, environments, excepts, audits, now)
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

// enqueueSQL matches subscriptions and stores those messages that somebody wants. The
// audit stream is matched by its full name alone, and only for tiers that have it.
const enqueueSQL = `
WITH said AS (
	SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bytea[], $5::uuid[], $6::text[], $7::uuid[], $8::boolean[])
		WITH ORDINALITY AS m (id, organization_id, event, body, project_id, environment, except_id, audit, ordinal)
), wanted AS (
	SELECT m.id AS message_id, m.event, m.ordinal, s.id AS subscription_id
	FROM said m JOIN webhook_subscriptions s ON s.organization_id = m.organization_id
	WHERE s.enabled AND s.deleted_at IS NULL
	  AND (s.project_id IS NULL OR s.project_id = m.project_id)
	  AND (s.environment IS NULL OR s.environment = m.environment)
	  AND s.id IS DISTINCT FROM m.except_id
	  AND CASE WHEN m.audit THEN
			m.event = ANY (s.events) AND EXISTS (SELECT FROM organizations o WHERE o.id = m.organization_id AND o.tier <> 'hobby')
		ELSE
			m.event = ANY (s.events) OR '*' = ANY (s.events)
			OR EXISTS (SELECT FROM unnest(s.events) p WHERE right(p, 2) = '.*' AND starts_with(m.event, left(p, -1)))
		END
), message AS (
	INSERT INTO webhook_messages (id, organization_id, event, body, created_at)
	SELECT m.id, m.organization_id, m.event, m.body, $9::timestamptz
	FROM said m WHERE EXISTS (SELECT FROM wanted w WHERE w.message_id = m.id)
), queued AS (
	INSERT INTO webhook_deliveries (message_id, subscription_id, event, status, next_attempt_at, created_at, updated_at)
	SELECT w.message_id, w.subscription_id, w.event, 'pending', $9, $9, $9 FROM wanted w ORDER BY w.ordinal
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
