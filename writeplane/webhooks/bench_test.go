package webhooks

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skerry/pkg/id"
	"skerry/pkg/seal"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
	"skerry/writeplane/webhooks/target"
)

// BenchmarkDeliveries commits events at a rate and times each from its commit to its
// arrival, beside a number of targets that take a connection and never answer.
func BenchmarkDeliveries(b *testing.B) {
	for name, dead := range map[string]int{"alone": 0, "beside 1000 dead targets": 1000} {
		b.Run(name, func(b *testing.B) { benchDeliveries(b, dead) })
	}
}

const benchRate = 500 // events a second

func benchDeliveries(b *testing.B, dead int) {
	db := dbtest.New(b)
	sealer, err := seal.New(make([]byte, seal.KeyLen))
	if err != nil {
		b.Fatal(err)
	}
	store := commit.New(db.App, commit.Sinks{Deliveries: Enqueue, Audit: func(*postgres.Pipeline, commit.Origin, []commit.Entry) (func(context.Context) ([]commit.StoredEntry, error), error) {
		return func(context.Context) ([]commit.StoredEntry, error) { return nil, nil }, nil
	}})
	org := id.New()
	dbtest.Exec(b, db.App, "INSERT INTO organizations (id, name, tier) VALUES ($1, 'o', 'pro')", org)
	subscribe := func(url, event string) {
		s := &subscription{OrganizationID: org, Subscription: Subscription{ID: id.New(), URL: url, Events: []string{event}, Enabled: true}}
		_, s.secret = newSecret(sealer, s.ID)
		if err := store.InTx(b.Context(), commit.Origin{}, func(tx *commit.Tx) error { return insertSubscription(b.Context(), tx, s) }); err != nil {
			b.Fatal(err)
		}
	}
	emit := func(event string, number int) {
		err := store.InTx(b.Context(), commit.Origin{}, func(tx *commit.Tx) error {
			tx.Emit(commit.Event{Name: event, OrganizationID: org, Data: number})
			return nil
		})
		if err != nil {
			b.Error(err)
		}
	}
	watch := &stopwatch{committed: map[int]time.Time{}, arrived: make(chan struct{}, b.N)}
	receiver := httptest.NewServer(watch)
	defer receiver.Close()
	subscribe(receiver.URL, "switch.flag.halted")
	silent := listenSilently(b)
	for range dead {
		subscribe("http://"+silent, "config.item.rolled_back")
	}
	guard := target.New(target.Config{AllowCIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- NewDispatcher(store, sealer, guard, prometheus.NewRegistry(), Config{}).Run(ctx) }()
	if dead > 0 {
		emit("config.item.rolled_back", 0) // all dead targets have something to do
	}
	tick := time.NewTicker(time.Second / benchRate)
	defer tick.Stop()
	var group sync.WaitGroup
	b.ResetTimer()
	for i := range b.N {
		<-tick.C
		group.Go(func() {
			watch.start(i)
			emit("switch.flag.halted", i)
		})
	}
	group.Wait()
	for range b.N {
		<-watch.arrived
	}
	b.StopTimer()
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	took := watch.took
	slices.Sort(took)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "deliveries/s")
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// stopwatch is a target that measures how long deliveries take, by the number in their data.
type stopwatch struct {
	arrived chan struct{}

	mu        sync.Mutex
	committed map[int]time.Time
	took      []time.Duration
}

// start is called a little before the commit of an event, so that this is part of the time.
func (s *stopwatch) start(number int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.committed[number] = time.Now()
}

func (s *stopwatch) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	var body struct{ Data int }
	_ = json.NewDecoder(r.Body).Decode(&body)
	s.mu.Lock()
	s.took = append(s.took, time.Since(s.committed[body.Data]))
	s.mu.Unlock()
	s.arrived <- struct{}{}
}

// listenSilently accepts connections and never answers.
func listenSilently(b *testing.B) (address string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var mu sync.Mutex
	var conns []net.Conn
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
		}
	}()
	b.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
	return listener.Addr().String()
}
