package webhooks

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"skerry/pkg/id"
	"skerry/pkg/seal"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
	"skerry/writeplane/webhooks/target"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// clock is a time that only the test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// fixture is an organization with a database, a store and a dispatcher.
type fixture struct {
	t          *testing.T
	db         *postgres.DB
	store      *commit.Store
	sealer     *seal.Sealer
	clock      *clock
	dispatcher *Dispatcher
	org        string
	project    string
	recorded   chan claimed

	mu      sync.Mutex
	entries []commit.Entry
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{
		t: t, db: dbtest.New(t), clock: &clock{now: time.Now().Add(time.Second)}, org: id.New(), project: id.New(),
		recorded: make(chan claimed, 1000),
	}
	f.sealer, _ = seal.New(make([]byte, seal.KeyLen))
	f.store = commit.New(f.db.App, commit.Sinks{Audit: f.audit, Deliveries: Enqueue})
	f.exec("INSERT INTO organizations (id, name, tier) VALUES ($1, 'o', 'pro')", f.org)
	f.exec("INSERT INTO projects (id, organization_id, name, modules, allowlist, rate_limits, quotas) VALUES ($1, $2, 'p', '{}', '{}', '{}', '{}')", f.project, f.org)
	f.dispatcher = f.newDispatcher()
	return f
}

