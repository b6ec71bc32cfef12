// Package edgenode is an edge: it serves decisions, configuration and surveys from its
// own copy of the state, takes events into its buffer, and passes everything else on to
// the write plane.
//
// It promises: reads and ingestion answer from what stands on its own disk, with the
// write plane, the database and the streams gone, and after a restart without them; it
// is ready as soon as it has state from any source, however old, and says how old. But
// for the events that are not shipped yet, it keeps nothing that the centre could not
// give it again.
//
// This file is the assembly, top to bottom; routes.go is the table of paths; status.go is
// what an operator sees.
package edgenode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/valyala/fasthttp"

	"skerry/edgenode/buffer"
	"skerry/edgenode/front"
	"skerry/edgenode/gate"
	"skerry/edgenode/handshake"
	"skerry/edgenode/intake"
	"skerry/edgenode/ofrep"
	"skerry/edgenode/pulse"
	"skerry/edgenode/relay"
	"skerry/edgenode/store"
	"skerry/edgenode/stream"
	"skerry/edgenode/view"
	"skerry/pkg/dirlock"
	"skerry/pkg/natsclient"
	"skerry/pkg/problem"
	"skerry/pkg/serve"
	"skerry/replication"
	"skerry/replication/down"
	"skerry/replication/tally"
)

// Config says what an edge is and whom it knows. Zero values mean the defaults.
type Config struct {
	ID             string         // of this edge among all, [A-Za-z0-9_-]{1,64}: names its lanes of events
	Data           string         // folder of state and buffer; one edge at a time
	Listen         string         // address for everybody; "" means 127.0.0.1:8080
	OperatorListen string         // address for operators only; "" means 127.0.0.1:0
	NATS           string         // URL of the streams
	NATSOptions    []nats.Option  // credentials and TLS
	WritePlane     string         // base address of the write plane
	PublicURL      string         // where clients reach this edge; "" means what each request says of itself
	TrustedProxies []netip.Prefix // who may say in X-Forwarded-For whom they forward for
	Limits         front.Limits
	ShutdownDelay  time.Duration // for which requests are still answered when the edge is told to stop; 0 means none
	State          store.Config  // Dir is set here
	Views          view.Options  // Hooks are set here
	Buffer         buffer.Config // of events; Dir, Edge and Upload are set here
	Intake         intake.Config // Gate and Buffer are set here
	Log            *slog.Logger  // nil means slog.Default()
}

var validID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Validate names the field that is wrong.
func (c Config) Validate() error {
	switch {
	case !validID.MatchString(c.ID):
		return fmt.Errorf("--id %q is not of [A-Za-z0-9_-]{1,64}", c.ID)
	case c.Data == "":
		return errors.New("--data is not set")
	case c.NATS == "":
		return errors.New("--nats-url is not set")
	}
	return relay.Config{WritePlane: c.WritePlane}.Validate()
}

