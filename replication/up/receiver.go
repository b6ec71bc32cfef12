package up

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Sink is the store at the centre, as the receiver needs it.
type Sink interface {
	// Store takes batches of one edge, lane and incarnation in one transaction, in order,
	// each operation once: what is stored already is skipped. It stops before the first
	// batch that leaves a gap or cannot be decoded. An error means that nothing was taken
	// and that the store is to blame, never the batches.
	Store(ctx context.Context, edge string, batches []Batch) (Outcome, error)
	// Stored is the watermark of one incarnation's lane: all up to it is stored. 0 when
	// nothing is.
	Stored(ctx context.Context, edge string, lane Lane, in Incarnation) (uint64, error)
	// Lost notes that those of the numbers up to through that are missing will never
	// come: their edge has freed them. An edge frees only what was stored, so the store
	// must have been restored to an earlier time.
	Lost(ctx context.Context, edge string, lane Lane, in Incarnation, through uint64) error
	// Report keeps what an edge says of its log.
	Report(ctx context.Context, edge string, totals []Totals) error
}

// Outcome is what Store did.
type Outcome struct {
	// Taken is how many of the batches are done with; fewer than all means that what
	// follows Stored is missing.
	Taken int
	// Stored is the watermark now. It can be lower than the end of what was taken, when a
	// gap that was given up for lost is open behind it.
	Stored uint64
}

// Leases give an edge to one receiver at a time. (They only save work: if two ever work
// on the same edge, the sink's lock on the cursor keeps the store correct.)
type Leases interface {
	// Acquire takes or renews a lease for a term; false: another holds it.
	Acquire(ctx context.Context, name string, term time.Duration) (bool, error)
	// Release gives it back early.
	Release(ctx context.Context, name string) error
}

// ReceiverConfig says how a receiver works. The zero value is fine.
type ReceiverConfig struct {
	Streams StreamLimits
	// Term is how long a lease lasts without renewal. 0 means 10 s.
	Term time.Duration
	// Stores is how many transactions may run at once, over all edges and lanes but the
	// aliases', which have room of their own. 0 means 4. Each holds up to 24 MiB.
	Stores int
}

// Validate names the first field that is wrong.
func (c ReceiverConfig) Validate() error {
	switch {
	case c.Streams.MaxBytes < 0:
		return fmt.Errorf("up: Streams.MaxBytes %d is negative", c.Streams.MaxBytes)
	case c.Streams.Replicas < 0 || c.Streams.Replicas > 5:
		return fmt.Errorf("up: Streams.Replicas %d is not between 0 and 5", c.Streams.Replicas)
	case c.Term < 0:
		return fmt.Errorf("up: Term %s is negative", c.Term)
	case c.Stores < 0:
		return fmt.Errorf("up: Stores %d is negative", c.Stores)
	}
	return nil
}

const (
	defaultTerm   = 10 * time.Second
	defaultStores = 4
	lookEvery     = 5 * time.Second
	tickEvery     = time.Second
	// forgetAfter is how long a silent edge without messages keeps its workers.
	forgetAfter = 10 * time.Minute
	// aliveFor is how long after its last hello an edge is believed to be able to send
	// again what is missing.
	aliveFor = 15 * time.Second
)

// Receiver takes what edges send and hands it to the sink, lane by lane in order.
//
// It works on an edge while it holds the edge's lease. A message that leaves a gap is
// dropped when the edge is alive, because it will come again behind what is missing; of
// an edge that is silent it is kept, and the lane stands still until the edge is back or
// has been retired. When the sink fails, the lane starts anew from what the stream still
// holds: there is no other recovery.
type Receiver struct {
	config ReceiverConfig
	sink   Sink
	leases Leases
	nc     *nats.Conn
	js     jetstream.JetStream
	room   chan struct{} // a slot per transaction
	quick  chan struct{} // the alias lanes' own
	// adjusted: these lanes' streams were brought to the configured limits. Run's goroutine
	// alone uses it.
	adjusted map[Lane]bool

	mu    sync.Mutex
	edges map[string]*edge
}

