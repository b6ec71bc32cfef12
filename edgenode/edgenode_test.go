package edgenode

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"skerry/edgenode/edgetest"
	"skerry/pkg/apikey"
	"skerry/pkg/natsserver/natstest"
	"skerry/pkg/openapi/openapitest"
	"skerry/pkg/state"
	"skerry/replication"
	"skerry/replication/down"
	"skerry/replication/down/downtest"
)

func TestMain(m *testing.M) { edgetest.Main(m) }

const (
	project = "0190a3c1-7d2e-7c3a-9f10-0a1b2c3d4e5f"
	key     = "sk_live_LLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLL"
)

// centre is the streams, a ledger with its publisher, and a write plane that says what it was asked.
type centre struct {
	t          *testing.T
	nats       *natstest.Server
	ledger     *downtest.Ledger
	writePlane *httptest.Server
}

func newCentre(t *testing.T) *centre {
	t.Helper()
	c := &centre{t: t, nats: natstest.New(t), ledger: downtest.New()}
	downtest.Publish(t, c.nats.Connect(t), c.ledger, down.PublisherConfig{})
	c.writePlane = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/api/v1/unknown") {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"error":"not_found"}`)
			return
		}
		_, _ = fmt.Fprintf(w, "write plane: %s %s", r.Method, r.URL.Path)
	}))
	t.Cleanup(c.writePlane.Close)
	return c
}

