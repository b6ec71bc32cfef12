package writeplane

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"skerry/writeplane/access"
	"skerry/writeplane/postgres/dbtest"
	"skerry/writeplane/webhooks"
	"skerry/writeplane/webhooks/target"
)

func webhookServer(t *testing.T) (*plane, *httptest.Server) {
	t.Helper()
	p := newPlane(t)
	guard := target.New(target.Config{AllowCIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	return p, p.serve(t, HandlerConfig{}, Routes(Modules{Webhooks: webhooks.New(p.commits, p.access, guard)})...)
}

func decoded[T any](t *testing.T, e exchange) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(e.body), &v); err != nil {
		t.Fatalf("%d %s: %v", e.status, e.body, err)
	}
	return v
}

type created struct {
	Subscription webhooks.Subscription `json:"subscription"`
	Secret       string                `json:"secret"`
}

func TestWebhookSecretIsShownOnCreateAndRotateOnly(t *testing.T) {
	t.Parallel()
	p, server := webhookServer(t)
	admin := bearer(p.tokens["admin"])
	e := call(t, server, "POST", "/api/v1/webhooks/subscriptions", `{"url":"http://127.0.0.1:9/hook","events":["switch.*"],"description":"d"}`, admin...)
	first := decoded[created](t, e)
	if e.status != 201 || !strings.HasPrefix(first.Secret, "whsec_") || !first.Subscription.Enabled || e.header.Get("ETag") == "" {
		t.Fatalf("create: %d %s", e.status, e.body)
	}
	path := "/api/v1/webhooks/subscriptions/" + first.Subscription.ID
	for name, e := range map[string]exchange{
		"get":   call(t, server, "GET", path, "", admin...),
		"list":  call(t, server, "GET", "/api/v1/webhooks/subscriptions", "", admin...),
		"patch": call(t, server, "PATCH", path, `{"description":"e"}`, admin...),
	} {
		if e.status != 200 || strings.Contains(e.body, "whsec_") || !strings.Contains(e.body, first.Subscription.ID) {
			t.Errorf("%s: %d %s", name, e.status, e.body)
		}
	}
	if e := call(t, server, "POST", path+"/rotate-secret", "", append(admin, "If-Match", e.header.Get("ETag"))...); e.status != 412 {
		t.Errorf("rotation of what has changed since: %d %s", e.status, e.body)
	}
	rotated := decoded[created](t, call(t, server, "POST", path+"/rotate-secret", `{"grace_period_seconds":60}`, admin...))
	if rotated.Secret == first.Secret || !strings.HasPrefix(rotated.Secret, "whsec_") || rotated.Subscription.ID != first.Subscription.ID {
		t.Errorf("rotate: %+v", rotated)
	}
	var inLog, inRows int
	if err := p.db.Owner.QueryRow(t.Context(), "SELECT count(*) FILTER (WHERE e::text LIKE '%whsec_%') FROM audit_entries e").Scan(&inLog); err != nil {
		t.Fatal(err)
	}
	if err := p.db.Owner.QueryRow(t.Context(), "SELECT count(*) FROM webhook_subscriptions WHERE encode(secret, 'escape') LIKE '%whsec_%'").Scan(&inRows); err != nil || inLog+inRows != 0 {
		t.Errorf("the secret stands in %d audit entries and %d rows (%v)", inLog, inRows, err)
	}
}

