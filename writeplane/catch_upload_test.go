package writeplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skerry/pkg/crash"
	"skerry/pkg/openapi/openapitest"
	"skerry/writeplane/postgres/dbtest"
	"skerry/writeplane/symbols"
)

func TestUploadAnswersTheWholeArtifact(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	a := c.uploaded(t, "file", "app.min.js.map:"+bundle, "kind", "js_sourcemap", "release", "1.0", "commit_sha", "abc")
	for member, want := range map[string]any{
		"project_id": c.founding.ProjectID, "environment": "live", "kind": "js_sourcemap", "release": "1.0", "match_key": "app.min.js",
		"size_bytes": float64(len(bundle)), "sha256": "866f3c35020854e92bd52dce93f5f72d80bf8a67306fc7a8a77f5e7fe3df07bb", "status": "ready",
		"original_name": "app.min.js.map", "commit_sha": "abc", "storage_path": "symbols/" + c.founding.ProjectID + "/" + a["id"].(string),
	} {
		if a[member] != want {
			t.Errorf("%s: got %v, want %v", member, a[member], want)
		}
	}
	if len(a) != 15 || fmt.Sprint(a["debug_ids"]) != "[]" || fmt.Sprint(a["warnings"]) != "[]" {
		t.Errorf("members: %v", a)
	}
	if _, err := os.Stat(filepath.Join(c.folder, "objects", a["storage_path"].(string))); err != nil {
		t.Error(err)
	}
	// The same upload again is the same artifact, and leaves one file.
	if again := c.uploaded(t, "kind", "js_sourcemap", "release", "1.0", "file", "app.min.js.map:"+bundle); again["id"] != a["id"] {
		t.Errorf("again: %v", again)
	}
	c.files(t, 1)
	if audited := dbtest.One[int](t, c.db.Owner, `SELECT count(*) FROM audit_entries WHERE action = 'catch.symbol.uploaded'`); audited != 1 {
		t.Errorf("%d audit entries", audited)
	}
}

func TestUploadRefusesInTheOrderOfTheSpecificationAndLeavesNothing(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{MaxFileBytes: 1000, MaxBodyBytes: 3000})
	big := "x:" + strings.Repeat("a", 1001)
	for _, f := range []struct {
		name   string
		fields []string
		status int
		code   string
	}{
		{"no file", []string{"kind", "js_sourcemap"}, 400, "missing_file"},
		{"no file, wrong kind", []string{"kind", "zip"}, 400, "missing_file"},
		{"no kind", []string{"file", "x:1"}, 400, "invalid_kind"},
		{"wrong kind before the file", []string{"kind", "zip", "file", "x:1"}, 400, "invalid_kind"},
		{"wrong kind behind the file", []string{"file", "x:1", "kind", "zip"}, 400, "invalid_kind"},
		{"wrong kind and too large", []string{"kind", "zip", "file", big}, 400, "invalid_kind"},
		{"file too large", []string{"kind", "js_sourcemap", "file", big}, 400, "file_too_large"},
		{"body too large", []string{"kind", "js_sourcemap", "file", "x:" + strings.Repeat("a", 3000)}, 413, "payload_too_large"},
		{"wrong environment", []string{"kind", "js_sourcemap", "environment", "prod", "file", "x:1"}, 400, "invalid_environment"},
		{"two files", []string{"kind", "js_sourcemap", "file", "x:1", "file", "y:1"}, 400, "invalid_body"},
		{"NUL in a release", []string{"kind", "js_sourcemap", "release", "a\x00", "file", "x:1"}, 400, "invalid_body"},
	} {
		status, body := c.upload(t, "editor", f.fields...)
		if status != f.status || body["error"] != f.code {
			t.Errorf("%s: %d %v", f.name, status, body)
		}
	}
	for _, f := range []struct {
		token, code string
		status      int
	}{
		{"", "missing_authorization", 401}, {"sk_deploy_x", "invalid_token", 401}, {c.founding.Keys["live"].Secret, "invalid_token", 401}, {c.tokens["viewer"], "permission_denied", 403},
	} {
		body, contentType := form(t, "kind", "js_sourcemap", "file", "x:1")
		header := []string{"Content-Type", contentType}
		if f.token != "" {
			header = append(header, "Authorization", "Bearer "+f.token)
		}
		if got := call(t, c.server, "POST", "/api/v1/catch/symbols?project_id="+c.founding.ProjectID, body.String(), header...); got.status != f.status || answerOf(t, got)["error"] != f.code {
			t.Errorf("%.12s: %d %s", f.token, got.status, got.body)
		}
	}
	c.files(t, 0)
}

