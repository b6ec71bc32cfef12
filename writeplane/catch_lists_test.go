package writeplane

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/id"
	"skerry/writeplane/crashes"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
	"skerry/writeplane/symbols"
)

// Clocks were ahead for a while, that of a plane and that of an edge.
func TestWhatCameWithAFutureTimeIsListedAndDoesNotStayTheNewest(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	c.work(t)
	upload := func(source string) {
		t.Helper()
		text := strings.Replace(bundle, "a.ts", source, 1)
		c.uploaded(t, "file", "app.js.map:"+text, "kind", "js_sourcemap", "release", "1.0")
	}
	upload("old.ts")
	for _, sql := range []string{
		`UPDATE symbol_artifacts SET uploaded_at = now() + interval '400 days'`, `UPDATE releases SET created_at = now() + interval '400 days'`,
	} {
		dbtest.Exec(t, c.db.Owner, sql)
	}
	upload("new.ts")
	event := c.crash(t, report("javascript", `{"filename":"app.js","lineno":1,"colno":1}`))
	if frames := c.frames(t, event, answered); !strings.Contains(frames, "new.ts") {
		t.Error(frames)
	}
	dbtest.Exec(t, c.db.Owner, `UPDATE crash_events SET "timestamp" = now() + interval '400 days'`)
	for list, want := range map[string]int{"symbols": 2, "releases": 1, "events": 1} {
		_, body := c.get(t, "viewer", "GET", "/api/v1/catch/"+list)
		member := map[string]string{"symbols": "artifacts"}[list]
		if found, _ := body[cmp.Or(member, list)].([]any); len(found) != want {
			t.Errorf("%s: %v", list, body)
		}
	}
}