func TestWebhookBodiesAreCheckedWhole(t *testing.T) {
	t.Parallel()
	p, server := webhookServer(t)
	admin := bearer(p.tokens["admin"])
	for body, want := range map[string]string{
		`{"events":["*"]}`:                                                                                    `400 {"error":"invalid_body","message":"url is required"}`,
		`{"url":"https://93.184.216.34/"}`:                                                                    `400 {"error":"invalid_body","message":"events is required"}`,
		`{"url":"https://93.184.216.34/","events":["x"],"y":1}`:                                               `400 {"error":"invalid_body","message":"unknown member \"y\""}`,
		`{"url":"https://93.184.216.34/","events":["nope"]}`:                                                  `400 {"error":"invalid_events"`,
		`{"url":"https://93.184.216.34/","events":["nope.*"]}`:                                                `400 {"error":"invalid_events"`,
		`{"url":"https://93.184.216.34/","events":["sw*"]}`:                                                   `400 {"error":"invalid_events"`,
		`{"url":"https://10.0.0.1/","events":["*"]}`:                                                          `400 {"error":"invalid_url"`,
		`{"url":"https://0x0a.1/","events":["*"]}`:                                                            `400 {"error":"invalid_url"`,
		`{"url":"http://93.184.216.34/","events":["*"]}`:                                                      `400 {"error":"invalid_url"`,
		`{"url":"https://a:b@93.184.216.34/","events":["*"]}`:                                                 `400 {"error":"invalid_url"`,
		`{"url":"https://93.184.216.34/","events":["*"],"rate_limit_per_second":0}`:                           `400 {"error":"invalid_body"`,
		`{"url":"https://93.184.216.34/","events":["*"],"environment":"prod"}`:                                `400 {"error":"invalid_body"`,
		`{"url":"https://93.184.216.34/","events":["*"],"description":"` + strings.Repeat("x", 1001) + `"}`:   `400 {"error":"invalid_body"`,
		`{"url":"https://93.184.216.34/","events":["*"],"description":"` + strings.Repeat("x", 10<<20) + `"}`: `413 {"error":"payload_too_large"`,
		`{"url":"https://93.184.216.34/","events":["*"],"project_id":"0198c000-0000-7000-8000-00000000ffff"}`: `404 {"error":"not_found"}`,
		`[]`: `400 {"error":"invalid_body"`,
	} {
		e := call(t, server, "POST", "/api/v1/webhooks/subscriptions", body, admin...)
		if got := jsonStatus(e); !strings.HasPrefix(got, want) {
			t.Errorf("%.90s: %.200s, want %s", body, got, want)
		}
	}
	list := decoded[map[string]any](t, call(t, server, "GET", "/api/v1/webhooks/subscriptions", "", admin...))
	if n := len(list["subscriptions"].([]any)); n != 0 {
		t.Errorf("%d subscriptions were left by refused bodies", n)
	}
}

func jsonStatus(e exchange) string {
	status, _ := json.Marshal(e.status)
	return string(status) + " " + e.body
}

func TestWebhooksOfOthersAreAbsent(t *testing.T) {
	t.Parallel()
	p, server := webhookServer(t)
	other := access.NewFounding("Other", "Other", access.Pro)
	strangers, err := p.access.Bootstrap(t.Context(), p.commits, other)
	if err != nil {
		t.Fatal(err)
	}
	admin, stranger := bearer(p.tokens["admin"]), bearer(strangers["owner"])
	s := decoded[created](t, call(t, server, "POST", "/api/v1/webhooks/subscriptions", `{"url":"https://93.184.216.34/","events":["*"]}`, admin...)).Subscription
	d := decoded[map[string]webhooks.Delivery](t, call(t, server, "POST", "/api/v1/webhooks/subscriptions/"+s.ID+"/test", "", admin...))["delivery"]
	if d.Event != "webhook.test" || d.Status != "pending" {
		t.Fatalf("test delivery %+v", d)
	}
	call(t, server, "POST", "/api/v1/webhooks/subscriptions", `{"url":"https://93.184.216.34/","events":["*"]}`, admin...)
	const list = "/api/v1/webhooks/subscriptions?limit=1"
	cursor, _ := decoded[map[string]any](t, call(t, server, "GET", list, "", admin...))["next_cursor"].(string)
	if e := call(t, server, "GET", list+"&cursor="+cursor, "", admin...); cursor == "" || e.status != 200 {
		t.Errorf("cursor %q, its own: %d %s", cursor, e.status, e.body)
	}
	if e := call(t, server, "GET", list+"&cursor="+cursor, "", stranger...); e.status != 400 {
		t.Errorf("another organization's cursor: %d %s", e.status, e.body)
	}
	for _, request := range [][3]string{
		{"GET", "/api/v1/webhooks/subscriptions/" + s.ID, ""}, {"PATCH", "/api/v1/webhooks/subscriptions/" + s.ID, `{"enabled":false}`},
		{"DELETE", "/api/v1/webhooks/subscriptions/" + s.ID, ""}, {"POST", "/api/v1/webhooks/subscriptions/" + s.ID + "/test", ""},
		{"POST", "/api/v1/webhooks/subscriptions/" + s.ID + "/rotate-secret", "{}"}, {"GET", "/api/v1/webhooks/subscriptions/" + s.ID + "/deliveries", ""},
		{"POST", "/api/v1/webhooks/deliveries/" + d.ID + "/retry", ""}, {"GET", "/api/v1/webhooks/subscriptions/nonsense", ""},
		{"POST", "/api/v1/webhooks/subscriptions/" + s.ID + "/recover", `{"since":"2026-01-01T00:00:00Z"}`},
	} {
		if e := call(t, server, request[0], request[1], request[2], stranger...); e.status != 404 || e.body != `{"error":"not_found"}` {
			t.Errorf("%s %s as a stranger: %d %s", request[0], request[1], e.status, e.body)
		}
	}
	if after := decoded[created](t, call(t, server, "GET", "/api/v1/webhooks/subscriptions/"+s.ID, "", admin...)).Subscription; !after.Enabled {
		t.Error("a stranger's request had an effect")
	}
	for _, role := range []string{"viewer", "editor"} {
		if e := call(t, server, "GET", "/api/v1/webhooks/subscriptions", "", bearer(p.tokens[role])...); e.status != 403 || e.body != `{"error":"Permission denied"}` {
			t.Errorf("%s lists subscriptions: %d %s", role, e.status, e.body)
		}
	}
	if e := call(t, server, "GET", "/api/v1/webhooks/subscriptions", ""); e.status != 401 || e.body != `{"error":"Invalid token"}` {
		t.Errorf("without a token: %d %s", e.status, e.body)
	}
}

