package writeplane

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/decide"
	"skerry/pkg/state"
	"skerry/replication"
	"skerry/writeplane/access"
	"skerry/writeplane/audit"
	"skerry/writeplane/cohorts"
	"skerry/writeplane/commit"
	"skerry/writeplane/flags"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
	"skerry/writeplane/remoteconfig"
)

// decisions is a plane with the modules of decisions behind a real server.
type decisions struct {
	*plane
	t      testing.TB
	server *httptest.Server

	mu     sync.Mutex
	events []commit.Event
}

func newDecisions(t testing.TB) *decisions {
	t.Helper()
	d := &decisions{plane: newPlane(t), t: t}
	store := commit.New(d.db.App, commit.Sinks{Audit: audit.Append, Deliveries: func(ctx context.Context, tx *postgres.Pipeline, events []commit.Event, _ []commit.Entry) (func([]commit.StoredEntry) error, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.events = append(d.events, events...)
		return func([]commit.StoredEntry) error { return nil }, tx.Settle(ctx)
	}})
	d.server = d.serve(t, HandlerConfig{}, Routes(Modules{
		Flags: flags.New(store, d.access), RemoteConfig: remoteconfig.New(store, d.access), Cohorts: cohorts.New(store, d.access),
	})...)
	return d
}

// as calls with a role's token.
func (d *decisions) as(role, method, path, body string, header ...string) exchange {
	d.t.Helper()
	return call(d.t, d.server, method, path, body, append(bearer(d.tokens[role]), header...)...)
}

// must calls as editor and fails the test unless the status is the wanted one.
func (d *decisions) must(status int, method, path, body string) map[string]any {
	d.t.Helper()
	got := d.as("editor", method, path, body)
	if got.status != status {
		d.t.Fatalf("%s %s: %d %s, want %d", method, path, got.status, got.body, status)
	}
	var members map[string]any
	if err := json.Unmarshal([]byte(got.body), &members); err != nil {
		d.t.Fatal(err)
	}
	return members
}

func (d *decisions) halt(env, body string) exchange {
	d.t.Helper()
	return call(d.t, d.server, "POST", "/api/switch/halt-webhook", body, "x-api-key", d.founding.Keys[env].Secret)
}

// document reads a document's body into v; ok is false for a tombstone or nothing.
func (d *decisions) document(subject replication.Subject, v any) (ok bool) {
	d.t.Helper()
	var body []byte
	err := d.db.App.QueryRow(d.t.Context(), `SELECT coalesce((SELECT body FROM documents WHERE subject = $1), ''::bytea)`, string(subject)).Scan(&body)
	if err != nil {
		d.t.Fatal(err)
	}
	if len(body) == 0 {
		return false
	}
	if err := json.Unmarshal(body, v); err != nil {
		d.t.Fatal(err)
	}
	return true
}

// audited lists the actions of a resource's entries, oldest first, with who did it.
func (d *decisions) audited(resource string) []string {
	d.t.Helper()
	rows, err := d.db.App.Query(d.t.Context(), `SELECT action || ' by ' || CASE WHEN actor_id LIKE 'system:%' THEN actor_id ELSE actor_email END
		FROM audit_entries WHERE resource_id = $1 ORDER BY seq`, resource)
	if err != nil {
		d.t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		d.t.Fatal(err)
	}
	return found
}

func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}

func (d *decisions) equal(what string, got, want any) {
	d.t.Helper()
	g, _ := json.Marshal(got)
	w, _ := json.Marshal(want)
	if string(g) != string(w) {
		d.t.Errorf("%s is %s, want %s", what, g, w)
	}
}

const checkoutFlag = `{"environment":"live","key":"checkout","kind":"boolean","default_variant":"off",
	"variants":[{"key":"on","value":"true"},{"key":"off","value":"false"}],
	"rule":{"rollout":{"buckets":[{"variant":"on","percentage":25}]}}}`

