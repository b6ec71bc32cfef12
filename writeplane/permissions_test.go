package writeplane

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"skerry/pkg/id"
	"skerry/pkg/natsserver/natstest"
	"skerry/pkg/openapi/openapitest"
	"skerry/writeplane/access"
	"skerry/writeplane/blobs"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
	"skerry/writeplane/webhooks/target"
)

// line is what the specification and its supplement say of one route. The lines below
// are written from those texts; nothing of them is read from the table in routes.go,
// which only has to have a line here for each of its routes.
type line struct {
	route   string // METHOD path; {names} stand for resources of the project
	body    string
	least   string // viewer, editor, project_admin, org_admin, owner
	success int
	// own: every caller has resources of their own here, so nobody is a stranger.
	own bool
	// words of the refusals: "" for management's.
	words string
	// strange is a stranger's status where it is not 404.
	strange int
}

const (
	bySymbols = "symbols"
	byAudit   = "audit"
)

// upload is a source map as a form, in a release of its own each time.
const upload = "--frontier\r\nContent-Disposition: form-data; name=\"kind\"\r\n\r\njs_sourcemap\r\n" +
	"--frontier\r\nContent-Disposition: form-data; name=\"release\"\r\n\r\nr{n}\r\n" +
	"--frontier\r\nContent-Disposition: form-data; name=\"file\"; filename=\"app.js.map\"\r\nContent-Type: application/json\r\n\r\n" +
	`{"version":3,"sources":["a.js"],"names":[],"mappings":"AAAA"}` + "\r\n--frontier--\r\n"

