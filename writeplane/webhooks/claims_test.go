package webhooks

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/writeplane/postgres/dbtest"
)

// setProven makes a subscription one whose newest attempt succeeded.
func (f *fixture) setProven(subscriptionID string) {
	f.t.Helper()
	f.exec("UPDATE webhook_pace SET proven = true WHERE subscription_id = $1", subscriptionID)
}

// claim claims for a dispatcher with so many free places for proven targets.
func (f *fixture) claim(pool *pgxpool.Pool, places int) []claimed {
	f.t.Helper()
	found, err := claim(f.t.Context(), pool, f.clock.Now(), wanted{of: proven, limit: places})
	if err != nil {
		f.t.Fatal(err)
	}
	return found
}

// The only free place must not be kept for subscriptions that may not use it.
func TestSubscriptionsWithoutRoomTakeNobodysPlace(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	busy, _ := f.subscribe("https://93.184.216.34/", nil, "switch.*")
	two := 2
	paced, _ := f.subscribe("https://93.184.216.34/", func(s *subscription) { s.RateLimitPerSecond = &two }, "cohort.*")
	idle, _ := f.subscribe("https://93.184.216.34/", nil, "config.*")
	for _, subscriptionID := range []string{busy, paced, idle} {
		f.setProven(subscriptionID)
	}
	f.exec("UPDATE webhook_pace SET tokens = 0, tokens_at = $1 WHERE subscription_id = $2", f.clock.Now(), paced)
	for range 5 {
		f.emit("switch.flag.halted", nil)
		f.emit("cohort.created", nil)
	}
	if n := len(f.claim(f.db.App, 256)); n != 4 {
		t.Fatalf("%d claimed, want the 4 that one subscription may have in flight", n)
	}
	f.emit("config.item.rolled_back", nil)
	f.setProven(idle) // whichever of the rows lies first in the table
	if found := f.claim(f.db.App, 1); len(found) != 1 || found[0].SubscriptionID != idle {
		t.Errorf("claimed %+v, want the delivery of the subscription that has nothing in flight", found)
	}
}

// A claim that began before another was committed must see what the other has taken.
func TestTwoClaimsAtOnceKeepTheLimitInFlight(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	subscriptionID, _ := f.subscribe("https://93.184.216.34/", nil, "*")
	f.setProven(subscriptionID)
	for range 8 {
		f.emit("switch.flag.halted", nil)
	}
	// The connections named "held" stop while they read subscriptions: their statement
	// has begun and no row is locked yet.
	const gate = 7
	for _, sql := range []string{
		`CREATE FUNCTION pass() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$ BEGIN
			IF current_setting('application_name') = 'held' THEN PERFORM pg_advisory_xact_lock_shared(7); END IF;
			RETURN true;
		END $$`,
		"ALTER TABLE webhook_subscriptions RENAME TO subscriptions_behind",
		"CREATE VIEW webhook_subscriptions AS SELECT * FROM subscriptions_behind WHERE pass()",
		"GRANT SELECT ON webhook_subscriptions TO skerry_app",
	} {
		dbtest.Exec(t, f.db.Owner, sql)
	}
	config := f.db.App.Config()
	config.ConnConfig.RuntimeParams["application_name"] = "held"
	held, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	closed, err := f.db.Owner.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer closed.Release()
	dbtest.Exec(t, closed, "SELECT pg_advisory_lock($1)", gate)
	late := make(chan []claimed)
	go func() {
		found, err := claim(t.Context(), held, f.clock.Now(), wanted{of: proven, limit: 256})
		if err != nil {
			t.Errorf("held claim: %v", err)
		}
		late <- found
	}()
	f.awaitWaiter("advisory")
	early := f.claim(f.db.App, 256)
	dbtest.Exec(t, closed, "SELECT pg_advisory_unlock($1)", gate)
	if n := len(early) + len(<-late); n != 4 {
		t.Errorf("%d attempts in flight of one subscription, want 4", n)
	}
}