// NewReceiver returns a receiver over the connection, which stays the caller's.
func NewReceiver(config ReceiverConfig, sink Sink, leases Leases, nc *nats.Conn) (*Receiver, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if config.Term == 0 {
		config.Term = defaultTerm
	}
	if config.Stores == 0 {
		config.Stores = defaultStores
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("open jetstream: %w", err)
	}
	return &Receiver{
		config: config, sink: sink, leases: leases, nc: nc, js: js, edges: map[string]*edge{}, adjusted: map[Lane]bool{},
		room: make(chan struct{}, config.Stores), quick: make(chan struct{}, 2),
	}, nil
}

// Run receives until ctx ends.
func (r *Receiver) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	start := func(e *edge) { running.Go(func() { r.work(ctx, e) }) }

	hellos := make(chan *nats.Msg, 1024)
	sub, err := r.nc.ChanSubscribe(helloSubjects, hellos)
	if err != nil {
		return fmt.Errorf("subscribe to hellos: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	look := time.NewTimer(0)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-hellos:
			r.greeted(m, start)
		case <-look.C:
			if err := r.look(ctx, start); err != nil && ctx.Err() == nil {
				slog.Warn("look for ingest messages", "error", err)
			}
			look.Reset(lookEvery)
		}
	}
}

func (r *Receiver) greeted(m *nats.Msg, start func(*edge)) {
	id := strings.TrimPrefix(m.Subject, strings.TrimSuffix(helloSubjects, "*"))
	h, err := decodeHello(m.Data)
	if err != nil || !ValidEdge(id) {
		slog.Warn("hello not understood", "subject", m.Subject, "error", err)
		return
	}
	r.edge(id, start).hear(h, time.Now())
}