func TestHaltIsOneStepHoweverManyAskForIt(t *testing.T) {
	t.Parallel()
	d := newDecisions(t)
	id := at(d.must(201, "POST", "/api/v1/switch/flags", checkoutFlag), "flag", "id").(string)
	answers := make([]exchange, 40)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			answers[i] = d.halt("live", `{"flag_key":"checkout","reason":"errors up","evidence_url":"https://e.example/1"}`)
		})
	}
	all.Wait()
	for _, a := range answers {
		if a.status != 200 || a.body != answers[0].body {
			t.Fatalf("%d %s\nanother was %s", a.status, a.body, answers[0].body)
		}
	}
	var body map[string]any
	_ = json.Unmarshal([]byte(answers[0].body), &body)
	d.equal("version", at(body, "flag", "current_version"), 2)
	d.equal("reason", at(body, "flag", "halt_reason"), "errors up")
	members := []string{}
	for name := range at(body, "flag").(map[string]any) {
		members = append(members, name)
	}
	slices.Sort(members)
	d.equal("members of the flag", members, []string{"created_at", "current_version", "default_value", "default_variant", "description", "environment",
		"halt_condition", "halt_reason", "halted_at", "id", "is_archived", "key", "kind", "project_id", "updated_at"})
	if len(d.events) != 1 || d.events[0].Name != "switch.flag.halted" || d.events[0].Environment != "live" {
		t.Errorf("events %v", d.events)
	}
	d.equal("audit", d.audited(id), []string{"switch.flag.created by " + d.email(t, "editor"), "switch.flag.halted by system:halt-webhook"})
	var halt state.Halt
	if !d.document(replication.HaltSubject(d.founding.ProjectID, "live", "checkout"), &halt) || halt.Version != 2 || halt.DefaultValue != "false" {
		t.Errorf("document of the halt: %+v", halt)
	}

	// Resume, by key; then once more, which changes nothing.
	resumed := d.must(200, "POST", "/api/v1/switch/flags/checkout/resume", `{"environment":"live","note":"fixed"}`)
	d.equal("version", at(resumed, "flag", "current_version"), 3)
	d.equal("halted_at", at(resumed, "flag", "halted_at"), nil)
	again := d.must(200, "POST", "/api/v1/switch/flags/"+id+"/resume", "")
	d.equal("second resume", again, resumed)
	if d.document(replication.HaltSubject(d.founding.ProjectID, "live", "checkout"), &halt) {
		t.Error("the halt's document is still there")
	}
	var flag state.Flag
	if !d.document(replication.FlagSubject(d.founding.ProjectID, "live", "checkout"), &flag) || flag.Version != 3 {
		t.Errorf("document of the flag: %+v", flag)
	}
	if a := d.audited(id); len(a) != 3 || !strings.HasPrefix(a[2], "switch.flag.unhalted") {
		t.Errorf("audit %v", a)
	}
}

func (d *decisions) email(t testing.TB, role string) string {
	t.Helper()
	c, err := d.access.Authenticate(t.Context(), "Bearer "+d.tokens[role])
	if err != nil {
		t.Fatal(err)
	}
	return c.Email
}

