package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"skerry/pkg/instant"
	"skerry/writeplane/access"
	"skerry/writeplane/blobs"
	"skerry/writeplane/commit"
	"skerry/writeplane/jobs"
	"skerry/writeplane/postgres"
)

// MaxExport is the largest export in bytes (specification, Limits: 100 MB).
const MaxExport = 100 << 20

const (
	exportAttempts = 5
	exportTick     = 5 * time.Second
	keepFile       = 30 * 24 * time.Hour
	deliveredFor   = 24 * time.Hour // how long a delivered URL opens
)

// requeueAfter is when an open export that nobody works on is taken up again: after so many
// attempts, the first entry for none. A process that died is replaced soon; a mail server
// or a store that is away gets time to come back.
var requeueAfter = [exportAttempts]time.Duration{10 * time.Second, 10 * time.Second, time.Minute, 5 * time.Minute, 20 * time.Minute}

// filters say what an export holds. Projects is the sight of whoever asked for it.
type filters struct {
	Projects     []string  `json:"projects"` // nil: the whole organization
	ProjectID    *string   `json:"project_id"`
	Since        time.Time `json:"since"`
	Until        time.Time `json:"until"`
	ActorID      string    `json:"actor_id,omitempty"`
	Action       string    `json:"action,omitempty"`
	ResourceType string    `json:"resource_type,omitempty"`
}

func (f filters) query(organizationID string) Query {
	return Query{OrganizationID: organizationID, Projects: f.Projects, ActorID: f.ActorID, Action: ParsePattern(f.Action),
		ResourceType: ParsePattern(f.ResourceType), Since: f.Since, Until: f.Until, Ascending: true}
}

// exportRow is one export.
type exportRow struct {
	ID             string
	OrganizationID string
	Filters        filters
	Status         string
	RowCount       *int64
	SizeBytes      *int64
	Object         *string
	Error          *string
	RequestedBy    string
	RequestedEmail *string
	Delivery       *delivery
	CreatedAt      time.Time
}

// exportView is the export as the API shows it (supplement §7).
type exportView struct {
	ID          string        `json:"id"`
	Status      string        `json:"status"`
	RowCount    *int64        `json:"row_count"`
	SizeBytes   *int64        `json:"size_bytes"`
	DownloadURL *string       `json:"download_url"`
	ExpiresAt   *instant.Time `json:"download_url_expires_at"`
	Error       *string       `json:"error"`
}

func (e exportRow) view() exportView {
	return exportView{ID: e.ID, Status: e.Status, RowCount: e.RowCount, SizeBytes: e.SizeBytes, Error: e.Error}
}

func (e exportRow) entry(action string, after any) commit.Entry {
	entry := commit.Entry{OrganizationID: e.OrganizationID, Action: action, ResourceType: "audit_export", ResourceID: e.ID, After: after,
		Metadata: map[string]any{"since": instant.Format(e.Filters.Since), "until": instant.Format(e.Filters.Until)}}
	if e.Filters.ProjectID != nil {
		entry.ProjectID = *e.Filters.ProjectID
	}
	return entry
}

// signed is the view with a fresh download URL where there is a file.
func (e exportRow) signed(ctx context.Context, files *blobs.Store, expiry time.Duration) (exportView, error) {
	v := e.view()
	if e.Status != "ready" || e.Object == nil {
		return v, nil
	}
	name := fmt.Sprintf("audit-%s-%s.csv", e.Filters.Since.Format("20060102"), e.Filters.Until.Format("20060102"))
	address, expires, err := files.SignedURL(ctx, *e.Object, name, expiry)
	if err != nil {
		return v, err
	}
	v.DownloadURL, v.ExpiresAt = &address, &instant.Time{Time: expires}
	return v, nil
}

const exportSQL = `
SELECT id, organization_id, filters, status, row_count, size_bytes, object, error, requested_by, requested_email, delivery, created_at
FROM audit_exports WHERE `

func scanExport(row pgx.CollectableRow) (e exportRow, err error) {
	err = row.Scan(&e.ID, &e.OrganizationID, &e.Filters, &e.Status, &e.RowCount, &e.SizeBytes, &e.Object, &e.Error, &e.RequestedBy, &e.RequestedEmail, &e.Delivery, &e.CreatedAt)
	return e, err
}

