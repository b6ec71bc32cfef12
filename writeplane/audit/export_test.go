package audit

import (
	"bufio"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"mime/quotedprintable"
	"net"
	"net/http"
	"net/textproto"
	"runtime"
	"slices"
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

func TestExportIsRFC4180WithHeaderAndNoFormulas(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	for i, hostile := range []string{"=HYPERLINK(\"http://evil\")", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "plain", "with,comma", "with \"quotes\"", "two\r\nlines"} {
		tr.log(t, commit.Entry{ProjectID: tr.project, Actor: commit.Actor{ID: hostile}, Action: "a.b", ResourceType: "r", ResourceID: fmt.Sprint(i), After: map[string]any{"text": hostile}})
	}
	tr.log(t, commit.Entry{Action: "organization.updated", ResourceType: "organization", ResourceID: "x"})
	p := newPress(t, tr, nil)
	row := p.request(t, filters{}, nil)
	if err := p.work(t, row); err != nil {
		t.Fatal(err)
	}
	row = p.read(t, row)
	text := p.file(t, row)
	if row.Status != "ready" || *row.SizeBytes != int64(len(text)) {
		t.Fatalf("%+v, %d bytes", row, len(text))
	}
	if !strings.HasPrefix(text, "id,actor_id,actor_email,action,resource_type,resource_id,before,after,metadata,created_at,seq,hash,project_id\r\n") {
		t.Errorf("%.200s", text)
	}
	if strings.Contains(strings.ReplaceAll(text, "\r\n", ""), "\n") {
		t.Error("a line ends without CR")
	}
	records, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	// ReadAll turns CRLF within quotes into LF; nothing else is changed by it. The
	// export's own request is the last entry.
	want := []string{"'=HYPERLINK(\"http://evil\")", "'+1", "'-1", "'@SUM(A1)", "'\tx", "'\rx", "plain", "with,comma", "with \"quotes\"", "two\nlines", "user-1", "user-1"}
	if int64(len(records)-1) != *row.RowCount || len(records)-1 != len(want) {
		t.Fatalf("%d records, %d rows", len(records), *row.RowCount)
	}
	for i, record := range records[1:] {
		if record[1] != want[i] {
			t.Errorf("row %d: actor %q, want %q", i, record[1], want[i])
		}
		for _, cell := range record {
			if cell != "" && strings.ContainsRune("=+-@\t\r", rune(cell[0])) {
				t.Errorf("row %d: a spreadsheet runs %q", i, cell)
			}
		}
	}
	if records[11][12] != "" || records[1][12] != tr.project || records[1][10] != "1" || records[12][3] != "audit.export.requested" {
		t.Errorf("%v\n%v", records[11], records[1])
	}
	var actions []string
	rows, _ := p.db.App.Query(t.Context(), `SELECT action FROM audit_entries ORDER BY seq DESC LIMIT 2`)
	actions, err = pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || !slices.Equal(actions, []string{"audit.export.delivered", "audit.export.requested"}) {
		t.Errorf("%v %v", actions, err)
	}
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

func FuzzCSVCellIsReadBackByAReader(f *testing.F) {
	for _, seed := range []string{"", "a", "=1", "a,b", "\"", "\r\n", "a\rb", " x "} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, cell string) {
		line := append(appendCell(nil, cell), ",end\r\n"...)
		record, err := csv.NewReader(strings.NewReader(string(line))).Read()
		if err != nil || len(record) != 2 || record[1] != "end" {
			t.Fatalf("%q: %v, %v", line, record, err)
		}
		want := cell
		if cell != "" && strings.IndexByte("=+-@\t\r", cell[0]) >= 0 {
			want = "'" + cell
		}
		if record[0] != strings.ReplaceAll(want, "\r\n", "\n") {
			t.Errorf("%q became %q", cell, record[0])
		}
	})
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

// A process that is killed in an export: its lock ends with its connection, and the
// next process makes the one file.
func TestKilledExportRunsAgainAndLeavesOneFile(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	tr.logMany(t, 5)
	p := newPress(t, tr, nil)
	row := p.request(t, filters{}, nil)
	// The dead process had begun, held the lock and written half a file.
	if _, _, err := p.exporter.begin(t.Context(), row.ID); err != nil {
		t.Fatal(err)
	}
	pooled, err := p.db.App.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dying := pooled.Hijack()
	if _, err := dying.Exec(t.Context(), `SELECT pg_advisory_lock(hashtextextended($1, 0))`, exportLock(row.ID)); err != nil {
		t.Fatal(err)
	}
	half, err := p.files.Create(t.Context(), "exports/"+row.OrganizationID+"/"+row.ID+".csv", "text/csv")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(half, "half")
	if _, err := p.db.App.Exec(t.Context(), `DELETE FROM river_job`); err != nil {
		t.Fatal(err)
	}

	if err := p.work(t, row); err != nil || p.read(t, row).Status != "running" {
		t.Fatalf("a second process worked beside a living one: %v", err)
	}
	if _, err := p.db.Owner.Exec(t.Context(), `SELECT pg_terminate_backend($1)`, dying.PgConn().PID()); err != nil {
		t.Fatal(err)
	}
	_ = dying.Close(t.Context())
	half.Abort()

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.queue.Run(ctx) }()
	p.exporter.now = func() time.Time { return time.Now().Add(2 * requeueAfter[1]) }
	await(t, func() bool {
		if err := p.exporter.requeue(t.Context()); err != nil {
			t.Fatal(err)
		}
		return p.read(t, row).Status == "ready"
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if names := p.objects(t); len(names) != 1 {
		t.Errorf("%v", names)
	}
	if lines := strings.Count(p.file(t, p.read(t, row)), "\r\n"); lines != 1+5+1 {
		t.Errorf("%d lines", lines)
	}
	var delivered int
	if err := p.db.App.QueryRow(t.Context(), `SELECT count(*) FROM audit_entries WHERE action = 'audit.export.delivered'`).Scan(&delivered); err != nil || delivered != 1 {
		t.Errorf("delivered %d times, %v", delivered, err)
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

func TestExportOfManyEntriesHoldsLittleMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 60 MB")
	}
	tr := newTrail(t, "pro")
	tr.logMany(t, 1)
	fill(t, tr, 30_000, strings.Repeat("x", 2000))
	p := newPress(t, tr, nil)
	row := p.request(t, filters{}, nil)
	above := heapDuring(t, func() {
		if err := p.work(t, row); err != nil {
			t.Fatal(err)
		}
	})
	row = p.read(t, row)
	t.Logf("%d rows, %d MiB; heap at most %d MiB above the start, garbage included", *row.RowCount, *row.SizeBytes>>20, above>>20)
	if *row.SizeBytes < 60<<20 || above > 64<<20 {
		t.Errorf("%d bytes exported, heap up to %d MiB more", *row.SizeBytes, above>>20)
	}
}

func TestVerifyOfManyEntriesHoldsLittleMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 60 MB")
	}
	tr := newTrail(t, "pro")
	tr.logMany(t, 1)
	fill(t, tr, 30_000, strings.Repeat("x", 2000))
	above := heapDuring(t, func() {
		verdict, err := NewLog(tr.db.App, nil).Verify(t.Context(), tr.organization)
		if err != nil || verdict.Entries != 30_001 {
			t.Errorf("%+v, %v; want 30001 entries", verdict, err)
		}
	})
	t.Logf("heap at most %d MiB above the start, garbage included", above>>20)
	if above > 32<<20 {
		t.Errorf("heap up to %d MiB more for 60 MB of entries", above>>20)
	}
}