func TestHaltWordsItsRefusalsInOrder(t *testing.T) {
	t.Parallel()
	d := newDecisions(t)
	d.must(201, "POST", "/api/v1/switch/flags", checkoutFlag)
	id := at(d.must(201, "POST", "/api/v1/switch/flags", strings.Replace(checkoutFlag, `"checkout"`, `"old"`, 1)), "flag", "id").(string)
	d.must(200, "PATCH", "/api/v1/switch/flags/"+id, `{"is_archived":true}`)
	for _, c := range []struct {
		body   string
		status int
		want   string
	}{
		{``, 400, `{"error":"flag_key is required"}`},
		{`not json`, 400, `{"error":"flag_key is required"}`},
		{`[]`, 400, `{"error":"flag_key is required"}`},
		{`{"environment":"nowhere"}`, 400, `{"error":"flag_key is required"}`},
		{`{"flag_key":7,"reason":"r"}`, 400, `{"error":"flag_key is required"}`},
		{`{"flag_key":"checkout"}`, 400, `{"error":"reason is required"}`},
		{`{"flag_key":"checkout","reason":"","environment":"nowhere"}`, 400, `{"error":"reason is required"}`},
		{`{"flag_key":"checkout","reason":"r","environment":"nowhere"}`, 400, `{"error":"environment must be live or test"}`},
		{`{"flag_key":"checkout","reason":"r","environment":7}`, 400, `{"error":"environment must be live or test"}`},
		{`{"flag_key":"checkout","reason":"r","environment":"test"}`, 404, `{"error":"flag not found"}`},
		{`{"flag_key":"none","reason":"r"}`, 404, `{"error":"flag not found"}`},
		{`{"flag_key":"old","reason":"r"}`, 404, `{"error":"flag not found"}`},
		{`{"flag_key":"a\u0000b","reason":"r"}`, 404, `{"error":"flag not found"}`},
		{`{"flag_key":"a\ud800b","reason":"r"}`, 404, `{"error":"flag not found"}`},
		{"{\"flag_key\":\"checkout\",\"reason\":\"\xff\"}", 400, `{"error":"flag_key is required"}`},
	} {
		if got := d.halt("live", c.body); got.status != c.status || got.body != c.want {
			t.Errorf("%s: %d %s, want %d %s", c.body, got.status, got.body, c.status, c.want)
		}
	}
	// A member that nobody needs may be anything, and a text may have been cut within an emoji.
	body := `{"flag_key":"checkout","reason":"r\ud83d","environment":null,"evidence_url":7,"error_rate":1e999,"title":"\ud83d"}`
	if got := d.halt("live", body); got.status != 200 || !strings.Contains(got.body, "\"halt_reason\":\"r\ufffd\"") {
		t.Errorf("%s: %d %s", body, got.status, got.body)
	}
	if got := call(t, d.server, "POST", "/api/switch/halt-webhook", `{}`); got.status != 401 || got.body != `{"error":"missing x-api-key"}` {
		t.Errorf("no key: %d %s", got.status, got.body)
	}
	if got := call(t, d.server, "POST", "/api/switch/halt-webhook", `{}`, "x-api-key", "sk_live_nobody"); got.status != 401 || got.body != `{"error":"invalid api key"}` {
		t.Errorf("wrong key: %d %s", got.status, got.body)
	}
	dbtest.Exec(t, d.db.Owner, `UPDATE projects SET modules = jsonb_set(modules, '{switch}', 'false')`)
	if got := d.halt("live", `{"flag_key":"checkout","reason":"r"}`); got.status != 403 || got.body != `{"error":"Switch disabled: module disabled"}` {
		t.Errorf("module off: %d %s", got.status, got.body)
	}
	if got := d.halt("live", `{"flag_key":"checkout"}`); got.status != 400 {
		t.Errorf("module off, no reason: %d %s", got.status, got.body)
	}
}

func TestFlagVersionsCountWhatIsDecided(t *testing.T) {
	t.Parallel()
	d := newDecisions(t)
	made := d.must(201, "POST", "/api/v1/switch/flags", checkoutFlag)
	id := at(made, "flag", "id").(string)
	d.equal("default_value", at(made, "flag", "default_value"), "false")
	d.equal("enabled", at(made, "flag", "enabled"), true)
	d.equal("end of the first range", at(made, "flag", "rule", "rollout", "buckets", 0, "end"), 25000)
	salt := at(made, "flag", "rule", "rollout", "salt")
	for _, step := range []struct {
		patch   string
		version int
	}{
		{`{}`, 1},
		{`{"description":"words"}`, 1},
		{`{"enabled":true,"key":"checkout","kind":"boolean","environment":"live"}`, 1},
		{`{"enabled":false}`, 2},
		{`{"default_variant":"on"}`, 3},
		{`{"rule":{"rollout":{"buckets":[{"variant":"on","percentage":50}]}}}`, 4},
		{`{"rule":{"overrides":[{"predicate":"props.plan = \"pro\"","variant":"on"}]}}`, 5},
		{`{"rule":null}`, 6},
		{`{"rule":{"rollout":{"buckets":[{"variant":"off","percentage":1.5}]}}}`, 7},
		{`{"is_archived":true}`, 7},
		{`{"is_archived":false}`, 7},
	} {
		got := d.must(200, "PATCH", "/api/v1/switch/flags/checkout?environment=live", step.patch)
		d.equal("version after "+step.patch, at(got, "flag", "current_version"), step.version)
	}
	got := d.must(200, "GET", "/api/v1/switch/flags/"+id, "")
	d.equal("default_value", at(got, "flag", "default_value"), "true")
	d.equal("salt after the rule was away", at(got, "flag", "rule", "rollout", "salt"), salt)
	actions := d.audited(id)
	for i, a := range actions {
		actions[i], _, _ = strings.Cut(a, " ")
	}
	d.equal("audit", actions, []string{"switch.flag.created", "switch.flag.updated", "switch.flag.toggled", "switch.flag.updated", "switch.flag.updated",
		"switch.flag.updated", "switch.flag.updated", "switch.flag.updated", "switch.flag.updated", "switch.flag.updated"})
}

