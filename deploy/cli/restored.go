package cli

import (
	"context"
	"fmt"

	"skerry/writeplane/postgres"
	"skerry/writeplane/publish"
)

type restoredCommand struct{ database }

// Run makes the publisher begin a new epoch, so that every edge takes its state anew.
func (cmd *restoredCommand) Run(ctx context.Context, streams Streams) error {
	if err := cmd.validate(); err != nil {
		return err
	}
	db, err := postgres.Open(ctx, postgres.Config{URL: cmd.PostgresURL, MaxConns: 2})
	if err != nil {
		return err
	}
	defer db.Close()
	if err := publish.New(db.App).DeclareRestore(ctx); err != nil {
		return err
	}
	_, err = fmt.Fprintln(streams.Out, "declared: the edges take their state anew as soon as a write plane publishes, and serve what they have meanwhile")
	return err
}
