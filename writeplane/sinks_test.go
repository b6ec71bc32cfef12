package writeplane

import (
	"context"

	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

func noDeliveries(ctx context.Context, tx *postgres.Pipeline, _ []commit.Event, _ []commit.Entry) (func([]commit.StoredEntry) error, error) {
	return func([]commit.StoredEntry) error { return nil }, tx.Settle(ctx)
}