func TestWebhookChangesHonourIfMatchAndMerge(t *testing.T) {
	t.Parallel()
	p, server := webhookServer(t)
	admin := bearer(p.tokens["admin"])
	e := call(t, server, "POST", "/api/v1/webhooks/subscriptions", `{"url":"https://93.184.216.34/","events":["*"],"rate_limit_per_second":5}`, admin...)
	s := decoded[created](t, e).Subscription
	path := "/api/v1/webhooks/subscriptions/" + s.ID
	stale := e.header.Get("ETag")
	e = call(t, server, "PATCH", path, `{"rate_limit_per_second":null,"enabled":false}`, append(admin, "If-Match", stale)...)
	changed := decoded[created](t, e).Subscription
	if e.status != 200 || changed.RateLimitPerSecond != nil || changed.Enabled || changed.URL != s.URL || len(changed.Events) != 1 {
		t.Errorf("merge: %d %s", e.status, e.body)
	}
	for _, method := range []string{"PATCH", "DELETE"} {
		if e := call(t, server, method, path, `{"enabled":true}`, append(admin, "If-Match", stale)...); e.status != 412 {
			t.Errorf("%s under a stale tag: %d %s", method, e.status, e.body)
		}
	}
	if e := call(t, server, "DELETE", path, "", admin...); e.status != 200 || e.body != `{"deleted":true}` {
		t.Errorf("delete: %d %s", e.status, e.body)
	}
	if e := call(t, server, "GET", path, "", admin...); e.status != 404 {
		t.Errorf("after the deletion: %d %s", e.status, e.body)
	}
}

// What a change asks of the database must not need a second connection while it holds one: the pool of these tests has
// eight, and a crowd that each held one and waited for another would wait for ever.
func TestAsManyChangesAtOnceAsThereAreConnections(t *testing.T) {
	t.Parallel()
	p, server := webhookServer(t)
	admin := bearer(p.tokens["admin"])
	paths := make([]string, 40)
	for i := range paths {
		body := fmt.Sprintf(`{"url":"http://127.0.0.1:9/%d","events":["audit.entry.created"],"project_id":%q,"enabled":false}`, i, p.founding.ProjectID)
		e := call(t, server, "POST", "/api/v1/webhooks/subscriptions", body, admin...)
		paths[i] = "/api/v1/webhooks/subscriptions/" + decoded[created](t, e).Subscription.ID
	}
	for round := range 5 {
		var wg sync.WaitGroup
		for _, path := range paths {
			wg.Go(func() {
				body := fmt.Sprintf(`{"url":"http://127.0.0.1:9/x%d","enabled":%t}`, round, round%2 == 0)
				if e := call(t, server, "PATCH", path, body, admin...); e.status != 200 {
					t.Errorf("%d %s", e.status, e.body)
				}
			})
		}
		wg.Wait()
	}
}

