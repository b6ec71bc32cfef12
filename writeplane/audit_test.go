package writeplane

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"skerry/pkg/id"
	"skerry/pkg/openapi/openapitest"
	"skerry/writeplane/access"
	"skerry/writeplane/audit"
	"skerry/writeplane/blobs"
	"skerry/writeplane/commit"
	"skerry/writeplane/jobs"
)

// newAudited is a plane whose access and audit endpoints answer and whose jobs run.
func newAudited(t testing.TB) *managed {
	t.Helper()
	p := newPlane(t)
	files, err := blobs.Open(t.Context(), blobs.Config{URL: t.TempDir()}, p.db.App)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = files.Close() })
	log := audit.NewLog(p.db.App, nil)
	exporter := audit.NewExporter(log, p.commits, files, nil)
	queue, err := jobs.New(p.db.Owner, exporter.Register)
	if err != nil {
		t.Fatal(err)
	}
	exporter.Bind(queue)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- queue.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	m := &managed{plane: p, server: p.serve(t, HandlerConfig{}, Routes(Modules{
		Access: access.NewModule(p.commits, p.access), Audit: audit.NewModule(exporter, p.access), Blobs: files,
	})...)}
	files.DefaultPublicURL(m.server.URL)
	return m
}

func TestAuditListShowsEntriesAsSpecified(t *testing.T) {
	t.Parallel()
	m := newAudited(t)
	got, _ := m.as(t, "admin", "PATCH", m.project(), `{"name":"Renamed"}`, "X-Request-Id", "req-7", "User-Agent", "tester/1")
	if got.status != 200 {
		t.Fatal(got.body)
	}
	list := m.must(t, 200, "admin", "GET", "/api/v1/audit?limit=1", "")
	entry := list["entries"].([]any)[0].(map[string]any)
	want := map[string]any{"actor_id": m.founding.Members["admin"].ID, "actor_email": "admin@example.com", "action": "project.updated",
		"resource_type": "project", "resource_id": m.founding.ProjectID, "project_id": m.founding.ProjectID}
	for name, value := range want {
		if entry[name] != value {
			t.Errorf("%s: %v, want %v", name, entry[name], value)
		}
	}
	if len(entry) != 13 || member(entry, "before", "name") != "Demo" || member(entry, "after", "name") != "Renamed" ||
		!reflect.DeepEqual(entry["metadata"], map[string]any{"request_id": "req-7", "ip": "127.0.0.1", "user_agent": "tester/1"}) {
		t.Errorf("%v", entry)
	}
	if !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(entry["hash"].(string)) || entry["seq"].(float64) < 1 || !strings.HasSuffix(entry["created_at"].(string), "Z") {
		t.Errorf("%v", entry)
	}
	detail := m.must(t, 200, "admin", "GET", "/api/v1/audit/"+entry["id"].(string), "")
	if !reflect.DeepEqual(detail["entry"], any(entry)) {
		t.Errorf("%v\n%v", detail, entry)
	}
	if verdict := m.must(t, 200, "admin", "GET", "/api/v1/audit/verify", ""); verdict["ok"] != true || verdict["first_broken_seq"] != nil || verdict["entries"] != entry["seq"] || len(verdict) != 3 {
		t.Errorf("%v", verdict)
	}
}