// look makes sure that the streams are there, and finds edges that are silent and have
// left messages. What a server refuses of one stream (it may have no room for it) does not
// concern the others.
func (r *Receiver) look(ctx context.Context, start func(*edge)) error {
	ctx, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	left := map[string]bool{}
	var failed []error
	for _, lane := range Lanes {
		failed = append(failed, r.lookInto(ctx, lane, func(edge string) {
			left[edge] = true
			r.edge(edge, start)
		}))
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	r.forget(left)
	return nil
}

// lookInto makes sure that a lane's stream is there, as it is configured, and names the
// edges that have messages in it. A stream that may not be changed is used as it is.
func (r *Receiver) lookInto(ctx context.Context, lane Lane, found func(edge string)) error {
	config := streamConfig(lane, r.config.Streams)
	stream, err := r.js.Stream(ctx, config.Name)
	missing := errors.Is(err, jetstream.ErrStreamNotFound)
	if err != nil && !missing {
		return fmt.Errorf("find stream %s: %w", config.Name, err)
	}
	var refused error
	if missing || !r.adjusted[lane] {
		made, err := r.js.CreateOrUpdateStream(ctx, config)
		if err != nil {
			refused = fmt.Errorf("make stream %s of %d bytes: %w", config.Name, config.MaxBytes, err)
		} else {
			stream, r.adjusted[lane] = made, true
		}
	}
	if stream == nil {
		return refused
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(Subject(lane, "*")))
	if err != nil {
		return errors.Join(refused, fmt.Errorf("look into stream %s: %w", config.Name, err))
	}
	for subject := range info.State.Subjects {
		if id := strings.TrimPrefix(subject, Subject(lane, "")); ValidEdge(id) {
			found(id)
		}
	}
	return refused
}

func (r *Receiver) edge(id string, start func(*edge)) *edge {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.edges[id]
	if e == nil {
		e = newEdge(id)
		r.edges[id] = e
		start(e)
	}
	return e
}

// forget ends the workers of edges that are silent and have nothing left.
func (r *Receiver) forget(left map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, e := range r.edges {
		if !left[id] && time.Since(e.heard()) > forgetAfter {
			close(e.gone)
			delete(r.edges, id)
		}
	}
}

// ReceivedLane is what operators see of one lane that this process works on.
type ReceivedLane struct {
	Edge   string `json:"edge"`
	Lane   string `json:"lane"`
	Stored uint64 `json:"stored"`
	Want   uint64 `json:"want,omitempty"`  // number that is missing
	Held   bool   `json:"held,omitempty"`  // the lane stands still until the edge is back or retired
	Fault  string `json:"fault,omitempty"` // of the last try
}

// Status lists the lanes that this process works on.
func (r *Receiver) Status() []ReceivedLane {
	r.mu.Lock()
	defer r.mu.Unlock()
	lanes := []ReceivedLane{}
	for _, e := range r.edges {
		lanes = append(lanes, e.status()...)
	}
	slices.SortFunc(lanes, func(a, b ReceivedLane) int {
		return strings.Compare(a.Edge+" "+a.Lane, b.Edge+" "+b.Lane)
	})
	return lanes
}

// Heard is when the edge last said hello to this process; zero when it never did.
func (r *Receiver) Heard(id string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.edges[id]
	if e == nil {
		return time.Time{}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lastHello
}

// LeaseName is the name of an edge's lease.
func LeaseName(edge string) string { return "ingest/" + edge }

// work holds the edge's lease whenever it can, and its lanes meanwhile.
func (r *Receiver) work(ctx context.Context, e *edge) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-e.gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	for ctx.Err() == nil {
		held, err := r.leases.Acquire(ctx, LeaseName(e.id), r.config.Term)
		if err != nil && ctx.Err() == nil {
			slog.Debug("take an edge's lease", "edge", e.id, "error", err)
		}
		if held {
			r.own(ctx, e)
			continue
		}
		pause(ctx, r.config.Term/4)
	}
}

// own works on the edge's lanes until the lease is lost or ctx ends.
func (r *Receiver) own(ctx context.Context, e *edge) {
	lanes, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	for _, lane := range Lanes {
		running.Go(func() { newLaneReceiver(r, e, lane).run(lanes) })
	}
	defer func() {
		stop()
		running.Wait()
		e.mu.Lock()
		clear(e.lanes)
		e.mu.Unlock()
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if err := r.leases.Release(release, LeaseName(e.id)); err != nil {
			slog.Debug("give back an edge's lease", "edge", e.id, "error", err)
		}
	}()
	renew := time.NewTicker(r.config.Term / 4)
	defer renew.Stop()
	var reported time.Time
	away := false
	reached := func(err error) {
		if away && err == nil {
			e.returns.Add(1)
		}
		away = err != nil
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.greeted:
			// What the edge says is kept for the books, at most once a second and never
			// in the lanes' way.
			if time.Since(reported) < tickEvery*3/4 {
				continue
			}
			reported = time.Now()
			report, cancel := context.WithTimeout(ctx, tickEvery)
			err := r.sink.Report(report, e.id, e.totals())
			if err != nil && ctx.Err() == nil {
				slog.Debug("keep an edge's report", "edge", e.id, "error", err)
			}
			cancel()
			reached(err)
		case <-renew.C:
			// An error keeps the lanes: without the database nobody else can take
			// them either.
			held, err := r.leases.Acquire(ctx, LeaseName(e.id), r.config.Term)
			if err == nil && !held {
				return
			}
			reached(err)
		}
	}
}

func (r *Receiver) announce(edge string, a announcement) {
	b, err := json.Marshal(a)
	if err == nil {
		err = r.nc.Publish(storedSubject(edge), b)
	}
	if err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		slog.Debug("announce a watermark", "edge", edge, "error", err)
	}
}

// pause waits, and is false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
