package writeplane

import (
	"context"

	"github.com/jackc/pgx/v5"

	"skerry/writeplane/crashes"
	"skerry/writeplane/ingest"
	"skerry/writeplane/lease"
	"skerry/writeplane/symbols"
)

// openCatch builds what keeps symbols and crash reports, and adds its workers.
func (p *Plane) openCatch(config symbols.Config, crashDays int, leases *lease.Store) (*symbols.Module, *crashes.Module, error) {
	module, err := symbols.New(config, p.Store, p.Access, p.blobs)
	if err != nil {
		return nil, nil, err
	}
	library := symbols.NewLibrary(module)
	p.group.Add("symbol indexer", symbols.NewIndexer(module, crashes.LookAgain).Run)
	p.group.Add("symbol cleaner", symbols.NewCleaner(module, leases.Acquire).Run)
	p.group.Add("symbolication", crashes.NewWorker(p.db.App, library).Run)
	p.group.Add("crash retention", crashes.NewRetention(p.db.Owner, crashDays).Run)
	return module, crashes.New(p.Store, p.Access), nil
}

// takeCrashes is how the ingest receiver stores crash reports.
func takeCrashes(ctx context.Context, tx pgx.Tx, rows []ingest.CrashRow) (bad []ingest.BadCrash, err error) {
	in := make([]crashes.Row, len(rows))
	for i, r := range rows {
		in[i] = crashes.Row{ID: r.ID, ProjectID: r.ProjectID, Environment: r.Environment, ReceivedAt: r.ReceivedAt, Record: r.Record}
	}
	refused, err := crashes.Insert(ctx, tx, in)
	for _, b := range refused {
		bad = append(bad, ingest.BadCrash{Index: b.Index, Reason: b.Reason})
	}
	return bad, err
}
