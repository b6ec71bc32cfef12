package webhooks

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"skerry/writeplane/commit"
	"skerry/writeplane/postgres/dbtest"
	"skerry/writeplane/webhooks/target"
)

// addressBook resolves every name to one address.
type addressBook netip.Addr

func (a addressBook) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.Addr(a)}, nil
}

// A target's certificate is a stranger's text, and part of what is said of its refusal.
func TestFaultInATargetsOwnWordsIsRecorded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificateFor(t, "no\x00name", strings.Repeat("x", 20_000))}}
	server.StartTLS()
	t.Cleanup(server.Close)
	loopback := netip.MustParseAddr("127.0.0.1")
	f.dispatcher.client = newSender(target.New(target.Config{
		AllowCIDRs: []netip.Prefix{netip.PrefixFrom(loopback, 32)}, Resolver: addressBook(loopback),
	}))
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	subscriptionID, _ := f.subscribe("https://hook.example:"+port, nil, "*")
	f.emit("switch.flag.halted", nil)
	c := f.claimUnproven(subscriptionID)
	if err := f.dispatcher.record(t.Context(), c, f.dispatcher.attempt(t.Context(), c)); err != nil {
		t.Fatalf("record: %v", err)
	}
	fault := dbtest.One[string](t, f.db.App, "SELECT last_error FROM webhook_deliveries WHERE status = 'failed'")
	if !strings.Contains(fault, "no\uFFFDname") || len(fault) > 2*maxFault {
		t.Errorf("fault of %d bytes: %.200s", len(fault), fault)
	}
}

// certificateFor is one of the target's own making, for any names.
func certificateFor(t *testing.T, names ...string) tls.Certificate {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: names, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(nil, &template, &template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}
}

// claimUnproven begins the attempt at the only delivery of a subscription.
func (f *fixture) claimUnproven(subscriptionID string) claimed {
	f.t.Helper()
	found, err := claim(f.t.Context(), f.db.App, f.clock.Now(), wanted{subscription: subscriptionID, of: unproven, limit: 2})
	if err != nil || len(found) != 1 {
		f.t.Fatalf("%d claimed, %v; want 1", len(found), err)
	}
	return found[0]
}

// What an attempt came to says nothing about the attempt that was asked for after it.
func TestRetryIsNotEndedByTheAttemptBeforeIt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	answers := []chan int{make(chan int), make(chan int)}
	var number atomic.Int64
	url, requests := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case code := <-answers[number.Add(1)-1]:
			w.WriteHeader(code)
		case <-r.Context().Done():
		}
	})
	subscriptionID, _ := f.subscribe(url, nil, "*")
	f.run(f.dispatcher)
	f.emit("switch.flag.halted", nil)
	<-requests
	f.clock.advance(time.Second)
	f.exec("UPDATE webhook_deliveries SET "+reviveSQL+" WHERE subscription_id = $1", subscriptionID)
	f.dispatcher.poke()
	<-requests
	answers[0] <- http.StatusInternalServerError
	<-f.recorded
	answers[1] <- http.StatusOK
	<-f.recorded
	if s := f.statuses(subscriptionID); s["delivered"] != 1 {
		t.Errorf("deliveries %v, want the second attempt's success", s)
	}
}

// Who enables a subscription and who records its failure lock the same two rows.
func TestEnablingAndDisablingDoNotDeadlock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	subscriptionID, _ := f.subscribe("https://93.184.216.34/", nil, "*")
	f.emit("switch.flag.halted", nil)
	c := f.claimUnproven(subscriptionID)
	f.exec("UPDATE webhook_subscriptions SET enabled = false WHERE id = $1", subscriptionID)
	recorded := make(chan error, 1)
	err := f.store.InTx(t.Context(), commit.Origin{}, func(tx *commit.Tx) error {
		row, err := lockSubscription(t.Context(), tx, subscriptionID)
		if err != nil {
			return err
		}
		go func() {
			recorded <- f.dispatcher.record(t.Context(), c, outcome{status: http.StatusGone, fault: "status 410"})
		}()
		f.awaitWaiter("transactionid")
		before := row.Subscription
		row.Enabled = true
		return saveSubscription(t.Context(), tx, before, &row, time.Now())
	})
	if err != nil {
		t.Errorf("enable: %v", err)
	}
	if err := <-recorded; err != nil {
		t.Errorf("record: %v", err)
	}
}

// Subscriptions that all fail must not tell each other of it without end: what their
// deliveries cause is never sent to the one that failed, by no detour either.
func TestFailuresOfToldFailuresAreNotTold(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for range 3 {
		f.subscribe("https://93.184.216.34/", nil, "*", EventAuditEntry)
	}
	f.exec("DELETE FROM webhook_deliveries") // of the audit entries of the subscriptions themselves
	f.emit("switch.flag.halted", nil)
	died := map[string]int{}
	for total := 0; total < 100; total++ {
		found, err := claim(t.Context(), f.db.App, f.clock.Now(), wanted{of: unproven, limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 0 {
			break
		}
		if err := f.dispatcher.recordDeath(t.Context(), found[0], outcome{status: 500, fault: "status 500"}, f.clock.Now()); err != nil {
			t.Fatal(err)
		}
		died[found[0].Event]++
	}
	// Each of the three deaths is told to the two others, as an event and as an audit entry.
	if died["switch.flag.halted"] != 3 || died[EventDeliveryFailed] != 6 || died[EventAuditEntry] != 6 {
		t.Errorf("died %v, want 3 of the event, and 6 and 6 that told of them", died)
	}
}

// A failure that was noted while a host's clock was ahead does not put the end off.
func TestFiveDaysOfFailuresAreNotCountedFromAhead(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	subscriptionID, _ := f.subscribe("https://93.184.216.34/", nil, "*")
	f.exec("UPDATE webhook_pace SET failing_since = $1", f.clock.Now().Add(365*24*time.Hour))
	for day, want := range []bool{true, true, true, true, true, false} {
		f.emit("switch.flag.halted", nil)
		c := f.claimUnproven(subscriptionID)
		if err := f.dispatcher.recordDeath(t.Context(), c, outcome{status: 500, fault: "status 500"}, f.clock.Now()); err != nil {
			t.Fatal(err)
		}
		s, err := oneSubscription(t.Context(), f.db.App, "s.id = $1", subscriptionID)
		if err != nil || s.Enabled != want {
			t.Errorf("after %d days: enabled %v, %v; want %v", day, s.Enabled, err, want)
		}
		f.clock.advance(24 * time.Hour)
	}
}