// insertExport stores a new export, its job and its audit entry together.
func insertExport(ctx context.Context, tx *commit.Tx, queue *jobs.Queue, e exportRow, scheduleID *string) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO audit_exports (id, organization_id, filters, status, requested_by, requested_email, schedule_id, delivery, created_at, queued_at)
		VALUES ($1, $2, $3, 'pending', $4, $5, $6, $7, $8, $8)`,
		e.ID, e.OrganizationID, e.Filters, e.RequestedBy, e.RequestedEmail, scheduleID, e.Delivery, e.CreatedAt)
	if err != nil {
		return fmt.Errorf("insert export: %w", err)
	}
	tx.Audit(e.entry("audit.export.requested", e.view()))
	return queue.Insert(ctx, tx, exportArgs{ExportID: e.ID}, &river.InsertOpts{MaxAttempts: 1})
}

type exportArgs struct {
	ExportID string `json:"export_id"`
}

// Kind implements river.JobArgs.
func (exportArgs) Kind() string { return "audit_export" }

// Exporter writes exports to the blob store and runs schedules. Every process of the
// plane has one; a lock per export lets one of them work on it, and ends with the
// connection of a process that dies.
type Exporter struct {
	river.WorkerDefaults[exportArgs]
	log     *Log
	commits *commit.Store
	blobs   *blobs.Store
	mailer  Mailer // nil: no mail
	queue   *jobs.Queue
	limit   int64
	now     func() time.Time
}

// NewExporter returns the worker; Register makes it known to the queue, which Bind
// then hands back. mailer may be nil.
func NewExporter(log *Log, commits *commit.Store, files *blobs.Store, mailer Mailer) *Exporter {
	return &Exporter{log: log, commits: commits, blobs: files, mailer: mailer, limit: MaxExport, now: time.Now}
}

// Register is the exporter's jobs.Registrar.
func (x *Exporter) Register(w *river.Workers) { river.AddWorker(w, x) }

// Bind gives the exporter the queue that it is registered with.
func (x *Exporter) Bind(queue *jobs.Queue) { x.queue = queue }

// Timeout implements river.Worker: 100 MB to a slow store take a while.
func (x *Exporter) Timeout(*river.Job[exportArgs]) time.Duration { return 30 * time.Minute }

// Work implements river.Worker. An export that is finished, or that another process
// works on, is left alone.
func (x *Exporter) Work(ctx context.Context, job *river.Job[exportArgs]) error {
	conn, err := x.commits.Pool().Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var mine bool
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock(hashtextextended($1, 0))`, exportLock(job.Args.ExportID)).Scan(&mine); err != nil {
		return fmt.Errorf("lock export: %w", err)
	}
	if !mine {
		return nil
	}
	defer func() {
		// A connection that cannot give the lock back must not return to the pool with it.
		if _, err := conn.Exec(context.WithoutCancel(ctx), `SELECT pg_advisory_unlock(hashtextextended($1, 0))`, exportLock(job.Args.ExportID)); err != nil {
			_ = conn.Conn().Close(context.WithoutCancel(ctx))
		}
	}()
	row, attempts, err := x.begin(ctx, job.Args.ExportID)
	if err != nil || row.Status != "running" {
		return err
	}
	if err = x.export(ctx, row); err == nil {
		return nil
	}
	slog.Warn("audit export", "export", row.ID, "attempt", attempts, "error", err)
	switch {
	case errors.Is(err, errTooLarge):
		return x.fail(ctx, row, errTooLarge.Error())
	case attempts >= exportAttempts && !errors.Is(ctx.Err(), context.Canceled): // a process that stops is no failure
		return errors.Join(err, x.fail(context.WithoutCancel(ctx), row, "internal"))
	}
	return err // Run takes it up again
}

func exportLock(id string) string { return "audit export " + id }

// begin counts the attempt and returns the export. Its status is running unless it is
// finished, or gone.
func (x *Exporter) begin(ctx context.Context, id string) (row exportRow, attempts int, err error) {
	_, err = x.commits.Pool().Exec(ctx, `UPDATE audit_exports SET status = 'running', attempts = attempts + 1 WHERE id = $1 AND status IN ('pending', 'running')`, id)
	if err != nil {
		return row, 0, fmt.Errorf("begin export: %w", err)
	}
	row, ok, err := postgres.One(ctx, x.commits.Pool(), "read export", scanExport, exportSQL+"id = $1", id)
	if err != nil || !ok {
		return row, 0, err
	}
	if err = x.commits.Pool().QueryRow(ctx, `SELECT attempts FROM audit_exports WHERE id = $1`, id).Scan(&attempts); err != nil {
		return row, 0, fmt.Errorf("read export's attempts: %w", err)
	}
	return row, attempts, nil
}

func (e exportRow) object() string { return "exports/" + e.OrganizationID + "/" + e.ID + ".csv" }

// export streams the entries into the export's one object and reports it ready. The
// object's name is the export's, so that a second run replaces what a first one left.
func (x *Exporter) export(ctx context.Context, row exportRow) error {
	object := row.object()
	file, err := x.blobs.Create(ctx, object, "text/csv; charset=utf-8")
	if err != nil {
		return err
	}
	defer file.Abort()
	csv, err := newCSV(file, x.limit)
	if err != nil {
		return err
	}
	q := row.Filters.query(row.OrganizationID)
	if q.Projects == nil || len(q.Projects) > 0 {
		if err := x.log.Read(ctx, q, csv.entry); err != nil {
			return err
		}
	}
	if err := csv.out.Flush(); err != nil {
		return fmt.Errorf("write export: %w", err)
	}
	if err := file.Close(); err != nil {
		return err
	}
	row.Status, row.RowCount, row.SizeBytes, row.Object = "ready", &csv.rows, &csv.bytes, &object
	return x.deliver(ctx, row)
}

