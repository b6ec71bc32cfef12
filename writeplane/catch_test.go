package writeplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/id"
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
	go func() { _ = symbols.NewIndexer(c.module, crashes.LookAgain).Run(ctx); ended <- struct{}{} }()
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

// uploaded is the artifact of an upload by an editor, which must succeed.
func (c *catch) uploaded(t testing.TB, fields ...string) map[string]any {
	t.Helper()
	status, body := c.upload(t, "editor", fields...)
	if status != 201 {
		t.Fatalf("%d %v", status, body)
	}
	return body["artifact"].(map[string]any)
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