func (c *centre) commit(bodies map[replication.Subject]any) {
	c.t.Helper()
	raw := map[replication.Subject][]byte{}
	for s, body := range bodies {
		raw[s] = nil
		if body != nil {
			var err error
			if raw[s], err = json.Marshal(body); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	c.ledger.Commit(raw)
}

// shop is a project with a key, a flag and a survey.
func (c *centre) shop() {
	c.commit(map[replication.Subject]any{
		replication.ProjectSubject(project): state.Project{
			ID: project, Name: "Shop", Tier: "pro", Modules: state.Modules{Switch: true, Config: true, Pulse: true},
			RateLimits: state.RateLimits{IngestPerMinute: 1 << 20, HandshakePerMinute: 1 << 20},
		},
		replication.KeySubject(apikey.Of(key).String()): state.Key{ID: "k", ProjectID: project, Environment: "live"},
		flagSubject: state.Flag{ID: "f", Key: "new-checkout", Kind: "boolean", DefaultValue: "false", Enabled: true, Version: 1},
	})
}

var flagSubject = replication.FlagSubject(project, "live", "new-checkout")

// running is an edge at work.
type running struct {
	*Edge
	t    *testing.T
	stop func()
}

func (c *centre) config(data string) Config {
	return Config{
		ID: "e1", Data: data, Listen: "127.0.0.1:0", NATS: c.nats.URL, WritePlane: c.writePlane.URL, Log: slog.New(slog.DiscardHandler),
	}
}

func (c *centre) edge(data string) *running {
	c.t.Helper()
	return start(c.t, c.config(data))
}

func start(t *testing.T, config Config) *running {
	t.Helper()
	e, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	stop := downtest.Run(t, func(ctx context.Context) error {
		defer e.Close()
		return e.Run(ctx)
	})
	return &running{Edge: e, t: t, stop: stop}
}

// get asks the edge and returns the status and the body.
func (r *running) ask(method, path, body string, header ...string) (int, string, http.Header) {
	r.t.Helper()
	return ask(r.t, method, "http://"+r.Addr().String()+path, body, header...)
}

func ask(t *testing.T, method, url, body string, header ...string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if path := req.URL.EscapedPath(); openapitest.Ours(path) && !strings.HasPrefix(string(got), "write plane: ") {
		openapitest.Check(t, method, path, resp.StatusCode, resp.Header, got)
	}
	return resp.StatusCode, string(got), resp.Header
}

const decision = "/api/v1/handshake?distinct_id=u1"

// decides waits until the edge's handshake says this of the flag.
func (r *running) decides(reason string) {
	r.t.Helper()
	downtest.Eventually(r.t, func() string {
		status, got, _ := r.ask("GET", decision, "", "x-api-key", key)
		if status == 200 && strings.Contains(got, `"reason":"`+reason+`"`) {
			return ""
		}
		return fmt.Sprint(status, got, r.Status())
	})
}

func TestEdgeAnswersItsPathsAndRelaysTheRest(t *testing.T) {
	t.Parallel()
	c := newCentre(t)
	c.shop()
	e := c.edge(t.TempDir())
	e.decides("default")
	for _, q := range []struct {
		method, path string
		status       int
		body         string
		allow        string
	}{
		{"GET", "/api/pulse/surveys", 200, "[]", ""},
		{"POST", "/api/pulse/surveys", 405, `{"error":"method_not_allowed"}`, "GET, HEAD"},
		{"DELETE", "/api/v1/handshake", 405, `{"error":"method_not_allowed"}`, "GET, HEAD, POST"},
		{"GET", "/api/v1/track", 405, `{"error":"method_not_allowed"}`, "POST"},
		{"GET", "/api/v1/config/items", 200, "write plane: GET /api/v1/config/items", ""},
		{"POST", "/api/switch/halt-webhook", 200, "write plane: POST /api/switch/halt-webhook", ""},
		{"PUT", "/api/pulse/surveys/psv_1/partial", 200, "write plane: PUT /api/pulse/surveys/psv_1/partial", ""},
		{"POST", "/api/pulse/responses", 200, "write plane: POST /api/pulse/responses", ""},
		{"GET", "/api/v1/unknown", 404, `{"error":"not_found"}`, ""},
		{"POST", "/ofrep/v1/evaluate/flags/a..b", 404, "", ""},
	} {
		status, got, header := e.ask(q.method, q.path, `{"context":{"targetingKey":"u"}}`, "x-api-key", key)
		if status != q.status || (q.body != "" && got != q.body) || header.Get("Allow") != q.allow || header.Get("X-Request-Id") == "" {
			t.Errorf("%s %s: %d %s, Allow %q", q.method, q.path, status, got, header.Get("Allow"))
		}
	}
}

func TestEdgeAloneServesAfterARestart(t *testing.T) {
	t.Parallel()
	c := newCentre(t)
	c.shop()
	data := t.TempDir()
	e := c.edge(data)
	c.commit(map[replication.Subject]any{replication.HaltSubject(project, "live", "new-checkout"): state.Halt{Key: "new-checkout", Version: 2, DefaultValue: "false"}})
	e.decides("halted")
	_, before, header := e.ask("GET", decision, "", "x-api-key", key)
	e.stop()
	c.nats.Stop()
	c.writePlane.Close()

	e = c.edge(data)
	status, after, now := e.ask("GET", decision, "", "x-api-key", key)
	if status != 200 || after != before || now.Get("ETag") != header.Get("ETag") {
		t.Errorf("%d %s\nbefore %s", status, after, before)
	}
	if status, got, _ := e.ask("GET", "/api/v1/config/items", ""); status != 503 || got != `{"error":"Service temporarily unavailable"}` {
		t.Errorf("relayed: %d %s", status, got)
	}
	if status, got, _ := ask(t, "GET", "http://"+e.OperatorAddr().String()+"/readyz", ""); status != 200 {
		t.Errorf("not ready: %s", got)
	}
	if status, got, _ := e.ask("POST", "/api/v1/track", `{"event_name":"a","distinct_id":"u-1"}`, "x-api-key", key); status != 200 {
		t.Errorf("track: %d %s", status, got)
	}
	e.stop()
	c.nats.Start() // its cleanup stops it
}

func TestEdgeWithoutStateIsNotReadyAndKnowsNothing(t *testing.T) {
	t.Parallel()
	c := newCentre(t)
	c.nats.Stop()
	e := c.edge(t.TempDir())
	for _, path := range []string{decision, "/api/pulse/surveys"} {
		if status, got, _ := e.ask("GET", path, "", "x-api-key", key); status != 503 || got != `{"error":"Service temporarily unavailable"}` {
			t.Errorf("%s: %d %s", path, status, got)
		}
	}
	operator := "http://" + e.OperatorAddr().String()
	if status, _, _ := ask(t, "GET", operator+"/readyz", ""); status != 503 {
		t.Errorf("ready: %d", status)
	}
	if status, _, _ := ask(t, "GET", operator+"/healthz", ""); status != 200 {
		t.Errorf("not alive: %d", status)
	}
	c.nats.Start()
	c.shop()
	e.decides("default")
	if status, _, _ := ask(t, "GET", operator+"/readyz", ""); status != 200 {
		t.Errorf("still not ready: %d", status)
	}
}

func TestHaltReachesEveryEdge(t *testing.T) {
	t.Parallel()
	c := newCentre(t)
	c.shop()
	var edges []*running
	for range 3 {
		e := c.edge(t.TempDir())
		e.decides("default")
		edges = append(edges, e)
	}
	halt := replication.HaltSubject(project, "live", "new-checkout")
	c.commit(map[replication.Subject]any{halt: state.Halt{Key: "new-checkout", Version: 2, DefaultValue: "false"}})
	for _, e := range edges {
		e.decides("halted")
	}
	c.commit(map[replication.Subject]any{halt: nil})
	for _, e := range edges {
		e.decides("default")
	}
	_, metrics, _ := ask(t, "GET", "http://"+edges[0].OperatorAddr().String()+"/metrics", "")
	for _, want := range []string{"skerry_halt_propagation_seconds_count 2\n", `skerry_edge_lag_positions{lane="normal"} 0`, "skerry_edge_ready 1\n"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics lacks %q", want)
		}
	}
}

func TestDamagedStateIsReportedAndFetchedAnew(t *testing.T) {
	t.Parallel()
	c := newCentre(t)
	c.shop()
	data := t.TempDir()
	e := c.edge(data)
	e.decides("default")
	e.stop()
	manifests, err := filepath.Glob(filepath.Join(data, "state", "db", "MANIFEST-*"))
	if err != nil || len(manifests) == 0 {
		t.Fatal("no manifest", err)
	}
	for _, f := range manifests {
		if err := os.WriteFile(f, bytes.Repeat([]byte("x"), 500), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e = c.edge(data)
	e.decides("default")
	_, got, _ := ask(t, "GET", "http://"+e.OperatorAddr().String()+"/status", "")
	var status struct {
		Ready  bool    `json:"ready"`
		Damage *Damage `json:"damaged_state"`
	}
	if err := json.Unmarshal([]byte(got), &status); err != nil || status.Damage == nil || !strings.Contains(status.Damage.Path, ".damaged-") || !status.Ready {
		t.Errorf("%v %s", err, got)
	}
}

func TestSecondEdgeOnAFolderIsRefused(t *testing.T) {
	t.Parallel()
	c := newCentre(t)
	data := t.TempDir()
	c.edge(data)
	if _, err := New(c.config(data)); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("%v", err)
	}
}

// A load balancer learns from /readyz that an edge is leaving, and sends it requests until then.
func TestAnEdgeToldToStopAnswersForItsShutdownDelay(t *testing.T) {
	t.Parallel()
	c := newCentre(t)
	c.shop()
	config := c.config(t.TempDir())
	config.ShutdownDelay = time.Hour
	e, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	r := &running{Edge: e, t: t}
	r.decides("default")
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	closes := func() (status int, closing bool) {
		req, err := http.NewRequest("GET", "http://"+e.Addr().String()+decision, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("x-api-key", key)
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		return res.StatusCode, res.Close
	}
	if status, closing := closes(); status != 200 || closing {
		t.Errorf("before: %d, closing %v; want 200 and a connection that stays", status, closing)
	}

	stop()
	operator := "http://" + e.OperatorAddr().String()
	downtest.Eventually(t, func() string {
		if status, got, _ := ask(t, "GET", operator+"/readyz", ""); status != 503 || !strings.Contains(got, `"stopping"`) {
			return fmt.Sprint(status, got)
		}
		return ""
	})
	if status, got, _ := ask(t, "GET", operator+"/healthz", ""); status != 200 {
		t.Errorf("healthz: %d %s", status, got)
	}
	if status, closing := closes(); status != 200 || !closing {
		t.Errorf("after: %d, closing %v; want 200 and an end of the connection", status, closing)
	}
	select {
	case err := <-ended:
		t.Errorf("it has ended: %v", err)
	default:
	}
	_ = e.operator.Close() // a part that fails ends the rest at once: nobody waits for the hour
	<-ended
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	good := Config{ID: "e-1", Data: "d", NATS: "nats://x", WritePlane: "http://x:1"}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for word, bend := range map[string]func(*Config){
		"--id":             func(c *Config) { c.ID = "a.b" },
		"--data":           func(c *Config) { c.Data = "" },
		"--nats-url":       func(c *Config) { c.NATS = "" },
		"--writeplane-url": func(c *Config) { c.WritePlane = "x" },
	} {
		c := good
		bend(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
		}
	}
}

func TestFaultOfAHandlerIsAnswered(t *testing.T) {
	t.Parallel()
	c := newCentre(t)
	e := c.edge(t.TempDir())
	handle := e.handle(newRouter([]route{{"/fault", map[string]handler{"GET": func(*fasthttp.RequestCtx, []byte) { panic("at the disco") }}}}, nil))
	ctx := &fasthttp.RequestCtx{}
	var req fasthttp.Request
	req.SetRequestURI("/fault")
	req.Header.Set("X-Request-Id", "r-1")
	ctx.Init(&req, nil, nil)
	handle(ctx)
	if got := string(ctx.Response.Body()); ctx.Response.StatusCode() != 500 || got != `{"error":"internal","request_id":"r-1"}` {
		t.Errorf("%d %s", ctx.Response.StatusCode(), got)
	}
}

func TestPathsAreTakenAsTheyAreSent(t *testing.T) {
	t.Parallel()
	var said string
	say := func(word string) handler {
		return func(_ *fasthttp.RequestCtx, param []byte) { said = word + ":" + string(param) }
	}
	r := newRouter([]route{
		{"/a", map[string]handler{"GET": say("a")}},
		{"/a/*", map[string]handler{"GET": say("a/*")}},
	}, func(*fasthttp.RequestCtx) { said = "relay" })
	for path, want := range map[string]string{
		"/a": "a:", "/a?x=1": "a:", "/a/b": "a/*:b", "/a/v1.": "a/*:v1.", "/a/..": "a/*:..", "/a/a..b": "a/*:a..b", "/a/x%2Fy%20z": "a/*:x/y z",
		"/%61": "a:", "/%61/v1%2e%30": "a/*:v1.0", "/a/%2E%2e": "a/*:..", "/a/%2561": "a/*:%61", "/a%2Fb": "relay", "/a%": "relay",
		"/a/50%": "a/*:50%", "/a/": "relay", "/a/b/c": "relay", "/": "relay", "//a": "relay", "/b/../a": "relay",
	} {
		ctx := &fasthttp.RequestCtx{}
		var req fasthttp.Request
		req.Header.SetRequestURI(path)
		ctx.Init(&req, nil, nil)
		if r.serve(ctx); said != want {
			t.Errorf("%s: %s, want %s", path, said, want)
		}
	}
}

func TestStalenessCountsFromTheLastWord(t *testing.T) {
	t.Parallel()
	c := newCentre(t)
	e := c.edge(t.TempDir())
	downtest.Eventually(t, func() string {
		if s := e.staleness(); s > time.Second || !e.views.Ready() {
			return fmt.Sprint(s, e.Status())
		}
		return ""
	})
	c.nats.Stop()
	before := e.staleness()
	downtest.Eventually(t, func() string {
		if s := e.staleness(); s < before+time.Second {
			return fmt.Sprint("it does not grow: ", s)
		}
		return ""
	})
}
