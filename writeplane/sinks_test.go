package writeplane

import (
	"context"

	"github.com/jackc/pgx/v5"

	"skerry/writeplane/commit"
)

func noDeliveries(context.Context, pgx.Tx, []commit.Event, []commit.StoredEntry) error { return nil }
