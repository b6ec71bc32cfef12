package writeplane

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/apikey"
	"skerry/writeplane/access"
	"skerry/writeplane/postgres/dbtest"
)

// managed is a plane whose access endpoints answer.
type managed struct {
	*plane
	server *httptest.Server
}

func newManaged(t testing.TB) *managed {
	t.Helper()
	p := newPlane(t)
	return &managed{plane: p, server: p.serve(t, HandlerConfig{}, Routes(Modules{Access: access.NewModule(p.commits, p.access)})...)}
}

// as calls with a founding member's token and returns the decoded body.
func (m *managed) as(t testing.TB, member, method, path, body string, header ...string) (exchange, map[string]any) {
	t.Helper()
	return m.with(t, m.tokens[member], method, path, body, header...)
}

func (m *managed) with(t testing.TB, token, method, path, body string, header ...string) (exchange, map[string]any) {
	t.Helper()
	got := call(t, m.server, method, path, body, append(bearer(token), header...)...)
	var decoded map[string]any
	if err := json.Unmarshal([]byte(got.body), &decoded); err != nil {
		t.Fatalf("%s %s: %d %q: %v", method, path, got.status, got.body, err)
	}
	return got, decoded
}

func (m *managed) must(t testing.TB, status int, member, method, path, body string) map[string]any {
	t.Helper()
	got, decoded := m.as(t, member, method, path, body)
	if got.status != status {
		t.Fatalf("%s %s as %s: %d %s, want %d", method, path, member, got.status, got.body, status)
	}
	return decoded
}

func (m *managed) project() string { return "/api/v1/projects/" + m.founding.ProjectID }

