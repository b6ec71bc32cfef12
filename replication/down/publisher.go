package down

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"skerry/replication"
)

// PublisherConfig says how a publisher works. Zero values mean the defaults.
type PublisherConfig struct {
	Replicas int           // of the streams; 0 means 1
	Term     time.Duration // of the lease; it is renewed five times a term; 0 means 5 s
	Poll     time.Duration // how often the database is asked when nothing wakes the publisher; 0 means 1 s
	Sweep    time.Duration // how often old tombstones are looked for; 0 means 1 h
	Age      time.Duration // of a tombstone that is purged; 0 means TombstoneAge
	Log      *slog.Logger  // nil means slog.Default()
}

func (c PublisherConfig) withDefaults() PublisherConfig {
	c.Replicas = max(c.Replicas, 1)
	c.Term = defaultTo(c.Term, 5*time.Second)
	c.Poll = defaultTo(c.Poll, time.Second)
	c.Sweep = defaultTo(c.Sweep, time.Hour)
	c.Age = defaultTo(c.Age, TombstoneAge)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}

func defaultTo(d, fallback time.Duration) time.Duration {
	if d == 0 {
		return fallback
	}
	return d
}

// Publisher sends documents from the ledger to the streams while it holds the lease.
type Publisher struct {
	conn   *nats.Conn
	js     jetstream.JetStream
	ledger Ledger
	leases Leases
	listen func(ctx context.Context, wake func()) error
	config PublisherConfig
	lanes  [replication.Lanes]*laneWriter

	mu      sync.Mutex
	leading bool
	failure error // why it does not lead; nil when it does or another does
}

// window is how many publishes of a lane may await their acknowledgement.
const window = 512

// NewPublisher makes a publisher. listen calls wake after every commit that may have put
// documents, until its context ends; it may miss some, polling makes up for that.
func NewPublisher(conn *nats.Conn, ledger Ledger, leases Leases, listen func(ctx context.Context, wake func()) error, config PublisherConfig) (*Publisher, error) {
	config = config.withDefaults()
	js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(int(replication.Lanes)*window), jetstream.WithPublishAsyncTimeout(config.Term))
	if err != nil {
		return nil, fmt.Errorf("open jetstream: %w", err)
	}
	p := &Publisher{conn: conn, js: js, ledger: ledger, leases: leases, listen: listen, config: config}
	for lane := range replication.Lanes {
		p.lanes[lane] = &laneWriter{publisher: p, lane: lane, woken: make(chan struct{}, 1), log: config.Log.With("lane", lane.String())}
	}
	return p, nil
}

// PublisherStatus is how a publisher is doing, for the operator.
type PublisherStatus struct {
	Leading bool
	Err     error // why it cannot lead; nil when it does or another does
	Lanes   [replication.Lanes]LaneStatus
}

// LaneStatus is how far a lane's stream is. Zero unless this publisher leads.
type LaneStatus struct {
	Epoch    replication.Epoch
	Position replication.Position // published
	Seq      uint64
	Renewals int   // epochs that this publisher has begun
	Err      error // why it stands still; nil when all is well
}

// Status tells how the publisher is doing.
func (p *Publisher) Status() PublisherStatus {
	p.mu.Lock()
	s := PublisherStatus{Leading: p.leading, Err: p.failure}
	p.mu.Unlock()
	for i, l := range p.lanes {
		s.Lanes[i] = l.status()
	}
	return s
}

// Run publishes whenever it can get the lease, until ctx ends.
func (p *Publisher) Run(ctx context.Context) error {
	retry := p.config.Term / 5
	for ctx.Err() == nil {
		held, err := p.leases.Acquire(ctx, LeaseName, p.config.Term)
		switch {
		case err != nil:
			p.report(false, fmt.Errorf("acquire the publisher's lease: %w", err))
		case held:
			p.report(true, nil)
			p.config.Log.Info("this process publishes state")
			err := p.lead(ctx)
			p.report(false, err)
			p.config.Log.Info("this process no longer publishes state", "reason", err)
			sleep(ctx, retry) // once more: whoever else waits for the lease shall have it
		default:
			p.report(false, nil)
		}
		sleep(ctx, retry)
	}
	return nil
}

// lead publishes until the lease is lost or ctx ends.
func (p *Publisher) lead(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	for _, l := range p.lanes {
		running.Go(func() { l.run(ctx) })
	}
	running.Go(func() { p.listenForever(ctx) })
	cancel(p.keepLease(ctx))
	running.Wait()
	release, done := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer done()
	if err := p.leases.Release(release, LeaseName); err != nil {
		p.config.Log.Warn("release the publisher's lease", "error", err)
	}
	return context.Cause(ctx)
}

// patience is for how many terms all lanes may fail before the lease is given up: another
// process may reach what this one does not.
const patience = 3

// keepLease renews until that fails for most of a term, when it may no longer be ours, or
// until all lanes have failed for long.
func (p *Publisher) keepLease(ctx context.Context) error {
	every := p.config.Term / 5
	last := time.Now()
	for {
		sleep(ctx, every)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := p.failing(patience * p.config.Term); err != nil {
			return fmt.Errorf("nothing can be published: %w", err)
		}
		attempt, done := context.WithTimeout(ctx, p.config.Term-time.Since(last))
		held, err := p.leases.Acquire(attempt, LeaseName, p.config.Term)
		done()
		switch {
		case err == nil && !held:
			return ErrSuperseded
		case err == nil:
			last = time.Now()
		case time.Since(last) >= p.config.Term-every:
			return fmt.Errorf("renew the publisher's lease: %w", err)
		}
	}
}

// failing is why every lane has failed for so long; nil when one has not.
func (p *Publisher) failing(d time.Duration) (err error) {
	for _, l := range p.lanes {
		if err = l.failing(d); err == nil {
			return nil
		}
	}
	return err
}

// listenForever wakes both lanes for every notification, reconnecting as needed.
func (p *Publisher) listenForever(ctx context.Context) {
	for ctx.Err() == nil {
		if err := p.listen(ctx, p.wake); err != nil && ctx.Err() == nil {
			p.config.Log.Warn("listen for changes (polling meanwhile)", "error", err)
		}
		sleep(ctx, p.config.Poll)
	}
}

func (p *Publisher) wake() {
	for _, l := range p.lanes {
		select {
		case l.woken <- struct{}{}:
		default: // it has not looked since the last one: it will see this change too
		}
	}
}

func (p *Publisher) report(leading bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leading, p.failure = leading, err
}

func (p *Publisher) heartbeat(lane replication.Lane, s LaneStatus) {
	body, err := json.Marshal(Heartbeat{Epoch: s.Epoch.String(), Position: s.Position, Seq: s.Seq, At: time.Now().UTC()})
	if err != nil {
		panic("BUG: a heartbeat does not marshal: " + err.Error())
	}
	if err := p.conn.Publish(lane.Heartbeat(), body); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		p.config.Log.Warn("publish heartbeat", "lane", lane.String(), "error", err)
	}
}

// sleep waits for d or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