// Each body announces a megabyte more, which never comes: the answer must.
func TestAFileThatIsRefusedNeedNotTravel(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{MaxFileBytes: 1000})
	for name, f := range map[string]struct {
		fields []string
		code   string
	}{
		"wrong kind":     {[]string{"kind", "zip", "file", "x:" + strings.Repeat("a", 900)}, "invalid_kind"},
		"file too large": {[]string{"kind", "js_sourcemap", "file", "x:" + strings.Repeat("a", 1001)}, "file_too_large"},
		"second file":    {[]string{"kind", "js_sourcemap", "file", "x:1", "file", "y:1"}, "invalid_body"},
	} {
		body, contentType := form(t, f.fields...)
		sent, end := io.Pipe()
		beginning := body.Bytes()[:bytes.LastIndexByte(bytes.TrimSpace(body.Bytes()), '\n')] // without the last boundary
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		t.Cleanup(cancel)
		request, err := http.NewRequestWithContext(ctx, "POST", c.server.URL+"/api/v1/catch/symbols?project_id="+c.founding.ProjectID,
			io.MultiReader(bytes.NewReader(beginning), sent))
		if err != nil {
			t.Fatal(err)
		}
		request.ContentLength = int64(len(beginning)) + 1<<20
		request.Header.Set("Content-Type", contentType)
		request.Header.Set("Authorization", "Bearer "+c.tokens["editor"])
		response, err := c.server.Client().Do(request)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var answer struct{ Error string }
		err = json.NewDecoder(response.Body).Decode(&answer)
		_, _ = end.Close(), response.Body.Close()
		if err != nil || response.StatusCode != 400 || answer.Error != f.code {
			t.Errorf("%s: %d %+v, %v", name, response.StatusCode, answer, err)
		}
	}
}

func TestBodyWithoutLengthIsStoppedAtTheCap(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{MaxFileBytes: 1 << 30, MaxBodyBytes: 100_000})
	body, contentType := form(t, "kind", "js_sourcemap", "file", "x:"+strings.Repeat("a", 200_000))
	request, err := http.NewRequestWithContext(t.Context(), "POST", c.server.URL+"/api/v1/catch/symbols?project_id="+c.founding.ProjectID, io.MultiReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Authorization", "Bearer "+c.tokens["editor"])
	response, err := c.server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, _ := io.ReadAll(response.Body)
	openapitest.Check(t, "POST", request.URL.Path, response.StatusCode, response.Header, answer)
	if response.StatusCode != 413 || string(answer) != `{"error":"payload_too_large"}` {
		t.Errorf("%d %s", response.StatusCode, answer)
	}
	c.files(t, 0)
}

func TestUploadThatBreaksOffLeavesNothing(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	body, contentType := form(t, "kind", "js_sourcemap", "file", "x:"+strings.Repeat("a", 100_000))
	cut := body.String()[:50_000]
	got := call(t, c.server, "POST", "/api/v1/catch/symbols?project_id="+c.founding.ProjectID, cut, append(bearer(c.tokens["editor"]), "Content-Type", contentType)...)
	if got.status != 400 || answerOf(t, got)["error"] != "invalid_body" {
		t.Errorf("%d %s", got.status, got.body)
	}
	c.files(t, 0)
}

// The blob store was lost or is older than the database; a build sends its files again.
func TestUploadAgainMendsAnArtifactWhoseFileIsLost(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	fields := []string{"file", "app.js.map:" + bundle, "kind", "js_sourcemap", "release", "1.0"}
	first := c.uploaded(t, fields...)
	lose := func() {
		t.Helper()
		if err := os.RemoveAll(filepath.Join(c.folder, "objects", "symbols")); err != nil {
			t.Fatal(err)
		}
	}
	again := func(what string) {
		t.Helper()
		a := c.uploaded(t, fields...)
		if a["id"] != first["id"] || a["storage_path"] == first["storage_path"] || len(a["warnings"].([]any)) != 0 {
			t.Errorf("%s: %v", what, a)
		}
		first = a
	}
	lose()
	again("nobody has noticed the loss")
	lose()
	c.work(t)
	event := c.crash(t, report("javascript", `{"filename":"app.js","lineno":1,"colno":1}`))
	c.frames(t, event, func(f string) bool { return strings.Contains(f, `"malformed"`) })
	again("it was noticed")
	c.frames(t, event, func(f string) bool { return strings.Contains(f, `"a.ts"`) })
	c.files(t, 2)
	if a := c.uploaded(t, fields...); a["storage_path"] != first["storage_path"] {
		t.Errorf("once more: %v", a)
	}
	c.files(t, 2)
}

func TestHobbyStorageIsLimited(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{HobbyBytes: 100})
	dbtest.Exec(t, c.db.Owner, `UPDATE organizations SET tier = 'hobby'`)
	upload := func(n int) (int, map[string]any) {
		return c.upload(t, "editor", "kind", "js_sourcemap", "file", fmt.Sprintf("f%d:%s", n, strings.Repeat("x", n)))
	}
	if status, body := upload(60); status != 201 {
		t.Fatalf("%d %v", status, body)
	}
	status, body := upload(50)
	if status != 402 || body["error"] != "quota_exceeded" || body["current"] != 60.0 || body["limit"] != 100.0 {
		t.Errorf("%d %v", status, body)
	}
	c.files(t, 1)
	if status, body := upload(40); status != 201 {
		t.Errorf("%d %v", status, body)
	}
	if status, _ := upload(1); status != 402 {
		t.Errorf("full: %d", status)
	}
}