func TestEveryProblemOfAFlagIsNamedAndNothingChanges(t *testing.T) {
	t.Parallel()
	d := newDecisions(t)
	d.must(201, "POST", "/api/v1/switch/flags", checkoutFlag)
	got := d.as("editor", "POST", "/api/v1/switch/flags", `{"environment":"prod","key":"a b","kind":"number","default_value":"x","colour":1,
		"variants":[{"key":"one","value":"1"},{"key":"one","value":"2"},{"key":"two"},{"key":"three","value":"true"}],
		"rule":{"overrides":[{"predicate":"cohort:nobody","variant":"four"}],"rollout":{"buckets":[{"variant":"one","percentage":101}]}}}`)
	var body struct {
		Error, Message string
		Problems       []decide.Problem
	}
	if err := json.Unmarshal([]byte(got.body), &body); err != nil || got.status != 400 {
		t.Fatal(got.status, got.body)
	}
	var paths []string
	for _, p := range body.Problems {
		paths = append(paths, p.Code+" "+p.Path)
	}
	d.equal("problems", paths, []string{"invalid_body environment", "invalid_key key", "invalid_body variants[1].key", "invalid_body variants[2].value",
		"invalid_value variants[3].value", "invalid_value default_value", "invalid_predicate rule.overrides[0].predicate", "invalid_rule rule.overrides[0].variant",
		"invalid_rule rule.rollout.buckets[0].percentage", "invalid_body colour"})
	if body.Error != "invalid_body" || body.Message != "environment: must be live or test" {
		t.Errorf("%s: %s", body.Error, body.Message)
	}
	for _, c := range []struct{ method, path, body, code string }{
		{"POST", "/api/v1/switch/flags", checkoutFlag, "already_exists"},
		{"POST", "/api/v1/switch/flags", `{"environment":"live","key":"k","kind":"colour","default_value":"1"}`, "invalid_type"},
		{"POST", "/api/v1/switch/flags", `{"environment":"live","key":"k/","kind":"string","default_value":"1"}`, "invalid_key"},
		{"POST", "/api/v1/switch/flags", `{"environment":"live","key":"k","kind":"boolean","default_value":"1"}`, "invalid_value"},
		{"POST", "/api/v1/switch/flags", `{"environment":"live","key":"k","kind":"boolean"}`, "invalid_body"},
		{"POST", "/api/v1/switch/flags", `{"environment":"live","key":"k","kind":"boolean","default_value":true}`, "invalid_body"},
		{"POST", "/api/v1/switch/flags", `{"environment":"live","key":"k","kind":"string","default_value":"x","description":"\u0000"}`, "invalid_body"},
		{"POST", "/api/v1/switch/flags", `{`, "invalid_body"},
		{"PATCH", "/api/v1/switch/flags/checkout", `{"key":"other"}`, "invalid_body"},
		{"PATCH", "/api/v1/switch/flags/checkout", `{"variants":[{"key":"off","value":"false"}]}`, "invalid_rule"},
		{"PATCH", "/api/v1/switch/flags/checkout", `{"default_value":"true"}`, "invalid_value"},
		{"PATCH", "/api/v1/switch/flags/checkout", `{"rule":{"rollout":{"salt":"another"}}}`, "invalid_rule"},
		{"PATCH", "/api/v1/switch/flags/checkout", `{"rule":{"overrides":[{"predicate":"screen:home","variant":"on"}]}}`, "invalid_predicate"},
		{"PATCH", "/api/v1/switch/flags/none", `{}`, "not_found"},
		{"GET", "/api/v1/switch/flags/checkout?environment=test", ``, "not_found"},
		{"GET", "/api/v1/switch/flags?limit=0", ``, "invalid_limit"},
		{"GET", "/api/v1/switch/flags?cursor=x", ``, "invalid_cursor"},
		{"GET", "/api/v1/switch/flags?environment=x", ``, "environment must be live or test"},
	} {
		got := d.as("editor", c.method, c.path, c.body)
		var body struct{ Error string }
		_ = json.Unmarshal([]byte(got.body), &body)
		if body.Error != c.code || got.status < 400 || got.status >= 500 {
			t.Errorf("%s %s %s: %d %s, want %s", c.method, c.path, c.body, got.status, got.body, c.code)
		}
	}
	if got := d.as("viewer", "POST", "/api/v1/switch/flags", checkoutFlag); got.status != 403 || got.body != `{"error":"Permission denied"}` {
		t.Errorf("viewer: %d %s", got.status, got.body)
	}
	if got := d.as("owner", "GET", "/api/v1/switch/flags", ``); got.status != 400 || got.body != `{"error":"project_id is required"}` {
		t.Errorf("owner without a project: %d %s", got.status, got.body)
	}
	after := d.must(200, "GET", "/api/v1/switch/flags/checkout", "")
	d.equal("version", at(after, "flag", "current_version"), 1)
}

