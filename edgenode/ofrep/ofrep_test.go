package ofrep_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"skerry/edgenode/edgetest"
	"skerry/edgenode/gate"
	"skerry/edgenode/handshake"
	"skerry/edgenode/ofrep"
	"skerry/edgenode/stream"
	"skerry/edgenode/view"
	"skerry/pkg/apikey"
	"skerry/pkg/decide"
	"skerry/pkg/state"
	"skerry/replication"
)

func TestMain(m *testing.M) { edgetest.Main(m) }

// edge is a World with OFREP and the change stream behind a real server.
type edge struct {
	*edgetest.World
	t      testing.TB
	base   string
	stream *stream.Module
}

func newEdge(t testing.TB) *edge {
	t.Helper()
	e := &edge{World: edgetest.New(t, view.Hooks{Decisions: handshake.Compile}), t: t}
	m := ofrep.New(e.Gate, ofrep.Config{})
	e.stream = stream.New(e.Gate, e.Views, stream.Config{})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.stream.Run(ctx) }()
	e.base = "http://" + e.Serve(func(ctx *fasthttp.RequestCtx) {
		gate.CORS(ctx)
		path := string(ctx.Path())
		key, single := strings.CutPrefix(path, "/ofrep/v1/evaluate/flags/")
		switch {
		case gate.Preflight(ctx, "GET, POST"):
		case single:
			m.Single(ctx, []byte(key))
		case path == "/ofrep/v1/evaluate/flags":
			m.Bulk(ctx)
		case path == "/api/v1/stream":
			e.stream.Serve(ctx)
		}
	})
	t.Cleanup(func() { // before the server's own end, which waits for its connections
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return e
}

func text(s string) *string { return &s }

// fill puts a flag of each kind and state: bucket of ada with salt checkout is 28595 (see pkg/decide/testdata).
func (e *edge) fill() {
	on := []decide.Variant{{Key: "on", Value: "true"}, {Key: "off", Value: "false"}}
	e.Flag(state.Flag{Key: "checkout", Kind: decide.Boolean, Enabled: true, DefaultValue: "false", DefaultVariant: "off", Version: 3, Variants: on,
		Rule: &decide.Rule{
			Overrides: []decide.Override{{Predicate: `props.plan = "pro"`, Variant: text("on")}},
			Rollout:   &decide.Rollout{BucketBy: "distinct_id", Salt: "checkout", Buckets: []decide.Range{{Variant: text("on"), Start: 0, End: 28596}}},
		}})
	e.Flag(state.Flag{Key: "colour", Kind: decide.String, Enabled: true, DefaultValue: `"blue"`, DefaultVariant: "default", Version: 1})
	e.Flag(state.Flag{Key: "limit", Kind: decide.Number, Enabled: true, DefaultValue: "1.50", DefaultVariant: "default", Version: 1})
	e.Flag(state.Flag{Key: "layout", Kind: decide.JSON, Enabled: true, DefaultValue: `{"columns":[1,2]}`, DefaultVariant: "default", Version: 1})
	e.Flag(state.Flag{Key: "halted", Kind: decide.Boolean, Enabled: true, DefaultValue: "false", DefaultVariant: "off", Version: 1, Variants: on})
	e.Put(replication.HaltSubject(edgetest.Project, "live", "halted"), state.Halt{Key: "halted", Version: 2, DefaultValue: "false", DefaultVariant: "off"})
	e.Flag(state.Flag{Key: "disabled", Kind: decide.Boolean, Enabled: false, DefaultValue: "false", DefaultVariant: "off", Version: 1})
	e.Item(state.ConfigItem{Key: "retries", Type: decide.Int, DefaultValue: "10", Version: 1})
	e.Item(state.ConfigItem{Key: "colour", Type: decide.Int, DefaultValue: "7", Version: 1}) // hidden by the flag of its key
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (e *edge) post(path, body string, header ...string) answer {
	e.t.Helper()
	request, err := http.NewRequestWithContext(e.t.Context(), "POST", e.base+"/ofrep/v1/evaluate/flags"+path, strings.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	request.Header.Set("x-api-key", e.Live)
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		e.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, string(got)}
}

func TestSingleFlagsAreAnsweredAsTheProtocolSays(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	e.fill()
	const ada = `{"context":{"targetingKey":"ada"}}`
	for _, c := range []struct {
		key, body string
		status    int
		want      string
	}{
		{"checkout", ada, 200, `{"key":"checkout","reason":"SPLIT","variant":"on","value":true,"metadata":{"version":3}}`},
		{"checkout", `{"context":{"targetingKey":"eve"}}`, 200, `{"key":"checkout","reason":"DEFAULT","variant":"off","value":false,"metadata":{"version":3}}`},
		{"checkout", `{"context":{"targetingKey":"eve","plan":"pro"}}`, 200, `{"key":"checkout","reason":"TARGETING_MATCH","variant":"on","value":true,"metadata":{"version":3}}`},
		{"colour", ada, 200, `{"key":"colour","reason":"STATIC","variant":"default","value":"blue","metadata":{"version":1}}`},
		{"limit", ada, 200, `{"key":"limit","reason":"STATIC","variant":"default","value":1.50,"metadata":{"version":1}}`},
		{"retries", ada, 200, `{"key":"retries","reason":"STATIC","value":10,"metadata":{"version":1}}`},
		{"halted", ada, 200, `{"key":"halted","reason":"STATIC","variant":"off","value":false,"metadata":{"version":2,"halted":true}}`},
		{"disabled", ada, 200, `{"key":"disabled","reason":"DISABLED","variant":"off","value":false,"metadata":{"version":1}}`},
		{"absent", ada, 404, `{"key":"absent","errorCode":"FLAG_NOT_FOUND","errorDetails":"no flag and no config item has this key"}`},
		{`a"b`, ada, 404, `{"key":"a\"b","errorCode":"FLAG_NOT_FOUND","errorDetails":"no flag and no config item has this key"}`},
		{"checkout", `{"context":{}}`, 400, `{"key":"checkout","errorCode":"TARGETING_KEY_MISSING","errorDetails":"context.targetingKey is required"}`},
		{"checkout", `{}`, 400, `{"key":"checkout","errorCode":"TARGETING_KEY_MISSING","errorDetails":"context.targetingKey is required"}`},
		{"checkout", `{"context":`, 400, `{"key":"checkout","errorCode":"PARSE_ERROR","errorDetails":"the body is not a JSON object"}`},
		{"checkout", ``, 400, `{"key":"checkout","errorCode":"PARSE_ERROR","errorDetails":"the body is not a JSON object"}`},
		{"checkout", `{"context":{"targetingKey":7}}`, 400, `{"key":"checkout","errorCode":"INVALID_CONTEXT"`},
		{"checkout", `{"context":[]}`, 400, `{"key":"checkout","errorCode":"INVALID_CONTEXT"`},
	} {
		got := e.post("/"+strings.ReplaceAll(c.key, `"`, "%22"), c.body)
		if got.status != c.status || !strings.HasPrefix(got.body, c.want) || got.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %d %s, want %d %s", c.key, c.body, got.status, got.body, c.status, c.want)
		}
	}
	if got := e.post("/checkout", ada, "x-api-key", "", "Authorization", "Bearer "+e.Live); got.status != 200 {
		t.Errorf("bearer key: %d %s", got.status, got.body)
	}
	if got := e.post("/checkout", ada, "x-api-key", ""); got.status != 401 || got.body != `{"error":"missing x-api-key"}` {
		t.Errorf("no key: %d %s", got.status, got.body)
	}
}

func TestBulkHasATagOverTheWholeContext(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	e.fill()
	const eve = `{"context":{"targetingKey":"eve","country":"DE"}}`
	first := e.post("", eve, "Origin", "https://shop.example")
	var body struct {
		Flags []struct {
			Key    string
			Value  any
			Reason string
		}
		EventStreams []map[string]string
	}
	if err := json.Unmarshal([]byte(first.body), &body); err != nil {
		t.Fatal(err, first.body)
	}
	var keys []string
	for _, f := range body.Flags {
		keys = append(keys, fmt.Sprint(f.Key, "=", f.Value))
	}
	if got, want := strings.Join(keys, " "), "checkout=false colour=blue disabled=false halted=false layout=map[columns:[1 2]] limit=1.5 retries=10"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := fmt.Sprint(body.EventStreams); got != fmt.Sprintf("[map[type:sse url:%s/api/v1/stream?key=%s]]", e.base, e.Live) {
		t.Error(got)
	}
	if exposed := first.header.Get("Access-Control-Expose-Headers"); !strings.Contains(exposed, "ETag") || !strings.Contains(exposed, "Retry-After") {
		t.Errorf("exposed headers %q", exposed)
	}
	tag := first.header.Get("ETag")
	if got := e.post("", `{ "context": {"country":"DE", "targetingKey":"eve"} }`, "If-None-Match", tag); got.status != 304 || got.body != "" || got.header.Get("ETag") != tag {
		t.Errorf("unchanged: %d %s", got.status, got.body)
	}
	if got := e.post("", `{"context":{"targetingKey":"eve","country":"FR"}}`, "If-None-Match", tag); got.status != 200 {
		t.Errorf("another country: %d", got.status)
	}
	// The address of the stream is a part of the answer: another key or another host makes another answer.
	const second = "sk_live_SSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSS"
	e.Put(replication.KeySubject(apikey.Of(second).String()), state.Key{ID: "second", ProjectID: edgetest.Project, Environment: "live"})
	if got := e.post("", eve, "If-None-Match", tag, "x-api-key", second); got.status != 200 || !strings.Contains(got.body, "key="+second) {
		t.Errorf("another key: %d %s", got.status, got.body)
	}
	if got := e.post("", eve, "If-None-Match", tag, "X-Forwarded-Proto", "https"); got.status != 200 || !strings.Contains(got.body, `"url":"https://`) {
		t.Errorf("another scheme: %d %s", got.status, got.body)
	}
	e.Item(state.ConfigItem{Key: "retries", Type: decide.Int, DefaultValue: "11", Version: 2})
	if got := e.post("", eve, "If-None-Match", tag); got.status != 200 || !strings.Contains(got.body, `"value":11`) {
		t.Errorf("after a change: %d %s", got.status, got.body)
	}
	if got := e.post("", `{"context":{"country":"DE"}}`); got.status != 400 || got.body != `{"errorCode":"TARGETING_KEY_MISSING","errorDetails":"context.targetingKey is required"}` {
		t.Errorf("no targeting key: %d %s", got.status, got.body)
	}
	if got := e.post("", `nonsense`); got.status != 400 || !strings.HasPrefix(got.body, `{"errorCode":"PARSE_ERROR"`) {
		t.Errorf("malformed: %d %s", got.status, got.body)
	}
}
