package writeplane

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/crash"
	"skerry/pkg/id"
	"skerry/pkg/openapi/openapitest"
	"skerry/writeplane/access"
	"skerry/writeplane/blobs"
	"skerry/writeplane/crashes"
	"skerry/writeplane/postgres"
	"skerry/writeplane/symbols"
)

// catch is a plane whose symbol and crash endpoints answer, without its workers.
type catch struct {
	*plane
	server  *httptest.Server
	folder  string
	place   *blobs.Store
	module  *symbols.Module
	library *symbols.Library
}

func newCatch(t testing.TB, config symbols.Config) *catch {
	t.Helper()
	c := &catch{plane: newPlane(t), folder: t.TempDir()}
	place, err := blobs.Open(t.Context(), blobs.Config{URL: c.folder, PublicURL: "http://files"}, c.db.App)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = place.Close() })
	c.place = place
	if c.module, err = symbols.New(config, c.commits, c.access, place); err != nil {
		t.Fatal(err)
	}
	c.library = symbols.NewLibrary(c.module)
	c.server = c.serve(t, HandlerConfig{}, Routes(Modules{
		Symbols: c.module, Crashes: crashes.New(c.commits, c.access), Blobs: place, Access: access.NewModule(c.commits, c.access),
	})...)
	return c
}

// work runs the indexer and the worker until the test ends.
func (c *catch) work(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{}, 2)
	go func() { _ = symbols.NewIndexer(c.module, crashes.Again).Run(ctx); ended <- struct{}{} }()
	go func() { _ = crashes.NewWorker(c.db.App, c.library).Run(ctx); ended <- struct{}{} }()
	t.Cleanup(func() { cancel(); <-ended; <-ended })
}

