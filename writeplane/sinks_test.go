package writeplane

import (
	"context"

	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

func noDeliveries(context.Context, *postgres.Pipeline, []commit.Event, []commit.StoredEntry) error {
	return nil
}
