package webhooks

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/id"
	"skerry/pkg/instant"
	"skerry/pkg/jsonbody"
	"skerry/pkg/problem"
	"skerry/pkg/reply"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
)

// deliveries is a list of them under a name, selected by a query.
func deliveries(plural, sql string) access.List[Delivery, Delivery] {
	return access.List[Delivery, Delivery]{
		Plural: plural, SQL: "SELECT " + deliveryColumns + " FROM webhook_deliveries d " + sql, Scan: scanDelivery,
		View: func(d Delivery) Delivery { return d }, ID: func(d Delivery) string { return d.ID },
	}
}

var deliveryStatuses = []string{"pending", "delivered", "failed", "dead"}

// Deliveries serves GET /api/v1/webhooks/subscriptions/{id}/deliveries, newest first.
func (m *Module) Deliveries(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	s, err := m.find(r.Context(), m.store.Pool(), c, r.PathValue("id"))
	if err != nil {
		return err
	}
	status := r.URL.Query().Get("status")
	if status != "" && !slices.Contains(deliveryStatuses, status) {
		return problem.Newf(problem.Invalid, "invalid_status", "status must be one of %v", deliveryStatuses)
	}
	return deliveries("deliveries", `
		WHERE d.subscription_id = $1 AND ($2 = '' OR d.status = $2) AND ($3::uuid IS NULL OR d.id < $3)
		ORDER BY d.id DESC LIMIT $4`).Serve(m.access, w, r, c, s.ID, status)
}

// DeadLetters serves GET /api/v1/webhooks/dead-letters, newest first.
func (m *Module) DeadLetters(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	projects, err := m.visible(r, c)
	if err != nil {
		return err
	}
	return deliveries("dead_letters", `JOIN webhook_subscriptions s ON s.id = d.subscription_id
		WHERE d.status = 'dead' AND `+sightSQL+` AND ($4::uuid IS NULL OR d.id < $4)
		ORDER BY d.id DESC LIMIT $5`).Serve(m.access, w, r, c, c.Caller.OrganizationID, projects, bound(c))
}

// reviveSQL gives deliveries a schedule from its start.
const reviveSQL = `status = 'pending', attempts = 0, first_attempt_at = NULL, next_attempt_at = now(), in_flight = false, updated_at = now()`

// Retry serves POST /api/v1/webhooks/deliveries/{id}/retry: the delivery is tried at
// once, whatever became of it before, with a schedule from its start.
func (m *Module) Retry(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	deliveryID := r.PathValue("id")
	if !id.Valid(deliveryID) {
		return access.ErrNotFound
	}
	var subscriptionID string
	err := m.store.Pool().QueryRow(r.Context(), "SELECT subscription_id::text FROM webhook_deliveries WHERE id = $1", deliveryID).Scan(&subscriptionID)
	if errors.Is(err, pgx.ErrNoRows) {
		return access.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("read delivery: %w", err)
	}
	if _, err := m.find(r.Context(), m.store.Pool(), c, subscriptionID); err != nil {
		return err
	}
	var revived Delivery
	err = m.store.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		var err error
		revived, err = oneDelivery(r.Context(), tx, "UPDATE webhook_deliveries d SET "+reviveSQL+" WHERE d.id = $1 RETURNING "+deliveryColumns, deliveryID)
		if err != nil {
			return err
		}
		return wakeDispatchers(r, tx)
	})
	if err != nil {
		return err
	}
	return reply.JSON(w, http.StatusAccepted, map[string]any{"delivery": revived})
}

// Recover serves POST /api/v1/webhooks/subscriptions/{id}/recover: everything of the
// subscription that became a dead letter between since (inclusive) and until
// (exclusive, by the event's time) is sent again.
func (m *Module) Recover(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	var body struct {
		Since *instant.Time `json:"since"`
		Until *instant.Time `json:"until"`
	}
	if err := jsonbody.Strict(r, &body); err != nil {
		return err
	}
	if body.Since == nil {
		return jsonbody.Missing("since")
	}
	if body.Until == nil {
		now := instant.Of(time.Now())
		body.Until = &now
	}
	var recovered int64
	err := m.store.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		// Not locked: there may be many to revive, and who records a failure waits for
		// the lock.
		s, err := m.find(r.Context(), tx, c, r.PathValue("id"))
		if err != nil {
			return err
		}
		tag, err := tx.Exec(r.Context(), "UPDATE webhook_deliveries SET "+reviveSQL+`
			WHERE subscription_id = $1 AND status = 'dead' AND created_at >= $2 AND created_at < $3`, s.ID, body.Since.Time, body.Until.Time)
		if err != nil {
			return fmt.Errorf("revive deliveries: %w", err)
		}
		recovered = tag.RowsAffected()
		return wakeDispatchers(r, tx)
	})
	if err != nil {
		return err
	}
	return reply.JSON(w, http.StatusOK, map[string]any{"recovered": recovered})
}

// Test serves POST /api/v1/webhooks/subscriptions/{id}/test: a webhook.test event for
// this subscription alone, sent even while it is disabled.
func (m *Module) Test(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	var queued Delivery
	err := m.store.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		s, err := m.find(r.Context(), tx, c, r.PathValue("id"))
		if err != nil {
			return err
		}
		now := time.Now()
		messageID := id.New()
		body, err := json.Marshal(envelope{
			ID: messageID, Event: EventTest, OrganizationID: s.OrganizationID, ProjectID: s.ProjectID, Environment: s.Environment,
			EmittedAt: instant.Of(now), Data: map[string]any{"subscription_id": s.ID},
		})
		if err != nil {
			return fmt.Errorf("marshal test event: %w", err)
		}
		_, err = tx.Exec(r.Context(), "INSERT INTO webhook_messages (id, organization_id, event, body, created_at) VALUES ($1, $2, $3, $4, $5)",
			messageID, s.OrganizationID, EventTest, body, now)
		if err != nil {
			return fmt.Errorf("store test event: %w", err)
		}
		queued, err = oneDelivery(r.Context(), tx, `
			INSERT INTO webhook_deliveries AS d (message_id, subscription_id, event, status, next_attempt_at, created_at, updated_at)
			VALUES ($1, $2, $3, 'pending', $4, $4, $4) RETURNING `+deliveryColumns, messageID, s.ID, EventTest, now)
		if err != nil {
			return err
		}
		return wakeDispatchers(r, tx)
	})
	if err != nil {
		return err
	}
	return reply.JSON(w, http.StatusAccepted, map[string]any{"delivery": queued})
}

func wakeDispatchers(r *http.Request, tx pgx.Tx) error {
	if _, err := tx.Exec(r.Context(), "SELECT pg_notify($1, '')", channel); err != nil {
		return fmt.Errorf("wake dispatchers: %w", err)
	}
	return nil
}