// Two changes of different members that meet are both kept.
func TestChangesOfOneSubscriptionAtOnceAreAllKept(t *testing.T) {
	t.Parallel()
	p, server := webhookServer(t)
	admin := bearer(p.tokens["admin"])
	e := call(t, server, "POST", "/api/v1/webhooks/subscriptions", `{"url":"http://127.0.0.1:9/","events":["*"]}`, admin...)
	path := "/api/v1/webhooks/subscriptions/" + decoded[created](t, e).Subscription.ID
	var wg sync.WaitGroup
	for _, body := range []string{`{"description":"d"}`, `{"rate_limit_per_second":7}`, `{"environment":"test"}`, `{"enabled":false}`,
		`{"url":"http://127.0.0.1:10/"}`, `{"events":["switch.*"]}`} {
		wg.Go(func() {
			if e := call(t, server, "PATCH", path, body, admin...); e.status != 200 {
				t.Errorf("%s: %d %s", body, e.status, e.body)
			}
		})
	}
	wg.Wait()
	e = call(t, server, "GET", path, "", admin...)
	for _, want := range []string{`"description":"d"`, `"rate_limit_per_second":7`, `"environment":"test"`, `"enabled":false`, `"url":"http://127.0.0.1:10/"`, `"events":["switch.*"]`} {
		if !strings.Contains(e.body, want) {
			t.Errorf("%s is lost: %s", want, e.body)
		}
	}
}

// A subscription whose tier or target is no longer good can be switched off and changed, and does not begin again.
func TestWhatIsNoLongerAllowedCanBeSwitchedOff(t *testing.T) {
	t.Parallel()
	p, server := webhookServer(t)
	admin := bearer(p.tokens["admin"])
	subscribe := func(members string) string {
		e := call(t, server, "POST", "/api/v1/webhooks/subscriptions", `{"url":"http://127.0.0.1:9/",`+members+`}`, admin...)
		return "/api/v1/webhooks/subscriptions/" + decoded[created](t, e).Subscription.ID
	}
	stream, hook := subscribe(`"events":["audit.entry.created"]`), subscribe(`"events":["*"]`)
	narrow := subscribe(`"events":["switch.*"],"project_id":"` + p.founding.ProjectID + `"`)
	for _, change := range []string{"UPDATE organizations SET tier = 'hobby'", "UPDATE projects SET deleted_at = now()", "UPDATE webhook_subscriptions SET url = 'https://10.0.0.1/' WHERE events = '{*}'"} {
		dbtest.Exec(t, p.db.Owner, change)
	}
	for _, c := range []struct {
		path, body string
		status     int
		error      string
	}{
		{stream, `{"description":"still here"}`, 200, ""},
		{stream, `{"enabled":false}`, 200, ""},
		{stream, `{"enabled":true}`, 403, "plan_required"},
		{stream, `{"events":["switch.*"],"enabled":true}`, 200, ""},
		{stream, `{"events":["switch.*","audit.entry.created"]}`, 403, "plan_required"},
		{hook, `{"rate_limit_per_second":3}`, 200, ""},
		{hook, `{"enabled":false}`, 200, ""},
		{hook, `{"enabled":true}`, 400, "invalid_url"},
		{hook, `{"url":"https://10.0.0.2/"}`, 400, "invalid_url"},
		{hook, `{"url":"http://127.0.0.1:9/","enabled":true}`, 200, ""},
		{narrow, `{"enabled":false}`, 200, ""},
		{hook, `{"project_id":"` + p.founding.ProjectID + `"}`, 404, "not_found"},
	} {
		e := call(t, server, "PATCH", c.path, c.body, admin...)
		if e.status != c.status || c.error != "" && !strings.HasPrefix(e.body, `{"error":"`+c.error+`"`) {
			t.Errorf("%s: %d %s, want %d %s", c.body, e.status, e.body, c.status, c.error)
		}
	}
}

func TestAuditStreamNeedsTierPro(t *testing.T) {
	t.Parallel()
	p, server := webhookServer(t)
	dbtest.Exec(t, p.db.Owner, "UPDATE organizations SET tier = 'hobby'")
	e := call(t, server, "POST", "/api/v1/webhooks/subscriptions", `{"url":"https://93.184.216.34/","events":["audit.entry.created"]}`, bearer(p.tokens["admin"])...)
	if e.status != 403 || !strings.HasPrefix(e.body, `{"error":"plan_required"`) {
		t.Errorf("%d %s", e.status, e.body)
	}
}

