package audit

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"skerry/pkg/id"
	"skerry/writeplane/blobs"
	"skerry/writeplane/blobs/s3test"
	"skerry/writeplane/commit"
	"skerry/writeplane/jobs"
	"skerry/writeplane/postgres/dbtest"
)

// press is an exporter with a queue that runs, on a folder.
type press struct {
	*trail
	exporter *Exporter
	files    *blobs.Store
	queue    *jobs.Queue
}

func newPress(t testing.TB, tr *trail, mailer Mailer) *press {
	return newPressAt(t, tr, mailer, t.TempDir())
}

func newPressAt(t testing.TB, tr *trail, mailer Mailer, location string) *press {
	t.Helper()
	files, err := blobs.Open(t.Context(), blobs.Config{URL: location, PublicURL: "http://skerry.example"}, tr.db.App)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = files.Close() })
	p := &press{trail: tr, files: files, exporter: NewExporter(NewLog(tr.db.App, nil), tr.commits, files, mailer)}
	if p.queue, err = jobs.New(tr.db.Owner, p.exporter.Register); err != nil {
		t.Fatal(err)
	}
	p.exporter.Bind(p.queue)
	return p
}

// request stores an export of the last ten days, which no queue runs yet.
func (p *press) request(t testing.TB, f filters, d *delivery) exportRow {
	t.Helper()
	if f.Since.IsZero() {
		f.Since, f.Until = days(10), time.Now().Add(time.Hour)
	}
	row := exportRow{ID: id.New(), OrganizationID: p.organization, Filters: f, Status: "pending", RequestedBy: "user-1", Delivery: d, CreatedAt: time.Now()}
	err := p.commits.InTx(t.Context(), row.origin(), func(tx *commit.Tx) error { return insertExport(t.Context(), tx, p.queue, row, nil) })
	if err != nil {
		t.Fatal(err)
	}
	return row
}

func (p *press) work(t testing.TB, row exportRow) error {
	t.Helper()
	return p.exporter.Work(t.Context(), &river.Job[exportArgs]{Args: exportArgs{ExportID: row.ID}})
}