// awaitWaiter returns when a session waits for a lock of the kind, or is waited for no longer.
func (f *fixture) awaitWaiter(kind string, over ...func() bool) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 20*time.Second)
	defer cancel()
	for waiting := false; !waiting && !slices.ContainsFunc(over, func(is func() bool) bool { return is() }); {
		err := f.db.Owner.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
			WHERE a.datname = current_database() AND NOT l.granted AND l.locktype = $1)`, kind).Scan(&waiting)
		if err != nil {
			f.t.Fatalf("nobody waits for a lock of kind %s: %v", kind, err)
		}
	}
}

// While a host's clock was wrong, tokens were counted at times far ahead.
func TestClockSetBackStopsNoSubscription(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{time.Hour, 40 * 24 * time.Hour} {
		f := newFixture(t)
		many := 1000
		subscriptionID, _ := f.subscribe("https://93.184.216.34/", func(s *subscription) { s.RateLimitPerSecond = &many }, "*")
		f.setProven(subscriptionID)
		f.exec("UPDATE webhook_pace SET tokens = 0, tokens_at = $1", f.clock.Now().Add(ahead))
		f.emit("switch.flag.halted", nil)
		if found, err := claim(t.Context(), f.db.App, f.clock.Now(), wanted{of: proven, limit: 256}); err != nil || len(found) != 1 {
			t.Errorf("tokens of %s ahead: %d claimed, %v; want 1", ahead, len(found), err)
		}
	}
}

func TestNothingIsSentToADeletedSubscription(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	subscriptionID, _ := f.subscribe("https://93.184.216.34/", nil, "*")
	f.setProven(subscriptionID)
	f.emit("switch.flag.halted", nil)
	f.emit(EventTest, nil) // sent even while a subscription is disabled
	f.exec("UPDATE webhook_subscriptions SET enabled = false, deleted_at = now() WHERE id = $1", subscriptionID)
	if found := f.claim(f.db.App, 256); len(found) != 0 {
		t.Errorf("claimed %+v of a deleted subscription", found)
	}
}

// A process that stood still after its claim sends nothing any more: another may be sending it.
func TestAttemptThatBeginsTooLateIsNotMade(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	url, requests := receiver(t, status(200))
	subscriptionID, _ := f.subscribe(url, nil, "*")
	f.emit("switch.flag.halted", nil)
	late := f.claimUnproven(subscriptionID)
	f.clock.advance(lease - attemptTimeout + time.Second)
	f.dispatcher.occupy(unproven, -1)
	f.dispatcher.work(t.Context(), late, unproven)
	if len(requests) > 0 {
		t.Error("the attempt was made, and would have gone on past its lease")
	}
	f.clock.advance(attemptTimeout)
	f.dispatcher.occupy(unproven, -1)
	f.dispatcher.work(t.Context(), f.claimUnproven(subscriptionID), unproven)
	if len(requests) != 1 {
		t.Errorf("%d requests after the lease, want 1", len(requests))
	}
}

// A message may be as large as a survey's response, and go to many targets at once.
func TestLargeBodiesAreReadWhenThereIsRoom(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	url, requests := receiver(t, status(200))
	for range 3 {
		f.subscribe(url, nil, "*")
	}
	f.emit("pulse.response.submitted", strings.Repeat("x", 1<<20))
	claimedAll, err := claim(t.Context(), f.db.App, f.clock.Now(), wanted{of: unproven, limit: 3})
	if err != nil || len(claimedAll) != 3 {
		t.Fatalf("%d claimed, %v", len(claimedAll), err)
	}
	for _, c := range claimedAll {
		if len(c.Body) > smallBody {
			t.Errorf("a body of %d bytes was read with its claim", len(c.Body))
		}
		f.dispatcher.occupy(unproven, -1)
		f.dispatcher.work(t.Context(), c, unproven)
		if r := <-requests; len(r.body) < 1<<20 {
			t.Errorf("%d bytes were sent", len(r.body))
		}
	}
	if !f.dispatcher.large.TryAcquire(largeRoom) {
		t.Error("room was not given back")
	}
}
