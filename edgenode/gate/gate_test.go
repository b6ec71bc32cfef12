package gate_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"skerry/edgenode/edgetest"
	"skerry/edgenode/gate"
	"skerry/edgenode/view"
	"skerry/pkg/apikey"
	"skerry/pkg/state"
	"skerry/replication"
)

func TestMain(m *testing.M) { edgetest.Main(m) }

// request makes a request from an address, with headers in pairs.
func request(from, uri string, header ...string) *fasthttp.RequestCtx {
	ctx := &fasthttp.RequestCtx{}
	var req fasthttp.Request
	req.SetRequestURI(uri)
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	ctx.Init(&req, &net.TCPAddr{IP: net.ParseIP(from), Port: 1}, nil)
	return ctx
}

// ask admits a request and returns how it is answered; "" means that it is admitted.
func ask(g *gate.Gate, f *gate.Family, ctx *fasthttp.RequestCtx) string {
	pass := g.Admit(ctx, f)
	if pass.Refusal == gate.Admitted {
		if pass.Env == nil || pass.Key.ProjectID != edgetest.Project {
			return fmt.Sprintf("admitted without what it asked for: %+v", pass)
		}
		return ""
	}
	f.Refuse(ctx, pass)
	return fmt.Sprint(ctx.Response.StatusCode(), " ", string(ctx.Response.Body()))
}

func TestEachFamilyWordsItsRefusals(t *testing.T) {
	t.Parallel()
	w := edgetest.New(t, view.Hooks{})
	for _, c := range []struct {
		name           string
		family         *gate.Family
		noKey, unknown string
	}{
		{"ingestion", gate.Ingestion, `401 {"error":"Missing API key"}`, `403 {"error":"Unknown API key"}`},
		{"profiles", gate.Profiles, `401 {"error":"Missing API key"}`, `403 {"error":"Unknown API key"}`},
		{"handshake", gate.Handshake, `401 {"error":"missing x-api-key"}`, `401 {"error":"invalid api key"}`},
		{"older decisions", gate.Decisions, `401 {"error":"missing x-api-key"}`, `401 {"error":"invalid api key"}`},
		{"OpenFeature", gate.OpenFeature, `401 {"error":"missing x-api-key"}`, `401 {"error":"invalid api key"}`},
		{"changes", gate.Changes, `401 {"error":"missing x-api-key"}`, `401 {"error":"invalid api key"}`},
		{"pulse", gate.Pulse, `401 {"error":"missing_api_key"}`, `401 {"error":"invalid_api_key"}`},
	} {
		if got := ask(w.Gate, c.family, request("9.9.9.9", "/")); got != c.noKey {
			t.Errorf("%s without a key: %s", c.name, got)
		}
		if got := ask(w.Gate, c.family, request("9.9.9.9", "/", "X-Api-Key", "")); got != c.noKey {
			t.Errorf("%s with an empty key: %s", c.name, got)
		}
		for _, key := range []string{"sk_live_unknown", "x", "sk_deploy_x", strings.Repeat("k", 5000)} {
			if got := ask(w.Gate, c.family, request("9.9.9.9", "/", "x-api-key", key)); got != c.unknown {
				t.Errorf("%s with %.20s: %s", c.name, key, got)
			}
		}
		if got := ask(w.Gate, c.family, request("9.9.9.9", "/", "x-api-key", w.Live)); got != "" {
			t.Errorf("%s with its key: %s", c.name, got)
		}
	}
}

func TestKeyComesWhereItsFamilyTakesIt(t *testing.T) {
	t.Parallel()
	w := edgetest.New(t, view.Hooks{})
	for _, c := range []struct {
		name     string
		family   *gate.Family
		ctx      *fasthttp.RequestCtx
		admitted bool
	}{
		{"bearer to OpenFeature", gate.OpenFeature, request("9.9.9.9", "/", "Authorization", "Bearer "+w.Live), true},
		{"bearer in small letters", gate.OpenFeature, request("9.9.9.9", "/", "authorization", "bearer "+w.Live), true},
		{"basic to OpenFeature", gate.OpenFeature, request("9.9.9.9", "/", "Authorization", "Basic "+w.Live), false},
		{"bearer to ingestion", gate.Ingestion, request("9.9.9.9", "/", "Authorization", "Bearer "+w.Live), false},
		{"bearer to the handshake", gate.Handshake, request("9.9.9.9", "/", "Authorization", "Bearer "+w.Live), false},
		{"query to the stream", gate.Changes, request("9.9.9.9", "/api/v1/stream?key="+w.Live), true},
		{"query to ingestion", gate.Ingestion, request("9.9.9.9", "/?key="+w.Live), false},
		{"header before bearer", gate.OpenFeature, request("9.9.9.9", "/", "x-api-key", "wrong", "Authorization", "Bearer "+w.Live), false},
	} {
		if got := ask(w.Gate, c.family, c.ctx); (got == "") != c.admitted {
			t.Errorf("%s: %s", c.name, got)
		}
	}
}