func (c Config) withDefaults() Config {
	if c.Listen == "" {
		c.Listen = "127.0.0.1:8080"
	}
	if c.OperatorListen == "" {
		c.OperatorListen = "127.0.0.1:0"
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	c.Log = c.Log.With("edge", c.ID)
	c.State.Dir, c.State.Log, c.Views.Log = filepath.Join(c.Data, "state"), c.Log, c.Log
	c.Buffer.Dir, c.Buffer.Log, c.Intake.Log = filepath.Join(c.Data, "buffer"), c.Log, c.Log
	return c
}

// Edge is one edge. New opens it, Run works until it is told to stop, Close releases
// everything.
type Edge struct {
	config    Config
	lock      *dirlock.Lock
	conn      *nats.Conn
	disk      *store.Store
	views     *view.Store
	followers [replication.Lanes]*down.Follower
	limiter   *tally.Limiter
	ingest    ingest
	intake    *intake.Module
	gate      *gate.Gate
	relay     *relay.Relay
	centre    *pulse.Centre
	pulse     *pulse.Handler
	handshake *handshake.Module
	ofrep     *ofrep.Module
	stream    *stream.Module
	metrics   *metrics
	listener  net.Listener
	operator  net.Listener
	shutdown  serve.Shutdown
	started   time.Time
	giveUp    *time.Timer // since Run was told to end: see endWaiting
}

// New opens an edge's folder and addresses. It does not need the centre.
func New(config Config) (_ *Edge, err error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.withDefaults()
	e := &Edge{config: config, shutdown: serve.Shutdown{Delay: config.ShutdownDelay}, started: time.Now()}
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	if e.lock, err = dirlock.Take(config.Data); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	if err = roomToOpen(config.Data); err != nil {
		return nil, err
	}
	if e.listener, err = serve.Listen("--listen", config.Listen); err != nil {
		return nil, err
	}
	if e.operator, err = serve.Listen("--listen-operator", config.OperatorListen); err != nil {
		return nil, err
	}
	// Nothing is kept to be sent after a reconnect, so what cannot be sent fails at once:
	// everything here knows how to send again.
	options := append([]nats.Option{nats.ReconnectBufSize(-1)}, config.NATSOptions...)
	if e.conn, err = natsclient.Connect("skerry edge "+config.ID, config.NATS, config.Log, options...); err != nil {
		return nil, err
	}

	// State, downwards.
	e.metrics = newMetrics(e)
	config.Views.Hooks.Pulse = pulse.Compile
	config.Views.Hooks.Decisions = handshake.Compile
	e.views = view.New(config.Views)
	if e.disk, err = store.Open(config.State, e.stored); err != nil {
		return nil, err
	}
	e.views.Attach(e.disk)
	for lane := range replication.Lanes {
		if e.followers[lane], err = down.NewFollower(e.conn, lane, e.disk, down.FollowerConfig{Log: config.Log}); err != nil {
			return nil, err
		}
	}

	// Events, upwards.
	if err = e.openIngest(); err != nil {
		return nil, err
	}

	if err = e.openHandlers(); err != nil {
		return nil, err
	}
	return e, nil
}

// openHandlers builds what admits requests and answers them.
func (e *Edge) openHandlers() (err error) {
	config := e.config
	if e.limiter, err = tally.NewLimiter(tally.LimiterConfig{Edge: config.ID}); err != nil {
		return err
	}
	e.gate = gate.New(gate.Config{Views: e.views, Limiter: e.limiter, Meter: e.ingest.meter, KeyUse: e.ingest.keyUse, TrustedProxies: config.TrustedProxies})
	config.Intake.Gate, config.Intake.Buffer = e.gate, e.ingest.buffer
	if e.intake, err = intake.New(config.Intake); err != nil {
		return err
	}
	e.relay, err = relay.New(relay.Config{WritePlane: config.WritePlane, ClientIP: e.gate.ClientIP, Log: config.Log})
	if err != nil {
		return err
	}
	if e.centre, err = pulse.NewCentre(config.WritePlane); err != nil {
		return err
	}
	e.pulse = pulse.New(pulse.Config{Gate: e.gate, Partial: e.centre.Partial, Log: config.Log})
	e.handshake = handshake.New(e.gate, pulse.Tag)
	e.ofrep = ofrep.New(e.gate, ofrep.Config{PublicURL: config.PublicURL})
	e.stream = stream.New(e.gate, e.views, stream.Config{})
	return nil
}

// Addr is where everybody is served.
func (e *Edge) Addr() net.Addr { return e.listener.Addr() }

// OperatorAddr is where operators are served.
func (e *Edge) OperatorAddr() net.Addr { return e.operator.Addr() }

// Run works until ctx ends and Config.ShutdownDelay is over.
func (e *Edge) Run(ctx context.Context) error {
	ctx, cancel := e.shutdown.Context(ctx)
	defer cancel()
	router := newRouter(e.routes(), e.relay.Handle)
	var g serve.Group
	g.Add("state store", e.disk.Run)
	for lane := range replication.Lanes {
		g.Add("follower "+lane.String(), e.followers[lane].Run)
	}
	e.addIngest(&g)
	g.Add("full disk", e.endWaiting)
	g.Add("staleness", e.watchStaleness)
	g.Add("change streams", e.stream.Run)
	g.Add("operator", func(ctx context.Context) error {
		return serve.HTTP(ctx, e.operator, e.operatorHandler(), serve.Limits{})
	})
	g.Add("requests", func(ctx context.Context) error {
		return front.Serve(ctx, e.listener, e.handle(router), e.config.Limits)
	})
	return g.Run(ctx)
}

// Close releases everything that New has taken.
func (e *Edge) Close() {
	if e.relay != nil {
		e.relay.Close()
	}
	if e.centre != nil {
		e.centre.Close()
	}
	if e.conn != nil {
		e.conn.Close()
	}
	if err := e.ingest.close(); err != nil {
		e.config.Log.Error("close the ingest buffer", "error", err)
	}
	if e.disk != nil {
		if err := e.disk.Close(); err != nil {
			e.config.Log.Error("close the state store", "error", err)
		}
	}
	for _, ln := range []net.Listener{e.listener, e.operator} {
		if ln != nil {
			_ = ln.Close() // closed already when Run has ended
		}
	}
	if e.lock != nil {
		_ = e.lock.Release() // the lock ends with the process at the latest
	}
	if e.giveUp != nil {
		e.giveUp.Stop()
	}
}

// handle is what every request goes through.
func (e *Edge) handle(router *router) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		defer e.recover(ctx)
		e.gate.Begin(ctx)
		router.serve(ctx)
		if e.shutdown.Begun() {
			ctx.SetConnectionClose() // the next connection goes to another edge
		}
		e.metrics.answered(ctx.Response.StatusCode())
	}
}

// recover keeps one request's fault from ending all others.
func (e *Edge) recover(ctx *fasthttp.RequestCtx) {
	fault := recover()
	if fault == nil {
		return
	}
	id := string(gate.RequestID(ctx))
	e.config.Log.Error("a handler panicked", "request_id", id, "fault", fault, "stack", string(debug.Stack()))
	ctx.Response.ResetBody()
	ctx.SetStatusCode(fasthttp.StatusInternalServerError)
	ctx.Response.Header.SetContentType("application/json")
	ctx.SetBody(problem.Internal(id))
	e.metrics.answered(fasthttp.StatusInternalServerError)
}

// stored is called after every write to the state store.
func (e *Edge) stored(c store.Change) {
	e.views.Apply(c)
	if c.Lane != replication.Urgent || c.Anew {
		return
	}
	now := time.Now()
	for i := range c.Documents {
		e.metrics.propagated(&c.Documents[i], now)
	}
}

// watchStaleness keeps the gate's mark up to date.
func (e *Edge) watchStaleness(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		e.views.Tick()
		stale := e.staleness()
		if stale < time.Minute {
			stale = 0
		}
		e.gate.SetStale(int64(stale / time.Second))
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// staleness is how long the edge has not heard from the centre, on the lane that is
// worse off.
func (e *Edge) staleness() time.Duration {
	oldest := time.Now()
	for _, f := range e.followers {
		heard := f.Status().Heard
		if heard.IsZero() {
			heard = e.started // what was before the start, nobody knows
		}
		if heard.Before(oldest) {
			oldest = heard
		}
	}
	return time.Since(oldest)
}