func TestFlagsArePagedInOrderOfKey(t *testing.T) {
	t.Parallel()
	d := newDecisions(t)
	for i := range 5 {
		for _, env := range []string{"live", "test"} {
			d.must(201, "POST", "/api/v1/switch/flags", fmt.Sprintf(`{"environment":%q,"key":"f%d","kind":"json","default_value":"null"}`, env, i))
		}
	}
	var keys []string
	path := "/api/v1/switch/flags?environment=live&limit=2"
	for next := ""; ; {
		got := d.must(200, "GET", path+next, "")
		for _, f := range at(got, "flags").([]any) {
			keys = append(keys, at(f, "key").(string))
		}
		if at(got, "has_more") == false {
			d.equal("next_cursor", at(got, "next_cursor"), nil)
			break
		}
		next = "&cursor=" + at(got, "next_cursor").(string)
	}
	d.equal("keys", keys, []string{"f0", "f1", "f2", "f3", "f4"})
	if all := at(d.must(200, "GET", "/api/v1/switch/flags", ""), "flags").([]any); len(all) != 10 {
		t.Errorf("%d flags of both environments", len(all))
	}
}

func TestIfMatchGuardsAFlag(t *testing.T) {
	t.Parallel()
	d := newDecisions(t)
	d.must(201, "POST", "/api/v1/switch/flags", checkoutFlag)
	tag := d.as("editor", "GET", "/api/v1/switch/flags/checkout", "").header.Get("ETag")
	first := d.as("editor", "PATCH", "/api/v1/switch/flags/checkout", `{"enabled":false}`, "If-Match", tag)
	if first.status != 200 || first.header.Get("ETag") == tag {
		t.Fatalf("%d %s", first.status, first.body)
	}
	if second := d.as("editor", "PATCH", "/api/v1/switch/flags/checkout", `{"enabled":true}`, "If-Match", tag); second.status != 412 {
		t.Errorf("a stale tag: %d %s", second.status, second.body)
	}
}

func TestFlagsAndItemsOfOthersAreAbsentForChanges(t *testing.T) {
	t.Parallel()
	d := newDecisions(t)
	flag := at(d.must(201, "POST", "/api/v1/switch/flags", checkoutFlag), "flag", "id").(string)
	item := at(d.must(201, "POST", "/api/v1/config/items", `{"environment":"live","key":"theme","type":"string","default_value":"a"}`), "item", "id").(string)
	strangers, err := d.access.Bootstrap(t.Context(), d.commits, access.NewFounding("Other", "Other", access.Pro))
	if err != nil {
		t.Fatal(err)
	}
	for _, request := range [][3]string{
		{"PATCH", "/api/v1/switch/flags/" + flag, `{"enabled":false}`}, {"POST", "/api/v1/switch/flags/" + flag + "/resume", ""},
		{"PATCH", "/api/v1/switch/flags/" + flag + "?environment=test", `{"enabled":false}`},
		{"PATCH", "/api/v1/config/items/" + item, `{"default_value":"b"}`},
		{"POST", "/api/v1/config/items/" + item + "/rollback", `{"version_id":"` + item + `"}`},
	} {
		if e := call(t, d.server, request[0], request[1], request[2], bearer(strangers["owner"])...); e.status != 404 {
			t.Errorf("%s %s as a stranger: %d %s", request[0], request[1], e.status, e.body)
		}
	}
	d.must(404, "PATCH", "/api/v1/switch/flags/"+flag+"?environment=test", `{"enabled":false}`)
	d.equal("the flag's trace", d.audited(flag), []string{"switch.flag.created by editor@example.com"})
	d.equal("the item's trace", d.audited(item), []string{"config.item.created by editor@example.com"})
}

func TestKeyThatLooksLikeAnIdIsFound(t *testing.T) {
	t.Parallel()
	d := newDecisions(t)
	const key = "0198c000-0000-7000-8000-0000000000aa"
	d.must(201, "POST", "/api/v1/switch/flags", `{"environment":"live","key":"`+key+`","kind":"boolean","default_value":"false"}`)
	got := d.must(200, "PATCH", "/api/v1/switch/flags/"+key, `{"description":"by key"}`)
	d.equal("description", at(got, "flag", "description"), "by key")
}