// form is a multipart body; a name of "file" takes file name and content after a colon.
func form(t testing.TB, fields ...string) (body *bytes.Buffer, contentType string) {
	t.Helper()
	body = &bytes.Buffer{}
	w := multipart.NewWriter(body)
	for i := 0; i < len(fields); i += 2 {
		var err error
		if fields[i] == "file" {
			name, content, _ := strings.Cut(fields[i+1], ":")
			var part io.Writer
			if part, err = w.CreateFormFile("file", name); err == nil {
				_, err = io.WriteString(part, content)
			}
		} else {
			err = w.WriteField(fields[i], fields[i+1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return body, w.FormDataContentType()
}

func (c *catch) upload(t testing.TB, member string, fields ...string) (int, map[string]any) {
	t.Helper()
	body, contentType := form(t, fields...)
	got := call(t, c.server, "POST", "/api/v1/catch/symbols?project_id="+c.founding.ProjectID, body.String(), append(bearer(c.tokens[member]), "Content-Type", contentType)...)
	return got.status, answerOf(t, got)
}

func answerOf(t testing.TB, got exchange) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal([]byte(got.body), &out); err != nil {
		t.Fatalf("%d %s: %v", got.status, got.body, err)
	}
	return out
}

func (c *catch) get(t testing.TB, member, method, path string) (int, map[string]any) {
	t.Helper()
	join := "?"
	if strings.Contains(path, "?") {
		join = "&"
	}
	got := call(t, c.server, method, path+join+"project_id="+c.founding.ProjectID, "", bearer(c.tokens[member])...)
	return got.status, answerOf(t, got)
}

// crash stores a report as the ingest receiver does.
func (c *catch) crash(t testing.TB, record string) string {
	t.Helper()
	eventID := id.New()
	err := postgres.InTx(t.Context(), c.db.App, func(tx pgx.Tx) error {
		bad, err := crashes.Insert(t.Context(), tx, []crashes.Row{{
			ID: eventID, ProjectID: c.founding.ProjectID, Environment: "live", ReceivedAt: time.Now(), Record: []byte(record),
		}})
		if len(bad) > 0 {
			t.Errorf("refused: %v", bad)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return eventID
}

// frames waits until the report's frames satisfy ready, and returns them as JSON.
func (c *catch) frames(t testing.TB, eventID string, ready func(frames string) bool) string {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	frames := ""
	for {
		status, body := c.get(t, "viewer", "GET", "/api/v1/catch/events/"+eventID)
		if status != 200 {
			t.Fatalf("%d %v", status, body)
		}
		raw, err := json.Marshal(body["event"].(map[string]any)["frames"])
		if err != nil {
			t.Fatal(err)
		}
		if frames = string(raw); ready(frames) {
			return frames
		}
		select {
		case <-deadline:
			t.Fatalf("not readable in time: %s", frames)
		case <-tick.C:
		}
	}
}

func answered(frames string) bool {
	return !strings.Contains(frames, `"reason":null,"symbolicated":null`)
}

const bundle = `{"version":3,"sources":["a.ts"],"names":["run"],"mappings":"AAAAA,SACA"}`

func report(platform, frames string) string {
	return fmt.Sprintf(`{"release":"1.0","platform":%q,"exception":{"type":"E","value":"v"},"frames":[%s]}`, platform, frames)
}

func TestUploadAnswersTheWholeArtifact(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	status, body := c.upload(t, "editor", "file", "app.min.js.map:"+bundle, "kind", "js_sourcemap", "release", "1.0", "commit_sha", "abc")
	if status != 201 {
		t.Fatalf("%d %v", status, body)
	}
	a := body["artifact"].(map[string]any)
	for member, want := range map[string]any{
		"project_id": c.founding.ProjectID, "environment": "live", "kind": "js_sourcemap", "release": "1.0", "match_key": "app.min.js",
		"size_bytes": float64(len(bundle)), "sha256": "0b5d52a2eeb2c8c9d2ee5d8ad1d6ec3bd5b8c92b18d22fb0a1ad5b0d30d8d4e5", "status": "ready",
		"original_name": "app.min.js.map", "commit_sha": "abc", "storage_path": "symbols/" + c.founding.ProjectID + "/" + a["id"].(string),
	} {
		if member == "sha256" {
			continue
		}
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
	again, body2 := c.upload(t, "editor", "kind", "js_sourcemap", "release", "1.0", "file", "app.min.js.map:"+bundle)
	if again != 201 || body2["artifact"].(map[string]any)["id"] != a["id"] {
		t.Errorf("again: %d %v", again, body2)
	}
	c.files(t, 1)
	var audited int
	if err := c.db.Owner.QueryRow(t.Context(), `SELECT count(*) FROM audit_entries WHERE action = 'catch.symbol.uploaded'`).Scan(&audited); err != nil || audited != 1 {
		t.Errorf("%d audit entries, %v", audited, err)
	}
}

// files checks how many objects the store holds, unfinished ones included.
func (c *catch) files(t testing.TB, want int) {
	t.Helper()
	var found []string
	_ = filepath.WalkDir(filepath.Join(c.folder, "objects"), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			found = append(found, path)
		}
		return nil
	})
	if len(found) != want {
		t.Errorf("files: %q, want %d", found, want)
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

func TestUnreadableFileIsStoredWithAWarningAndItsFramesSayMalformed(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	c.work(t)
	status, body := c.upload(t, "editor", "file", "app.js.map:"+`{"version":3,"sources":["a"],"mappings":"AggggggEAA"}`, "kind", "js_sourcemap", "release", "1.0")
	if a := body["artifact"].(map[string]any); status != 201 || len(a["warnings"].([]any)) != 1 {
		t.Fatalf("%d %v", status, body)
	}
	event := c.crash(t, report("javascript", `{"filename":"https://x/app.js?v=1","lineno":1,"colno":1}`))
	frames := c.frames(t, event, answered)
	if want := `[{"colno":1,"filename":"https://x/app.js?v=1","lineno":1,"reason":"malformed","symbolicated":null}]`; frames != want {
		t.Errorf("got  %s\nwant %s", frames, want)
	}
}

func TestReportThatCameBeforeItsSymbolsBecomesReadable(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	c.work(t)
	event := c.crash(t, report("javascript", `{"filename":"app.js","function":"t","lineno":1,"colno":1},{"filename":"other.js","lineno":1,"colno":1},{"filename":"app.js","function":"u","lineno":1,"colno":10}`))
	c.frames(t, event, func(f string) bool { return strings.Count(f, "no_symbols") == 3 })
	if status, body := c.upload(t, "editor", "file", "app.js.map:"+bundle, "kind", "js_sourcemap", "release", "1.0"); status != 201 {
		t.Fatal(body)
	}
	const want = `[{"colno":1,"filename":"app.js","function":"t","lineno":1,"reason":null,"symbolicated":{"colno":1,"filename":"a.ts","function":"run","inlined":[],"lineno":1}},` +
		`{"colno":1,"filename":"other.js","lineno":1,"reason":"no_symbols","symbolicated":null},` +
		`{"colno":10,"filename":"app.js","function":"u","lineno":1,"reason":null,"symbolicated":{"colno":1,"filename":"a.ts","function":"u","inlined":[],"lineno":2}}]`
	if got := c.frames(t, event, func(f string) bool { return strings.Count(f, "no_symbols") == 1 }); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	// Deleting the artifact leaves what is readable, and what comes now has no symbols.
	_, list := c.get(t, "viewer", "GET", "/api/v1/catch/symbols")
	first := list["artifacts"].([]any)[0].(map[string]any)
	for range 2 {
		if status, body := c.get(t, "editor", "DELETE", "/api/v1/catch/symbols/"+first["id"].(string)); status != 200 || body["deleted"] != true {
			t.Fatalf("%d %v", status, body)
		}
	}
	later := c.crash(t, report("javascript", `{"filename":"app.js","lineno":1,"colno":1}`))
	c.frames(t, later, func(f string) bool { return strings.Contains(f, "no_symbols") })
	if got := c.frames(t, event, answered); got != want {
		t.Errorf("after the deletion: %s", got)
	}
}

// A round looks at reports of many releases, each of which may have a map for each of
// many chunks: a large release must not crowd out the artifacts of an older one.
func TestReleasesOfOneRoundDoNotCrowdEachOtherOut(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	c.work(t)
	if status, body := c.upload(t, "editor", "file", "app.js.map:"+bundle, "kind", "js_sourcemap", "release", "1.0"); status != 201 {
		t.Fatal(body)
	}
	const frame = `{"filename":"app.js","lineno":1,"colno":1}`
	c.frames(t, c.crash(t, report("javascript", frame)), answered)
	_, err := c.db.App.Exec(t.Context(), `
		INSERT INTO symbol_artifacts (id, project_id, environment, kind, release, match_key, size_bytes, sha256, uploaded_at, storage_path,
			original_name, debug_ids, warnings, index_reason)
		SELECT gen_random_uuid(), $1, 'live', 'js_sourcemap', '2.0', 'chunk-' || n || '.js', 1, '', now(), '', '', '{}', '{}', 'malformed'
		FROM generate_series(1, 20000) n`, c.founding.ProjectID)
	if err != nil {
		t.Fatal(err)
	}
	old := id.New()
	err = postgres.InTx(t.Context(), c.db.App, func(tx pgx.Tx) error {
		row := crashes.Row{ID: id.New(), ProjectID: c.founding.ProjectID, Environment: "live", ReceivedAt: time.Now()}
		row.Record = []byte(strings.Replace(report("javascript", frame), "1.0", "2.0", 1))
		other := row
		other.ID, other.Record = old, []byte(report("javascript", frame))
		_, err := crashes.Insert(t.Context(), tx, []crashes.Row{row, other})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if frames := c.frames(t, old, answered); !strings.Contains(frames, `"a.ts"`) {
		t.Error(frames)
	}
}

func TestFramesWaitForAnArtifactThatWasUploadedBeforeThem(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	worker := crashes.NewWorker(c.db.App, c.library)
	look := func(want int) {
		t.Helper()
		if n, err := worker.Round(t.Context()); n != want || err != nil {
			t.Fatalf("%d reports were looked at, want %d: %v", n, want, err)
		}
	}
	var artifacts []string
	for _, name := range []string{"app", "gone"} {
		status, body := c.upload(t, "editor", "file", name+".js.map:"+bundle, "kind", "js_sourcemap", "release", "1.0")
		if status != 201 {
			t.Fatal(body)
		}
		artifacts = append(artifacts, body["artifact"].(map[string]any)["id"].(string))
	}
	event := c.crash(t, report("javascript", `{"filename":"app.js","lineno":1,"colno":1},{"filename":"gone.js","lineno":1,"colno":1},{"filename":"other.js","lineno":1,"colno":1}`))
	look(1) // nobody indexes
	c.frames(t, event, func(f string) bool {
		return strings.Count(f, `"reason":null,"symbolicated":null`) == 2 && strings.Count(f, "no_symbols") == 1
	})
	look(0) // not again at once
	if status, body := c.get(t, "editor", "DELETE", "/api/v1/catch/symbols/"+artifacts[1]); status != 200 {
		t.Fatal(body)
	}
	if _, err := c.db.App.Exec(t.Context(), `UPDATE crash_events SET taken_until = '-infinity'`); err != nil { // a minute later
		t.Fatal(err)
	}
	look(1)
	c.frames(t, event, func(f string) bool { return strings.Count(f, "no_symbols") == 2 })
	c.work(t)
	const want = `[{"colno":1,"filename":"app.js","lineno":1,"reason":null,"symbolicated":{"colno":1,"filename":"a.ts","function":"run","inlined":[],"lineno":1}},` +
		`{"colno":1,"filename":"gone.js","lineno":1,"reason":"no_symbols","symbolicated":null},` +
		`{"colno":1,"filename":"other.js","lineno":1,"reason":"no_symbols","symbolicated":null}]`
	if got := c.frames(t, event, answered); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestNativeFramesAreFoundByDebugIDAcrossReleases(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	c.work(t)
	so, err := os.ReadFile(filepath.Join("symbolicate", "native", "testdata", "tiny.so"))
	if err != nil {
		t.Fatal(err)
	}
	status, body := c.upload(t, "editor", "kind", "android_ndk", "release", "0.9", "file", "libtiny.so:"+string(so))
	a := body["artifact"].(map[string]any)
	if status != 201 || a["match_key"] != "0123456789abcdef0123456789abcdef01234567" || fmt.Sprint(a["debug_ids"]) != "[0123456789abcdef0123456789abcdef01234567 67452301-ab89-efcd-0123-456789abcdef]" {
		t.Fatalf("%d %v", status, body)
	}
	event := c.crash(t, report("ndk", `{"debug_id":"67452301-AB89-EFCD-0123-456789ABCDEF","address":"0x7f000102e","image_base":"0x7f0000000"},`+
		`{"debug_id":"00000000-ab89-efcd-0123-456789abcdef","address":"0x102e"},{"address":"0x102e"},`+
		`{"debug_id":"0123456789abcdef0123456789abcdef01234567","address":"0x9999"},{"debug_id":"0123456789abcdef0123456789abcdef01234567","address":"4096"}`))
	frames := c.frames(t, event, func(f string) bool { return strings.Contains(f, "/src/tiny.c") })
	for _, want := range []string{
		`"symbolicated":{"colno":47,"filename":"/src/tiny.c","function":"twice","inlined":[{"colno":10,"filename":"/src/tiny.c","function":"helper","lineno":5}],"lineno":1}`,
		`"reason":"no_symbols"`, `"reason":"no_match"`, `"reason":"malformed"`,
	} {
		if !strings.Contains(frames, want) {
			t.Errorf("%s\nhas no %s", frames, want)
		}
	}
}

func TestDamagedStoredFileIsNotRead(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	_, body := c.upload(t, "editor", "file", "app.js.map:"+bundle, "kind", "js_sourcemap", "release", "1.0")
	path := filepath.Join(c.folder, "objects", body["artifact"].(map[string]any)["storage_path"].(string))
	if err := os.WriteFile(path, []byte(strings.Replace(bundle, "a.ts", "b.ts", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	c.work(t)
	event := c.crash(t, report("javascript", `{"filename":"app.js","lineno":1,"colno":1}`))
	c.frames(t, event, func(f string) bool { return strings.Contains(f, `"malformed"`) })
}

// Reports that fail again and again must not keep the others waiting: they are put off
// for longer than a dead process's.
func TestReportsWhoseArtifactsCannotBeReadArePutOff(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	if status, body := c.upload(t, "editor", "file", "app.js.map:"+bundle, "kind", "js_sourcemap", "release", "1.0"); status != 201 {
		t.Fatal(body)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ended := make(chan error)
	go func() { ended <- symbols.NewIndexer(c.module, crashes.Again).Run(ctx) }()
	for indexed := 0; indexed == 0; {
		if err := c.db.App.QueryRow(ctx, `SELECT count(index_path) FROM symbol_artifacts`).Scan(&indexed); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	<-ended
	c.crash(t, report("javascript", `{"filename":"app.js","lineno":1,"colno":1}`))
	c.crash(t, strings.Replace(report("javascript", `{"filename":"app.js","lineno":1,"colno":1}`), "1.0", "2.0", 1))
	if err := c.place.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := crashes.NewWorker(c.db.App, c.library).Round(t.Context()); n != 1 || err == nil {
		t.Errorf("%d reports are answered, want 1; %v", n, err)
	}
	var off, answered int
	err := c.db.App.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE pending AND taken_until > now() + interval '30 seconds'), count(answers)
		FROM crash_events`).Scan(&off, &answered)
	if err != nil || off != 1 || answered != 1 {
		t.Errorf("%d put off, %d answered, want one each; %v", off, answered, err)
	}
}

// Clocks were ahead for a while, that of a plane and that of an edge.
func TestWhatCameWithAFutureTimeIsListedAndDoesNotStayTheNewest(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	c.work(t)
	upload := func(source string) {
		t.Helper()
		text := strings.Replace(bundle, "a.ts", source, 1)
		if status, body := c.upload(t, "editor", "file", "app.js.map:"+text, "kind", "js_sourcemap", "release", "1.0"); status != 201 {
			t.Fatal(body)
		}
	}
	upload("old.ts")
	for _, sql := range []string{
		`UPDATE symbol_artifacts SET uploaded_at = now() + interval '400 days'`, `UPDATE releases SET created_at = now() + interval '400 days'`,
	} {
		if _, err := c.db.Owner.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	upload("new.ts")
	event := c.crash(t, report("javascript", `{"filename":"app.js","lineno":1,"colno":1}`))
	if frames := c.frames(t, event, answered); !strings.Contains(frames, "new.ts") {
		t.Error(frames)
	}
	if _, err := c.db.Owner.Exec(t.Context(), `UPDATE crash_events SET "timestamp" = now() + interval '400 days'`); err != nil {
		t.Fatal(err)
	}
	for list, want := range map[string]int{"symbols": 2, "releases": 1, "events": 1} {
		_, body := c.get(t, "viewer", "GET", "/api/v1/catch/"+list)
		member := map[string]string{"symbols": "artifacts"}[list]
		if found, _ := body[cmp.Or(member, list)].([]any); len(found) != want {
			t.Errorf("%s: %v", list, body)
		}
	}
}

// The blob store was lost or is older than the database; a build sends its files again.
func TestUploadAgainMendsAnArtifactWhoseFileIsLost(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	fields := []string{"file", "app.js.map:" + bundle, "kind", "js_sourcemap", "release", "1.0"}
	_, body := c.upload(t, "editor", fields...)
	first := body["artifact"].(map[string]any)
	lose := func() {
		t.Helper()
		if err := os.RemoveAll(filepath.Join(c.folder, "objects", "symbols")); err != nil {
			t.Fatal(err)
		}
	}
	again := func(what string) {
		t.Helper()
		status, body := c.upload(t, "editor", fields...)
		a := body["artifact"].(map[string]any)
		if status != 201 || a["id"] != first["id"] || a["storage_path"] == first["storage_path"] || len(a["warnings"].([]any)) != 0 {
			t.Errorf("%s: %d %v", what, status, a)
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
	if status, body := c.upload(t, "editor", fields...); status != 201 || body["artifact"].(map[string]any)["storage_path"] != first["storage_path"] {
		t.Errorf("once more: %d %v", status, body)
	}
	c.files(t, 2)
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

func TestHobbyStorageIsLimited(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{HobbyBytes: 100})
	if _, err := c.db.Owner.Exec(t.Context(), `UPDATE organizations SET tier = 'hobby'`); err != nil {
		t.Fatal(err)
	}
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

func TestListPagesNewestFirstWithTheSubset(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	for i := range 5 {
		if status, body := c.upload(t, "editor", "kind", "js_sourcemap", "release", "1.0", "file", fmt.Sprintf("f%d.js.map:%s", i, bundle)); status != 201 {
			t.Fatal(body)
		}
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
	_, body := c.upload(t, "editor", "kind", "js_sourcemap", "file", "app.js.map:"+bundle)
	path := "/api/v1/catch/symbols/" + body["artifact"].(map[string]any)["id"].(string)
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
		if status, body := c.upload(t, "editor", "kind", "js_sourcemap", "release", release, "file", "app.js.map:"+bundle); status != 201 {
			t.Fatal(body)
		}
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
	if status, _ := c.upload(t, "editor", "kind", "js_sourcemap", "release", "a/b c", "file", "app.js.map:"+bundle); status != 201 {
		t.Error(status)
	}
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
	if err := cleaner.Orphans(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	c.files(t, 4)
}

// No artifact may outlive its release, or nobody would ever purge it: it goes with the
// release, or brings it back.
func TestUploadThatMeetsTheDeletionOfItsRelease(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	fields := func(name string) []string {
		return []string{"file", name + ":" + bundle, "kind", "js_sourcemap", "release", "9.9"}
	}
	if status, body := c.upload(t, "editor", fields("a.js.map")...); status != 201 {
		t.Fatal(status, body)
	}
	chain, err := c.db.Owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = chain.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := chain.Exec(t.Context(), `SELECT FROM audit_chains FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
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

// waiting returns when n statements wait for locks of others.
func (c *catch) waiting(t testing.TB, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for found := 0; found < n; {
		err := c.db.Owner.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&found)
		if err != nil {
			t.Fatalf("%d statements wait, want %d: %v", found, n, err)
		}
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

func TestReportsPastRetentionAreRemoved(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	old, recent := c.crash(t, report("javascript", `{}`)), c.crash(t, report("javascript", `{}`))
	if _, err := c.db.App.Exec(t.Context(), `UPDATE crash_events SET received_at = now() - interval '31 days' WHERE id = $1`, old); err != nil {
		t.Fatal(err)
	}
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

// A commit whose fate is unknown may have stored the row, and a repeated upload of the
// same bytes is answered with that row: so its file must stay until the row is known.
func TestFileStaysWhileNobodyKnowsWhetherItsRowIsStored(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	rename := func(from, to string) {
		t.Helper()
		if _, err := c.db.Owner.Exec(t.Context(), `ALTER TABLE `+from+` RENAME TO `+to); err != nil {
			t.Fatal(err)
		}
	}
	rename("symbol_artifacts", "elsewhere") // the statement fails, and it is no refusal of ours
	if status, body := c.upload(t, "editor", "kind", "js_sourcemap", "release", "1.0", "file", "app.js.map:"+bundle); status < 500 {
		t.Fatalf("%d %v", status, body)
	}
	rename("elsewhere", "symbol_artifacts")
	c.files(t, 1)
	cleaner := symbols.NewCleaner(c.module, nil)
	if err := cleaner.Orphans(t.Context(), 24*time.Hour); err != nil {
		t.Fatal(err)
	}
	c.files(t, 1)
	if err := cleaner.Orphans(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	c.files(t, 0)
	// What is refused in our own words leaves nothing.
	if status, body := c.upload(t, "editor", "kind", "nope", "file", "app.js.map:"+bundle); status != 400 {
		t.Fatalf("%d %v", status, body)
	}
	c.files(t, 0)
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
