package writeplane

import (
	"context"
	"testing"
	"time"

	"skerry/pkg/id"
	"skerry/writeplane/audit"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres/dbtest"
	"skerry/writeplane/webhooks"
)

// A subscription's creation has a place in the chain, and every entry behind it is
// delivered, also one whose mutation began before and waited for the chain.
func TestSubscriptionHearsEveryEntryBehindItsOwn(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	commits := commit.New(p.db.App, commit.Sinks{Audit: audit.Append, Deliveries: webhooks.Enqueue})
	mutate := func() error {
		return commits.InTx(t.Context(), commit.Origin{Actor: commit.Actor{ID: "u"}}, func(tx *commit.Tx) error {
			tx.Audit(commit.Entry{OrganizationID: p.founding.OrganizationID, Action: "project.updated", ResourceType: "project", ResourceID: "p"})
			return nil
		})
	}
	creation, err := p.db.App.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = creation.Rollback(t.Context()) }()
	subscriptionID := id.New()
	for _, step := range []struct {
		sql  string
		args []any
	}{
		{`SELECT FROM audit_chains WHERE organization_id = $1 FOR UPDATE`, []any{p.founding.OrganizationID}},
		{`INSERT INTO webhook_subscriptions (id, organization_id, url, events, description, enabled, secret, created_at, updated_at)
			VALUES ($1, $2, 'https://93.184.216.34/', '{audit.entry.created}', '', true, '', now(), now())`, []any{subscriptionID, p.founding.OrganizationID}},
	} {
		dbtest.Exec(t, creation, step.sql, step.args...)
	}
	done := make(chan error, 1)
	go func() { done <- mutate() }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for waiting := false; !waiting; {
		select {
		case err := <-done:
			t.Fatalf("the mutation did not wait for the chain: %v", err)
		case <-time.After(time.Millisecond):
		}
		err := p.db.Owner.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%audit_chains%')`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := creation.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if heard := dbtest.One[int](t, p.db.App, `SELECT count(*) FROM webhook_deliveries WHERE subscription_id = $1`, subscriptionID); heard != 1 {
		t.Errorf("%d deliveries, want one", heard)
	}
}
