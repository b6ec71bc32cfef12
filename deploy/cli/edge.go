package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime"
	"strings"

	"skerry/edgenode"
	"skerry/edgenode/buffer"
	"skerry/edgenode/view"
)

type edgeCommands struct {
	Run    edgeCommand `cmd:"" default:"withargs" help:"Run one edge node; the word run may be left out."`
	Retire edgeRetire  `cmd:"" help:"Give up what a dead edge never sent, so that its lanes pass."`
}

// Help is the detail under the first line of `skerry edge --help`, which lists
// commands and not the settings of the one that may be left out.
func (edgeCommands) Help() string { return "`skerry edge run --help` lists a node's settings." }

// edgeSettings are those of an edge that hold however it is run.
type edgeSettings struct {
	BufferBytes     int64 `help:"Most bytes of events that an edge keeps until the centre has stored them." default:"21474836480"`
	ReserveBytes    int64 `help:"Bytes of an edge's disk that events leave free." default:"1073741824"`
	StateCacheBytes int64 `help:"Bytes of compiled state that an edge keeps in memory." default:"100663296"`
}

func (s *edgeSettings) validate() error {
	return cmp.Or(notNegative("--buffer-bytes", s.BufferBytes), notNegative("--reserve-bytes", s.ReserveBytes),
		notNegative("--state-cache-bytes", s.StateCacheBytes))
}

func (s *edgeSettings) config() edgenode.Config {
	return edgenode.Config{
		Views:  view.Options{Bytes: s.StateCacheBytes},
		Buffer: buffer.Config{MaxBytes: s.BufferBytes, ReserveBytes: s.ReserveBytes},
	}
}

type edgeCommand struct {
	edgeSettings
	proxies
	messaging
	stopping
	ID             string `name:"id" help:"Name of this edge among all; it must stay with the data folder." required:"" placeholder:"ID"`
	Data           string `help:"Folder for state and buffer, of this edge alone." required:"" type:"path" placeholder:"DIR"`
	Listen         string `help:"Address for clients." default:"127.0.0.1:8080"`
	ListenOperator string `help:"Address for operators: health, metrics, status, profiles. Not for the public." default:"127.0.0.1:8180"`
	PublicURL      string `help:"Base address under which clients reach this edge; what each request says of itself when absent." placeholder:"URL"`
	WritePlaneURL  string `name:"writeplane-url" help:"Base address of the write plane, for what an edge does not answer itself." required:"" placeholder:"URL"`
}

// Run serves until ctx ends.
func (cmd *edgeCommand) Run(ctx context.Context) error {
	outlive()
	// A group of events waits for the disk inside a system call. Where the scheduler has
	// a single processor, everything else waits with it until the runtime notices (see
	// docs/decisions/0003).
	if runtime.GOMAXPROCS(0) == 1 {
		runtime.GOMAXPROCS(2)
	}
	config := cmd.config()
	config.ID, config.Data = cmd.ID, cmd.Data
	config.Listen, config.OperatorListen = cmd.Listen, cmd.ListenOperator
	config.NATS, config.NATSOptions = cmd.NATSURL, cmd.options()
	config.WritePlane, config.PublicURL = cmd.WritePlaneURL, strings.TrimRight(cmd.PublicURL, "/")
	config.TrustedProxies, config.ShutdownDelay = cmd.TrustedProxies, cmd.ShutdownDelay
	if err := cmp.Or(listenAddress("--listen", cmd.Listen), listenAddress("--listen-operator", cmd.ListenOperator),
		cmd.edgeSettings.validate(), cmd.messaging.validate(), cmd.stopping.validate(), publicURL(cmd.PublicURL)); err != nil {
		return err
	}
	if err := config.Validate(); err != nil {
		return usageError{err}
	}
	edge, err := edgenode.New(config)
	if err != nil {
		return err
	}
	defer edge.Close()
	return edge.Run(ctx)
}

type edgeRetire struct {
	ID  string `arg:"" help:"Id of the edge."`
	Ops string `help:"Operator listener of a write plane: an edge belongs to no organization, so no token can decide over it." default:"http://127.0.0.1:8190"`
}

// Run asks a write plane to record the edge's gaps and to go on without it.
func (cmd *edgeRetire) Run(ctx context.Context, streams Streams) error {
	base, err := httpBase("--ops", cmd.Ops)
	if err != nil {
		return err
	}
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
	if res.StatusCode == http.StatusNotFound {
		return fmt.Errorf("no edge %s is known at %s (which must be a write plane's operator listener)", printable(cmd.ID), base)
	}
	if res.StatusCode/100 != 2 {
		return answerError(res, body)
	}
	_, err = fmt.Fprintf(streams.Out, "retired %s: its lanes pass over what is missing\n", printable(cmd.ID))
	return err
}
