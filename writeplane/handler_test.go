package writeplane

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"skerry/pkg/jsonbody"
	"skerry/pkg/openapi/openapitest"
	"skerry/pkg/reply"
	"skerry/writeplane/access"
	"skerry/writeplane/audit"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// plane is a part of the write plane on a database of its own.
type plane struct {
	db       *postgres.DB
	access   *access.Store
	commits  *commit.Store
	founding access.Founding
	tokens   map[string]string
}

func newPlane(t testing.TB) *plane {
	t.Helper()
	p := &plane{db: dbtest.New(t)}
	p.commits = commit.New(p.db.App, commit.Sinks{Audit: audit.Append, Deliveries: noDeliveries})
	var err error
	if p.access, err = access.New(t.Context(), access.Config{}, p.db.App); err != nil {
		t.Fatal(err)
	}
	p.founding = access.NewFounding("Example", "Demo", access.Pro)
	if p.tokens, err = p.access.Bootstrap(t.Context(), p.commits, p.founding); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *plane) serve(t testing.TB, config HandlerConfig, routes ...Route) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(NewHandler(config, p.access, routes))
	t.Cleanup(server.Close)
	return server
}

type exchange struct {
	status int
	header http.Header
	body   string
}

func call(t testing.TB, server *httptest.Server, method, path, body string, header ...string) exchange {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Add(header[i], header[i+1])
	}
	client := *server.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if openapitest.Ours(path) {
		openapitest.Check(t, method, path, response.StatusCode, response.Header, answer)
	}
	return exchange{response.StatusCode, response.Header, string(answer)}
}

func bearer(token string) []string { return []string{"Authorization", "Bearer " + token} }

func ok(w http.ResponseWriter, _ *http.Request, c *access.Call) error {
	return reply.JSON(w, http.StatusOK, map[string]any{"ip": c.IP, "subject": c.Caller.Subject, "key": c.Key.KeyID})
}

