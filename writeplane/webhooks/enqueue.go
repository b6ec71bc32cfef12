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

// message is one event that may interest somebody. Its body is made when it does.
type message struct {
	id, organization, event string
	project, environment    string   // empty where the event has none
	patterns                []string // any of which makes a subscription hear it
	except                  string   // the subscription whose own failure this is about
	body                    func() ([]byte, error)
}

// Enqueue reads who wants to hear of a mutation's events and entries, and returns what
// stores their messages and deliveries in the mutation's transaction. It is the
// commit.Sinks' Deliveries.
func Enqueue(ctx context.Context, tx *postgres.Pipeline, events []commit.Event, entries []commit.Entry) (func([]commit.StoredEntry) error, error) {
	subscribers, err := readSubscribers(ctx, tx, events, entries)
	if err != nil {
		return nil, err
	}
	return func(stored []commit.StoredEntry) error {
		now := time.Now()
		queued := 0
		for _, e := range events {
			n, err := queue(tx, subscribers, eventMessage(e, now), now)
			if err != nil {
				return err
			}
			queued += n
		}
		for _, e := range stored {
			n, err := queue(tx, subscribers, auditMessage(e, now), now)
			if err != nil {
				return err
			}
			queued += n
		}
		if queued > 0 {
			tx.Later("wake dispatchers", "NOTIFY "+channel)
		}
		return nil
	}, nil
}

// queue stores a message with a delivery for each subscriber that hears it, and returns
// their number; a message that nobody hears is not stored.
func queue(tx *postgres.Pipeline, subscribers []subscriber, m message, now time.Time) (queued int, err error) {
	for i := range subscribers {
		if !subscribers[i].hears(&m) {
			continue
		}
		if queued++; queued == 1 {
			body, err := m.body()
			if err != nil {
				return 0, fmt.Errorf("marshal event %s: %w", m.event, err)
			}
			tx.Later("store message", `INSERT INTO webhook_messages (id, organization_id, event, body, created_at) VALUES ($1, $2, $3, $4, $5)`,
				m.id, m.organization, m.event, body, now)
		}
		tx.Later("queue delivery", `
			INSERT INTO webhook_deliveries (id, message_id, subscription_id, event, status, next_attempt_at, created_at, updated_at)
			VALUES ($1, $2, $3, $4, 'pending', $5, $5, $5)`, id.New(), m.id, subscribers[i].ID, m.event, now)
	}
	return queued, nil
}

func eventMessage(e commit.Event, now time.Time) message {
	m := message{id: id.New(), organization: e.OrganizationID, event: e.Name, project: e.ProjectID, environment: e.Environment,
		patterns: patternsFor(e.Name)}
	if failed, ok := e.Data.(deliveryFailed); ok {
		m.except = failed.SubscriptionID
	}
	m.body = func() ([]byte, error) {
		return json.Marshal(envelope{
			ID: m.id, Event: e.Name, OrganizationID: e.OrganizationID, ProjectID: optional(e.ProjectID), Environment: optional(e.Environment),
			EmittedAt: instant.Of(now), Data: e.Data,
		})
	}
	return m
}

func auditMessage(e commit.StoredEntry, now time.Time) message {
	m := message{id: id.New(), organization: e.OrganizationID, event: EventAuditEntry, project: e.ProjectID,
		patterns: patternsFor(EventAuditEntry)}
	if e.Action == EventDeliveryFailed {
		m.except = e.ResourceID
	}
	m.body = func() ([]byte, error) {
		return json.Marshal(auditEnvelope{
			ID: m.id, Event: EventAuditEntry, OrganizationID: e.OrganizationID, EmittedAt: instant.Of(now), Data: e.Body,
		})
	}
	return m
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// deliveryFailed is the data of webhook.delivery.failed.
type deliveryFailed struct {
	SubscriptionID string  `json:"subscription_id"`
	DeliveryID     string  `json:"delivery_id"`
	FailedEvent    string  `json:"failed_event"`
	Attempts       int     `json:"attempts"`
	LastStatusCode *int    `json:"last_status_code"`
	LastError      *string `json:"last_error"`
}
