package handshake_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"skerry/edgenode/edgetest"
	"skerry/edgenode/handshake"
	"skerry/edgenode/view"
	"skerry/pkg/decide"
	"skerry/pkg/state"
	"skerry/replication"
)

func TestMain(m *testing.M) { edgetest.Main(m) }

var ofPulse = []byte(`W/"pulse"`)

func pulseTag(*view.Environment) []byte { return ofPulse }

// edge is a World with the module behind a real server.
type edge struct {
	*edgetest.World
	t    testing.TB
	base string
}

func newEdge(t testing.TB) *edge {
	t.Helper()
	e := &edge{World: edgetest.New(t, view.Hooks{Decisions: handshake.Compile}), t: t}
	e.base = "http://" + e.Serve(routes(handshake.New(e.Gate, pulseTag)))
	return e
}

func routes(m *handshake.Module) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		switch string(ctx.Path()) {
		case "/api/v1/handshake":
			if ctx.IsPost() {
				m.Post(ctx)
			} else {
				m.Get(ctx)
			}
		case "/api/switch/decisions":
			m.Flags(ctx)
		case "/api/config/values":
			m.Items(ctx)
		}
	}
}

type answer struct {
	status int
	etag   string
	body   string
}

func (e *edge) do(method, path, body string, header ...string) answer {
	e.t.Helper()
	request, err := http.NewRequestWithContext(e.t.Context(), method, e.base+path, strings.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	request.Header.Set("x-api-key", e.Live)
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := transport.RoundTrip(request)
	if err != nil {
		e.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header.Get("ETag"), string(got)}
}

func (e *edge) get(query string, header ...string) answer {
	e.t.Helper()
	return e.do("GET", "/api/v1/handshake?"+query, "", header...)
}

func text(s string) *string { return &s }

// fill puts one of each: bucket of ada with salt checkout is 28595 (see pkg/decide/testdata).
func (e *edge) fill() {
	e.Put(replication.CohortSubject(edgetest.Project, "pro"), state.Cohort{Name: "pro", Predicate: `props.plan = "pro"`})
	e.Put(replication.CohortSubject(edgetest.Project, "listed"), state.Cohort{Name: "listed", Shards: 1})
	e.Put(replication.CohortShardSubject(edgetest.Project, "listed", 0), state.CohortShard{Members: []string{"bob"}})
	e.Flag(state.Flag{Key: "checkout", Kind: decide.Boolean, Enabled: true, DefaultValue: "false", DefaultVariant: "off", Version: 3,
		Variants: []decide.Variant{{Key: "on", Value: "true"}, {Key: "off", Value: "false"}},
		Rule: &decide.Rule{
			Overrides: []decide.Override{{Predicate: "cohort:listed", Variant: text("on")}},
			Rollout:   &decide.Rollout{BucketBy: "distinct_id", Salt: "checkout", Buckets: []decide.Range{{Variant: text("on"), Start: 0, End: 28596}}},
		}})
	e.Flag(state.Flag{Key: "plain", Kind: decide.String, Enabled: false, DefaultValue: `"<b>"`, DefaultVariant: "default", Version: 1})
	e.Item(state.ConfigItem{Key: "retries", Type: decide.Int, DefaultValue: "9007199254740993", Version: 1,
		Rule: &decide.Rule{Overrides: []decide.Override{{Predicate: "cohort:pro", Value: text("12")}}}})
}

func TestHandshakeAnswersEverythingOfTheEnvironment(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	e.fill()
	got := e.get("distinct_id=ada&anon_id=x&session_count=2&props=" + url.QueryEscape(`{"plan":"pro"}`))
	var body struct {
		Modules struct {
			Switch, Config struct{ Etag string }
		}
	}
	if err := json.Unmarshal([]byte(got.body), &body); err != nil {
		t.Fatal(err, got.body)
	}
	want := fmt.Sprintf(`{"project_id":"%s","environment":"live","revision":"9.0","distinct_id":"ada","modules":{`+
		`"switch":{"etag":%q,"flags":{"checkout":{"value":true,"variant":"on","reason":"rollout","version":3},"plain":{"value":"<b>","variant":"default","reason":"disabled","version":1}}},`+
		`"config":{"etag":%q,"items":{"retries":{"value":12,"type":"int","reason":"override","version":1}}},`+
		`"pulse":{"etag":"W/\"pulse\""}},"cohorts":["pro"],"refresh_after_seconds":30}`,
		edgetest.Project, body.Modules.Switch.Etag, body.Modules.Config.Etag)
	if got.status != 200 || got.body != want {
		t.Errorf("%d\n%s, want\n%s", got.status, got.body, want)
	}
	bob := e.do("POST", "/api/v1/handshake", `{"distinct_id":"bob"}`)
	if !strings.Contains(bob.body, `"checkout":{"value":true,"variant":"on","reason":"override","version":3}`) ||
		!strings.Contains(bob.body, `"retries":{"value":9007199254740993,"type":"int","reason":"default","version":1}`) ||
		!strings.Contains(bob.body, `"cohorts":["listed"]`) {
		t.Error(bob.body)
	}
	same := e.do("POST", "/api/v1/handshake", `{ "props": {"plan":"pro"}, "session_count": 2.0, "anon_id": "x", "distinct_id": "ad\u0061" }`)
	if same.body != got.body || same.etag != got.etag {
		t.Errorf("POST with the same members answers otherwise:\n%s %s\n%s %s", same.etag, same.body, got.etag, got.body)
	}
	// The older endpoints have the modules' parts and tags.
	flags := e.get("") // no context
	if flags.status != 400 {
		t.Error(flags)
	}
	older := e.do("GET", "/api/switch/decisions?distinct_id=ada&anon_id=x&session_count=2&props="+url.QueryEscape(`{"plan":"pro"}`), "")
	if older.etag != body.Modules.Switch.Etag || !strings.HasPrefix(older.body, `{"flags":{"checkout":{"value":true`) || !json.Valid([]byte(older.body)) {
		t.Errorf("%s %s", older.etag, older.body)
	}
	values := e.do("GET", "/api/config/values?distinct_id=ada&anon_id=x&session_count=2&props="+url.QueryEscape(`{"plan":"pro"}`), "")
	if values.etag != body.Modules.Config.Etag || values.body != `{"items":{"retries":{"value":12,"type":"int","reason":"override","version":1}}}` {
		t.Errorf("%s %s", values.etag, values.body)
	}
}

func TestTagFollowsStateAndContextAndNothingElse(t *testing.T) {
	t.Parallel()
	e, other := newEdge(t), newEdge(t)
	e.fill()
	other.fill()
	const ada = "distinct_id=ada"
	first := e.get(ada)
	for _, header := range []string{first.etag, "W/" + first.etag, `"x", ` + first.etag, "*"} {
		got := e.get(ada, "If-None-Match", header)
		if got.status != 304 || got.body != "" || got.etag != first.etag {
			t.Errorf("If-None-Match %s: %+v", header, got)
		}
	}
	if got := e.get(ada, "If-None-Match", `"x"`); got.status != 200 || got.body != first.body {
		t.Errorf("another tag: %d", got.status)
	}
	if got := other.get(ada); got.etag != first.etag {
		t.Error("two edges of one state have different tags")
	}
	if got := e.get("distinct_id=eve", "If-None-Match", first.etag); got.status != 200 {
		t.Error("another user's tag revalidates")
	}
	if got := e.get(ada, "x-api-key", e.Test, "If-None-Match", first.etag); got.status != 200 {
		t.Error("another environment's tag revalidates")
	}
	flags := e.do("GET", "/api/switch/decisions?"+ada, "").etag
	items := e.do("GET", "/api/config/values?"+ada, "").etag
	e.Put(replication.HaltSubject(edgetest.Project, "live", "checkout"), state.Halt{Key: "checkout", Version: 4, DefaultValue: "false", DefaultVariant: "off"})
	halted := e.get(ada, "If-None-Match", first.etag)
	if halted.status != 200 || !strings.Contains(halted.body, `"checkout":{"value":false,"variant":"off","reason":"halted","version":4}`) || !strings.Contains(halted.body, `"revision":"9.1"`) {
		t.Errorf("after a halt: %d %s", halted.status, halted.body)
	}
	if e.do("GET", "/api/switch/decisions?"+ada, "").etag == flags {
		t.Error("a halt leaves the tag of the flags")
	}
	if e.do("GET", "/api/config/values?"+ada, "").etag != items {
		t.Error("a halt changes the tag of the config items")
	}
	e.Put(replication.HaltSubject(edgetest.Project, "live", "checkout"), nil)
	resumed := e.get(ada)
	if resumed.etag == first.etag || !strings.Contains(resumed.body, `"checkout":{"value":true,"variant":"on","reason":"rollout","version":3}`) {
		t.Errorf("after the resume: %s %s", resumed.etag, resumed.body)
	}
}

func TestHandshakeWordsItsRefusals(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	for _, c := range []struct {
		method, query, body string
		want                string
	}{
		{"GET", "", "", `distinct_id is required`},
		{"GET", "distinct_id=", "", `distinct_id is required`},
		{"GET", "distinct_id=%ff", "", `distinct_id is required`},
		{"GET", "props=7", "", `distinct_id is required`},
		{"GET", "distinct_id=u&props=7", "", `invalid_props`},
		{"GET", "distinct_id=u&props=%7B", "", `invalid_props`},
		{"GET", "distinct_id=u&props=%7B%22a%22:%22%ff%22%7D", "", `invalid_props`},
		{"GET", "distinct_id=u&session_count=x", "", `invalid_session_count`},
		{"GET", "distinct_id=u&session_count=-1", "", `invalid_session_count`},
		{"POST", "", "", `distinct_id is required`},
		{"POST", "", "{", `distinct_id is required`},
		{"POST", "", `{"distinct_id":7}`, `distinct_id is required`},
		{"POST", "", `{"distinct_id":"u","props":[]}`, `invalid_props`},
	} {
		got := e.do(c.method, "/api/v1/handshake?"+c.query, c.body)
		if got.status != 400 || !strings.HasPrefix(got.body, `{"error":"`+c.want+`"`) {
			t.Errorf("%s %s %s: %d %s", c.method, c.query, c.body, got.status, got.body)
		}
	}
	if got := e.get("", "x-api-key", ""); got.status != 401 || got.body != `{"error":"missing x-api-key"}` {
		t.Errorf("no key: %+v", got)
	}
	if got := e.get("", "x-api-key", "sk_live_x"); got.status != 401 || got.body != `{"error":"invalid api key"}` {
		t.Errorf("another key: %+v", got)
	}
	if got := e.do("POST", "/api/v1/handshake", `{"distinct_id":"`+strings.Repeat("u", handshake.MaxBody)+`"}`); got.status != 413 {
		t.Errorf("large body: %d", got.status)
	}
	// The quota counts what is answered, 304 included, and comes before the context.
	settings := e.Settings
	ten := int64(10)
	settings.Quotas.Handshakes = &ten
	e.Put(replication.ProjectSubject(edgetest.Project), settings)
	statuses := map[int]int{}
	for range 30 {
		statuses[e.get("distinct_id=u", "If-None-Match", "*").status]++
	}
	if statuses[429] < 20 {
		t.Errorf("statuses past the quota: %v", statuses)
	}
	if got := e.get(""); got.status != 429 || !strings.HasPrefix(got.body, `{"error":"quota_exceeded","current":`) {
		t.Errorf("no context past the quota: %+v", got)
	}
}

func TestAModuleThatIsOffIsLeftOut(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	e.fill()
	settings := e.Settings
	settings.Modules = state.Modules{Config: true}
	e.Put(replication.ProjectSubject(edgetest.Project), settings)
	got := e.get("distinct_id=ada")
	if strings.Contains(got.body, `"switch"`) || strings.Contains(got.body, `"pulse"`) || !strings.Contains(got.body, `"config"`) || !json.Valid([]byte(got.body)) {
		t.Error(got.body)
	}
	if got := e.do("GET", "/api/switch/decisions?distinct_id=ada", ""); got.status != 403 {
		t.Errorf("%+v", got)
	}
	settings.Modules = state.Modules{}
	e.Put(replication.ProjectSubject(edgetest.Project), settings)
	if got := e.get("distinct_id=ada"); !strings.Contains(got.body, `"modules":{},"cohorts"`) {
		t.Error(got.body)
	}
	e.Put(replication.ProjectSubject(edgetest.Project), e.Settings)
	if got := e.get("distinct_id=ada"); !strings.Contains(got.body, `"checkout":{"value":true`) {
		t.Error(got.body)
	}
}

// Whatever the order in which documents come: what was compiled step by step is what a fresh edge compiles at once.
func TestIncrementalCompilationIsTheWholeOne(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	for i := range 120 {
		key := fmt.Sprintf("f%02d", i*37%40)
		switch {
		case i%7 == 3:
			e.Put(replication.FlagSubject(edgetest.Project, "live", key), nil)
		case i%11 == 5:
			e.Item(state.ConfigItem{Key: key, Type: decide.Int, DefaultValue: fmt.Sprint(i), Version: int64(i)})
		case i%5 == 4:
			e.Put(replication.HaltSubject(edgetest.Project, "live", key), state.Halt{Key: key, Version: int64(i), DefaultValue: "-1"})
		case i%5 == 2:
			e.Put(replication.HaltSubject(edgetest.Project, "live", key), nil)
		default:
			e.Flag(state.Flag{Key: key, Kind: decide.Number, Enabled: true, DefaultValue: fmt.Sprint(i), Version: int64(i)})
		}
		e.get("distinct_id=u") // so that the environment is compiled at this step
	}
	env, _ := e.Views.Environment(edgetest.Project, "live")
	step := handshake.Of(env)
	anew, _ := e.FreshViews(view.Hooks{Decisions: handshake.Compile}).Environment(edgetest.Project, "live")
	whole := handshake.Of(anew)
	if a, b := render(step), render(whole); a != b {
		t.Errorf("step by step\n%s\nat once\n%s", a, b)
	}
}

func render(s *handshake.Set) string {
	var b strings.Builder
	var c decide.Context
	for _, list := range [][]*decide.Entry{s.Flags, s.Items, s.OpenFeature()} {
		for _, e := range list {
			b.Write(e.AppendOpenFeature(nil, e.Decide(&c)))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestRevalidatingDoesNotAllocate(t *testing.T) {
	if raced {
		t.Skip("not with the race detector")
	}
	e := newEdge(t)
	e.fill()
	m := handshake.New(e.Gate, pulseTag)
	var ctx fasthttp.RequestCtx
	var request fasthttp.Request
	request.SetRequestURI("/api/v1/handshake?distinct_id=ada&session_count=2&props=%7B%22plan%22:%22pro%22%7D")
	request.Header.Set("X-Api-Key", e.Live)
	request.Header.Set("If-None-Match", "*")
	ctx.Init(&request, nil, nil)
	work := func() {
		ctx.Response.Reset()
		m.Get(&ctx)
		if ctx.Response.StatusCode() != 304 {
			t.Fatalf("%d %s", ctx.Response.StatusCode(), ctx.Response.Body())
		}
	}
	work()
	if n := testing.AllocsPerRun(200, work); n > 0 {
		t.Errorf("%.1f allocations", n)
	}
}