// deliver reports the export ready, with entry, event and letter.
func (x *Exporter) deliver(ctx context.Context, row exportRow) error {
	shown, err := row.signed(ctx, x.blobs, deliveredFor)
	if err != nil {
		return err
	}
	byMail := row.Delivery != nil && row.Delivery.Type == "email"
	if byMail && x.mailer != nil {
		// Before the commit: a letter sent twice is better than one that is never sent.
		if err := x.mailer.Send(ctx, row.Delivery.To, exportLetter(row, shown)); err != nil {
			return fmt.Errorf("mail export: %w", err)
		}
	}
	return x.commits.InTx(ctx, row.origin(), func(tx *commit.Tx) error {
		done, err := tx.Exec(ctx, `
			UPDATE audit_exports SET status = 'ready', row_count = $2, size_bytes = $3, object = $4, finished_at = now()
			WHERE id = $1 AND status = 'running'`, row.ID, row.RowCount, row.SizeBytes, row.Object)
		if err != nil || done.RowsAffected() == 0 {
			return err
		}
		tx.Audit(row.entry("audit.export.delivered", row.view())) // without the URL: whoever reads the log is not given the file
		event := commit.Event{Name: "audit.export.delivered", OrganizationID: row.OrganizationID, Data: map[string]any{"export": row.view()}}
		if row.Filters.ProjectID != nil {
			event.ProjectID = *row.Filters.ProjectID
		}
		if row.Delivery != nil && row.Delivery.Type == "presigned_url" {
			event.Data = map[string]any{"export": shown}
		}
		tx.Emit(event)
		return nil
	})
}

func (e exportRow) origin() commit.Origin {
	return commit.Origin{Actor: commit.Actor{ID: e.RequestedBy, Email: deref(e.RequestedEmail)}}
}

// fail ends an export for good. An attempt may have left its file, so its name is noted
// for sweep.
func (x *Exporter) fail(ctx context.Context, row exportRow, reason string) error {
	_, err := x.commits.Pool().Exec(ctx, `
		UPDATE audit_exports SET status = 'failed', error = $2, object = $3, finished_at = now() WHERE id = $1 AND status = 'running'`,
		row.ID, reason, row.object())
	if err != nil {
		return fmt.Errorf("fail export: %w", err)
	}
	return nil
}

// Run starts due schedules, takes up exports whose process died, and removes old
// files, until ctx ends.
func (x *Exporter) Run(ctx context.Context) error {
	tick := time.NewTicker(exportTick)
	defer tick.Stop()
	for {
		if err := x.Tick(ctx); err != nil && ctx.Err() == nil {
			slog.Warn("audit exports", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// Tick is one round of Run.
func (x *Exporter) Tick(ctx context.Context) error {
	return errors.Join(x.startDue(ctx), x.requeue(ctx), x.sweep(ctx))
}

// requeue inserts the job again of each open export whose lock nobody holds.
func (x *Exporter) requeue(ctx context.Context) error {
	return pgx.BeginFunc(ctx, x.commits.Pool(), func(tx pgx.Tx) error {
		open, err := postgres.All(ctx, tx, "list open exports", pgx.RowTo[string], `
			SELECT id FROM audit_exports
			WHERE status IN ('pending', 'running') AND queued_at < $1::timestamptz - ($2::interval[])[least(attempts + 1, cardinality($2))]
			ORDER BY queued_at LIMIT 20 FOR UPDATE SKIP LOCKED`, x.now(), requeueAfter[:])
		if err != nil {
			return err
		}
		for _, id := range open {
			var free bool
			if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))`, exportLock(id)).Scan(&free); err != nil {
				return fmt.Errorf("look at open export: %w", err)
			}
			if _, err := tx.Exec(ctx, `UPDATE audit_exports SET queued_at = $2 WHERE id = $1`, id, x.now()); err != nil {
				return fmt.Errorf("take export up again: %w", err)
			}
			if !free {
				continue // somebody is at it
			}
			if err := x.queue.Insert(ctx, tx, exportArgs{ExportID: id}, &river.InsertOpts{MaxAttempts: 1}); err != nil {
				return err
			}
		}
		return nil
	})
}

// sweep removes the files of exports that are a month old or failed.
func (x *Exporter) sweep(ctx context.Context) error {
	old, err := postgres.All(ctx, x.commits.Pool(), "list old exports", scanExport,
		exportSQL+"object IS NOT NULL AND (finished_at < least($1, now()) - $2::interval OR status = 'failed') LIMIT 20", x.now(), keepFile)
	if err != nil {
		return err
	}
	for _, row := range old {
		if err := x.blobs.Delete(ctx, *row.Object); err != nil {
			return err
		}
		if _, err := x.commits.Pool().Exec(ctx, `UPDATE audit_exports SET object = NULL WHERE id = $1`, row.ID); err != nil {
			return fmt.Errorf("forget old export: %w", err)
		}
	}
	return nil
}

// canExport reports whether the organization's tier includes exports.
func canExport(tier string) bool { return access.TierAtLeast(tier, access.Pro) }
