package writeplane

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/id"
	"skerry/writeplane/crashes"
	"skerry/writeplane/postgres"
	"skerry/writeplane/symbols"
)

func TestUnreadableFileIsStoredWithAWarningAndItsFramesSayMalformed(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	c.work(t)
	a := c.uploaded(t, "file", "app.js.map:"+`{"version":3,"sources":["a"],"mappings":"AggggggEAA"}`, "kind", "js_sourcemap", "release", "1.0")
	if len(a["warnings"].([]any)) != 1 {
		t.Fatalf("%v", a)
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
	c.uploaded(t, "file", "app.js.map:"+bundle, "kind", "js_sourcemap", "release", "1.0")
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
	c.uploaded(t, "file", "app.js.map:"+bundle, "kind", "js_sourcemap", "release", "1.0")
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
		a := c.uploaded(t, "file", name+".js.map:"+bundle, "kind", "js_sourcemap", "release", "1.0")
		artifacts = append(artifacts, a["id"].(string))
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
	a := c.uploaded(t, "kind", "android_ndk", "release", "0.9", "file", "libtiny.so:"+string(so))
	if a["match_key"] != "0123456789abcdef0123456789abcdef01234567" || fmt.Sprint(a["debug_ids"]) != "[0123456789abcdef0123456789abcdef01234567 67452301-ab89-efcd-0123-456789abcdef]" {
		t.Fatalf("%v", a)
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
	a := c.uploaded(t, "file", "app.js.map:"+bundle, "kind", "js_sourcemap", "release", "1.0")
	path := filepath.Join(c.folder, "objects", a["storage_path"].(string))
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
	c.uploaded(t, "file", "app.js.map:"+bundle, "kind", "js_sourcemap", "release", "1.0")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ended := make(chan error)
	go func() { ended <- symbols.NewIndexer(c.module, crashes.LookAgain).Run(ctx) }()
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
