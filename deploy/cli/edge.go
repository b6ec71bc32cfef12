package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"skerry/edgenode"
	"skerry/edgenode/buffer"
	"skerry/edgenode/view"
)

type edgeCommands struct {
	Run    edgeCommand `cmd:"" default:"withargs" help:"Run one edge node; the word run may be left out."`
	Retire edgeRetire  `cmd:"" help:"Give up what a dead edge never sent, so that its lanes pass."`
}

type edgeCommand struct {
	proxies
	ID              string `name:"id" help:"Name of this edge among all; it must stay with the data folder." required:"" placeholder:"ID"`
	Data            string `help:"Folder for state and buffer, of this edge alone." required:"" type:"path" placeholder:"DIR"`
	Listen          string `help:"Address for clients." default:"127.0.0.1:8080"`
	ListenOperator  string `help:"Address for operators: health, metrics, status, profiles. Not for the public." default:"127.0.0.1:8180"`
	NATSURL         string `name:"nats-url" help:"NATS servers, separated by commas." required:"" placeholder:"URL"`
	NATSCredentials string `name:"nats-credentials" help:"NATS credentials file." placeholder:"FILE"`
	PublicURL       string `name:"public-url" help:"Base address under which clients reach this edge; what each request says of itself when absent." placeholder:"URL"`
	BufferBytes     int64  `help:"Most bytes of events kept until the centre has stored them." default:"21474836480"`
	ReserveBytes    int64  `help:"Bytes of the disk that events leave free." default:"1073741824"`
	StateCacheBytes int64  `help:"Bytes of compiled state kept in memory." default:"100663296"`
	WritePlaneURL   string `name:"writeplane-url" help:"Base address of the write plane, for what an edge does not answer itself." required:"" placeholder:"URL"`
}

// Run serves until ctx ends.
func (cmd *edgeCommand) Run(ctx context.Context) error {
	edge, err := edgenode.New(edgenode.Config{
		ID: cmd.ID, Data: cmd.Data,
		Listen: cmd.Listen, OperatorListen: cmd.ListenOperator,
		NATS: cmd.NATSURL, NATSOptions: natsOptions(cmd.NATSCredentials),
		WritePlane: cmd.WritePlaneURL, PublicURL: strings.TrimRight(cmd.PublicURL, "/"),
		TrustedProxies: cmd.TrustedProxies,
		Views:          view.Options{Bytes: cmd.StateCacheBytes},
		Buffer:         buffer.Config{MaxBytes: cmd.BufferBytes, ReserveBytes: cmd.ReserveBytes},
	})
	if err != nil {
		return err
	}
	defer edge.Close()
	return edge.Run(ctx)
}

type edgeRetire struct {
	ID  string `arg:"" help:"Id of the edge."`
	Ops string `help:"Operator listener of a write plane: an edge belongs to no organization, so no token can decide over it." default:"http://127.0.0.1:8190" placeholder:"URL"`
}

// Run asks a write plane to record the edge's gaps and to go on without it.
func (cmd *edgeRetire) Run(ctx context.Context, streams Streams) error {
	base := strings.TrimRight(cmd.Ops, "/")
	req, err := http.NewRequestWithContext(ctx, "POST", base+"/edges/"+url.PathEscape(cmd.ID)+"/retire", http.NoBody)
	if err != nil {
		return usagef("--ops: %w", err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return unreachable(base, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err != nil {
		return fmt.Errorf("read the answer of %s: %w", base, err)
	}
	if res.StatusCode/100 != 2 {
		return answerError(res, body)
	}
	_, err = fmt.Fprintf(streams.Out, "retired %s: its lanes pass over what is missing\n", printable(cmd.ID))
	return err
}