func (p *press) read(t testing.TB, row exportRow) exportRow {
	t.Helper()
	rows, err := p.db.App.Query(t.Context(), exportSQL+"id = $1", row.ID)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectExactlyOneRow(rows, scanExport)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func (p *press) file(t testing.TB, row exportRow) string {
	t.Helper()
	if row.Object == nil {
		t.Fatalf("export %s has no file", row.Status)
	}
	r, err := p.files.Open(t.Context(), *row.Object)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (p *press) objects(t testing.TB) (names []string) {
	t.Helper()
	if err := p.files.Walk(t.Context(), "", func(key string, _ int64, _ time.Time) error { names = append(names, key); return nil }); err != nil {
		t.Fatal(err)
	}
	return names
}

func TestExportOnS3IsDownloadedByItsSignedURL(t *testing.T) {
	location := s3test.New(t)
	tr := newTrail(t, "pro")
	tr.logMany(t, 3)
	fill(t, tr, 10_000, strings.Repeat("x", 1000)) // more than one part of an upload
	p := newPressAt(t, tr, nil, location)
	row := p.request(t, filters{}, nil)
	if err := p.work(t, row); err != nil {
		t.Fatal(err)
	}
	row = p.read(t, row)
	shown, err := row.signed(t.Context(), p.files, blobs.DefaultExpiry)
	if err != nil || shown.DownloadURL == nil {
		t.Fatal(shown, err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Get(*shown.DownloadURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != 200 || int64(len(body)) != *row.SizeBytes || int64(strings.Count(string(body), "\r\n")) != *row.RowCount+1 {
		t.Errorf("%d, %d of %d bytes, %v", response.StatusCode, len(body), *row.SizeBytes, err)
	}
	if got := response.Header.Get("Content-Disposition"); !strings.HasPrefix(got, "attachment; filename=audit-") {
		t.Error(got)
	}
	t.Logf("%d rows, %d bytes from S3", *row.RowCount, len(body))
}

func TestExportHoldsWhatItsFiltersSay(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	tr.logMany(t, 3)
	tr.log(t, commit.Entry{Action: "member.invited", ResourceType: "member", ResourceID: "m"})
	p := newPress(t, tr, nil)
	for name, c := range map[string]struct {
		f    filters
		want int64
	}{
		"project": {filters{Projects: []string{tr.project}}, 3},
		"action":  {filters{Action: "member.*"}, 1},
		"nothing": {filters{Projects: []string{}}, 0},
		"range":   {filters{Since: days(5), Until: days(4)}, 0},
	} {
		row := p.request(t, c.f, nil)
		if err := p.work(t, row); err != nil {
			t.Fatal(err)
		}
		if row = p.read(t, row); row.Status != "ready" || *row.RowCount != c.want {
			t.Errorf("%s: %s, %v rows, want %d", name, row.Status, *row.RowCount, c.want)
		}
	}
}

func TestExportOverTheLimitFailsAndLeavesNoFile(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	tr.logMany(t, 20)
	p := newPress(t, tr, nil)
	p.exporter.limit = 2000
	row := p.request(t, filters{}, nil)
	if err := p.work(t, row); err != nil {
		t.Fatal(err)
	}
	if row = p.read(t, row); row.Status != "failed" || row.Error == nil || *row.Error != "export_too_large" {
		t.Errorf("%+v", row)
	}
	if names := p.objects(t); len(names) != 0 {
		t.Errorf("%v", names)
	}
}

// await asks again and again, for what another process's clock decides.
func await(t testing.TB, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			t.Fatal("waited in vain")
		case <-tick.C:
		}
	}
}

func TestOldFilesAreRemoved(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	p := newPress(t, tr, nil)
	row := p.request(t, filters{}, nil)
	if err := p.work(t, row); err != nil {
		t.Fatal(err)
	}
	// A clock that runs ahead alone removes nothing.
	p.exporter.now = func() time.Time { return time.Now().Add(keepFile + time.Hour) }
	if err := p.exporter.sweep(t.Context()); err != nil || len(p.objects(t)) != 1 {
		t.Fatalf("%v, left: %v", err, p.objects(t))
	}
	dbtest.Exec(t, p.db.App, `UPDATE audit_exports SET finished_at = now() - $1::interval`, keepFile+time.Hour)
	if err := p.exporter.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if row = p.read(t, row); row.Object != nil || row.Status != "ready" || len(p.objects(t)) != 0 {
		t.Errorf("%+v %v", row, p.objects(t))
	}
}

func TestExportHoldsAllOrFailsWhenTheMirrorIsAway(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	tr.logAt(t, days(450), days(40), days(1))
	log, mirror, mirrorer := tr.mirrored(t)
	copyAll(t, mirrorer)
	if err := NewKeeper(tr.db.Owner, mirror).Keep(t.Context()); err != nil { // a year, and no longer
		t.Fatal(err)
	}
	p := newPress(t, tr, nil)
	export := func(since float64, log *Log) (rows int64, err error) {
		p.exporter.log = log
		row := p.request(t, filters{Since: days(since), Until: time.Now().Add(-time.Hour)}, nil)
		if err = p.work(t, row); err != nil {
			return 0, err
		}
		return *p.read(t, row).RowCount, nil
	}
	if rows, err := export(500, log); err != nil || rows != 3 {
		t.Errorf("%d rows, %v; want 3", rows, err)
	}
	away := NewLog(tr.db.App, brokenMirror{mirror})
	if rows, err := export(500, away); !errors.Is(err, errAway) {
		t.Errorf("%d rows, %v; want none without the mirror", rows, err)
	}
	if rows, err := export(300, away); err != nil || rows != 2 {
		t.Errorf("%d rows, %v; want the 2 that the log still has", rows, err)
	}
}
