package writeplane

import (
	"context"

	"skerry/writeplane/access"
	"skerry/writeplane/audit"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
	"skerry/writeplane/webhooks"
)

// Found makes a first organization in a database whose schema is current, without a
// running plane and without streams: its documents wait for the first publisher. It
// returns the members' tokens by name and may be repeated with the same founding.
func Found(ctx context.Context, database postgres.Config, config access.Config, founding access.Founding) (map[string]string, error) {
	db, err := postgres.Open(ctx, database)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	store, err := access.New(ctx, config, db.App)
	if err != nil {
		return nil, err
	}
	commits := commit.New(db.App, commit.Sinks{Audit: audit.Append, Deliveries: webhooks.Enqueue})
	return store.Bootstrap(ctx, commits, founding)
}
