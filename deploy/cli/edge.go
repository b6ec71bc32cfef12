package cli

import (
	"context"

	"skerry/edgenode"
)

type edgeCommands struct {
	Run edgeCommand `cmd:"" default:"withargs" help:"Run one edge node; the word run may be left out."`
}

type edgeCommand struct {
	proxies
	ID              string `name:"id" help:"Name of this edge among all; it must stay with the data folder." required:"" placeholder:"ID"`
	Data            string `help:"Folder for state and buffer, of this edge alone." required:"" type:"path" placeholder:"DIR"`
	Listen          string `help:"Address for clients." default:"127.0.0.1:8080"`
	ListenOperator  string `help:"Address for operators: health, metrics, status, profiles. Not for the public." default:"127.0.0.1:8180"`
	NATSURL         string `name:"nats-url" help:"NATS servers, separated by commas." required:"" placeholder:"URL"`
	NATSCredentials string `name:"nats-credentials" help:"NATS credentials file." placeholder:"FILE"`
	WritePlaneURL   string `name:"writeplane-url" help:"Base address of the write plane, for what an edge does not answer itself." required:"" placeholder:"URL"`
}

// Run serves until ctx ends.
func (cmd *edgeCommand) Run(ctx context.Context) error {
	edge, err := edgenode.New(edgenode.Config{
		ID: cmd.ID, Data: cmd.Data,
		Listen: cmd.Listen, OperatorListen: cmd.ListenOperator,
		NATS: cmd.NATSURL, NATSOptions: natsOptions(cmd.NATSCredentials),
		WritePlane:     cmd.WritePlaneURL,
		TrustedProxies: cmd.TrustedProxies,
	})
	if err != nil {
		return err
	}
	defer edge.Close()
	return edge.Run(ctx)
}