func TestUnknownPathAndMethodAreWorded(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	server := p.serve(t, HandlerConfig{}, Route{Method: "GET", Path: "/api/v1/audit/{id}", Needs: Public, Handle: ok},
		Route{Method: "POST", Path: "/api/v1/audit/exports", Needs: Public, Handle: ok})
	for _, path := range []string{"/", "/api/v2/projects", "/api/v1/audit/1/2", "/api//v1/audit/1", "/api/v1/./audit/1", "/api/v1/audit/../audit/1", "/api/v1/audit/"} {
		got := call(t, server, "GET", path, "")
		if got.status != 404 || got.body != `{"error":"not_found"}` || got.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	got := call(t, server, "PUT", "/api/v1/audit/1", "")
	if got.status != 405 || got.header.Get("Allow") != "GET, HEAD" || !strings.HasPrefix(got.body, `{"error":"method_not_allowed"`) {
		t.Errorf("PUT: %d %v %s", got.status, got.header["Allow"], got.body)
	}
	if got := call(t, server, "GET", "/api/v1/audit/exports", ""); got.status != 405 || got.header.Get("Allow") != "POST" {
		t.Errorf("GET of a path that only POST knows: %d %v", got.status, got.header["Allow"])
	}
	if got := call(t, server, "HEAD", "/api/v1/audit/1", ""); got.status != 200 || got.body != "" {
		t.Errorf("HEAD: %d %q", got.status, got.body)
	}
}

func TestRequestIDIsTheCallersWhenItIsFit(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	server := p.serve(t, HandlerConfig{}, Route{Method: "GET", Path: "/x", Needs: Public, Handle: ok})
	for sent, kept := range map[string]bool{"abc-1.~!": true, strings.Repeat("a", 128): true, strings.Repeat("a", 129): false, "a b": false, "é": false, "": false} {
		got := call(t, server, "GET", "/x", "", "X-Request-Id", sent).header.Get("X-Request-Id")
		if (got == sent) != kept || got == "" {
			t.Errorf("%q: %q", sent, got)
		}
	}
	if got := call(t, server, "GET", "/none", "", "X-Request-Id", "mine"); got.header.Get("X-Request-Id") != "mine" {
		t.Error("a 404 has no id")
	}
}

func TestFaultsAreAnsweredWithoutTheirWords(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	server := p.serve(t, HandlerConfig{},
		Route{Method: "GET", Path: "/panic", Needs: Public, Handle: func(http.ResponseWriter, *http.Request, *access.Call) error { panic("secret words") }},
		Route{Method: "GET", Path: "/half", Needs: Public, Handle: func(w http.ResponseWriter, _ *http.Request, _ *access.Call) error {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("half"))
			panic("secret words")
		}},
		Route{Method: "GET", Path: "/sql", Needs: Public, Handle: func(_ http.ResponseWriter, r *http.Request, _ *access.Call) error {
			_, err := p.db.App.Exec(r.Context(), `SELECT secret_words`)
			return err
		}},
	)
	for _, path := range []string{"/panic", "/sql"} {
		got := call(t, server, "GET", path, "", "X-Request-Id", "r-1")
		if got.status != 500 || got.body != `{"error":"internal","request_id":"r-1"}` {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	if response, err := server.Client().Get(server.URL + "/half"); err == nil {
		if _, err = io.ReadAll(response.Body); err == nil {
			t.Error("half an answer ended as if it were whole")
		}
		_ = response.Body.Close()
	}
	if got := call(t, server, "GET", "/nothing", ""); got.status != 404 {
		t.Errorf("the server does not go on: %d", got.status)
	}
}

func TestDatabaseAwayIs503(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	server := p.serve(t, HandlerConfig{}, Route{Method: "GET", Path: "/x", Needs: Viewer, Handle: ok}, Route{Method: "GET", Path: "/k", Needs: Key, Handle: ok})
	p.db.App.Close()
	for _, got := range []exchange{call(t, server, "GET", "/x", "", bearer(p.tokens["owner"])...), call(t, server, "GET", "/k", "", "x-api-key", p.founding.Keys["live"].Secret)} {
		if got.status != 503 || got.body != `{"error":"Service temporarily unavailable"}` {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
}

func TestEachFamilyWordsItsRefusals(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	families := map[string]Family{"management": Management, "symbols": Symbols, "audit": Audit, "pulse": Pulse, "halt": Halt, "ingestion": Ingestion}
	var routes []Route
	for name, family := range families {
		routes = append(routes, Route{Method: "GET", Path: "/jwt/" + name, Needs: Editor, Family: family, Handle: ok},
			Route{Method: "GET", Path: "/key/" + name, Needs: Key, Family: family, Handle: ok})
	}
	server := p.serve(t, HandlerConfig{}, routes...)
	for name, want := range map[string][3]string{
		"management": {"Invalid token", "Invalid token", "Permission denied"},
		"symbols":    {"missing_authorization", "invalid_token", "permission_denied"},
		"audit":      {"missing_authorization", "invalid_token", "permission_denied"},
	} {
		for i, header := range [][]string{nil, bearer(p.founding.Keys["live"].Secret), bearer(p.tokens["viewer"])} {
			got := call(t, server, "GET", "/jwt/"+name, "", header...)
			status := []int{401, 401, 403}[i]
			if got.status != status || got.body != `{"error":"`+want[i]+`"}` {
				t.Errorf("%s %d: %d %s", name, i, got.status, got.body)
			}
		}
		if got := call(t, server, "GET", "/jwt/"+name, "", bearer(p.tokens["editor"])...); got.status != 200 {
			t.Errorf("%s editor: %d", name, got.status)
		}
	}
	for name, want := range map[string]struct {
		missing, unknown string
		unknownStatus    int
	}{
		"pulse":     {"missing_api_key", "invalid_api_key", 401},
		"halt":      {"missing x-api-key", "invalid api key", 401},
		"ingestion": {"Missing API key", "Unknown API key", 403},
	} {
		if got := call(t, server, "GET", "/key/"+name, ""); got.status != 401 || got.body != `{"error":"`+want.missing+`"}` {
			t.Errorf("%s without key: %d %s", name, got.status, got.body)
		}
		for _, key := range []string{"x", "sk_live_" + strings.Repeat("a", 32), "sk_deploy_" + strings.Repeat("a", 32), p.tokens["owner"]} {
			if got := call(t, server, "GET", "/key/"+name, "", "x-api-key", key); got.status != want.unknownStatus || got.body != `{"error":"`+want.unknown+`"}` {
				t.Errorf("%s with %.9s: %d %s", name, key, got.status, got.body)
			}
		}
		if got := call(t, server, "GET", "/key/"+name, "", "x-api-key", p.founding.Keys["test"].Secret); got.status != 200 || !strings.Contains(got.body, p.founding.Keys["test"].ID) {
			t.Errorf("%s with a key: %d %s", name, got.status, got.body)
		}
	}
}

func TestForwardedAddressIsBelievedFromTrustedPeersOnly(t *testing.T) {
	t.Parallel()
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, c := range []struct {
		name, peer string
		forwarded  []string
		want       string
	}{
		{"a stranger's header", "203.0.113.9:1234", []string{"198.51.100.1"}, "203.0.113.9"},
		{"a proxy's header", "10.1.1.1:1234", []string{"198.51.100.1"}, "198.51.100.1"},
		{"what the client wrote stands left", "10.1.1.1:1234", []string{"127.0.0.1, 198.51.100.1"}, "198.51.100.1"},
		{"a chain of proxies", "10.1.1.1:1234", []string{"198.51.100.1, 10.2.2.2", "10.3.3.3"}, "198.51.100.1"},
		{"only proxies", "10.1.1.1:1234", []string{"10.2.2.2"}, "10.2.2.2"},
		{"no header", "10.1.1.1:1234", nil, "10.1.1.1"},
		{"garbage", "10.1.1.1:1234", []string{"198.51.100.1, <script>"}, "10.1.1.1"},
		{"with a port", "10.1.1.1:1234", []string{"198.51.100.1:4711, 10.2.2.2:80"}, "198.51.100.1"},
		{"six", "[fd00::1]:1234", []string{"[2001:db8::1]"}, "2001:db8::1"},
		{"mapped four", "[::ffff:10.1.1.1]:1234", []string{"::ffff:198.51.100.1"}, "198.51.100.1"},
		{"no peer", "@", []string{"198.51.100.1"}, ""},
	} {
		request := httptest.NewRequest("GET", "/", nil)
		request.RemoteAddr = c.peer
		request.Header["X-Forwarded-For"] = c.forwarded
		if got := clientAddress(request, proxies); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestBodyOverTheLimitIs413(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	read := func(w http.ResponseWriter, r *http.Request, _ *access.Call) error {
		var v struct{ Name string }
		if err := jsonbody.Strict(r, &v); err != nil {
			return err
		}
		return reply.JSON(w, 200, v)
	}
	server := p.serve(t, HandlerConfig{}, Route{Method: "POST", Path: "/x", Needs: Viewer, Handle: read})
	huge := `{"name":"` + strings.Repeat("a", 10<<20) + `"}`
	got := call(t, server, "POST", "/x", huge, bearer(p.tokens["viewer"])...)
	if got.status != 413 || !strings.HasPrefix(got.body, `{"error":"payload_too_large"`) {
		t.Errorf("declared: %d %.80s", got.status, got.body)
	}
	request, err := http.NewRequest("POST", server.URL+"/x", struct{ io.Reader }{strings.NewReader(huge)})
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+p.tokens["viewer"])
	response, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var body map[string]string
	if err := json.NewDecoder(response.Body).Decode(&body); err != nil || response.StatusCode != 413 || body["error"] != "payload_too_large" {
		t.Errorf("chunked: %d %v %v", response.StatusCode, body, err)
	}
}