var permissions = []line{
	// Supplement §2: Admin is needed to write; organization and members: org_admin.
	{"GET /api/v1/organization", "", "viewer", 200, true, "", 0},
	{"PATCH /api/v1/organization", `{"name":"Example"}`, "org_admin", 200, true, "", 0},
	{"GET /api/v1/projects", "", "viewer", 200, true, "", 0},
	{"POST /api/v1/projects", `{"name":"P{n}"}`, "org_admin", 201, true, "", 0},
	{"GET /api/v1/projects/{project}", "", "viewer", 200, false, "", 0},
	{"PATCH /api/v1/projects/{project}", `{"name":"P{n}"}`, "project_admin", 200, false, "", 0},
	{"DELETE /api/v1/projects/{fresh_project}", "", "project_admin", 200, false, "", 0},
	{"GET /api/v1/projects/{project}/usage", "", "viewer", 200, false, "", 0},
	{"GET /api/v1/projects/{project}/api-keys", "", "viewer", 200, false, "", 0},
	{"POST /api/v1/projects/{project}/api-keys", `{"name":"k","environment":"live"}`, "project_admin", 201, false, "", 0},
	{"POST /api/v1/api-keys/{key}/rotate", `{"grace_period_seconds":1}`, "project_admin", 200, false, "", 0},
	{"DELETE /api/v1/api-keys/{key}", "", "project_admin", 200, false, "", 0},
	{"GET /api/v1/members", "", "viewer", 200, true, "", 0},
	{"POST /api/v1/members", `{"email":"m{n}@example.com","role":"viewer","project_ids":[]}`, "org_admin", 201, true, "", 0},
	{"PATCH /api/v1/members/{member}", `{"role":"editor"}`, "org_admin", 200, false, "", 0},
	{"DELETE /api/v1/members/{member}", "", "org_admin", 200, false, "", 0},
	{"GET /api/v1/projects/{project}/api-tokens", "", "viewer", 200, false, "", 0},
	{"POST /api/v1/projects/{project}/api-tokens", `{"name":"t","role":"viewer","expires_in_days":1}`, "project_admin", 201, false, "", 0},
	{"DELETE /api/v1/api-tokens/{token}", "", "project_admin", 200, false, "", 0},

	// Specification, Audit endpoints: Admin; supplement §7: verify org_admin, a project's own entries viewer.
	{"GET /api/v1/audit", "", "project_admin", 200, true, byAudit, 0},
	{"GET /api/v1/audit/{entry}", "", "project_admin", 200, false, byAudit, 0},
	{"GET /api/v1/audit/verify", "", "org_admin", 200, true, byAudit, 0},
	{"GET /api/v1/projects/{project}/audit", "", "viewer", 200, false, byAudit, 0},
	{"POST /api/v1/audit/exports", `{"project_id":"{project}","since":"2020-01-01","until":"2020-01-02"}`, "project_admin", 202, false, byAudit, 0},
	{"GET /api/v1/audit/exports/{export}", "", "project_admin", 200, false, byAudit, 0},
	{"GET /api/v1/audit/export-schedules", "", "project_admin", 200, true, byAudit, 0},
	{"POST /api/v1/audit/export-schedules", `{"project_id":"{project}","frequency":"daily","delivery":{"type":"presigned_url"}}`, "project_admin", 201, false, byAudit, 0},
	{"DELETE /api/v1/audit/export-schedules/{schedule}", "", "project_admin", 200, false, byAudit, 0},

	// Supplement §8: Admin; project_admin only with an own project.
	{"GET /api/v1/webhooks/subscriptions", "", "project_admin", 200, true, "", 0},
	{"POST /api/v1/webhooks/subscriptions", `{"url":"https://hooks.example.com/{n}","events":["switch.*"],"project_id":"{project}"}`, "project_admin", 201, false, "", 0},
	{"GET /api/v1/webhooks/subscriptions/{subscription}", "", "project_admin", 200, false, "", 0},
	{"PATCH /api/v1/webhooks/subscriptions/{subscription}", `{"description":"d{n}"}`, "project_admin", 200, false, "", 0},
	{"DELETE /api/v1/webhooks/subscriptions/{subscription}", "", "project_admin", 200, false, "", 0},
	{"POST /api/v1/webhooks/subscriptions/{subscription}/rotate-secret", `{"grace_period_seconds":1}`, "project_admin", 200, false, "", 0},
	{"POST /api/v1/webhooks/subscriptions/{subscription}/test", "", "project_admin", 202, false, "", 0},
	{"POST /api/v1/webhooks/subscriptions/{subscription}/recover", `{"since":"2020-01-01T00:00:00Z","until":"2020-01-02T00:00:00Z"}`, "project_admin", 200, false, "", 0},
	{"GET /api/v1/webhooks/subscriptions/{subscription}/deliveries", "", "project_admin", 200, false, "", 0},
	{"GET /api/v1/webhooks/dead-letters", "", "project_admin", 200, true, "", 0},
	{"POST /api/v1/webhooks/deliveries/{delivery}/retry", "", "project_admin", 202, false, "", 0},

	// Specification, Authentication: versions viewer, rollback and resume editor; supplement §4 for the rest.
	{"GET /api/v1/switch/flags?project_id={project}", "", "viewer", 200, false, "", 0},
	{"POST /api/v1/switch/flags?project_id={project}", `{"environment":"live","key":"f{n}","kind":"boolean","variants":[{"key":"on","value":"true"},{"key":"off","value":"false"}],"default_variant":"off"}`, "editor", 201, false, "", 0},
	{"GET /api/v1/switch/flags/{flag}", "", "viewer", 200, false, "", 0},
	{"PATCH /api/v1/switch/flags/{flag}", `{"description":"d{n}"}`, "editor", 200, false, "", 0},
	{"POST /api/v1/switch/flags/{flag}/resume", `{}`, "editor", 200, false, "", 0},
	{"GET /api/v1/config/items?project_id={project}", "", "viewer", 200, false, "", 0},
	{"POST /api/v1/config/items?project_id={project}", `{"environment":"live","key":"i{n}","type":"int","default_value":"1"}`, "editor", 201, false, "", 0},
	{"GET /api/v1/config/items/{item}", "", "viewer", 200, false, "", 0},
	{"PATCH /api/v1/config/items/{item}", `{"default_value":"{n}"}`, "editor", 200, false, "", 0},
	{"GET /api/v1/config/items/{item}/versions", "", "viewer", 200, false, "", 0},
	{"POST /api/v1/config/items/{item}/rollback", `{"version_id":"{version}"}`, "editor", 200, false, "", 0},
	{"GET /api/v1/cohorts?project_id={project}", "", "viewer", 200, false, "", 0},
	{"POST /api/v1/cohorts?project_id={project}", `{"name":"c{n}","predicate":null,"members":["u"]}`, "editor", 201, false, "", 0},
	{"GET /api/v1/cohorts/{cohort}?project_id={project}", "", "viewer", 200, false, "", 0},
	{"PATCH /api/v1/cohorts/{cohort}?project_id={project}", `{"members":["v{n}"]}`, "editor", 200, false, "", 0},
	{"POST /api/v1/cohorts/{cohort}/members?project_id={project}", `{"add":["w{n}"],"remove":[]}`, "editor", 200, false, "", 0},
	{"DELETE /api/v1/cohorts/{cohort}?project_id={project}", "", "editor", 200, false, "", 0},

	// Supplement §5.
	{"GET /api/v1/pulse/surveys?project_id={project}", "", "viewer", 200, false, "", 0},
	{"POST /api/v1/pulse/surveys?project_id={project}", `{"name":"S","kind":"nps","slug":"s{n}","questions":[{"kind":"nps","prompt":"?","required":true,"order_index":0}]}`, "editor", 201, false, "", 0},
	{"GET /api/v1/pulse/surveys/{survey}", "", "viewer", 200, false, "", 0},
	{"PATCH /api/v1/pulse/surveys/{survey}", `{"name":"S{n}"}`, "editor", 200, false, "", 0},
	{"POST /api/v1/pulse/surveys/{survey}/publish", "", "editor", 200, false, "", 0},
	{"POST /api/v1/pulse/surveys/{published_survey}/close", "", "editor", 200, false, "", 0},
	{"POST /api/v1/pulse/surveys/{closed_survey}/reopen", "", "editor", 200, false, "", 0},
	{"POST /api/v1/pulse/surveys/{closed_survey}/archive", "", "editor", 200, false, "", 0},
	{"GET /api/v1/pulse/surveys/{survey}/responses", "", "viewer", 200, false, "", 0},
	{"GET /api/v1/pulse/surveys/{survey}/summary", "", "viewer", 200, false, "", 0},

	// Specification, Authentication: symbols viewer to read, editor to write; supplement §6.
	{"GET /api/v1/catch/symbols?project_id={project}", "", "viewer", 200, false, bySymbols, 0},
	{"POST /api/v1/catch/symbols?project_id={project}", upload, "editor", 201, false, bySymbols, 0},
	{"DELETE /api/v1/catch/symbols/{symbol}", "", "editor", 200, false, bySymbols, 0},
	{"GET /api/v1/catch/symbols/{symbol}/download", "", "viewer", 200, false, bySymbols, 0},
	{"GET /api/v1/catch/releases?project_id={project}", "", "viewer", 200, false, bySymbols, 0},
	{"DELETE /api/v1/catch/releases/{release}?project_id={project}", "", "editor", 200, false, bySymbols, 0},
	{"GET /api/v1/catch/events?project_id={project}", "", "viewer", 200, false, bySymbols, 0},
	{"GET /api/v1/catch/events/{crash}", "", "viewer", 200, false, bySymbols, 0},

	// Supplement §3: queries viewer, replay editor, erasure Admin.
	{"GET /api/v1/events?project_id={project}", "", "viewer", 200, false, "", 0},
	{"GET /api/v1/persons/{person}?project_id={project}", "", "viewer", 200, false, "", 0},
	{"GET /api/v1/persons/{person}/conflicts?project_id={project}", "", "viewer", 200, false, "", 0},
	{"DELETE /api/v1/persons/{person}?project_id={project}", "", "project_admin", 200, false, "", 0},
	{"GET /api/v1/ingest/dead-letters?project_id={project}", "", "viewer", 200, false, "", 0},
	{"POST /api/v1/ingest/dead-letters/{dead_letter}/replay", "", "editor", 200, false, "", 0},
	{"GET /api/v1/ingest/lag", "", "viewer", 200, true, "", 0},
}