// No artifact may outlive its release, or nobody would ever purge it: it goes with the
// release, or brings it back.
func TestUploadThatMeetsTheDeletionOfItsRelease(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	fields := func(name string) []string {
		return []string{"file", name + ":" + bundle, "kind", "js_sourcemap", "release", "9.9"}
	}
	c.uploaded(t, fields("a.js.map")...)
	chain, err := c.db.Owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = chain.Rollback(context.WithoutCancel(t.Context())) }()
	dbtest.Exec(t, chain, `SELECT FROM audit_chains FOR UPDATE`)
	ended := make(chan struct{}, 2)
	go func() {
		if status, body := c.upload(t, "editor", fields("b.js.map")...); status != 201 {
			t.Error(status, body)
		}
		ended <- struct{}{}
	}()
	c.waiting(t, 1) // its row is inserted, and not committed
	go func() {
		if status, body := c.get(t, "editor", "DELETE", "/api/v1/catch/releases/9.9"); status != 200 {
			t.Error(status, body)
		}
		ended <- struct{}{}
	}()
	c.waiting(t, 2)
	if err := chain.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-ended
	<-ended
	var orphans int
	err = c.db.Owner.QueryRow(t.Context(), `SELECT count(*) FROM symbol_artifacts a JOIN releases r USING (project_id, environment, release)
		WHERE a.deleted_at IS NULL AND r.deleted_at IS NOT NULL`).Scan(&orphans)
	if err != nil || orphans != 0 {
		t.Errorf("%d artifacts live on in a deleted release; %v", orphans, err)
	}
}

// A row of an index has at most 2704 bytes, and what does not shrink may be as long as it
// is allowed to be.
func TestTheLongestNamesCanBeStored(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	noise := func(bytes int) string { // characters of two bytes that no compression shortens
		r := rand.New(rand.NewPCG(1, uint64(bytes)))
		text := make([]rune, bytes/2)
		for i := range text {
			text[i] = 0x100 + r.Int32N(0x600)
		}
		return string(text)
	}
	release, key := noise(crash.MaxReleaseBytes), noise(1_024)
	record, err := json.Marshal(map[string]any{"release": release, "platform": "ndk", "exception": map[string]string{"type": "E"}, "frames": []any{}})
	if err != nil {
		t.Fatal(err)
	}
	c.crash(t, string(record))
	upload := func(release, key string) (int, map[string]any) {
		return c.upload(t, "editor", "file", noise(510)+":# pg_map_id: "+noise(2_000)+"\na.B -> c:\n", "kind", "android_mapping", "release", release, "match_key", key)
	}
	for _, key := range []string{key, ""} {
		if status, body := upload(release, key); status != 201 {
			t.Errorf("%d %v", status, body)
		}
	}
	for what, names := range map[string][2]string{"release": {noise(crash.MaxReleaseBytes + 2), "k"}, "match_key": {"1.0", noise(1_026)}} {
		if status, body := upload(names[0], names[1]); status != 400 || !strings.Contains(fmt.Sprint(body["message"]), what) {
			t.Errorf("%s: %d %v", what, status, body)
		}
	}
}

// A commit whose fate is unknown may have stored the row, and a repeated upload of the
// same bytes is answered with that row: so its file must stay until the row is known.
func TestFileStaysWhileNobodyKnowsWhetherItsRowIsStored(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	rename := func(from, to string) {
		t.Helper()
		dbtest.Exec(t, c.db.Owner, `ALTER TABLE `+from+` RENAME TO `+to)
	}
	rename("symbol_artifacts", "elsewhere") // the statement fails, and it is no refusal of ours
	if status, body := c.upload(t, "editor", "kind", "js_sourcemap", "release", "1.0", "file", "app.js.map:"+bundle); status < 500 {
		t.Fatalf("%d %v", status, body)
	}
	rename("elsewhere", "symbol_artifacts")
	c.files(t, 1)
	cleaner := symbols.NewCleaner(c.module, nil)
	for _, ahead := range []time.Duration{0, 48 * time.Hour} { // a clock that runs ahead alone makes nothing old
		if err := cleaner.Orphans(t.Context(), time.Now().Add(ahead), 24*time.Hour); err != nil {
			t.Fatal(err)
		}
		c.files(t, 1)
	}
	if err := cleaner.Orphans(t.Context(), time.Now(), 0); err != nil {
		t.Fatal(err)
	}
	c.files(t, 0)
	// What is refused in our own words leaves nothing.
	if status, body := c.upload(t, "editor", "kind", "nope", "file", "app.js.map:"+bundle); status != 400 {
		t.Fatalf("%d %v", status, body)
	}
	c.files(t, 0)
}