// document is a document's body as edges get it; nil when there is none or a tombstone.
func (m *managed) document(t testing.TB, subject string) map[string]any {
	t.Helper()
	var body []byte
	err := m.db.App.QueryRow(t.Context(), `SELECT body FROM documents WHERE subject = $1`, subject).Scan(&body)
	if err == pgx.ErrNoRows || body == nil {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	var decoded map[string]any
	if err := json.Unmarshal(body, &decoded); err != nil {
		t.Fatal(err)
	}
	return decoded
}

func (m *managed) actions(t testing.TB) []string {
	t.Helper()
	rows, err := m.db.App.Query(t.Context(), `SELECT action FROM audit_entries WHERE organization_id = $1 ORDER BY seq`, m.founding.OrganizationID)
	if err != nil {
		t.Fatal(err)
	}
	actions, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return actions
}

func (m *managed) lastAction(t testing.TB) string {
	actions := m.actions(t)
	return actions[len(actions)-1]
}

func member(v any, path ...string) any {
	for _, name := range path {
		object, _ := v.(map[string]any)
		v = object[name]
	}
	return v
}

func TestProjectIsMadeChangedAndDeleted(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	made := m.must(t, 201, "admin", "POST", "/api/v1/projects", `{"name":"Second","modules":{"pulse":false},"quotas":{"events":7}}`)
	id, _ := member(made, "project", "id").(string)
	want := map[string]any{
		"id": id, "organization_id": m.founding.OrganizationID, "name": "Second", "audit_responses": false,
		"modules":     map[string]any{"switch": true, "config": true, "pulse": false, "catch": true},
		"allowlist":   map[string]any{"origins": []any{}, "cidrs": []any{}},
		"rate_limits": map[string]any{"ingest_per_minute": 500.0, "handshake_per_minute": 500.0, "decisions_per_minute": nil},
		"quotas":      map[string]any{"events": 7.0, "handshakes": nil, "responses": nil},
		"created_at":  member(made, "project", "created_at"), "updated_at": member(made, "project", "updated_at"),
	}
	if !reflect.DeepEqual(made["project"], want) {
		t.Errorf("%v\nwant %v", made["project"], want)
	}
	if _, err := time.Parse("2006-01-02T15:04:05.000Z", fmt.Sprint(want["created_at"])); err != nil {
		t.Error(err)
	}
	// Edges get the quotas in force: the project's own, else those of the tier (pro).
	document := m.document(t, "state.project."+id)
	if !reflect.DeepEqual(document["quotas"], map[string]any{"events": 7.0, "handshakes": 10_000_000.0, "responses": 50_000.0}) || document["tier"] != "pro" {
		t.Errorf("%v", document)
	}

	// Objects merge, arrays are replaced, null gives the default back.
	path := "/api/v1/projects/" + id
	m.must(t, 200, "admin", "PATCH", path, `{"allowlist":{"origins":["https://a.example","https://b.example"]},"rate_limits":{"decisions_per_minute":9}}`)
	changed := m.must(t, 200, "admin", "PATCH", path, `{"allowlist":{"origins":["https://c.example:8443"],"cidrs":["192.0.2.0/24","2001:db8::/32"]},"quotas":{"events":null},"modules":{"catch":false},"rate_limits":{"ingest_per_minute":10}}`)
	if !reflect.DeepEqual(member(changed, "project", "allowlist"), map[string]any{"origins": []any{"https://c.example:8443"}, "cidrs": []any{"192.0.2.0/24", "2001:db8::/32"}}) ||
		!reflect.DeepEqual(member(changed, "project", "rate_limits"), map[string]any{"ingest_per_minute": 10.0, "handshake_per_minute": 500.0, "decisions_per_minute": 9.0}) ||
		!reflect.DeepEqual(member(changed, "project", "modules"), map[string]any{"switch": true, "config": true, "pulse": false, "catch": false}) ||
		member(changed, "project", "quotas", "events") != nil {
		t.Errorf("%v", changed)
	}
	if got := member(m.document(t, "state.project."+id), "quotas", "events"); got != 5_000_000.0 {
		t.Errorf("events quota at edges: %v", got)
	}
	if m.lastAction(t) != "project.updated" {
		t.Error(m.actions(t))
	}

	key := m.must(t, 201, "admin", "POST", path+"/api-keys", `{"name":"k","environment":"live"}`)["secret"].(string)
	if got := m.must(t, 200, "admin", "DELETE", path, ""); got["deleted"] != true {
		t.Errorf("%v", got)
	}
	if got, _ := m.as(t, "admin", "GET", path, ""); got.status != 404 || got.body != `{"error":"not_found"}` {
		t.Errorf("after deletion: %d %s", got.status, got.body)
	}
	if m.document(t, "state.project."+id) != nil || m.document(t, "state.key."+apikey.Of(key).String()) != nil || m.document(t, "urgent.revoked."+apikey.Of(key).String()) == nil {
		t.Error("edges still know the project or its key")
	}
	if _, ok, _ := m.access.ByKey(t.Context(), key); ok {
		t.Error("the key of a deleted project holds")
	}
}

func TestProjectSettingsAreChecked(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	before, _ := m.as(t, "admin", "GET", m.project(), "")
	for body, names := range map[string]string{
		``:                             "empty",
		`[]`:                           "object",
		`{"name":""}`:                  "name",
		`{"name":null}`:                "name",
		`{"name":"a\u0000b"}`:          "name",
		`{"name":7}`:                   "name",
		`{"nope":1}`:                   "nope",
		`{"modules":{"nope":true}}`:    "nope",
		`{"modules":{"switch":"yes"}}`: "modules.switch",
		`{"allowlist":{"cidrs":["10.0.0.0/99"]}}`:              "allowlist.cidrs[0]",
		`{"allowlist":{"origins":["https://a.example/path"]}}`: "allowlist.origins[0]",
		`{"allowlist":{"origins":"https://a.example"}}`:        "allowlist.origins",
		`{"rate_limits":{"ingest_per_minute":0}}`:              "rate_limits.ingest_per_minute",
		`{"rate_limits":{"handshake_per_minute":1.5}}`:         "rate_limits.handshake_per_minute",
		`{"quotas":{"events":-1}}`:                             "quotas.events",
		`{"name":"` + strings.Repeat("x", 201) + `"}`:          "name",
		`{"id":"01890000-0000-7000-8000-000000000000"}`:        "id",
		"{\"name\":\"\xff\"}":                                  "UTF-8",
		`{"name":"a\ud800"}`:                                   "surrogate",
		`{"name":"a"} {}`:                                      "behind",
	} {
		got, decoded := m.as(t, "admin", "PATCH", m.project(), body)
		message, _ := decoded["message"].(string)
		if got.status != 400 || decoded["error"] != "invalid_body" || !strings.Contains(message, names) {
			t.Errorf("%.60q: %d %s, want %q named", body, got.status, got.body, names)
		}
	}
	if after, _ := m.as(t, "admin", "GET", m.project(), ""); after.body != before.body {
		t.Error("a refused change changed something")
	}
}

func TestIfMatchKeepsALateWriterOut(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	first, _ := m.as(t, "admin", "GET", m.project(), "")
	tag := first.header.Get("ETag")
	if tag == "" {
		t.Fatal("no ETag")
	}
	if got, _ := m.as(t, "admin", "PATCH", m.project(), `{"name":"One"}`, "If-Match", tag); got.status != 200 || got.header.Get("ETag") == tag {
		t.Fatalf("%d %s", got.status, got.body)
	}
	for method, body := range map[string]string{"PATCH": `{"name":"Two"}`, "DELETE": ""} {
		if got, decoded := m.as(t, "admin", method, m.project(), body, "If-Match", tag); got.status != 412 || decoded["error"] != "precondition_failed" {
			t.Errorf("%s: %d %s", method, got.status, got.body)
		}
	}
	if got := m.must(t, 200, "admin", "GET", m.project(), ""); member(got, "project", "name") != "One" {
		t.Errorf("%v", got)
	}
}

func TestPatchCannotRemoveWhatAResourceNeeds(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	editor := "/api/v1/members/" + m.founding.Members["editor"].ID
	for _, c := range []struct{ path, member string }{
		{"/api/v1/organization", "name"}, {"/api/v1/organization", "tier"}, {m.project(), "name"}, {editor, "role"}, {editor, "project_ids"},
	} {
		got, decoded := m.as(t, "owner", "PATCH", c.path, `{"`+c.member+`":null}`)
		if text, _ := decoded["message"].(string); got.status != 400 || decoded["error"] != "invalid_body" || !strings.Contains(text, c.member) {
			t.Errorf("%s without %s: %d %s", c.path, c.member, got.status, got.body)
		}
	}
}

func TestKeyIsShownOnceRotatedWithGraceAndRevoked(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	got, made := m.as(t, "admin", "POST", m.project()+"/api-keys", `{"name":"mobile","environment":"test"}`)
	secret, _ := made["secret"].(string)
	key, _ := made["api_key"].(map[string]any)
	if got.status != 201 || len(secret) != 40 || !strings.HasPrefix(secret, "sk_test_") || key["prefix"] != secret[:12] ||
		key["environment"] != "test" || key["name"] != "mobile" || key["last_used_at"] != nil || key["revoked_at"] != nil || len(key) != 7 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	subject := func(s string) string { return "state.key." + apikey.Of(s).String() }
	if document := m.document(t, subject(secret)); document["project_id"] != m.founding.ProjectID || document["environment"] != "test" || document["expires_at"] != nil {
		t.Errorf("%v", document)
	}
	path := "/api/v1/api-keys/" + key["id"].(string)
	rotated := m.must(t, 200, "admin", "POST", path+"/rotate", `{"grace_period_seconds":60}`)
	second, _ := rotated["secret"].(string)
	if member(rotated, "api_key", "id") != key["id"] || second == secret || !strings.HasPrefix(second, "sk_test_") || member(rotated, "api_key", "prefix") != second[:12] {
		t.Fatalf("%v", rotated)
	}
	for name, text := range map[string]string{"old": secret, "new": second} {
		if identity, ok, err := m.access.ByKey(t.Context(), text); !ok || err != nil || identity.KeyID != key["id"] {
			t.Errorf("%s secret within the grace: %v %v", name, ok, err)
		}
	}
	ends, err := time.Parse(time.RFC3339, fmt.Sprint(m.document(t, subject(secret))["expires_at"]))
	if left := time.Until(ends); err != nil || left < 50*time.Second || left > 60*time.Second {
		t.Errorf("grace at edges: %v %v", left, err)
	}
	// A longer grace at the next rotation gives the first secret no more time.
	third := m.must(t, 200, "admin", "POST", path+"/rotate", `{"grace_period_seconds":600}`)["secret"].(string)
	again, _ := time.Parse(time.RFC3339, fmt.Sprint(m.document(t, subject(secret))["expires_at"]))
	if !again.Equal(ends) {
		t.Errorf("the first secret's end moved to %v", again)
	}
	// No grace: the others end at once, at edges by the urgent lane.
	fourth := m.must(t, 200, "admin", "POST", path+"/rotate", `{"grace_period_seconds":0}`)["secret"].(string)
	for _, text := range []string{secret, second, third} {
		if _, ok, _ := m.access.ByKey(t.Context(), text); ok || m.document(t, subject(text)) != nil || m.document(t, "urgent.revoked."+apikey.Of(text).String()) == nil {
			t.Error("a secret without grace holds")
		}
	}
	for range 2 { // revoking again is no fault
		m.must(t, 200, "admin", "DELETE", path, "")
	}
	if _, ok, _ := m.access.ByKey(t.Context(), fourth); ok || m.document(t, "urgent.revoked."+apikey.Of(fourth).String()) == nil {
		t.Error("a revoked key holds")
	}
	if got, decoded := m.as(t, "admin", "POST", path+"/rotate", `{}`); got.status != 409 || decoded["error"] != "revoked" {
		t.Errorf("%d %s", got.status, got.body)
	}
	list := m.must(t, 200, "viewer", "GET", m.project()+"/api-keys", "")
	newest := list["api_keys"].([]any)[0].(map[string]any)
	if newest["id"] != key["id"] || newest["revoked_at"] == nil || strings.Contains(fmt.Sprint(list), fourth) {
		t.Errorf("%v", list)
	}
	actions := strings.Join(m.actions(t), " ")
	if !strings.HasSuffix(actions, "api_key.created api_key.rotated api_key.rotated api_key.rotated api_key.revoked") {
		t.Error(actions)
	}
	trail := dbtest.One[string](t, m.db.App, `SELECT string_agg(to_jsonb(e)::text, '') FROM audit_entries e`)
	for _, text := range []string{secret, second, third, fourth} {
		if strings.Contains(trail, text) {
			t.Error("a secret is in the audit log")
		}
	}
}

func TestGraceOfARotationIsChecked(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	path := "/api/v1/api-keys/" + m.founding.Keys["test"].ID + "/rotate"
	for _, body := range []string{`{"grace_period_seconds":-1}`, `{"grace_period_seconds":99999999999}`, `{"grace_period_seconds":"1"}`, `{"grace":1}`} {
		if got, decoded := m.as(t, "admin", "POST", path, body); got.status != 400 || decoded["error"] != "invalid_body" {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
}

func TestMembersAndTheirRoles(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	made := m.must(t, 201, "admin", "POST", "/api/v1/members", `{"email":"new@example.com","role":"editor","project_ids":["`+m.founding.ProjectID+`"]}`)
	path := "/api/v1/members/" + member(made, "member", "id").(string)
	if got, decoded := m.as(t, "admin", "POST", "/api/v1/members", `{"email":"NEW@example.com","role":"viewer","project_ids":[]}`); got.status != 409 || decoded["error"] != "already_exists" {
		t.Errorf("twice: %d %s", got.status, got.body)
	}
	if got, decoded := m.as(t, "admin", "POST", "/api/v1/members", `{"email":"boss@example.com","role":"owner"}`); got.status != 403 || decoded["error"] != "Permission denied" {
		t.Errorf("a role above one's own: %d %s", got.status, got.body)
	}
	if got, _ := m.as(t, "admin", "PATCH", path, `{"role":"owner"}`); got.status != 403 {
		t.Errorf("a role above one's own by PATCH: %d", got.status)
	}
	owner := "/api/v1/members/" + m.founding.Members["owner"].ID
	for method, body := range map[string]string{"PATCH": `{"role":"viewer"}`, "DELETE": ""} {
		if got, _ := m.as(t, "admin", method, owner, body); got.status != 403 {
			t.Errorf("%s of a member above: %d", method, got.status)
		}
		if got, decoded := m.as(t, "owner", method, owner, body); got.status != 409 || decoded["error"] != "last_owner" {
			t.Errorf("%s of the last owner: %d %s", method, got.status, got.body)
		}
	}
	changed := m.must(t, 200, "admin", "PATCH", path, `{"role":"viewer","project_ids":[]}`)
	if member(changed, "member", "role") != "viewer" || len(member(changed, "member", "project_ids").([]any)) != 0 || m.lastAction(t) != "member.role.updated" {
		t.Errorf("%v", changed)
	}
	m.must(t, 200, "admin", "DELETE", path, "")
	if got, _ := m.as(t, "admin", "PATCH", path, `{}`); got.status != 404 {
		t.Errorf("after removal: %d", got.status)
	}
	// The address is free again.
	m.must(t, 201, "admin", "POST", "/api/v1/members", `{"email":"new@example.com","role":"viewer","project_ids":[]}`)
	for _, body := range []string{`{"role":"viewer"}`, `{"email":"no-at","role":"viewer"}`, `{"email":"a@b.c"}`, `{"email":"a@b.c","role":"king"}`,
		`{"email":"a@b.c","role":"viewer","project_ids":["x"]}`, `{"email":"a@b.c","role":"viewer","project_ids":["01890000-0000-7000-8000-000000000000"]}`} {
		if got, decoded := m.as(t, "admin", "POST", "/api/v1/members", body); got.status != 400 || decoded["error"] != "invalid_body" {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
}

func TestMemberOfADeletedProjectIsStillDemoted(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	gone := member(m.must(t, 201, "admin", "POST", "/api/v1/projects", `{"name":"Gone"}`), "project", "id").(string)
	made := m.must(t, 201, "admin", "POST", "/api/v1/members", `{"email":"new@example.com","role":"project_admin","project_ids":["`+gone+`","`+m.founding.ProjectID+`"]}`)
	path := "/api/v1/members/" + member(made, "member", "id").(string)
	m.must(t, 200, "admin", "DELETE", "/api/v1/projects/"+gone, "")
	if changed := m.must(t, 200, "admin", "PATCH", path, `{"role":"viewer"}`); member(changed, "member", "role") != "viewer" {
		t.Errorf("%v", changed)
	}
	// It is given to nobody anew.
	m.must(t, 200, "admin", "PATCH", path, `{"project_ids":["`+m.founding.ProjectID+`"]}`)
	if got, _ := m.as(t, "admin", "PATCH", path, `{"project_ids":["`+gone+`"]}`); got.status != 400 {
		t.Errorf("a deleted project: %d %s", got.status, got.body)
	}
}

func TestListsOfProjectsAreBounded(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	ids := make([]string, 1001)
	for i := range ids {
		ids[i] = fmt.Sprintf("01890000-0000-7000-8000-%012d", i)
	}
	list, _ := json.Marshal(ids)
	for method, path := range map[string]string{"POST": "/api/v1/members", "PATCH": "/api/v1/members/" + m.founding.Members["viewer"].ID} {
		body := map[string]string{"POST": `{"email":"a@b.c","role":"viewer","project_ids":` + string(list) + `}`, "PATCH": `{"project_ids":` + string(list) + `}`}[method]
		if got, _ := m.as(t, "admin", method, path, body); got.status != 400 || !strings.Contains(got.body, "project_ids has more than 1000 entries") {
			t.Errorf("%s: %d %s", method, got.status, got.body)
		}
	}
}

// Every change of an owner concerns all owners, whose rows it holds. None of those that meet may end in a deadlock, and
// one owner is left whatever they meant to do.
func TestOwnersWhoChangeEachOtherAtOnce(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	owners := []string{"/api/v1/members/" + m.founding.Members["owner"].ID}
	for i := range 3 {
		made := m.must(t, 201, "owner", "POST", "/api/v1/members", fmt.Sprintf(`{"email":"o%d@example.com","role":"owner","project_ids":[]}`, i))
		owners = append(owners, "/api/v1/members/"+member(made, "member", "id").(string))
	}
	for round := range 8 {
		var wg sync.WaitGroup
		for i, path := range owners {
			wg.Go(func() {
				method, body := "PATCH", `{"role":"org_admin"}`
				if i == 3 && round == 7 {
					method, body = "DELETE", ""
				}
				// 200; 409 for the last; 403 or 401 for whose own role was lowered meanwhile.
				if got := call(t, m.server, method, path, body, bearer(m.tokens["owner"])...); got.status >= 500 {
					t.Errorf("%s %s: %d %s", method, path, got.status, got.body)
				}
			})
		}
		wg.Wait()
		if left := dbtest.One[int](t, m.db.App, `SELECT count(*) FROM members WHERE role = 'owner' AND removed_at IS NULL`); left < 1 {
			t.Fatalf("%d owners are left", left)
		}
		dbtest.Exec(t, m.db.App, `UPDATE members SET role = 'owner' WHERE email LIKE 'o%'`)
	}
}

func TestRemovedMembersAndRevokedTokensAreRefusedAtOnce(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	got, made := m.as(t, "admin", "POST", m.project()+"/api-tokens", `{"name":"ci","role":"editor","expires_in_days":30}`)
	token, _ := made["token"].(string)
	if got.status != 201 || strings.Count(token, ".") != 2 || member(made, "api_token", "role") != "editor" || member(made, "api_token", "project_id") != m.founding.ProjectID {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if got, _ := m.with(t, token, "GET", m.project(), ""); got.status != 200 {
		t.Fatalf("the new token: %d", got.status)
	}
	path := "/api/v1/api-tokens/" + member(made, "api_token", "id").(string)
	m.must(t, 200, "admin", "DELETE", path, "")
	if got, _ := m.with(t, token, "GET", m.project(), ""); got.status != 401 || got.body != `{"error":"Invalid token"}` {
		t.Errorf("revoked: %d %s", got.status, got.body)
	}
	m.must(t, 200, "admin", "DELETE", "/api/v1/members/"+m.founding.Members["editor"].ID, "")
	if got, _ := m.as(t, "editor", "GET", m.project(), ""); got.status != 401 || got.body != `{"error":"Invalid token"}` {
		t.Errorf("removed: %d %s", got.status, got.body)
	}
	if got, _ := m.as(t, "admin", "POST", m.project()+"/api-tokens", `{"name":"ci","role":"owner"}`); got.status != 403 {
		t.Errorf("a role above one's own: %d", got.status)
	}
	for _, body := range []string{`{"role":"viewer"}`, `{"name":"x"}`, `{"name":"x","role":"viewer","expires_in_days":0}`, `{"name":"x","role":"viewer","expires_in_days":99999}`} {
		if got, decoded := m.as(t, "admin", "POST", m.project()+"/api-tokens", body); got.status != 400 || decoded["error"] != "invalid_body" {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
}

// A request that was begun before its caller lost their rights and ends afterwards.
func TestBodyHeldBackDoesNotOutliveItsCallersRights(t *testing.T) {
	t.Parallel()
	admin := func(m *managed) string { return "/api/v1/members/" + m.founding.Members["admin"].ID }
	for name, loss := range map[string]struct {
		lose   func(t *testing.T, m *managed)
		status int
		body   string // "": not looked at
	}{
		"removed": {func(t *testing.T, m *managed) { m.must(t, 200, "owner", "DELETE", admin(m), "") }, 401, `{"error":"Invalid token"}`},
		"lowered": {func(t *testing.T, m *managed) { m.must(t, 200, "owner", "PATCH", admin(m), `{"role":"viewer"}`) }, 403, `{"error":"Permission denied"}`},
		"kept":    {func(*testing.T, *managed) {}, 201, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t)
			admitted := make(chan struct{}, 1)
			routes := Routes(Modules{Access: access.NewModule(p.commits, p.access)})
			for i, route := range routes {
				if route.Method == "POST" && route.Path == "/api/v1/members" {
					routes[i].Handle = func(w http.ResponseWriter, r *http.Request, c *access.Call) error {
						admitted <- struct{}{}
						return route.Handle(w, r, c)
					}
				}
			}
			m := &managed{plane: p, server: p.serve(t, HandlerConfig{AdmittedFor: time.Nanosecond}, routes...)}
			body, rest := io.Pipe()
			request, err := http.NewRequestWithContext(t.Context(), "POST", m.server.URL+"/api/v1/members", body)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Authorization", "Bearer "+m.tokens["admin"])
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				response, err := m.server.Client().Do(request)
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = response.Body.Close() }()
				answer, err := io.ReadAll(response.Body)
				if err != nil || response.StatusCode != loss.status || loss.body != "" && string(answer) != loss.body {
					t.Errorf("%d %s, %v; want %d %s", response.StatusCode, answer, err, loss.status, loss.body)
				}
			}()
			<-admitted
			loss.lose(t, m)
			_, _ = io.WriteString(rest, `{"email":"friend@example.com","role":"org_admin"}`)
			_ = rest.Close()
			<-answered
		})
	}
}

func TestTierIsTheOwnersAndChangesEveryProjectsQuotas(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	if got := m.must(t, 200, "viewer", "GET", "/api/v1/organization", ""); member(got, "organization", "tier") != "pro" || member(got, "organization", "name") != "Example" {
		t.Errorf("%v", got)
	}
	m.must(t, 200, "admin", "PATCH", "/api/v1/organization", `{"name":"Renamed"}`)
	if got, _ := m.as(t, "admin", "PATCH", "/api/v1/organization", `{"tier":"growth"}`); got.status != 403 {
		t.Errorf("tier by org_admin: %d", got.status)
	}
	changed := m.must(t, 200, "owner", "PATCH", "/api/v1/organization", `{"tier":"hobby"}`)
	if member(changed, "organization", "tier") != "hobby" || member(changed, "organization", "name") != "Renamed" {
		t.Errorf("%v", changed)
	}
	if got := m.document(t, "state.project."+m.founding.ProjectID); !reflect.DeepEqual(got["quotas"], map[string]any{"events": 100_000.0, "handshakes": 100_000.0, "responses": 1_000.0}) || got["tier"] != "hobby" {
		t.Errorf("%v", got)
	}
	if got, _ := m.as(t, "owner", "PATCH", "/api/v1/organization", `{"tier":"gold"}`); got.status != 400 {
		t.Errorf("an unknown tier: %d", got.status)
	}
	m.must(t, 200, "owner", "PATCH", "/api/v1/organization", `{"tier":"enterprise"}`)
	if got := m.document(t, "state.project."+m.founding.ProjectID); !reflect.DeepEqual(got["quotas"], map[string]any{"events": nil, "handshakes": nil, "responses": nil}) {
		t.Errorf("%v", got)
	}
}

func TestUsageAddsUpWhatEdgesAndResponsesCounted(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	_, err := m.db.App.Exec(t.Context(), `
		INSERT INTO usage_counts (project_id, month, metric, source, value) VALUES
			($1, date_trunc('month', now() AT TIME ZONE 'UTC'), 'events', 'e1', 4000000), ($1, date_trunc('month', now() AT TIME ZONE 'UTC'), 'events', 'e2', 800000),
			($1, date_trunc('month', now() AT TIME ZONE 'UTC'), 'handshakes', 'e1/1', 7), ($1, '2020-01-01', 'events', 'e1', 3)`, m.founding.ProjectID)
	if err != nil {
		t.Fatal(err)
	}
	got := m.must(t, 200, "viewer", "GET", m.project()+"/usage", "")["usage"].(map[string]any)
	if !reflect.DeepEqual(got["events"], map[string]any{"current": 4_800_000.0, "limit": 5_000_000.0, "percent": 96.0, "warning": 95.0}) ||
		!reflect.DeepEqual(got["handshakes"], map[string]any{"current": 7.0, "limit": 10_000_000.0, "percent": 0.0, "warning": nil}) ||
		member(got, "responses", "current") != 0.0 || got["month"] != time.Now().UTC().Format("2006-01") {
		t.Errorf("%v", got)
	}
	past := m.must(t, 200, "viewer", "GET", m.project()+"/usage?month=2020-01", "")
	if member(past, "usage", "events", "current") != 3.0 {
		t.Errorf("%v", past)
	}
	if got, decoded := m.as(t, "viewer", "GET", m.project()+"/usage?month=x", ""); got.status != 400 || decoded["error"] != "invalid_body" {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestListsPageByCursorsBoundToTheirFilters(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	for i := range 5 {
		m.must(t, 201, "admin", "POST", "/api/v1/projects", fmt.Sprintf(`{"name":"P%d"}`, i))
	}
	var names []string
	path := "/api/v1/projects?limit=2"
	for path != "" {
		got := m.must(t, 200, "admin", "GET", path, "")
		for _, project := range got["projects"].([]any) {
			names = append(names, member(project, "name").(string))
		}
		next, _ := got["next_cursor"].(string)
		if (next != "") != got["has_more"].(bool) {
			t.Fatalf("%v", got)
		}
		path = ""
		if next != "" {
			path = "/api/v1/projects?limit=2&cursor=" + next
		}
	}
	if strings.Join(names, " ") != "P4 P3 P2 P1 P0 Demo" {
		t.Error(names)
	}
	cursor := m.must(t, 200, "admin", "GET", "/api/v1/projects?limit=1", "")["next_cursor"].(string)
	flipped := []byte(cursor)
	flipped[len(flipped)/2] ^= 1
	for name, path := range map[string]string{
		"altered": "/api/v1/projects?cursor=" + string(flipped), "other list": "/api/v1/members?cursor=" + cursor,
		"other filters": "/api/v1/projects?x=1&cursor=" + cursor, "garbage": "/api/v1/projects?cursor=%00",
	} {
		if got, decoded := m.as(t, "admin", "GET", path, ""); got.status != 400 || decoded["error"] != "invalid_cursor" {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	for _, limit := range []string{"0", "201", "-1", "x", "", "1.5"} {
		if got, decoded := m.as(t, "admin", "GET", "/api/v1/projects?limit="+limit, ""); got.status != 400 || decoded["error"] != "invalid_limit" {
			t.Errorf("limit %q: %d %s", limit, got.status, got.body)
		}
	}
	if got := m.must(t, 200, "viewer", "GET", "/api/v1/projects", ""); len(got["projects"].([]any)) != 1 {
		t.Errorf("a token of one project sees %v", got)
	}
}

func TestManagementInParallelNeitherDeadlocksNorLosesAnything(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	key := member(m.must(t, 201, "admin", "POST", m.project()+"/api-keys", `{"name":"k","environment":"live"}`), "api_key", "id").(string)
	before := len(m.actions(t))
	const rounds = 12
	var wg sync.WaitGroup
	run := func(member, method, path string, body func(i int) string) {
		wg.Go(func() {
			for i := range rounds {
				got := call(t, m.server, method, path, body(i), bearer(m.tokens[member])...)
				if got.status >= 300 {
					t.Errorf("%s %s: %d %s", method, path, got.status, got.body)
				}
			}
		})
	}
	run("owner", "PATCH", "/api/v1/organization", func(i int) string { return []string{`{"tier":"growth"}`, `{"tier":"pro"}`}[i%2] })
	run("admin", "PATCH", m.project(), func(i int) string { return fmt.Sprintf(`{"name":"N%d"}`, i) })
	run("owner", "POST", m.project()+"/api-keys", func(int) string { return `{"name":"x","environment":"test"}` })
	run("admin", "POST", "/api/v1/api-keys/"+key+"/rotate", func(int) string { return `{"grace_period_seconds":5}` })
	run("owner", "POST", "/api/v1/members", func(i int) string {
		return fmt.Sprintf(`{"email":"p%d@example.com","role":"viewer","project_ids":["%s"]}`, i, m.founding.ProjectID)
	})
	run("admin", "POST", "/api/v1/projects", func(i int) string { return fmt.Sprintf(`{"name":"P%d"}`, i) })
	wg.Wait()
	if got := len(m.actions(t)) - before; got != 6*rounds {
		t.Errorf("%d audit entries for %d mutations", got, 6*rounds)
	}
	// The last change of tier holds for every project, those made meanwhile too.
	var differing int
	err := m.db.App.QueryRow(t.Context(), `
		SELECT count(*) FROM documents d JOIN projects p ON d.subject = 'state.project.' || p.id JOIN organizations o ON o.id = p.organization_id
		WHERE convert_from(d.body, 'UTF8')::jsonb->>'tier' <> o.tier`).Scan(&differing)
	if err != nil || differing != 0 {
		t.Errorf("%d projects of another tier at edges, %v", differing, err)
	}
}