func TestEdgeWithoutStateSaysUnavailableAndNothingElse(t *testing.T) {
	t.Parallel()
	w := edgetest.NewEmpty(t)
	for _, f := range []*gate.Family{gate.Ingestion, gate.Handshake, gate.OpenFeature, gate.Pulse} {
		for _, ctx := range []*fasthttp.RequestCtx{request("9.9.9.9", "/", "x-api-key", w.Live), request("9.9.9.9", "/")} {
			if got, want := ask(w.Gate, f, ctx), `503 {"error":"Service temporarily unavailable"}`; got != want {
				t.Errorf("%s", got)
			}
		}
	}
}

func TestKeyThatCannotBeReadIsNotUnknown(t *testing.T) {
	t.Parallel()
	w := edgetest.New(t, view.Hooks{})
	w.Put(replication.KeySubject(apikey.Of("sk_live_damaged").String()), "no key's body")
	for _, f := range []*gate.Family{gate.Ingestion, gate.Handshake, gate.Pulse} {
		for range 2 { // nothing is remembered of the failure
			if got, want := ask(w.Gate, f, request("9.9.9.9", "/", "x-api-key", "sk_live_damaged")), `503 {"error":"Service temporarily unavailable"}`; got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
	}
}

func TestAllowlistJudgesOriginsAndAddresses(t *testing.T) {
	t.Parallel()
	w := edgetest.New(t, view.Hooks{})
	const refused = `403 {"error":"Origin not allowed"}`
	for _, c := range []struct {
		name         string
		list         state.Allowlist
		from, origin string
		want         string
	}{
		{"nothing set", state.Allowlist{}, "9.9.9.9", "https://evil.example", ""},
		{"origin on the list", state.Allowlist{Origins: []string{"https://Shop.example/"}}, "9.9.9.9", "https://shop.example", ""},
		{"origin not on the list", state.Allowlist{Origins: []string{"https://shop.example"}}, "9.9.9.9", "https://evil.example", refused},
		{"a longer origin", state.Allowlist{Origins: []string{"https://shop.example"}}, "9.9.9.9", "https://shop.example.evil.example", refused},
		{"other scheme", state.Allowlist{Origins: []string{"https://shop.example"}}, "9.9.9.9", "http://shop.example", refused},
		{"no origin, only origins listed", state.Allowlist{Origins: []string{"https://shop.example"}}, "9.9.9.9", "", ""},
		{"address in a range", state.Allowlist{CIDRs: []string{"9.9.0.0/16"}}, "9.9.9.9", "", ""},
		{"address outside", state.Allowlist{CIDRs: []string{"9.8.0.0/16", "2001:db8::/32"}}, "9.9.9.9", "", refused},
		{"single address", state.Allowlist{CIDRs: []string{"9.9.9.9"}}, "9.9.9.9", "", ""},
		{"IPv6", state.Allowlist{CIDRs: []string{"2001:db8::/32"}}, "2001:db8::1", "", ""},
		{"IPv4 written as IPv6", state.Allowlist{CIDRs: []string{"::ffff:9.9.0.0/112"}}, "9.9.9.9", "", ""},
		{"origin, only ranges listed", state.Allowlist{CIDRs: []string{"9.8.0.0/16"}}, "9.9.9.9", "https://shop.example", ""},
	} {
		settings := w.Settings
		settings.Allowlist = c.list
		w.Put(replication.ProjectSubject(edgetest.Project), settings)
		header := []string{"x-api-key", w.Live}
		if c.origin != "" {
			header = append(header, "Origin", c.origin)
		}
		if got := ask(w.Gate, gate.Ingestion, request(c.from, "/", header...)); got != c.want {
			t.Errorf("%s: %s", c.name, got)
		}
		if got := ask(w.Gate, gate.Handshake, request(c.from, "/", header...)); got != "" {
			t.Errorf("%s: the handshake is judged too: %s", c.name, got)
		}
	}
}

func TestRateLimitComesFirstAndCountsByKeyValue(t *testing.T) {
	t.Parallel()
	w := edgetest.New(t, view.Hooks{})
	settings := w.Settings
	settings.RateLimits.IngestPerMinute, settings.RateLimits.HandshakePerMinute = 3, 2
	w.Put(replication.ProjectSubject(edgetest.Project), settings)
	const over = `429 {"error":"Rate limit exceeded. Please wait a moment."}`
	tries := func(f *gate.Family, n int, make func() *fasthttp.RequestCtx) (last string) {
		for range n {
			last = ask(w.Gate, f, make())
		}
		return last
	}
	live := func() *fasthttp.RequestCtx { return request("9.9.9.9", "/", "x-api-key", w.Live) }
	test := func() *fasthttp.RequestCtx { return request("9.9.9.9", "/", "x-api-key", w.Test) }
	unknown := func() *fasthttp.RequestCtx { return request("9.9.9.9", "/", "x-api-key", "nobody's") }
	none := func() *fasthttp.RequestCtx { return request("9.9.9.9", "/") }
	if got := tries(gate.Ingestion, 2, live); got != "" {
		t.Errorf("the second: %s", got)
	}
	if got := tries(gate.Profiles, 1, live); got != "" {
		t.Errorf("the third: %s", got)
	}
	if got := tries(gate.Profiles, 1, live); got != over {
		t.Errorf("the fourth, of another path: %s", got)
	}
	if got := tries(gate.Ingestion, 3, test); got != "" {
		t.Errorf("the other key: %s", got)
	}
	if got := tries(gate.Handshake, 2, live); got != "" {
		t.Errorf("the handshake's second: %s", got)
	}
	if got := tries(gate.Handshake, 1, live); got != over {
		t.Errorf("the handshake's third: %s", got)
	}
	if got := tries(gate.Decisions, 100, live); got != "" {
		t.Errorf("the older endpoints have no limit: %s", got)
	}
	if got := tries(gate.Pulse, 100, live); got != "" {
		t.Errorf("pulse has no limit: %s", got)
	}
	if got := tries(gate.Ingestion, 500, unknown); got != `403 {"error":"Unknown API key"}` {
		t.Errorf("500 of an unknown key: %s", got)
	}
	if got := tries(gate.Ingestion, 1, unknown); got != over {
		t.Errorf("501 of an unknown key: %s", got)
	}
	if got := tries(gate.Ingestion, 500, none); got != `401 {"error":"Missing API key"}` {
		t.Errorf("500 without a key: %s", got)
	}
	if got := tries(gate.Ingestion, 1, none); got != over {
		t.Errorf("501 without a key: %s", got)
	}
	if got := ask(w.Gate, gate.Ingestion, request("9.9.9.8", "/")); got != `401 {"error":"Missing API key"}` {
		t.Errorf("another client without a key: %s", got)
	}
}

func TestDecisionCallsShareAQuotaOfTheirOwn(t *testing.T) {
	t.Parallel()
	w := edgetest.New(t, view.Hooks{})
	settings := w.Settings
	three := int64(3)
	settings.Quotas.Handshakes = &three
	w.Put(replication.ProjectSubject(edgetest.Project), settings)
	ctx := func() *fasthttp.RequestCtx { return request("9.9.9.9", "/", "x-api-key", w.Live) }
	for i, f := range []*gate.Family{gate.Handshake, gate.OpenFeature, gate.Decisions} {
		if got := ask(w.Gate, f, ctx()); got != "" {
			t.Fatalf("call %d: %s", i+1, got)
		}
	}
	if got := ask(w.Gate, gate.Handshake, ctx()); got != `429 {"error":"quota_exceeded","current":3,"limit":3}` {
		t.Errorf("call 4: %s", got)
	}
	if got := ask(w.Gate, gate.Ingestion, ctx()); got != "" {
		t.Errorf("events have a quota of their own: %s", got)
	}
}

func TestRevokedKeyIsUnknown(t *testing.T) {
	t.Parallel()
	w := edgetest.New(t, view.Hooks{})
	w.Put(replication.RevokedSubject(apikey.Of(w.Live).String()), state.Revoked{})
	if got := ask(w.Gate, gate.Pulse, request("9.9.9.9", "/", "x-api-key", w.Live)); got != `401 {"error":"invalid_api_key"}` {
		t.Error(got)
	}
}

func TestOnlyTrustedProxiesAreBelieved(t *testing.T) {
	t.Parallel()
	g := gate.New(gate.Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}})
	for _, c := range []struct{ from, forwarded, want string }{
		{"9.9.9.9", "1.2.3.4", "9.9.9.9"},
		{"10.0.0.1", "1.2.3.4", "1.2.3.4"},
		{"10.0.0.1", "6.6.6.6, 1.2.3.4", "1.2.3.4"},
		{"10.0.0.1", "6.6.6.6, 1.2.3.4, 10.0.0.2", "1.2.3.4"},
		{"10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"},
		{"10.0.0.1", "1.2.3.4, nonsense", "10.0.0.1"},
		{"10.0.0.1", "", "10.0.0.1"},
		{"10.0.0.1", "2001:db8::1", "2001:db8::1"},
		{"::ffff:10.0.0.1", "::ffff:1.2.3.4", "1.2.3.4"},
		{"fd00::1", "1.2.3.4", "1.2.3.4"},
		{"10.0.0.1", "1.2.3.4:4711", "1.2.3.4"},
		{"10.0.0.1", "[2001:db8::1]:443, 10.0.0.2:80", "2001:db8::1"},
	} {
		var header []string
		if c.forwarded != "" {
			header = []string{"X-Forwarded-For", c.forwarded}
		}
		if got := g.ClientIP(request(c.from, "/", header...)).String(); got != c.want {
			t.Errorf("%s for %q is %s, want %s", c.from, c.forwarded, got, c.want)
		}
	}
	two := request("10.0.0.1", "/", "X-Forwarded-For", "6.6.6.6", "X-Forwarded-For", "1.2.3.4")
	if got := g.ClientIP(two).String(); got != "1.2.3.4" {
		t.Errorf("in two headers: %s", got)
	}
}

