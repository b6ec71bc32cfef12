package writeplane

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"skerry/writeplane/audit"
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

// openAudit builds what keeps, copies and exports the audit log.
func (p *Plane) openAudit(ctx context.Context, config AuditConfig, registry *prometheus.Registry) (*audit.Exporter, error) {
	pool := p.db.Owner
	if config.MirrorURL != "" {
		var err error
		if p.mirror, err = postgres.OpenPool(ctx, config.MirrorURL, mirrorConns); err != nil {
			return nil, fmt.Errorf("audit mirror: %w", err)
		}
		pool = p.mirror
	}
	mirror, err := audit.OpenPostgresMirror(ctx, pool)
	if err != nil {
		return nil, err
	}
	var mailer audit.Mailer
	if config.SMTPURL != "" {
		if mailer, err = audit.NewSMTP(config.SMTPURL); err != nil {
			return nil, err
		}
	}
	keeper := audit.NewKeeper(p.db.Owner, mirror)
	if err := keeper.Keep(ctx); err != nil {
		slog.Warn("audit retention at start", "error", err)
	}
	exporter := audit.NewExporter(audit.NewLog(p.db.App, mirror), p.Store, p.blobs, mailer)
	p.group.Add("audit retention", keeper.Run)
	p.group.Add("audit mirror", audit.NewMirrorer(p.db.App, mirror, registry).Run)
	p.group.Add("audit exports", exporter.Run)
	return exporter, nil
}

const mirrorConns = 4
