package edgenode

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"skerry/edgenode/view"
	"skerry/pkg/apikey"
	"skerry/pkg/natsserver/natstest"
	"skerry/pkg/state"
	"skerry/replication"
	"skerry/replication/down"
	"skerry/replication/down/downtest"
)

// BenchmarkHaltToThreeEdges is the time from a halt's commit (in a ledger in memory) until three edges serve it.
func BenchmarkHaltToThreeEdges(b *testing.B) {
	ns, ledger := natstest.New(b), downtest.New()
	downtest.Publish(b, ns.Connect(b), ledger, down.PublisherConfig{})
	put := func(s replication.Subject, body any) {
		raw, err := json.Marshal(body)
		if err != nil {
			b.Fatal(err)
		}
		ledger.Commit(map[replication.Subject][]byte{s: raw})
	}
	put(replication.ProjectSubject(project), state.Project{ID: project, Modules: state.Modules{Switch: true}})
	put(flagSubject, state.Flag{Key: "new-checkout", Kind: "boolean", DefaultValue: "false", Enabled: true, Version: 1})
	var edges []*Edge
	var changes []*view.Subscription
	for i := range 3 {
		e, err := New(Config{ID: fmt.Sprint("e", i), Data: b.TempDir(), Listen: "127.0.0.1:0", NATS: ns.URL, WritePlane: "http://127.0.0.1:1", Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(e.Close)
		downtest.Run(b, e.Run)
		downtest.Eventually(b, func() string {
			if env, ok := e.views.Environment(project, "live"); !ok || len(env.Flags) != 1 {
				return "not there yet"
			}
			return ""
		})
		edges, changes = append(edges, e), append(changes, e.views.Subscribe(project, "live"))
	}
	var took []time.Duration
	version := int64(1)
	for b.Loop() {
		version++
		began := time.Now()
		put(replication.HaltSubject(project, "live", "new-checkout"), state.Halt{Key: "new-checkout", Version: version})
		for i, e := range edges {
			for {
				env, _ := e.views.Environment(project, "live")
				if f, _ := env.Flag("new-checkout"); f.Halt != nil && f.Halt.Version == version {
					break
				}
				<-changes[i].C()
			}
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// revalidations are requests that are answered 304 by a whole edge, whose project has a quota and usage from other edges.
func revalidations(tb testing.TB) (handle fasthttp.RequestHandler, requests map[string]*fasthttp.RequestCtx) {
	tb.Helper()
	ns, ledger := natstest.New(tb), downtest.New()
	downtest.Publish(tb, ns.Connect(tb), ledger, down.PublisherConfig{})
	bodies := map[replication.Subject][]byte{}
	quota := int64(1 << 40)
	for s, body := range map[replication.Subject]any{
		replication.ProjectSubject(project): state.Project{
			ID: project, Modules: state.Modules{Switch: true, Config: true, Pulse: true},
			RateLimits: state.RateLimits{IngestPerMinute: 1 << 30, HandshakePerMinute: 1 << 30},
			Quotas:     state.Quotas{Handshakes: &quota},
		},
		replication.UsageSubject(project): state.Usage{Month: time.Now().UTC().Format("2006-01"), Handshakes: 7,
			HandshakesBy: map[string]int64{"other.0": 3, "e.0": 4}},
		replication.KeySubject(apikey.Of(key).String()): state.Key{ID: "k", ProjectID: project, Environment: "live"},
		flagSubject: state.Flag{Key: "new-checkout", Kind: "boolean", DefaultValue: "false", Enabled: true, Version: 1},
	} {
		raw, err := json.Marshal(body)
		if err != nil {
			tb.Fatal(err)
		}
		bodies[s] = raw
	}
	ledger.Commit(bodies)
	e, err := New(Config{ID: "e", Data: tb.TempDir(), Listen: "127.0.0.1:0", NATS: ns.URL, WritePlane: "http://127.0.0.1:1", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(e.Close)
	downtest.Run(tb, e.Run)
	downtest.Eventually(tb, func() string {
		if _, ok := e.views.Key(apikey.Of(key)); !ok {
			return "not there yet"
		}
		return ""
	})
	handle = e.handle(newRouter(e.routes(), nil))
	requests = map[string]*fasthttp.RequestCtx{}
	for name, path := range map[string]string{"surveys": "/api/pulse/surveys", "handshake": "/api/v1/handshake?distinct_id=user-1"} {
		var req fasthttp.Request
		req.SetRequestURI(path)
		req.Header.Set("x-api-key", key)
		ctx := &fasthttp.RequestCtx{}
		ctx.Init(&req, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, nil)
		handle(ctx)
		ctx.Request.Header.SetBytesV("If-None-Match", ctx.Response.Header.Peek("ETag"))
		requests[name] = ctx
	}
	return handle, requests
}

// BenchmarkNotModified is the whole way of a request that is answered 304, without the connection.
func BenchmarkNotModified(b *testing.B) {
	handle, requests := revalidations(b)
	for name, ctx := range requests {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ctx.Response.Reset()
				if handle(ctx); ctx.Response.StatusCode() != fasthttp.StatusNotModified {
					b.Fatal(ctx.Response.StatusCode())
				}
			}
		})
	}
}

func TestRevalidatingAtAWholeEdgeDoesNotAllocate(t *testing.T) {
	if raced {
		t.Skip("not with the race detector")
	}
	handle, requests := revalidations(t)
	for name, ctx := range requests {
		work := func() {
			ctx.Response.Reset()
			if handle(ctx); ctx.Response.StatusCode() != fasthttp.StatusNotModified {
				t.Fatal(name, ctx.Response.StatusCode())
			}
		}
		// The edge's own goroutines allocate now and then, and all are counted: what a request allocates is in every run.
		least := testing.AllocsPerRun(200, work)
		for range 10 {
			least = min(least, testing.AllocsPerRun(200, work))
		}
		if least > 0 {
			t.Errorf("%s: %.1f allocations", name, least)
		}
	}
}
