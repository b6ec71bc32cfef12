package cli

import (
	"cmp"
	"context"
	"os"

	"skerry/deploy/local"
)

type upCommand struct {
	Data             string        `help:"Folder that keeps everything." default:".skerry" type:"path"`
	Edges            int           `help:"How many edges to run." default:"1"`
	ListenEdge       string        `help:"Address of the first edge; edge i listens on the port + i, port 0 picks free ports." default:"127.0.0.1:8080"`
	ListenWritePlane string        `name:"listen-writeplane" help:"Address of the write plane." default:"127.0.0.1:8090"`
	PostgresURL      string        `help:"PostgreSQL to use in place of a private one." placeholder:"URL"`
	NATSURL          string        `name:"nats-url" help:"NATS to use in place of an embedded one." placeholder:"URL"`
	Plane            planeSettings `embed:"" group:"plane"`
	Edge             edgeSettings  `embed:"" group:"edge"`
	NoDemo           bool          `help:"Leave out the demo's surveys, flags, config and events."`
}

// validate refuses addresses that no server can be tried at.
func (cmd *upCommand) validate() error {
	if cmd.PostgresURL != "" {
		if err := (database{cmd.PostgresURL}).validate(); err != nil {
			return err
		}
	}
	if cmd.NATSURL != "" {
		return natsURL(cmd.NATSURL)
	}
	return nil
}

// Run serves until ctx ends.
func (cmd *upCommand) Run(ctx context.Context, streams Streams) error {
	outlive()
	plane, err := cmd.Plane.config()
	if err != nil {
		return err
	}
	if err := cmp.Or(cmd.Edge.validate(), cmd.validate()); err != nil {
		return err
	}
	config := local.Config{
		Plane: plane, Edge: cmd.Edge.config(),
		Data: cmd.Data, Edges: cmd.Edges,
		ListenEdge: cmd.ListenEdge, ListenWritePlane: cmd.ListenWritePlane,
		PostgresURL: cmd.PostgresURL, NATSURL: cmd.NATSURL,
		NoDemo: cmd.NoDemo, Out: streams.Out, Program: os.Args[0],
	}
	if err := config.Validate(); err != nil {
		return usageError{err}
	}
	return local.Run(ctx, config)
}