func TestListsHoldAuditStreamsForWhoMayManageThem(t *testing.T) {
	t.Parallel()
	p, server := webhookServer(t)
	project := p.founding.ProjectID
	e := call(t, server, "POST", "/api/v1/webhooks/subscriptions", fmt.Sprintf(`{"url":"http://127.0.0.1:9/","events":["audit.entry.created"],"project_id":%q}`, project), bearer(p.tokens["admin"])...)
	if e.status != 201 {
		t.Fatalf("create: %d %s", e.status, e.body)
	}
	id := decoded[created](t, e).Subscription.ID
	dbtest.Exec(t, p.db.App, `
		WITH message AS (INSERT INTO webhook_messages (id, organization_id, event, body, created_at)
			SELECT gen_random_uuid(), organization_id, 'audit.entry.created', '{}', now() FROM webhook_subscriptions RETURNING id)
		INSERT INTO webhook_deliveries (id, message_id, subscription_id, event, status, created_at, updated_at)
		SELECT $1, message.id, $1, 'audit.entry.created', 'dead', now(), now() FROM message`, id)
	tokens := p.serve(t, HandlerConfig{}, Routes(Modules{Access: access.NewModule(p.commits, p.access)})...)
	made := call(t, tokens, "POST", "/api/v1/projects/"+project+"/api-tokens", `{"name":"n","role":"project_admin"}`, bearer(p.tokens["owner"])...)
	token := decoded[struct{ Token string }](t, made).Token
	for _, path := range []string{"/api/v1/webhooks/subscriptions", "/api/v1/webhooks/dead-letters"} {
		for _, query := range []string{"", "?project_id=" + project} {
			if e := call(t, server, "GET", path+query, "", bearer(p.tokens["admin"])...); !strings.Contains(e.body, id) {
				t.Errorf("%s%s of the organization's admin: %d %s", path, query, e.status, e.body)
			}
			if e := call(t, server, "GET", path+query, "", bearer(token)...); e.status != 200 || strings.Contains(e.body, id) {
				t.Errorf("%s%s of the project's admin: %d %s", path, query, e.status, e.body)
			}
		}
	}
}

func TestRetryAndRecoverBeginTheScheduleAnew(t *testing.T) {
	t.Parallel()
	p, server := webhookServer(t)
	admin := bearer(p.tokens["admin"])
	e := call(t, server, "POST", "/api/v1/webhooks/subscriptions", `{"url":"http://127.0.0.1:9/","events":["switch.*"]}`, admin...)
	subscription := decoded[created](t, e).Subscription.ID
	delivery := func(status, at string) (id string) {
		t.Helper()
		if err := p.db.App.QueryRow(t.Context(), `
			WITH message AS (INSERT INTO webhook_messages (id, organization_id, event, body, created_at)
				SELECT uuid_v7(), organization_id, 'switch.flag.halted', '{}', $3 FROM webhook_subscriptions WHERE id = $1 RETURNING id)
			INSERT INTO webhook_deliveries (message_id, subscription_id, event, status, attempts, first_attempt_at, created_at, updated_at)
			SELECT message.id, $1, 'switch.flag.halted', $2, 8, $3, $3, $3 FROM message RETURNING id::text`, subscription, status, at).Scan(&id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	before, first := delivery("dead", "2026-01-01T23:59:59.999Z"), delivery("dead", "2026-01-02T00:00:00Z")
	last, behind := delivery("dead", "2026-01-02T23:59:59.999Z"), delivery("dead", "2026-01-03T00:00:00Z")
	delivered := delivery("delivered", "2026-01-02T00:00:00Z")
	e = call(t, server, "POST", "/api/v1/webhooks/subscriptions/"+subscription+"/recover", `{"since":"2026-01-02T00:00:00Z","until":"2026-01-03T00:00:00Z"}`, admin...)
	if e.status != 200 || e.body != `{"recovered":2}` {
		t.Errorf("recover: %d %s, want two recovered", e.status, e.body)
	}
	e = call(t, server, "POST", "/api/v1/webhooks/deliveries/"+behind+"/retry", "", admin...)
	if retried := decoded[struct{ Delivery webhooks.Delivery }](t, e).Delivery; e.status != 202 || retried.Status != "pending" || retried.Attempts != 0 || retried.NextAttemptAt == nil {
		t.Errorf("retry: %d %s", e.status, e.body)
	}
	for id, want := range map[string]string{before: "dead 8", first: "pending 0", last: "pending 0", behind: "pending 0", delivered: "delivered 8"} {
		var got string
		err := p.db.App.QueryRow(t.Context(), `SELECT status || ' ' || attempts FROM webhook_deliveries WHERE id = $1
			AND (status <> 'pending' OR next_attempt_at <= now() AND first_attempt_at IS NULL)`, id).Scan(&got)
		if err != nil || got != want {
			t.Errorf("delivery %s: %q %v, want %q", id, got, err, want)
		}
	}
}