func TestAuditFaultsAreWorded(t *testing.T) {
	t.Parallel()
	m := newAudited(t)
	for path, want := range map[string]string{
		"?since=yesterday": "invalid_since", "?until=x": "invalid_until", "?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z": "invalid_until",
		"?limit=0": "invalid_limit", "?limit=201": "invalid_limit", "?cursor=x": "invalid_cursor", "?order=up": "invalid_order",
		"?since=2026-01-02%2003:04:05": "invalid_since",
	} {
		if got, decoded := m.as(t, "admin", "GET", "/api/v1/audit"+path, ""); got.status != 400 || decoded["error"] != want {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	for _, path := range []string{"/api/v1/audit/x", "/api/v1/audit/" + id.New(), "/api/v1/audit/exports/x", "/api/v1/audit/exports/" + id.New(), "/api/v1/audit?project_id=x",
		"/api/v1/audit?project_id=" + id.New(), "/api/v1/projects/" + id.New() + "/audit"} {
		if got, _ := m.as(t, "admin", "GET", path, ""); got.status != 404 || got.body != `{"error":"not_found"}` {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
}

func TestAuditCursorsAreBoundAndPagesMeet(t *testing.T) {
	t.Parallel()
	m := newAudited(t)
	for i := range 7 {
		m.must(t, 200, "admin", "PATCH", m.project(), fmt.Sprintf(`{"name":"N%d"}`, i))
	}
	for _, order := range []string{"", "&order=asc"} {
		var seqs []float64
		path := "/api/v1/audit?limit=3&action=project.*" + order
		for next := ""; ; {
			got := m.must(t, 200, "admin", "GET", path+next, "")
			for _, entry := range got["entries"].([]any) {
				seqs = append(seqs, member(entry, "seq").(float64))
			}
			if got["has_more"] != true {
				break
			}
			next = "&cursor=" + got["next_cursor"].(string)
		}
		if len(seqs) != 8 {
			t.Errorf("%v", seqs)
		}
		for i := 1; i < len(seqs); i++ {
			if (seqs[i] > seqs[i-1]) != (order != "") {
				t.Errorf("%v", seqs)
			}
		}
	}
	cursor := m.must(t, 200, "admin", "GET", "/api/v1/audit?limit=1", "")["next_cursor"].(string)
	changed := []byte(cursor)
	changed[3] ^= 2
	for name, path := range map[string]string{"a byte changed": "/api/v1/audit?cursor=" + string(changed), "other filters": "/api/v1/audit?action=x&cursor=" + cursor,
		"another view": m.project() + "/audit?cursor=" + cursor, "another order": "/api/v1/audit?order=asc&cursor=" + cursor} {
		if got, decoded := m.as(t, "admin", "GET", path, ""); got.status != 400 || decoded["error"] != "invalid_cursor" {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	// Polling: since the last entry's own time, oldest first, nothing is missed.
	last := m.must(t, 200, "admin", "GET", "/api/v1/audit?limit=1", "")["entries"].([]any)[0]
	m.must(t, 200, "admin", "PATCH", m.project(), `{"name":"Later"}`)
	poll := m.must(t, 200, "admin", "GET", "/api/v1/audit?order=asc&since="+member(last, "created_at").(string), "")["entries"].([]any)
	if len(poll) < 2 || member(poll[len(poll)-1], "after", "name") != "Later" {
		t.Errorf("%v", poll)
	}
}

// Two hundred entries may have a megabyte each.
func TestPageOfHeavyEntriesEndsBeforeItsLimit(t *testing.T) {
	t.Parallel()
	m := newAudited(t)
	heavy := map[string]string{"text": strings.Repeat("x", 7<<20)}
	for i := range 5 {
		err := m.commits.InTx(t.Context(), commit.Origin{Actor: commit.Actor{ID: "u"}}, func(tx *commit.Tx) error {
			tx.Audit(commit.Entry{OrganizationID: m.founding.OrganizationID, Action: "heavy.made", ResourceType: "heavy", ResourceID: fmt.Sprint(i), After: heavy})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var pages []string
	for next := ""; ; {
		got := m.must(t, 200, "owner", "GET", "/api/v1/audit?limit=200&action=heavy.made"+next, "")
		ids := ""
		for _, entry := range got["entries"].([]any) {
			ids += member(entry, "resource_id").(string)
		}
		pages = append(pages, ids)
		if got["has_more"] != true {
			break
		}
		next = "&cursor=" + got["next_cursor"].(string)
	}
	if want := []string{"432", "10"}; !slices.Equal(pages, want) { // 7 and 7 MiB are under 16, 21 are over
		t.Errorf("pages %v, want %v", pages, want)
	}
}

func TestReadersSeeTheirOwnProjectsEntries(t *testing.T) {
	t.Parallel()
	m := newAudited(t)
	second := member(m.must(t, 201, "admin", "POST", "/api/v1/projects", `{"name":"Second"}`), "project", "id").(string)
	boss := m.must(t, 201, "owner", "POST", m.project()+"/api-tokens", `{"name":"pa","role":"project_admin"}`)["token"].(string)
	for name, token := range map[string]string{"viewer": m.tokens["viewer"], "editor": m.tokens["editor"], "project admin": boss} {
		got, decoded := m.with(t, token, "GET", m.project()+"/audit?limit=200", "")
		if got.status != 200 || len(decoded["entries"].([]any)) == 0 {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
		for _, entry := range decoded["entries"].([]any) {
			if member(entry, "project_id") != m.founding.ProjectID {
				t.Errorf("%s sees %v", name, entry)
			}
		}
		if got, _ := m.with(t, token, "GET", "/api/v1/projects/"+second+"/audit", ""); got.status != 404 {
			t.Errorf("%s: another project: %d", name, got.status)
		}
	}
	for _, reader := range []string{"viewer", "editor"} {
		for _, path := range []string{"/api/v1/audit", "/api/v1/audit/" + id.New(), "/api/v1/audit/exports/" + id.New(), "/api/v1/audit/verify"} {
			if got, _ := m.as(t, reader, "GET", path, ""); got.status != 403 || got.body != `{"error":"permission_denied"}` {
				t.Errorf("%s %s: %d %s", reader, path, got.status, got.body)
			}
		}
	}
	// Ids are UUIDs: letters have no case.
	if got, _ := m.with(t, boss, "GET", "/api/v1/audit?project_id="+strings.ToUpper(m.founding.ProjectID), ""); got.status != 200 {
		t.Errorf("the project in capitals: %d", got.status)
	}
	// The project's admin reads the project alone by the specification's endpoints.
	got, decoded := m.with(t, boss, "GET", "/api/v1/audit?limit=200", "")
	if got.status != 200 || len(decoded["entries"].([]any)) == 0 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	for _, entry := range decoded["entries"].([]any) {
		if member(entry, "project_id") != m.founding.ProjectID {
			t.Errorf("a project's admin sees %v", entry)
		}
	}
	all := m.must(t, 200, "admin", "GET", "/api/v1/audit?limit=200", "")["entries"].([]any)
	var foreign string
	for _, entry := range all {
		if member(entry, "project_id") == second {
			foreign = member(entry, "id").(string)
		}
	}
	if foreign == "" {
		t.Fatal("the organization's admin does not see the second project")
	}
	if got, _ := m.with(t, boss, "GET", "/api/v1/audit/"+foreign, ""); got.status != 404 {
		t.Errorf("another project's entry: %d", got.status)
	}
	if got, _ := m.with(t, boss, "GET", "/api/v1/audit?project_id="+second, ""); got.status != 404 {
		t.Errorf("another project's list: %d", got.status)
	}
	if got, _ := m.with(t, boss, "GET", "/api/v1/audit/verify", ""); got.status != 403 {
		t.Errorf("verify by a project's admin: %d", got.status)
	}
	// A project's export holds the project alone, whatever it asks for.
	if got, _ := m.with(t, boss, "POST", "/api/v1/audit/exports", `{"project_id":"`+second+`","since":"2020-01-01","until":"2100-01-01"}`); got.status != 404 {
		t.Errorf("another project's export: %d", got.status)
	}
	export := m.export(t, boss, `{"since":"2020-01-01","until":"2100-01-01"}`)
	text := m.download(t, export["download_url"].(string))
	if strings.Contains(text, second) || !strings.Contains(text, m.founding.ProjectID) {
		t.Error("a project's export holds another's entries")
	}
}

// export asks for an export and waits until it is ready.
func (m *managed) export(t testing.TB, token, body string) map[string]any {
	t.Helper()
	got, decoded := m.with(t, token, "POST", "/api/v1/audit/exports", body)
	if got.status != 202 || member(decoded, "export", "status") != "pending" {
		t.Fatalf("%d %s", got.status, got.body)
	}
	path := "/api/v1/audit/exports/" + member(decoded, "export", "id").(string)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for {
		_, decoded := m.with(t, token, "GET", path, "")
		export := decoded["export"].(map[string]any)
		switch export["status"] {
		case "ready", "failed":
			return export
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the export is still %v", export)
		}
	}
}

func (m *managed) download(t testing.TB, address string) string {
	t.Helper()
	response, err := m.server.Client().Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	openapitest.Check(t, "GET", response.Request.URL.Path, response.StatusCode, response.Header, body)
	if err != nil || response.StatusCode != 200 || response.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Fatalf("%d %v %s", response.StatusCode, err, body)
	}
	return string(body)
}

func TestExportIsMadeAndDownloadedByItsURLAlone(t *testing.T) {
	t.Parallel()
	m := newAudited(t)
	export := m.export(t, m.tokens["admin"], `{"since":"2020-01-01T00:00:00Z","until":"2100-01-01T00:00:00Z","action":"api_key.*"}`)
	if export["row_count"] != 2.0 || export["error"] != nil || len(export) != 7 {
		t.Errorf("%v", export)
	}
	address := export["download_url"].(string)
	text := m.download(t, address)
	if float64(len(text)) != export["size_bytes"] || strings.Count(text, "\r\n") != 3 || !strings.Contains(text, "api_key.created") {
		t.Errorf("%q", text)
	}
	for method, want := range map[string]int{"PUT": 403, "DELETE": 403, "POST": 403, "HEAD": 200} {
		request, err := http.NewRequestWithContext(t.Context(), method, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := m.server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: %d", method, response.StatusCode)
		}
	}
	for body, want := range map[string]string{
		`{"until":"2100-01-01"}`: "invalid_body", `{"since":"2020-01-01"}`: "invalid_body", `{"since":"x","until":"2100-01-01"}`: "invalid_since",
		`{"since":"2020-01-01","until":"2020-01-01"}`: "invalid_until", `{"since":"2020-01-01","until":"2100-01-01","nope":1}`: "invalid_body", `[]`: "invalid_body",
	} {
		if got, decoded := m.as(t, "admin", "POST", "/api/v1/audit/exports", body); got.status != 400 || decoded["error"] != want {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
}

func TestTiersGateExportsAndSchedules(t *testing.T) {
	t.Parallel()
	m := newAudited(t)
	schedule := func(kind string) (exchange, map[string]any) {
		return m.as(t, "admin", "POST", "/api/v1/audit/export-schedules", `{"frequency":"daily","delivery":{"type":"`+kind+`"}}`)
	}
	if got, decoded := schedule("presigned_url"); got.status != 403 || decoded["error"] != "plan_required" {
		t.Errorf("pro: %d %s", got.status, got.body)
	}
	if got, decoded := schedule("email"); got.status != 400 || decoded["error"] != "email_not_configured" {
		t.Errorf("no mail server: %d %s", got.status, got.body)
	}
	m.must(t, 200, "owner", "PATCH", "/api/v1/organization", `{"tier":"growth"}`)
	got, made := schedule("presigned_url")
	if got.status != 201 || member(made, "export_schedule", "frequency") != "daily" || member(made, "export_schedule", "delivery", "type") != "presigned_url" {
		t.Fatalf("growth: %d %s", got.status, got.body)
	}
	if list := m.must(t, 200, "admin", "GET", "/api/v1/audit/export-schedules", ""); len(list["export_schedules"].([]any)) != 1 {
		t.Errorf("%v", list)
	}
	path := "/api/v1/audit/export-schedules/" + member(made, "export_schedule", "id").(string)
	m.must(t, 200, "admin", "DELETE", path, "")
	if got, _ := m.as(t, "admin", "DELETE", path, ""); got.status != 404 {
		t.Errorf("twice: %d", got.status)
	}
	for _, body := range []string{`{}`, `{"frequency":"hourly","delivery":{"type":"email"}}`, `{"frequency":"daily"}`, `{"frequency":"daily","delivery":{"type":"fax"}}`} {
		if got, decoded := m.as(t, "admin", "POST", "/api/v1/audit/export-schedules", body); got.status != 400 || decoded["error"] != "invalid_body" {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
	m.must(t, 200, "owner", "PATCH", "/api/v1/organization", `{"tier":"hobby"}`)
	for _, path := range []string{"/api/v1/audit/exports", "/api/v1/audit/export-schedules"} {
		if got, decoded := m.as(t, "admin", "POST", path, `{"since":"2020-01-01","until":"2100-01-01"}`); got.status != 403 || decoded["error"] != "plan_required" {
			t.Errorf("hobby %s: %d %s", path, got.status, got.body)
		}
	}
}