func TestReportThatArrivesTwiceIsStoredOnceAndABadOneIsGivenBack(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	row := crashes.Row{ID: id.New(), ProjectID: c.founding.ProjectID, Environment: "live", ReceivedAt: time.Now(), Record: []byte(report("ndk", ""))}
	bad := row
	bad.ID, bad.Record = id.New(), []byte(`{"release":"1"}`)
	for range 2 {
		err := postgres.InTx(t.Context(), c.db.App, func(tx pgx.Tx) error {
			refused, err := crashes.Insert(t.Context(), tx, []crashes.Row{bad, row})
			if len(refused) != 1 || refused[0].Index != 0 {
				t.Errorf("refused: %v", refused)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, body := c.get(t, "viewer", "GET", "/api/v1/catch/events"); len(body["events"].([]any)) != 1 {
		t.Error(body)
	}
}

func TestListPagesNewestFirstWithTheSubset(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	for i := range 5 {
		c.uploaded(t, "kind", "js_sourcemap", "release", "1.0", "file", fmt.Sprintf("f%d.js.map:%s", i, bundle))
	}
	var keys []string
	cursor := ""
	for {
		_, body := c.get(t, "viewer", "GET", "/api/v1/catch/symbols?limit=2&kind=js_sourcemap&release=1.0&cursor="+cursor)
		for _, a := range body["artifacts"].([]any) {
			if len(a.(map[string]any)) != 7 {
				t.Errorf("subset: %v", a)
			}
			keys = append(keys, a.(map[string]any)["match_key"].(string))
		}
		if body["has_more"] != true {
			break
		}
		cursor = body["next_cursor"].(string)
	}
	if got := strings.Join(keys, " "); got != "f4.js f3.js f2.js f1.js f0.js" {
		t.Error(got)
	}
	for path, code := range map[string]string{"?limit=201": "invalid_limit", "?kind=zip": "invalid_kind", "?environment=x": "invalid_environment", "?cursor=x": "invalid_cursor"} {
		if status, body := c.get(t, "viewer", "GET", "/api/v1/catch/symbols"+path); status != 400 || body["error"] != code {
			t.Errorf("%s: %d %v", path, status, body)
		}
	}
	if _, body := c.get(t, "viewer", "GET", "/api/v1/catch/symbols?environment=test"); len(body["artifacts"].([]any)) != 0 {
		t.Error(body)
	}
}

func TestDownloadURLIsSignedAndGoneWithItsArtifact(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	a := c.uploaded(t, "kind", "js_sourcemap", "file", "app.js.map:"+bundle)
	path := "/api/v1/catch/symbols/" + a["id"].(string)
	status, link := c.get(t, "viewer", "GET", path+"/download")
	if status != 200 {
		t.Fatal(link)
	}
	address := strings.Replace(link["url"].(string), "http://files", c.server.URL, 1)
	get := func(method string) *http.Response {
		request, _ := http.NewRequestWithContext(t.Context(), method, address, nil)
		response, err := c.server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
	response := get("GET")
	content, _ := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if response.StatusCode != 200 || string(content) != bundle || !strings.HasPrefix(response.Header.Get("Content-Disposition"), "attachment") || response.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%d %v %s", response.StatusCode, response.Header, content)
	}
	if status, _ := c.get(t, "editor", "DELETE", path); status != 200 {
		t.Error(status)
	}
	if status, _ := c.get(t, "viewer", "GET", path+"/download"); status != 404 {
		t.Error(status)
	}
	for _, unknown := range []string{id.New(), "x"} {
		if status, body := c.get(t, "editor", "DELETE", "/api/v1/catch/symbols/"+unknown); status != 404 || body["error"] != "not_found" {
			t.Errorf("%s: %d %v", unknown, status, body)
		}
	}
}

func TestDeletedReleaseLosesItsFilesAndMayComeBack(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	for _, release := range []string{"1.0", "a/b c", "2.0"} {
		c.uploaded(t, "kind", "js_sourcemap", "release", release, "file", "app.js.map:"+bundle)
	}
	if status, body := c.get(t, "editor", "DELETE", "/api/v1/catch/releases/a%2Fb%20c"); status != 200 {
		t.Fatalf("%d %v", status, body)
	}
	if status, _ := c.get(t, "editor", "DELETE", "/api/v1/catch/releases/never"); status != 404 {
		t.Error(status)
	}
	_, body := c.get(t, "viewer", "GET", "/api/v1/catch/releases")
	if got := body["releases"].([]any); len(got) != 2 || got[0].(map[string]any)["release"] != "2.0" || got[0].(map[string]any)["artifacts"] != 1.0 {
		t.Errorf("%v", got)
	}
	cleaner := symbols.NewCleaner(c.module, nil)
	if err := cleaner.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.files(t, 2)
	c.uploaded(t, "kind", "js_sourcemap", "release", "a/b c", "file", "app.js.map:"+bundle)
	if _, body := c.get(t, "viewer", "GET", "/api/v1/catch/releases"); len(body["releases"].([]any)) != 3 {
		t.Error(body)
	}
	c.files(t, 3)
	if err := os.WriteFile(filepath.Join(c.folder, "objects", "symbols", c.founding.ProjectID, id.New()), []byte("left by a dead process"), 0o600); err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(c.folder, "objects", "symbols", id.New())
	if err := os.Mkdir(elsewhere, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(elsewhere, id.New()), []byte("another installation's, in the same bucket"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cleaner.Orphans(t.Context(), time.Now(), 0); err != nil {
		t.Fatal(err)
	}
	c.files(t, 4)
}

func TestReportsPastRetentionAreRemoved(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	old, recent := c.crash(t, report("javascript", `{}`)), c.crash(t, report("javascript", `{}`))
	dbtest.Exec(t, c.db.App, `UPDATE crash_events SET received_at = now() - interval '31 days' WHERE id = $1`, old)
	for _, days := range []int{0, 32} {
		if n, err := crashes.NewRetention(c.db.Owner, days).Forget(t.Context(), time.Now()); err != nil || n != 0 {
			t.Errorf("kept for %d days: %d removed, %v", days, n, err)
		}
	}
	for _, want := range []int64{1, 0} {
		// A clock that runs ahead alone makes nothing old.
		if n, err := crashes.NewRetention(c.db.Owner, 30).Forget(t.Context(), time.Now().AddDate(1, 0, 0)); err != nil || n != want {
			t.Errorf("kept for 30 days: %d removed, want %d, %v", n, want, err)
		}
	}
	for eventID, want := range map[string]int{old: 404, recent: 200} {
		if status, body := c.get(t, "viewer", "GET", "/api/v1/catch/events/"+eventID); status != want {
			t.Errorf("%d %v, want %d", status, body, want)
		}
	}
}

func TestArtifactIsDeletedOnlyWhileItsTagHolds(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	body, contentType := form(t, "kind", "js_sourcemap", "release", "1.0", "file", `app.js.map:{"version":3,"sources":["a.js"],"names":[],"mappings":"AAAA"}`)
	made := call(t, c.server, "POST", "/api/v1/catch/symbols?project_id="+c.founding.ProjectID, body.String(), append(bearer(c.tokens["editor"]), "Content-Type", contentType)...)
	path := "/api/v1/catch/symbols/" + member(answerOf(t, made), "artifact", "id").(string)
	if got := call(t, c.server, "DELETE", path, "", append(bearer(c.tokens["editor"]), "If-Match", `"another"`)...); got.status != 412 || answerOf(t, got)["error"] != "precondition_failed" {
		t.Errorf("another tag: %d %s", got.status, got.body)
	}
	if got := call(t, c.server, "DELETE", path, "", append(bearer(c.tokens["editor"]), "If-Match", made.header.Get("ETag"))...); got.status != 200 {
		t.Errorf("its tag: %d %s", got.status, got.body)
	}
}