// keyed are the routes that an API key opens, with their words (specification, Errors).
var keyed = []struct{ route, body, missing, unknown string }{
	{"POST /api/switch/halt-webhook", `{"flag_key":"none","reason":"r"}`, "missing x-api-key", "invalid api key"},
	{"POST /api/pulse/responses", `{}`, "missing_api_key", "invalid_api_key"},
	{"GET /api/pulse/surveys/{x}/partial?external_id=e", "", "missing_api_key", "invalid_api_key"},
	{"PUT /api/pulse/surveys/{x}/partial", `{}`, "missing_api_key", "invalid_api_key"},
	{"DELETE /api/pulse/surveys/{x}/partial?external_id=e", "", "missing_api_key", "invalid_api_key"},
}

// open are the routes that judge by something else than a caller: signatures, or nothing.
var open = []string{"GET /.well-known/jwks.json", "GET /api/v1/downloads/", "POST /api/v1/downloads/", "PUT /api/v1/downloads/",
	"PATCH /api/v1/downloads/", "DELETE /api/v1/downloads/", "PUT /internal/v1/ingest/payloads/", "GET /openapi.yaml"}

// whole is a complete plane with two organizations, the first with two projects.
type whole struct {
	t      testing.TB
	plane  *Plane
	client *http.Client
	org    access.Founding // the resources' organization
	count  int

	project, owner string // the resources' project and the organization's owner
	callers        []caller
}

