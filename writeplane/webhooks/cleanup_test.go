package webhooks

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

// old stores deliveries of a time ago, each with its message.
func (f *fixture) old(subscriptionID, status string, age time.Duration, n int) {
	f.t.Helper()
	at := time.Now().Add(-age)
	f.exec(`
		WITH made AS (
			SELECT overlay(gen_random_uuid()::text PLACING $5::text FROM 1 FOR 13)::uuid AS id FROM generate_series(1, $1)
		), messages AS (
			INSERT INTO webhook_messages (id, organization_id, event, body, created_at) SELECT id, $2, 'switch.flag.halted', '{}', $3 FROM made
		)
		INSERT INTO webhook_deliveries (id, message_id, subscription_id, event, status, created_at, updated_at)
		SELECT id, id, $4, 'switch.flag.halted', $6, $3, $3 FROM made`, n, f.org, at, subscriptionID, firstID(at)[:13], status)
}

func (f *fixture) count(table string) int {
	f.t.Helper()
	return dbtest.One[int](f.t, f.db.App, "SELECT count(*) FROM "+table)
}

func TestCleanupKeepsUpHoweverMuchIsOld(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	subscriptionID, _ := f.subscribe("https://93.184.216.34/", nil, "*")
	f.old(subscriptionID, "delivered", 31*24*time.Hour, cleanupBatch+1)
	f.old(subscriptionID, "dead", 91*24*time.Hour, 1)
	f.old(subscriptionID, "delivered", 29*24*time.Hour, 1)
	f.old(subscriptionID, "dead", 89*24*time.Hour, 1)
	for range 2 {
		if err := f.dispatcher.cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
		if d, m := f.count("webhook_deliveries"), f.count("webhook_messages"); d != 2 || m != 2 {
			t.Errorf("%d deliveries and %d messages are left, want 2 and 2", d, m)
		}
		f.clock.advance(60 * 24 * time.Hour) // that a host's clock runs ahead makes nothing old
	}
}

// Nobody can see, retry or send what was queued for a subscription that was deleted.
func TestCleanupForgetsWhatDeletedSubscriptionsLeft(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	deleted, _ := f.subscribe("https://93.184.216.34/", nil, "*")
	disabled, _ := f.subscribe("https://93.184.216.34/", func(s *subscription) { s.Enabled = false }, "*")
	for _, status := range []string{"pending", "failed"} {
		f.old(deleted, status, 31*24*time.Hour, 1)
		f.old(disabled, status, 31*24*time.Hour, 1)
	}
	f.exec("UPDATE webhook_subscriptions SET deleted_at = now(), enabled = false WHERE id = $1", deleted)
	if err := f.dispatcher.cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := f.statuses(deleted); len(s) != 0 {
		t.Errorf("of the deleted subscription %v are left", s)
	}
	if s := f.statuses(disabled); s["pending"] != 1 || s["failed"] != 1 {
		t.Errorf("of the disabled subscription %v are left, want what was queued", s)
	}
}

// A dead letter that somebody retries while it is being cleaned up was promised an attempt.
func TestCleanupSparesWhatIsRetriedMeanwhile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	subscriptionID, _ := f.subscribe("https://93.184.216.34/", nil, "*")
	f.old(subscriptionID, "dead", 91*24*time.Hour, 1)
	cleaned := make(chan error, 1)
	err := postgres.InTx(t.Context(), f.db.App, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "UPDATE webhook_deliveries SET "+reviveSQL); err != nil {
			return err
		}
		go func() { cleaned <- f.dispatcher.cleanup(t.Context()) }()
		f.awaitWaiter("transactionid", func() bool { return len(cleaned) > 0 })
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-cleaned; err != nil {
		t.Fatal(err)
	}
	if s := f.statuses(subscriptionID); s["pending"] != 1 {
		t.Errorf("deliveries %v, want the one that was retried", s)
	}
}

// What was queued or leased while a host's clock was ahead would wait until the clock is there again.
func TestCleanupBringsBackWhatIsDueInNoSchedule(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	subscriptionID, _ := f.subscribe("https://93.184.216.34/", nil, "*")
	for _, ahead := range []time.Duration{365 * 24 * time.Hour, 23 * time.Hour} {
		f.emit("switch.flag.halted", nil)
		f.exec("UPDATE webhook_deliveries SET next_attempt_at = $1, in_flight = true WHERE NOT in_flight", f.clock.Now().Add(ahead))
	}
	f.exec("UPDATE webhook_deliveries SET in_flight = false WHERE next_attempt_at < $1", f.clock.Now().Add(horizon)) // a Retry-After of 23 hours
	if err := f.dispatcher.cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.setProven(subscriptionID)
	if n := len(f.claim(f.db.App, 256)); n != 1 {
		t.Errorf("%d claimed, want the one of a clock that was ahead", n)
	}
}
