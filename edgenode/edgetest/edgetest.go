// Package edgetest gives tests and benchmarks of the edge's endpoints what stands behind
// them: real state on a file system in memory, real views, a real gate and the real HTTP
// server. Documents come from the test instead of a stream.
package edgetest

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/valyala/fasthttp"
	"go.uber.org/goleak"

	"skerry/edgenode/front"
	"skerry/edgenode/gate"
	"skerry/edgenode/store"
	"skerry/edgenode/view"
	"skerry/pkg/apikey"
	"skerry/pkg/openapi/openapitest"
	"skerry/pkg/state"
	"skerry/replication"
	"skerry/replication/down"
	"skerry/replication/tally"
)

// Main runs a package's tests and fails when one leaves a goroutine behind. Two
// goroutines of fasthttp that only sleep outlive every server and are let be.
func Main(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

// Project is the project that every World has.
const Project = "0198c000-0000-7000-8000-000000000001"

// World is one edge's state.
type World struct {
	t        testing.TB
	Views    *view.Store
	Gate     *gate.Gate
	Live     string // API key of environment live
	Test     string // and of test
	Settings state.Project

	mu    sync.Mutex
	disk  *store.Store
	at    [replication.Lanes]down.Cursor
	epoch replication.Epoch
}

// NewEmpty is an edge that has no state yet.
func NewEmpty(t testing.TB) *World {
	t.Helper()
	return open(t, view.Hooks{})
}

func open(t testing.TB, hooks view.Hooks) *World {
	t.Helper()
	w := &World{t: t, epoch: replication.Epoch{1}, Live: "sk_live_" + "LLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLL", Test: "sk_test_" + "TTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTT"}
	w.Views = view.New(view.Options{Hooks: hooks})
	disk, err := store.Open(store.Config{Dir: "state", FS: vfs.NewMem()}, w.Views.Apply)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = disk.Close() })
	w.disk = disk
	w.Views.Attach(disk)
	limiter, err := tally.NewLimiter(tally.LimiterConfig{Edge: "test"})
	if err != nil {
		t.Fatal(err)
	}
	w.Gate = gate.New(gate.Config{Views: w.Views, Limiter: limiter, Meter: tally.NewMeter("test", &counters{}, nil)})
	return w
}

// New is an edge that has one project with both keys and nothing else.
func New(t testing.TB, hooks view.Hooks) *World {
	t.Helper()
	w := open(t, hooks)
	for lane := range replication.Lanes {
		w.at[lane] = down.Cursor{Epoch: w.epoch}
		generation, err := w.disk.Begin(lane)
		if err == nil {
			err = generation.Serve(w.at[lane])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	w.Settings = state.Project{
		ID: Project, Name: "Test", Tier: "enterprise", Modules: state.Modules{Switch: true, Config: true, Pulse: true, Catch: true},
		RateLimits: state.RateLimits{IngestPerMinute: 1 << 30, HandshakePerMinute: 1 << 30},
	}
	w.Put(replication.ProjectSubject(Project), w.Settings)
	for env, key := range map[string]string{"live": w.Live, "test": w.Test} {
		w.Put(replication.KeySubject(apikey.Of(key).String()), state.Key{ID: env, ProjectID: Project, Environment: env})
	}
	return w
}

// FreshViews are further views of the same state. They have compiled nothing yet and are
// not told of changes.
func (w *World) FreshViews(hooks view.Hooks) *view.Store {
	views := view.New(view.Options{Hooks: hooks})
	views.Attach(w.disk)
	return views
}

// Flag puts a flag of environment live.
func (w *World) Flag(f state.Flag) {
	w.t.Helper()
	w.Put(replication.FlagSubject(Project, "live", f.Key), f)
}

// Item puts a config item of environment live.
func (w *World) Item(i state.ConfigItem) {
	w.t.Helper()
	w.Put(replication.ConfigSubject(Project, "live", i.Key), i)
}

// Put stores one document as a transaction of its own; a nil body is a tombstone.
func (w *World) Put(subject replication.Subject, body any) {
	w.t.Helper()
	var raw []byte
	if body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			w.t.Fatal(err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	lane := subject.Lane()
	c := &w.at[lane]
	c.Position++
	c.Seq++
	d := replication.Document{
		Lane: lane, Subject: subject, Position: c.Position, TxFirst: c.Position, TxLast: c.Position, Through: c.Position,
		Epoch: w.epoch, ChangedAt: time.Now().UnixMicro(), Body: raw,
	}
	if err := w.disk.Apply(lane, []replication.Document{d}, *c); err != nil {
		w.t.Fatal(err)
	}
}

// Serve serves a handler until the test ends, and gives the server's address, host:port.
func (w *World) Serve(handler fasthttp.RequestHandler) string {
	w.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	checked := func(ctx *fasthttp.RequestCtx) {
		handler(ctx)
		w.Check(ctx)
	}
	if _, ok := w.t.(*testing.B); ok { // benchmarks measure the handler alone
		checked = handler
	}
	go func() { served <- front.Serve(ctx, ln, checked, front.Limits{}) }()
	w.t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			w.t.Error(err)
		}
	})
	return ln.Addr().String()
}

// Check checks a handler's answer against the OpenAPI document. Streams are left out:
// they have no end to wait for.
func (w *World) Check(ctx *fasthttp.RequestCtx) {
	w.t.Helper()
	response := &ctx.Response
	if response.IsBodyStream() {
		return
	}
	header := http.Header{}
	for name, value := range response.Header.All() {
		header.Add(string(name), string(value))
	}
	openapitest.Check(w.t, string(ctx.Method()), string(ctx.URI().PathOriginal()), response.StatusCode(), header, response.Body())
}

// counters keep usage in memory.
type counters struct {
	mu    sync.Mutex
	count map[tally.Metric]uint64
}

func (c *counters) Source() string { return "test" }

func (c *counters) Add(_ [16]byte, metric tally.Metric, _ time.Time, n uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count == nil {
		c.count = map[tally.Metric]uint64{}
	}
	c.count[metric] += n
	return nil
}

func (c *counters) Used(_ [16]byte, metric tally.Metric, _ time.Time) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count[metric]
}

func (c *counters) Counts() []tally.Count { return nil }
