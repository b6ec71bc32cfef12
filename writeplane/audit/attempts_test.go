package audit

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/riverqueue/river"

	"skerry/writeplane/postgres/dbtest"
)

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
	dbtest.Exec(t, dying, `SELECT pg_advisory_lock(hashtextextended($1, 0))`, exportLock(row.ID))
	half, err := p.files.Create(t.Context(), "exports/"+row.OrganizationID+"/"+row.ID+".csv", "text/csv")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(half, "half")
	dbtest.Exec(t, p.db.App, `DELETE FROM river_job`)

	if err := p.work(t, row); err != nil || p.read(t, row).Status != "running" {
		t.Fatalf("a second process worked beside a living one: %v", err)
	}
	dbtest.Exec(t, p.db.Owner, `SELECT pg_terminate_backend($1)`, dying.PgConn().PID())
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
	if delivered := dbtest.One[int](t, p.db.App, `SELECT count(*) FROM audit_entries WHERE action = 'audit.export.delivered'`); delivered != 1 {
		t.Errorf("delivered %d times", delivered)
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
	jobsAfter := func(wait time.Duration) int {
		t.Helper()
		clock = clock.Add(wait)
		if err := p.exporter.requeue(t.Context()); err != nil {
			t.Fatal(err)
		}
		return dbtest.One[int](t, p.db.App, `SELECT count(*) FROM river_job`)
	}
	for attempt, c := range []struct{ early, late time.Duration }{
		{9 * time.Second, 2 * time.Second}, // none began
		{9 * time.Second, 2 * time.Second},
		{59 * time.Second, 2 * time.Second},
		{299 * time.Second, 2 * time.Second},
		{1199 * time.Second, 2 * time.Second},
		{1199 * time.Second, 2 * time.Second}, // more attempts than one fails after: processes died
	} {
		dbtest.Exec(t, p.db.App, `UPDATE audit_exports SET attempts = $2, status = 'running', queued_at = $3 WHERE id = $1`, row.ID, attempt, clock)
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
	dbtest.Exec(t, p.db.App, `UPDATE audit_exports SET attempts = $2 WHERE id = $1`, row.ID, exportAttempts-1)
	job := &river.Job[exportArgs]{Args: exportArgs{ExportID: row.ID}}
	if err := p.exporter.Work(overdue{t.Context(), passed}, job); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if row = p.read(t, row); row.Status != "failed" || *row.Error != "internal" {
		t.Errorf("%+v", row)
	}
}