// heapDuring is by how much the heap grew at most while fn ran, garbage included.
func heapDuring(t *testing.T, fn func()) uint64 {
	t.Helper()
	stop, highest := make(chan struct{}), make(chan uint64, 1)
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	go func() {
		var top uint64
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				var now runtime.MemStats
				runtime.ReadMemStats(&now)
				top = max(top, now.HeapAlloc)
			case <-stop:
				highest <- top
				return
			}
		}
	}()
	func() {
		defer close(stop) // also when fn ends the test
		fn()
	}()
	top := <-highest
	return top - min(top, before.HeapAlloc)
}

// fill adds entries of the last days to the log by SQL, without hashes, for volume.
func fill(t testing.TB, tr *trail, n int, text string) { fillOver(t, tr, n, 5*24*time.Hour, text) }

func fillOver(t testing.TB, tr *trail, n int, span time.Duration, text string) {
	t.Helper()
	for at := time.Now().Add(-span - 32*24*time.Hour); at.Before(time.Now()); at = at.AddDate(0, 0, 27) {
		if _, err := tr.db.Owner.Exec(t.Context(), `SELECT audit_make_month($1)`, at); err != nil {
			t.Fatal(err)
		}
	}
	_, err := tr.db.Owner.Exec(t.Context(), `UPDATE audit_chains SET begun_at = $2 WHERE organization_id = $1`, tr.organization, time.Now().Add(-span-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	_, err = tr.db.Owner.Exec(t.Context(), `
		INSERT INTO audit_entries (organization_id, seq, id, project_id, actor_id, actor_email, action, resource_type, resource_id, before, after, metadata, created_at, retention, hash)
		SELECT $1, 1 + n, gen_random_uuid(), $2, 'user-' || n % 100, NULL, 'switch.flag.' || (ARRAY['created','updated','halted','unhalted'])[1 + n % 4], 'flag', n::text,
		       NULL, to_json($4::text), '{}', date_trunc('milliseconds', now() - make_interval(secs => ($3 - n) * $5)), 'pro', '\x00'
		FROM generate_series(1, $3) AS n`, tr.organization, tr.project, n, text, span.Seconds()/float64(n))
	if err != nil {
		t.Fatal(err)
	}
}

func TestSchedulesExportThePeriodThatEnded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ frequency, now, since, until string }{
		{"daily", "2026-03-02T10:00:00Z", "2026-03-02T00:00:00Z", "2026-03-03T00:00:00Z"},
		{"daily", "2026-02-28T00:00:00Z", "2026-02-28T00:00:00Z", "2026-03-01T00:00:00Z"},
		{"weekly", "2026-03-02T00:00:00Z", "2026-03-02T00:00:00Z", "2026-03-09T00:00:00Z"}, // a Monday
		{"weekly", "2026-03-08T23:59:59Z", "2026-03-02T00:00:00Z", "2026-03-09T00:00:00Z"}, // the Sunday after
		{"monthly", "2026-01-31T10:00:00Z", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"},
		{"monthly", "2026-12-15T10:00:00+02:00", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"},
	} {
		now, _ := time.Parse(time.RFC3339, c.now)
		end := periodEnd(c.frequency, now)
		if got := end.Format(time.RFC3339); got != c.until {
			t.Errorf("%s %s ends %s, want %s", c.frequency, c.now, got, c.until)
		}
		if got := periodBefore(c.frequency, end).Format(time.RFC3339); got != c.since {
			t.Errorf("%s %s begins %s, want %s", c.frequency, c.now, got, c.since)
		}
	}
}

func TestEachMissedPeriodIsExportedOnce(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "growth")
	p := newPress(t, tr, nil)
	clock := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	p.exporter.now = func() time.Time { return clock }
	insert := func(kind string, next time.Time) {
		_, err := tr.db.App.Exec(t.Context(), `
			INSERT INTO audit_export_schedules (id, organization_id, filters, frequency, delivery, created_by, created_at, next_at)
			VALUES ($1, $2, $3, 'daily', $4, 'user-1', now(), $5)`, id.New(), tr.organization, filters{}, delivery{Type: kind}, next)
		if err != nil {
			t.Fatal(err)
		}
	}
	insert("presigned_url", time.Date(2026, 3, 8, 0, 0, 0, 0, time.UTC)) // nobody ran for two days
	for range 2 {
		if err := p.exporter.startDue(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := tr.db.App.Query(t.Context(), exportSQL+"true ORDER BY filters->>'since'")
	if err != nil {
		t.Fatal(err)
	}
	made, err := pgx.CollectRows(rows, scanExport)
	if err != nil {
		t.Fatal(err)
	}
	var since []string
	for _, export := range made {
		since = append(since, export.Filters.Since.Format("01-02"))
	}
	if !slices.Equal(since, []string{"03-07", "03-08", "03-09"}) {
		t.Errorf("%v", since)
	}
	// A clock that runs ahead alone ends no period.
	clock = time.Now().AddDate(1, 0, 0)
	if _, err := tr.db.App.Exec(t.Context(), `UPDATE audit_export_schedules SET next_at = now() + interval '1 day'`); err != nil {
		t.Fatal(err)
	}
	if err := p.exporter.startDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	var count int
	if err := tr.db.App.QueryRow(t.Context(), `SELECT count(*) FROM audit_exports`).Scan(&count); err != nil || count != 3 {
		t.Fatalf("%d exports, %v", count, err)
	}
	clock = time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	if _, err := tr.db.App.Exec(t.Context(), `UPDATE audit_export_schedules SET next_at = '2026-03-11'`); err != nil {
		t.Fatal(err)
	}
	// A tier that no longer includes it: the schedule rests and does not pile up.
	if _, err := tr.db.App.Exec(t.Context(), `UPDATE organizations SET tier = 'pro'`); err != nil {
		t.Fatal(err)
	}
	clock = clock.AddDate(0, 0, 2)
	if err := p.exporter.startDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := tr.db.App.QueryRow(t.Context(), `SELECT count(*) FROM audit_exports`).Scan(&count); err != nil || count != 3 {
		t.Errorf("%d exports, %v", count, err)
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
	if _, err := p.db.App.Exec(t.Context(), `UPDATE audit_exports SET finished_at = now() - $1::interval`, keepFile+time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := p.exporter.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if row = p.read(t, row); row.Object != nil || row.Status != "ready" || len(p.objects(t)) != 0 {
		t.Errorf("%+v %v", row, p.objects(t))
	}
}

// mailServer is an SMTP server of one connection that keeps what it is told.
func mailServer(t *testing.T) (address string, received <-chan string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan string, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		text := textproto.NewConn(conn)
		_ = text.PrintfLine("220 ready")
		var envelope []string
		for {
			line, err := text.ReadLine()
			if err != nil {
				return
			}
			switch verb := strings.ToUpper(line[:4]); verb {
			case "EHLO":
				_ = text.PrintfLine("250 mail.example")
			case "DATA":
				_ = text.PrintfLine("354 go on")
				body, err := io.ReadAll(bufio.NewReader(text.DotReader()))
				if err != nil {
					return
				}
				out <- strings.Join(envelope, "\n") + "\n" + string(body)
				_ = text.PrintfLine("250 taken")
			case "QUIT":
				_ = text.PrintfLine("221 bye")
				return
			default:
				envelope = append(envelope, line)
				_ = text.PrintfLine("250 ok")
			}
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return listener.Addr().String(), out
}

func TestScheduledExportIsMailedWithALink(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	address, received := mailServer(t)
	mailer, err := NewSMTP("smtp://" + address + "?from=skerry@example.com")
	if err != nil {
		t.Fatal(err)
	}
	p := newPress(t, tr, mailer)
	row := p.request(t, filters{}, &delivery{Type: "email", To: "auditor@example.com"})
	if err := p.work(t, row); err != nil {
		t.Fatal(err)
	}
	letter := <-received
	for _, part := range []string{"MAIL FROM:<skerry@example.com>", "RCPT TO:<auditor@example.com>", "Subject: Audit export", "http://skerry.example/api/v1/downloads/exports/"} {
		if !strings.Contains(letter, part) {
			t.Errorf("no %q in\n%s", part, letter)
		}
	}
	if p.read(t, row).Status != "ready" {
		t.Error("not ready")
	}
}

// As S3 signs with the credentials of a role.
func TestLongLinkOutlivesItsMail(t *testing.T) {
	t.Parallel()
	address, received := mailServer(t)
	mailer, err := NewSMTP("smtp://" + address)
	if err != nil {
		t.Fatal(err)
	}
	text := "Prüfung:\n\nhttps://bucket.example/x.csv?X-Amz-Security-Token=" + strings.Repeat("a%2F", 500) + "\n\nuntil then\n"
	if err := mailer.Send(t.Context(), "auditor@example.com", Letter{Subject: "x", Text: text}); err != nil {
		t.Fatal(err)
	}
	header, body, _ := strings.Cut(<-received, "\n\n")
	if !strings.Contains(header, "Content-Transfer-Encoding: quoted-printable") {
		t.Errorf("header %s", header)
	}
	for line := range strings.SplitSeq(body, "\n") {
		if len(line) > 998 {
			t.Errorf("a line of %d bytes", len(line))
		}
	}
	if got, err := io.ReadAll(quotedprintable.NewReader(strings.NewReader(body))); err != nil || string(got) != text {
		t.Errorf("%q, %v; want %q", got, err, text)
	}
}

func TestMailServerThatIsAwayFailsTheAttemptOnly(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	mailer, err := NewSMTP("smtp://user:secret-word@127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	p := newPress(t, tr, mailer)
	row := p.request(t, filters{}, &delivery{Type: "email", To: "auditor@example.com"})
	for attempt := 1; attempt <= exportAttempts; attempt++ {
		if err := p.work(t, row); err == nil || strings.Contains(err.Error(), "secret-word") {
			t.Fatalf("attempt %d: %v", attempt, err)
		}
		want := "running"
		if attempt == exportAttempts {
			want = "failed"
		}
		if got := p.read(t, row).Status; got != want {
			t.Errorf("attempt %d: %s", attempt, got)
		}
	}
	// What it could not send, it does not leave behind.
	if err := p.exporter.sweep(t.Context()); err != nil || len(p.objects(t)) != 0 || p.read(t, row).Object != nil {
		t.Errorf("%v, left: %v", err, p.objects(t))
	}
	if _, err := NewSMTP("http://user:secret-word@host"); err == nil || strings.Contains(err.Error(), "secret-word") {
		t.Errorf("%v", err)
	}
	if err := mailer.Send(t.Context(), "a@b\r\nBCC: c@d", Letter{}); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// A store or a mail server that is away for some minutes costs no export.
func TestAttemptsAtAnExportTakeTheirTime(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	p := newPress(t, tr, nil)
	row := p.request(t, filters{}, nil)
	clock := time.Now()
	p.exporter.now = func() time.Time { return clock }
	jobsAfter := func(wait time.Duration) (count int) {
		t.Helper()
		clock = clock.Add(wait)
		if err := p.exporter.requeue(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := p.db.App.QueryRow(t.Context(), `SELECT count(*) FROM river_job`).Scan(&count); err != nil {
			t.Fatal(err)
		}
		return count
	}
	for attempt, c := range []struct{ early, late time.Duration }{
		{9 * time.Second, 2 * time.Second}, // none began
		{9 * time.Second, 2 * time.Second},
		{59 * time.Second, 2 * time.Second},
		{299 * time.Second, 2 * time.Second},
		{1199 * time.Second, 2 * time.Second},
		{1199 * time.Second, 2 * time.Second}, // more attempts than one fails after: processes died
	} {
		if _, err := p.db.App.Exec(t.Context(), `UPDATE audit_exports SET attempts = $2, status = 'running', queued_at = $3 WHERE id = $1`, row.ID, attempt, clock); err != nil {
			t.Fatal(err)
		}
		before := jobsAfter(0)
		if early, late := jobsAfter(c.early)-before, jobsAfter(c.late)-before; early != 0 || late != 1 {
			t.Errorf("after %d attempts: %d jobs after %s, %d soon after; want 0 and 1", attempt, early, c.early, late)
		}
	}
}

// overdue is a context whose deadline a test lets pass.
type overdue struct {
	context.Context
	passed chan struct{}
}

func (o overdue) Done() <-chan struct{} { return o.passed }
func (o overdue) Err() error {
	select {
	case <-o.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// mailerFunc is a mail server with a fault.
type mailerFunc func(ctx context.Context) error

func (f mailerFunc) Send(ctx context.Context, _ string, _ Letter) error { return f(ctx) }

func TestExportThatNeverEndsFailsAtLast(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	passed := make(chan struct{})
	p := newPress(t, tr, mailerFunc(func(ctx context.Context) error {
		close(passed)
		<-ctx.Done()
		return ctx.Err()
	}))
	row := p.request(t, filters{}, &delivery{Type: "email", To: "auditor@example.com"})
	if _, err := p.db.App.Exec(t.Context(), `UPDATE audit_exports SET attempts = $2 WHERE id = $1`, row.ID, exportAttempts-1); err != nil {
		t.Fatal(err)
	}
	job := &river.Job[exportArgs]{Args: exportArgs{ExportID: row.ID}}
	if err := p.exporter.Work(overdue{t.Context(), passed}, job); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if row = p.read(t, row); row.Status != "failed" || *row.Error != "internal" {
		t.Errorf("%+v", row)
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
