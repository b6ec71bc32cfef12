package writeplane

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"skerry/writeplane/audit"
	"skerry/writeplane/jobs"
	"skerry/writeplane/postgres"
)

// AuditConfig says where the audit log's copies and letters go.
type AuditConfig struct {
	// MirrorURL is the Postgres that holds the query mirror; empty means a schema of
	// its own beside the log.
	MirrorURL string
	// SMTPURL is the mail server for scheduled exports; empty means no mail.
	SMTPURL string
}

// openAudit builds what keeps, copies and exports the audit log. The mirror has
// connections of its own, also beside the log: long queries of it would keep the owner's
// from everything else. It may be away.
func (p *Plane) openAudit(ctx context.Context, config Config, registry *prometheus.Registry) (exporter *audit.Exporter, err error) {
	if p.mirror, err = postgres.NewPool(ctx, cmp.Or(config.Audit.MirrorURL, config.Postgres.URL), mirrorConns); err != nil {
		return nil, fmt.Errorf("audit mirror: %w", err)
	}
	mirror := audit.NewPostgresMirror(p.mirror)
	var mailer audit.Mailer
	if config.Audit.SMTPURL != "" {
		if mailer, err = audit.NewSMTP(config.Audit.SMTPURL); err != nil {
			return nil, err
		}
	}
	keeper := audit.NewKeeper(p.db.Owner, mirror)
	if err := keeper.MakeMonths(ctx); err != nil {
		slog.Warn("audit retention at start", "error", err)
	}
	exporter = audit.NewExporter(audit.NewLog(p.db.App, mirror), p.Store, p.blobs, mailer)
	p.group.Add("audit retention", keeper.Run)
	p.group.Add("audit mirror", audit.NewMirrorer(p.db.App, mirror, registry).Run)
	p.group.Add("audit exports", exporter.Run)
	return exporter, p.addJobs(exporter)
}

// addJobs adds the queue of jobs, whose only ones are exports.
func (p *Plane) addJobs(exporter *audit.Exporter) error {
	queue, err := jobs.New(p.db.Owner, exporter.Register)
	if err != nil {
		return err
	}
	exporter.Bind(queue)
	p.group.Add("jobs", queue.Run)
	return nil
}

const mirrorConns = 4