func (f *fixture) newDispatcher() *Dispatcher {
	guard := target.New(target.Config{AllowCIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	d := NewDispatcher(f.store, f.sealer, guard, prometheus.NewRegistry(), Config{Now: f.clock.Now})
	d.recorded = func(c claimed) { f.recorded <- c }
	return d
}

// audit stands where the audit module does in the program, and shows what it was told.
func (f *fixture) audit(_ *postgres.Pipeline, _ commit.Origin, entries []commit.Entry) (func(context.Context) ([]commit.StoredEntry, error), error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	stored := make([]commit.StoredEntry, len(entries))
	for i, e := range entries {
		f.entries = append(f.entries, e)
		stored[i] = commit.StoredEntry{
			OrganizationID: e.OrganizationID, ProjectID: e.ProjectID, Action: e.Action, ResourceID: e.ResourceID,
			Body: json.RawMessage(fmt.Sprintf(`{"action":%q}`, e.Action)),
		}
	}
	return func(context.Context) ([]commit.StoredEntry, error) { return stored, nil }, nil
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	dbtest.Exec(f.t, f.db.App, sql, args...)
}

// run starts a dispatcher and returns what stops it.
func (f *fixture) run(d *Dispatcher) (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := d.Run(ctx); err != nil {
			f.t.Errorf("dispatcher: %v", err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	f.t.Cleanup(stop)
	return stop
}

// subscribe stores a subscription and returns its id and secret.
func (f *fixture) subscribe(url string, change func(*subscription), events ...string) (subscriptionID, secret string) {
	f.t.Helper()
	s := &subscription{OrganizationID: f.org, Subscription: Subscription{ID: id.New(), URL: url, Events: events, Enabled: true}}
	if change != nil {
		change(s)
	}
	secret, s.secret = newSecret(f.sealer, s.ID)
	err := f.store.InTx(f.t.Context(), commit.Origin{}, func(tx *commit.Tx) error { return insertSubscription(f.t.Context(), tx, s) })
	if err != nil {
		f.t.Fatal(err)
	}
	return s.ID, secret
}

func (f *fixture) emit(event string, data any) {
	f.t.Helper()
	err := f.store.InTx(f.t.Context(), commit.Origin{}, func(tx *commit.Tx) error {
		tx.Emit(commit.Event{Name: event, OrganizationID: f.org, ProjectID: f.project, Environment: "live", Data: data})
		return nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) statuses(subscriptionID string) map[string]int {
	f.t.Helper()
	rows, err := f.db.App.Query(f.t.Context(), "SELECT status FROM webhook_deliveries WHERE subscription_id = $1", subscriptionID)
	if err != nil {
		f.t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		f.t.Fatal(err)
	}
	counts := map[string]int{}
	for _, s := range found {
		counts[s]++
	}
	return counts
}

// received is a request as the receiver saw it.
type received struct {
	header http.Header
	body   []byte
}

// receiver answers every request with a status and passes it on.
func receiver(t *testing.T, answer func(w http.ResponseWriter, r *http.Request)) (url string, requests <-chan received) {
	t.Helper()
	seen := make(chan received, 1000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen <- received{r.Header.Clone(), body}
		answer(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL, seen
}

func status(code int) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

func TestEventArrivesSignedInItsEnvelope(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	url, requests := receiver(t, status(204))
	subscriptionID, secret := f.subscribe(url+"/hook", nil, "switch.*")
	f.run(f.dispatcher)
	f.emit("switch.flag.halted", map[string]string{"reason": "x"})

	got := <-requests
	verifier, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	if err := verifier.Verify(got.body, got.header); err != nil {
		t.Errorf("signature: %v", err)
	}
	var envelope map[string]any
	if err := json.Unmarshal(got.body, &envelope); err != nil {
		t.Fatal(err)
	}
	for member, want := range map[string]any{
		"id": got.header.Get("webhook-id"), "event": "switch.flag.halted", "organization_id": f.org, "project_id": f.project, "environment": "live",
	} {
		if envelope[member] != want {
			t.Errorf("envelope %s: %v, want %v", member, envelope[member], want)
		}
	}
	if data, _ := envelope["data"].(map[string]any); data["reason"] != "x" || len(envelope) != 7 {
		t.Errorf("envelope: %s", got.body)
	}
	<-f.recorded
	if s := f.statuses(subscriptionID); s["delivered"] != 1 || len(s) != 1 {
		t.Errorf("deliveries %v, want one delivered", s)
	}
}

func TestOnlyMatchingSubscriptionsHear(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	live, test, other := "live", "test", id.New()
	f.exec("INSERT INTO projects (id, organization_id, name, modules, allowlist, rate_limits, quotas) VALUES ($1, $2, 'q', '{}', '{}', '{}', '{}')", other, f.org)
	hears := map[string]bool{}
	add := func(heard bool, change func(*subscription), events ...string) {
		subscriptionID, _ := f.subscribe("https://93.184.216.34/", change, events...)
		hears[subscriptionID] = heard
	}
	add(true, nil, "config.item.rolled_back")
	add(true, nil, "config.*")
	add(true, nil, "*")
	add(true, func(s *subscription) { s.ProjectID, s.Environment = &f.project, &live }, "*")
	add(false, nil, "switch.*", "config.item.created")
	add(false, nil, EventAuditEntry)
	add(false, func(s *subscription) { s.ProjectID = &other }, "*")
	add(false, func(s *subscription) { s.Environment = &test }, "*")
	add(false, func(s *subscription) { s.Enabled = false }, "*")
	f.emit("config.item.rolled_back", nil)
	for subscriptionID, want := range hears {
		if got := f.statuses(subscriptionID)["pending"] == 1; got != want {
			var events []string
			_ = f.db.App.QueryRow(t.Context(), "SELECT events FROM webhook_subscriptions WHERE id = $1", subscriptionID).Scan(&events)
			t.Errorf("subscription to %v hears: %v, want %v", events, got, want)
		}
	}
}

func TestAuditStreamMustBeNamedAndNeedsItsTier(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	named, _ := f.subscribe("https://93.184.216.34/", nil, EventAuditEntry)
	star, _ := f.subscribe("https://93.184.216.34/", nil, "*", "audit.*")
	audited := func() {
		err := f.store.InTx(t.Context(), commit.Origin{}, func(tx *commit.Tx) error {
			tx.Audit(commit.Entry{OrganizationID: f.org, Action: "project.created"})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	f.exec("DELETE FROM webhook_deliveries")
	audited()
	if n, s := f.statuses(named)["pending"], f.statuses(star)["pending"]; n != 1 || s != 0 {
		t.Errorf("named %d, star %d; want 1 and 0", n, s)
	}
	var body map[string]any
	raw := dbtest.One[[]byte](t, f.db.App, "SELECT m.body FROM webhook_messages m JOIN webhook_deliveries d ON d.message_id = m.id WHERE d.subscription_id = $1", named)
	_ = json.Unmarshal(raw, &body)
	if len(body) != 5 || body["event"] != "audit.entry.created" || body["organization_id"] != f.org || body["emitted_at"] == nil || body["id"] == nil || body["data"] == nil {
		t.Errorf("audit envelope %s: want id, event, organization_id, emitted_at, data", raw)
	}
	f.exec("UPDATE organizations SET tier = 'hobby' WHERE id = $1", f.org)
	audited()
	if n := f.statuses(named)["pending"]; n != 1 {
		t.Errorf("%d pending after the tier was lost, want the 1 queued before", n)
	}
}

func TestFailuresFollowTheScheduleIntoTheDeadLetters(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	url, requests := receiver(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(500)
		_, _ = w.Write([]byte("no\x00\xff"))
	})
	failing, _ := f.subscribe(url, nil, "*")
	watchURL, watched := receiver(t, status(200))
	f.subscribe(watchURL, nil, EventDeliveryFailed)
	f.run(f.dispatcher)
	f.emit("switch.flag.halted", nil)

	ids := map[string]bool{}
	for _, delay := range []time.Duration{0, 5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 340 * time.Minute} {
		f.clock.advance(delay * 11 / 10)
		ids[(<-requests).header.Get("webhook-id")] = true
		<-f.recorded
	}
	if len(ids) != 1 {
		t.Errorf("%d different webhook-ids over the attempts of one message", len(ids))
	}
	report := <-watched
	var envelope struct {
		Event string         `json:"event"`
		Data  deliveryFailed `json:"data"`
	}
	_ = json.Unmarshal(report.body, &envelope)
	if envelope.Event != "webhook.delivery.failed" || envelope.Data.SubscriptionID != failing || envelope.Data.Attempts != 8 || *envelope.Data.LastStatusCode != 500 {
		t.Errorf("report %s", report.body)
	}
	if s := f.statuses(failing); s["dead"] != 1 || len(s) != 1 {
		t.Errorf("deliveries of the failing subscription %v: want one dead, and nothing about its own failure", s)
	}
	if head := dbtest.One[string](t, f.db.App, "SELECT response_head FROM webhook_deliveries WHERE subscription_id = $1", failing); head != "no\uFFFD\uFFFD" {
		t.Errorf("response head %q", head)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var told int
	for _, e := range f.entries {
		if e.Action == "webhook.delivery.failed" {
			told++
		}
	}
	if told != 1 {
		t.Errorf("%d audit entries of the death, want 1", told)
	}
}

func TestGoneDisablesTheSubscription(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	url, _ := receiver(t, status(410))
	subscriptionID, _ := f.subscribe(url, nil, "*")
	f.run(f.dispatcher)
	f.emit("switch.flag.halted", nil)
	<-f.recorded
	s, err := oneSubscription(t.Context(), f.db.App, "s.id = $1", subscriptionID)
	if err != nil || s.Enabled || s.DisabledReason == nil {
		t.Errorf("after 410: enabled=%v reason=%v %v", s.Enabled, s.DisabledReason, err)
	}
	f.emit("switch.flag.halted", nil)
	if s := f.statuses(subscriptionID); s["dead"] != 1 || s["pending"] != 0 {
		t.Errorf("deliveries %v, want one dead and nothing new", s)
	}
}

func TestRedirectsAreFailuresAndNotFollowed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	elsewhere, followed := receiver(t, status(200))
	url, _ := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
	})
	subscriptionID, _ := f.subscribe(url, nil, "*")
	f.run(f.dispatcher)
	f.emit("switch.flag.halted", nil)
	<-f.recorded
	if s := f.statuses(subscriptionID); s["failed"] != 1 {
		t.Errorf("deliveries %v, want one failed", s)
	}
	select {
	case <-followed:
		t.Error("the redirect was followed")
	default:
	}
}

func TestHangingTargetsDelayNobody(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	release := make(chan struct{})
	hanging, arrived := receiver(t, func(http.ResponseWriter, *http.Request) { <-release })
	t.Cleanup(func() { close(release) }) // before the server closes, which waits for its handlers
	for range 20 {
		f.subscribe(hanging, nil, "*")
	}
	live, requests := receiver(t, status(200))
	f.subscribe(live, nil, "*")
	stop := f.run(f.dispatcher)
	for range 5 {
		f.emit("switch.flag.halted", nil)
	}
	for range 20 {
		<-arrived // all of them hang now, one attempt each
	}
	for range 5 {
		<-requests
	}
	select {
	case <-arrived:
		t.Error("a target that never answered got a second request beside its first")
	default:
	}
	stop()
}

func TestAtMostFourAttemptsOfASubscriptionAreInFlight(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var mu sync.Mutex
	var running, most, first int
	gate := make(chan struct{})
	url, arrived := receiver(t, func(http.ResponseWriter, *http.Request) {
		mu.Lock()
		first++
		warm := first == 1
		running++
		most = max(most, running)
		mu.Unlock()
		if !warm {
			<-gate
		}
		mu.Lock()
		running--
		mu.Unlock()
	})
	f.subscribe(url, nil, "*")
	// Two processes share the limit.
	f.run(f.dispatcher)
	f.run(f.newDispatcher())
	f.emit("switch.flag.halted", nil)
	<-arrived
	<-f.recorded // proven now
	for range 12 {
		f.emit("switch.flag.halted", nil)
	}
	for range 4 {
		<-arrived
	}
	for range 12 {
		gate <- struct{}{}
		<-f.recorded
	}
	mu.Lock()
	defer mu.Unlock()
	if most != 4 {
		t.Errorf("%d attempts in flight at once, want 4", most)
	}
}

func TestDeliveryOfADeadProcessIsTakenOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	release := make(chan struct{})
	url, requests := receiver(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	subscriptionID, _ := f.subscribe(url, nil, "*")
	stop := f.run(f.dispatcher)
	f.emit("switch.flag.halted", nil)
	before := <-requests
	stop() // in the middle of the attempt: nothing is recorded
	close(release)
	f.clock.advance(lease + time.Second)
	f.run(f.newDispatcher())
	after := <-requests
	<-f.recorded
	if before.header.Get("webhook-id") != after.header.Get("webhook-id") {
		t.Error("the repetition has another webhook-id")
	}
	if s := f.statuses(subscriptionID); s["delivered"] != 1 || len(s) != 1 {
		t.Errorf("deliveries %v", s)
	}
}

func TestRateLimitHolds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	url, requests := receiver(t, status(200))
	two := 2
	subscriptionID, _ := f.subscribe(url, func(s *subscription) { s.RateLimitPerSecond = &two }, "*")
	f.exec("UPDATE webhook_pace SET tokens = 0, tokens_at = $1", f.clock.Now())
	for range 6 {
		f.emit("switch.flag.halted", nil)
	}
	f.run(f.dispatcher)
	for second := range 3 {
		f.clock.advance(time.Second)
		f.dispatcher.poke()
		for range 2 {
			<-requests
			<-f.recorded
		}
		if s := f.statuses(subscriptionID); s["delivered"] != 2*(second+1) {
			t.Fatalf("after %d s: %v, want %d delivered", second+1, s, 2*(second+1))
		}
	}
}

func TestFiveDaysOfFailuresDisable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	url, _ := receiver(t, status(500))
	subscriptionID, _ := f.subscribe(url, nil, "*")
	enabled := func() bool {
		s, err := oneSubscription(t.Context(), f.db.App, "s.id = $1", subscriptionID)
		if err != nil {
			t.Fatal(err)
		}
		return s.Enabled
	}
	f.run(f.dispatcher)
	f.emit("switch.flag.halted", nil)
	<-f.recorded
	f.clock.advance(4 * 24 * time.Hour)
	f.dispatcher.poke()
	<-f.recorded // the exhausted message: dead, and the subscription stays
	if !enabled() {
		t.Fatal("disabled after 4 days")
	}
	f.emit("switch.flag.halted", nil)
	f.clock.advance(25 * time.Hour)
	f.dispatcher.poke()
	<-f.recorded
	if enabled() {
		t.Error("enabled after 5 days of nothing but failures")
	}
}

func TestTwoSignaturesWhileASecretIsRotated(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	url, requests := receiver(t, status(200))
	subscriptionID, old := f.subscribe(url, nil, "*")
	newer, sealed := newSecret(f.sealer, subscriptionID)
	f.exec("UPDATE webhook_subscriptions SET previous_secret = secret, secret = $2, previous_until = $3 WHERE id = $1",
		subscriptionID, sealed, f.clock.Now().Add(time.Hour))
	f.run(f.dispatcher)
	verified := func(secret string, r received) bool {
		verifier, _ := standardwebhooks.NewWebhook(secret)
		return verifier.Verify(r.body, r.header) == nil
	}
	f.emit("switch.flag.halted", nil)
	if r := <-requests; !verified(old, r) || !verified(newer, r) {
		t.Errorf("during the grace period: %s", r.header.Get("webhook-signature"))
	}
	<-f.recorded
	f.clock.advance(2 * time.Hour)
	f.emit("switch.flag.halted", nil)
	if r := <-requests; verified(old, r) || !verified(newer, r) {
		t.Errorf("after the grace period: %s", r.header.Get("webhook-signature"))
	}
}

func TestChangeOfASubscriptionHoldsNoMutationUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	subscriptionID, _ := f.subscribe("https://93.184.216.34/", nil, EventAuditEntry)
	err := f.store.InTx(t.Context(), commit.Origin{}, func(tx *commit.Tx) error {
		if _, err := lockSubscription(t.Context(), tx, subscriptionID); err != nil {
			return err
		}
		// Whoever waited here with the chain's lock would wait for one who is about to ask for it.
		return f.store.InTx(t.Context(), commit.Origin{}, func(other *commit.Tx) error {
			if _, err := other.Exec(t.Context(), `SET LOCAL lock_timeout = '2s'`); err != nil {
				return err
			}
			other.Audit(commit.Entry{OrganizationID: f.org, Action: "project.updated"})
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if queued := dbtest.One[int](t, f.db.App, `SELECT count(*) FROM webhook_deliveries WHERE subscription_id = $1`, subscriptionID); queued != 2 {
		t.Errorf("%d deliveries, want 2: of its own creation, and of the mutation", queued)
	}
}

// A process that is restarted would send twice whatever its targets were just working on.
func TestAttemptsInFlightEndBeforeTheDispatcherDoes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	answer := make(chan struct{})
	url, requests := receiver(t, func(w http.ResponseWriter, _ *http.Request) {
		<-answer
		w.WriteHeader(http.StatusNoContent)
	})
	subscriptionID, _ := f.subscribe(url, nil, "switch.*")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.dispatcher.Run(ctx) }()
	f.emit("switch.flag.halted", nil)
	<-requests
	cancel()
	close(answer)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if s := f.statuses(subscriptionID); s["delivered"] != 1 {
		t.Errorf("deliveries %v, want one delivered", s)
	}
}

func TestATargetThatDoesNotAnswerHoldsTheEndUpForAWhile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.dispatcher.finish = 10 * time.Millisecond
	url, requests := receiver(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	subscriptionID, _ := f.subscribe(url, nil, "switch.*")
	stop := f.run(f.dispatcher)
	f.emit("switch.flag.halted", nil)
	<-requests
	stop()
	if s := f.statuses(subscriptionID); s["pending"] != 1 {
		t.Errorf("deliveries %v, want one that falls due again", s)
	}
}