// caller is somebody with a token.
type caller struct {
	name, token string
	rank        int
	stranger    bool // sees none of the project's resources
	bound       bool // the token carries a project
}

var ranks = []string{"viewer", "editor", "project_admin", "org_admin", "owner"}

func newWhole(t testing.TB) *whole {
	t.Helper()
	db, url := dbtest.NewURL(t)
	db.Close()
	plane, err := New(t.Context(), Config{
		Listen: "127.0.0.1:0", ListenOperator: "127.0.0.1:0", Postgres: postgres.Config{URL: url, MaxConns: 16}, NATS: natstest.New(t).URL,
		Blobs: blobs.Config{URL: t.TempDir()}, Webhooks: target.Config{AllowCIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- plane.Run(ctx) }()
	w := &whole{t: t, plane: plane, client: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(func() {
		w.client.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	w.org = access.NewFounding("Example", "A", access.Growth)
	tokens, err := plane.Access.Bootstrap(t.Context(), plane.Store, w.org)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere, err := plane.Access.Bootstrap(t.Context(), plane.Store, access.NewFounding("Elsewhere", "E", access.Growth))
	if err != nil {
		t.Fatal(err)
	}
	w.owner, w.project = tokens["owner"], w.org.ProjectID
	other := w.made("POST /api/v1/projects", `{"name":"B"}`, "project")
	for rank, role := range ranks[:3] {
		w.callers = append(w.callers,
			caller{role, w.tokenFor(w.project, role), rank, false, true},
			caller{role + " of another project", w.tokenFor(other, role), rank, true, true})
	}
	w.callers = append(w.callers,
		caller{"org_admin", tokens["admin"], 3, false, false}, caller{"owner", tokens["owner"], 4, false, false},
		caller{"org_admin elsewhere", elsewhere["admin"], 3, true, false}, caller{"owner elsewhere", elsewhere["owner"], 4, true, false},
		caller{"viewer elsewhere", elsewhere["viewer"], 0, true, true})
	return w
}

func (w *whole) do(method, path, body string, header ...string) (int, map[string]any) {
	w.t.Helper()
	request, err := http.NewRequestWithContext(w.t.Context(), method, w.plane.URL()+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if strings.HasPrefix(body, "--frontier") {
		request.Header.Set("Content-Type", "multipart/form-data; boundary=frontier")
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := w.client.Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	openapitest.Check(w.t, method, path, response.StatusCode, response.Header, text)
	var decoded map[string]any
	_ = json.Unmarshal(text, &decoded)
	if decoded == nil {
		decoded = map[string]any{"text": string(text)}
	}
	return response.StatusCode, decoded
}

// made is the id of a resource that the owner makes.
func (w *whole) made(route, body, resource string) string {
	w.t.Helper()
	method, path, _ := strings.Cut(route, " ")
	status, answer := w.do(method, w.fill(path, ""), w.fill(body, ""), bearer(w.owner)...)
	if status >= 300 {
		w.t.Fatalf("%s: %d %v", route, status, answer)
	}
	made, _ := member(answer, resource, "id").(string)
	if made == "" {
		w.t.Fatalf("%s: no %s.id in %v", route, resource, answer)
	}
	return made
}

func (w *whole) tokenFor(project, role string) string {
	w.t.Helper()
	status, answer := w.do("POST", "/api/v1/projects/"+project+"/api-tokens", `{"name":"`+role+`","role":"`+role+`","expires_in_days":1}`, bearer(w.owner)...)
	if status != 201 {
		w.t.Fatalf("%d %v", status, answer)
	}
	return answer["token"].(string)
}

func (w *whole) exec(sql string, args ...any) {
	w.t.Helper()
	dbtest.Exec(w.t, w.plane.db.Owner, sql, args...)
}

// fill puts resources into a path or body; each {name} is made anew.
func (w *whole) fill(text, item string) string {
	w.t.Helper()
	for strings.Contains(text, "{n}") {
		w.count++
		text = strings.Replace(text, "{n}", fmt.Sprint(w.count), 1)
	}
	text = strings.ReplaceAll(text, "{project}", w.project)
	for _, name := range []string{"key", "member", "token", "entry", "export", "schedule", "subscription", "delivery", "flag", "item", "cohort",
		"survey", "published_survey", "closed_survey", "symbol", "release", "crash", "person", "dead_letter"} {
		if strings.Contains(text, "{"+name+"}") {
			text = strings.ReplaceAll(text, "{"+name+"}", w.resource(name))
		}
	}
	if strings.Contains(text, "{version}") {
		_, answer := w.do("GET", "/api/v1/config/items/"+item+"/versions", "", bearer(w.owner)...)
		text = strings.ReplaceAll(text, "{version}", member(answer["versions"].([]any)[0], "id").(string))
	}
	return text
}

// bodyOf is the body of the line that creates.
func bodyOf(route string) string {
	for _, l := range permissions {
		if l.route == route {
			return l.body
		}
	}
	panic("no line " + route)
}

func (w *whole) create(route, resource string) string { return w.made(route, bodyOf(route), resource) }

func (w *whole) resource(name string) string {
	w.t.Helper()
	survey := func() string { return w.create("POST /api/v1/pulse/surveys?project_id={project}", "survey") }
	step := func(survey, verb string) string {
		if status, answer := w.do("POST", "/api/v1/pulse/surveys/"+survey+"/"+verb, "", bearer(w.owner)...); status != 200 {
			w.t.Fatalf("%s: %d %v", verb, status, answer)
		}
		return survey
	}
	switch name {
	case "key":
		return w.create("POST /api/v1/projects/{project}/api-keys", "api_key")
	case "member":
		return w.create("POST /api/v1/members", "member")
	case "token":
		return w.create("POST /api/v1/projects/{project}/api-tokens", "api_token")
	case "entry":
		_, answer := w.do("GET", "/api/v1/projects/"+w.project+"/audit?limit=1", "", bearer(w.owner)...)
		return member(answer["entries"].([]any)[0], "id").(string)
	case "export":
		return w.create("POST /api/v1/audit/exports", "export")
	case "schedule":
		return w.create("POST /api/v1/audit/export-schedules", "export_schedule")
	case "subscription":
		return w.create("POST /api/v1/webhooks/subscriptions", "subscription")
	case "delivery":
		return w.made("POST /api/v1/webhooks/subscriptions/{subscription}/test", "", "delivery")
	case "flag":
		return w.create("POST /api/v1/switch/flags?project_id={project}", "flag")
	case "item":
		return w.create("POST /api/v1/config/items?project_id={project}", "item")
	case "cohort":
		w.count++
		name := fmt.Sprintf("cohort%d", w.count)
		w.made("POST /api/v1/cohorts?project_id={project}", `{"name":"`+name+`","predicate":null,"members":[]}`, "cohort")
		return name
	case "survey":
		return survey()
	case "published_survey":
		return step(survey(), "publish")
	case "closed_survey":
		return step(step(survey(), "publish"), "close")
	case "symbol":
		return w.create("POST /api/v1/catch/symbols?project_id={project}", "artifact")
	case "release":
		w.resource("symbol")
		return fmt.Sprintf("r%d", w.count)
	case "crash":
		crash := id.New()
		w.exec(`INSERT INTO crash_events (id, project_id, environment, release, platform, distinct_id, timestamp, received_at, debug_ids, record, settled, pending)
			VALUES ($1, $2, 'live', 'r', 'javascript', '', now(), now(), '{}', $3, true, false)`,
			crash, w.project, []byte(`{"release":"r","platform":"javascript","exception":{"type":"E","value":"v"},"frames":[]}`))
		return crash
	case "person":
		w.count++
		person := fmt.Sprintf("person%d", w.count)
		w.exec(`INSERT INTO events (received_at, timestamp, id, project_id, number, environment, rewritten, edge, event_name, distinct_id)
			VALUES (now(), now(), gen_random_uuid(), $1, 1, 1, false, 'e', 'x', $2)`, w.project, person)
		return person
	case "dead_letter":
		letter := id.New()
		incarnation := id.New()
		w.exec(`INSERT INTO ingest_cursors (edge, lane, incarnation, ordinal, last_number, dead) VALUES ('e', 3, $1, 1, 1, 1)`, incarnation)
		w.exec(`INSERT INTO dead_letters (id, project_id, environment, lane, edge, incarnation, number, reason, distinct_id, payload, received_at)
			VALUES ($1, $2, 1, 3, 'e', $4, 1, 'test', 'somebody', $3, now())`, letter, w.project, []byte(`{"event_name":"x","distinct_id":"somebody"}`), incarnation)
		return letter
	}
	panic("no maker of " + name)
}

// words are how each family refuses (specification, Errors; supplement §2).
func words(family string) (missing, invalid, denied string) {
	if family == "" {
		return "Invalid token", "Invalid token", "Permission denied"
	}
	return "missing_authorization", "invalid_token", "permission_denied"
}

// request makes a line's request, with resources of its own where the call uses them up.
func (w *whole) request(l line, c *caller) (path, body string) {
	_, path, _ = strings.Cut(l.route, " ")
	if strings.Contains(path, "{fresh_project}") {
		fresh := w.made("POST /api/v1/projects", `{"name":"F{n}"}`, "project")
		if c != nil && c.bound && !c.stranger {
			c.token = w.tokenFor(fresh, ranks[c.rank])
		}
		return strings.ReplaceAll(path, "{fresh_project}", fresh), ""
	}
	path = w.fill(path, "")
	item := ""
	if _, rest, ok := strings.Cut(path, "/config/items/"); ok {
		item, _, _ = strings.Cut(rest, "/")
	}
	return path, w.fill(l.body, item)
}

func TestEveryRouteAsksForItsRoleAndHidesOtherProjects(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("about 1,500 calls")
	}
	w := newWhole(t)
	var table strings.Builder
	for _, l := range permissions {
		method, _, _ := strings.Cut(l.route, " ")
		missing, invalid, denied := words(l.words)
		path, body := w.request(l, nil)
		for name, try := range map[string]struct {
			header []string
			want   string
		}{
			"nobody":    {nil, missing},
			"api key":   {bearer(w.org.Keys["live"].Secret), invalid},
			"x-api-key": {[]string{"x-api-key", w.org.Keys["live"].Secret}, missing},
			"garbage":   {bearer("a.b.c"), invalid},
		} {
			if status, answer := w.do(method, path, body, try.header...); status != 401 || answer["error"] != try.want {
				t.Errorf("%s by %s: %d %v, want 401 %s", l.route, name, status, answer, try.want)
			}
		}
		fmt.Fprintf(&table, "%-75s", l.route)
		for _, c := range w.callers {
			path, body := w.request(l, &c)
			before := w.entries()
			status, answer := w.do(method, path, body, bearer(c.token)...)
			after := w.entries()
			fmt.Fprintf(&table, " %d", status)
			want, word := l.success, ""
			switch {
			case c.rank < slices.Index(ranks, l.least):
				want, word = 403, denied
			case l.least == "org_admin" && c.bound:
				want, word = 403, denied
			case c.stranger && !l.own:
				want, word = 404, "not_found"
			}
			if status != want {
				t.Errorf("%s by %s: %d %v, want %d", l.route, c.name, status, answer, want)
				continue
			}
			if want == 404 && slices.Contains([]string{"Item not found"}, fmt.Sprint(answer["error"])) {
				word = "Item not found" // specification, Errors, Config endpoints
			}
			if word != "" && answer["error"] != word {
				t.Errorf("%s by %s: %v, want %s", l.route, c.name, answer, word)
			}
			if want >= 400 && after != before {
				t.Errorf("%s by %s: refused, yet %d audit entries were written", l.route, c.name, after-before)
			}
		}
		table.WriteByte('\n')
	}
	var names []string
	for _, c := range w.callers {
		names = append(names, c.name)
	}
	t.Logf("callers: %s\n%s", strings.Join(names, ", "), &table)
}

// entries counts the organization's audit entries.
func (w *whole) entries() (count int64) {
	w.t.Helper()
	// Deliveries and exports write entries of their own in the background.
	err := w.plane.db.App.QueryRow(w.t.Context(), `SELECT count(*) FROM audit_entries WHERE organization_id = $1
		AND action NOT IN ('audit.export.delivered', 'webhook.delivery.failed')`, w.org.OrganizationID).Scan(&count)
	if err != nil {
		w.t.Fatal(err)
	}
	return count
}

func TestEveryKeyedRouteWordsItsRefusals(t *testing.T) {
	t.Parallel()
	w := newWhole(t)
	for _, k := range keyed {
		method, path, _ := strings.Cut(k.route, " ")
		path = strings.ReplaceAll(path, "{x}", "psv_none")
		for name, try := range map[string]struct {
			header []string
			want   string
		}{
			"nobody":       {nil, k.missing},
			"a JWT":        {bearer(w.owner), k.missing},
			"JWT as key":   {[]string{"x-api-key", w.owner}, k.unknown},
			"unknown key":  {[]string{"x-api-key", "sk_live_" + strings.Repeat("x", 32)}, k.unknown},
			"deploy token": {[]string{"x-api-key", "sk_deploy_" + strings.Repeat("x", 32)}, k.unknown},
		} {
			if status, answer := w.do(method, path, k.body, try.header...); status != 401 || answer["error"] != try.want {
				t.Errorf("%s by %s: %d %v, want 401 %s", k.route, name, status, answer, try.want)
			}
		}
		if status, answer := w.do(method, path, k.body, "x-api-key", w.org.Keys["live"].Secret); status == 401 || status == 403 || status >= 500 {
			t.Errorf("%s by its key: %d %v", k.route, status, answer)
		}
	}
}

func TestEveryRouteOfTheTableIsExpected(t *testing.T) {
	t.Parallel()
	w := newWhole(t)
	shape := func(route string) string {
		route, _, _ = strings.Cut(route, "?")
		var out []string
		for segment := range strings.SplitSeq(route, "/") {
			if strings.HasPrefix(segment, "{") {
				segment = "{}"
			}
			out = append(out, segment)
		}
		return strings.Join(out, "/")
	}
	expected := map[string]bool{}
	for _, l := range permissions {
		expected[shape(l.route)] = true
	}
	for _, k := range keyed {
		expected[shape(k.route)] = true
	}
	for _, route := range w.plane.table {
		name := route.Method + " " + route.Path
		if !expected[shape(name)] && !slices.ContainsFunc(open, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			t.Errorf("%s is in the table and has no line here", name)
		}
		delete(expected, shape(name))
	}
	for route := range expected {
		t.Errorf("%s is specified and not in the table", route)
	}
}