func TestAnswersCarryARequestID(t *testing.T) {
	t.Parallel()
	g := gate.New(gate.Config{})
	seen := map[string]bool{}
	for sent, kept := range map[string]bool{"abc-123": true, strings.Repeat("x", 128): true, strings.Repeat("x", 129): false, "a b": false, "": false, "ü": false, "a\x7f": false} {
		var header []string
		if sent != "" {
			header = []string{"X-Request-Id", sent}
		}
		ctx := request("9.9.9.9", "/", header...)
		g.Begin(ctx)
		got := string(gate.RequestID(ctx))
		if (got == sent) != kept || got == "" || seen[got] {
			t.Errorf("sent %q, got %q", sent, got)
		}
		seen[got] = true
	}
}

func TestStaleStateIsMarked(t *testing.T) {
	t.Parallel()
	g := gate.New(gate.Config{})
	for seconds, want := range map[int64]string{0: "", 75: "75"} {
		g.SetStale(seconds)
		ctx := request("9.9.9.9", "/")
		g.Begin(ctx)
		if got := string(ctx.Response.Header.Peek("Skerry-Stale")); got != want {
			t.Errorf("after %d s: %q", seconds, got)
		}
	}
}

func TestPreflightIsAlwaysAdmitted(t *testing.T) {
	t.Parallel()
	ctx := request("9.9.9.9", "/", "Origin", "https://any.example", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "x-api-key")
	ctx.Request.Header.SetMethod("OPTIONS")
	gate.CORS(ctx)
	if !gate.Preflight(ctx, "GET, POST") || ctx.Response.StatusCode() != 204 {
		t.Error("not answered")
	}
	for name, want := range map[string]string{
		"Access-Control-Allow-Origin": "https://any.example", "Access-Control-Allow-Methods": "GET, POST", "Access-Control-Allow-Headers": "x-api-key",
	} {
		if got := string(ctx.Response.Header.Peek(name)); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if exposed := string(ctx.Response.Header.Peek("Access-Control-Expose-Headers")); !strings.Contains(exposed, "ETag") || !strings.Contains(exposed, "Retry-After") {
		t.Errorf("exposed: %q", exposed)
	}
	plain := request("9.9.9.9", "/")
	plain.Request.Header.SetMethod("OPTIONS")
	if gate.Preflight(plain, "GET") {
		t.Error("an OPTIONS that is no preflight is taken for one")
	}
}

func TestAdmittingAllocatesNothing(t *testing.T) {
	w := edgetest.New(t, view.Hooks{})
	ctx := request("9.9.9.9", "/", "x-api-key", w.Live)
	for name, f := range map[string]*gate.Family{"pulse": gate.Pulse, "handshake": gate.Handshake, "ingestion": gate.Ingestion} {
		if n := testing.AllocsPerRun(1000, func() {
			ctx.Response.Header.Reset()
			w.Gate.Begin(ctx)
			if w.Gate.Admit(ctx, f).Refusal != gate.Admitted {
				t.Fatal("refused")
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestTagsOfSeveralLinesAreOneList(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lines []string
		want  bool
	}{
		{nil, false}, {[]string{`"a"`}, true}, {[]string{`"b"`}, false},
		{[]string{`"b"`, `"c", W/"a"`}, true}, {[]string{`"b"`, `"c"`}, false},
	} {
		var ctx fasthttp.RequestCtx
		for _, line := range c.lines {
			ctx.Request.Header.Add("If-None-Match", line)
		}
		if got := gate.HasTag(&ctx, []byte(`"a"`)); got != c.want {
			t.Errorf("%q: %v", c.lines, got)
		}
	}
}
