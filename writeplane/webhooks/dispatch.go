package webhooks

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"skerry/pkg/seal"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
	"skerry/writeplane/webhooks/target"
)

// How many attempts may be in flight.
const (
	// perSubscription holds for a target whose newest attempt succeeded; any other
	// gets one at a time, so that a dead target costs one waiting request.
	perSubscription = 4
	// Proven and unproven targets have places of their own in the process: however
	// many dead ones wait for their time-outs, the living do not queue behind them.
	provenPlaces   = 256
	unprovenPlaces = 4096
)

// standing is what is known of a target by its newest attempt.
type standing uint8

const (
	unproven standing = iota // it failed, or there was none
	proven                   // it succeeded
	standings
)

// Bodies in bytes: up to which one is claimed with its delivery, and what all larger ones
// may hold together. A survey's response can be 64 MiB, and go to many targets at once.
const (
	smallBody = 64 << 10
	largeRoom = 256 << 20
)

const (
	attemptTimeout = 10 * time.Second
	// lease outlives the time-out with room to store the result.
	lease = 30 * time.Second
	// pollInterval finds what falls due by time, and what a lost wake-up left.
	pollInterval = 500 * time.Millisecond
	// claimGap collects wake-ups, so that a burst of commits costs few claims.
	claimGap = 5 * time.Millisecond
)

// Config is what a Dispatcher needs besides its parts.
type Config struct {
	// Now is the clock of schedules, leases and limits; nil is time.Now.
	Now func() time.Time
	// Finish is how long attempts in flight may go on when the dispatcher ends; 0 means
	// 4 s, as long as requests that the plane answers have.
	Finish time.Duration
}

// Dispatcher attempts deliveries. Several processes may run one each: row locks and
// leases share the work and its limits.
type Dispatcher struct {
	pool   *pgxpool.Pool
	store  *commit.Store
	box    *seal.Sealer
	client *sender
	large  *semaphore.Weighted // bytes of large bodies
	now    func() time.Time
	finish time.Duration

	attempts *prometheus.CounterVec
	delay    prometheus.Histogram

	wake     chan struct{} // one slot: many reasons to look make one look
	recorded func(claimed) // tests hear here that a result is stored
	ending   atomic.Bool   // no further attempt begins

	mu     sync.Mutex
	places [standings]int // free ones
	group  sync.WaitGroup
}

// NewDispatcher returns a Dispatcher; registry takes its metrics.
func NewDispatcher(store *commit.Store, box *seal.Sealer, guard *target.Guard, registry prometheus.Registerer, config Config) *Dispatcher {
	if config.Now == nil {
		config.Now = time.Now
	}
	if config.Finish == 0 {
		config.Finish = 4 * time.Second
	}
	d := &Dispatcher{
		pool: store.Pool(), store: store, box: box, client: newSender(guard), large: semaphore.NewWeighted(largeRoom),
		now: config.Now, finish: config.Finish,
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "skerry_webhook_attempts_total", Help: "Webhook attempts by result: delivered, failed, dead.",
		}, []string{"result"}),
		delay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "skerry_webhook_first_attempt_seconds", Help: "Time from an event's commit to its first attempt.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}),
		wake: make(chan struct{}, 1), recorded: func(claimed) {},
		places: [standings]int{unproven: unprovenPlaces, proven: provenPlaces},
	}
	registry.MustRegister(d.attempts, d.delay)
	return d
}

// Run attempts deliveries until ctx ends, then lets the attempts in flight end: a target
// that has a message and is cut off gets it again. What is not over within Config.Finish
// is cut off all the same, and falls due again when its lease ends.
func (d *Dispatcher) Run(ctx context.Context) error {
	defer d.client.close()
	working, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		d.ending.Store(true)
		late := time.AfterFunc(d.finish, cut)
		d.group.Wait()
		late.Stop()
		cut()
	}()
	d.group.Go(func() { d.listen(ctx) })
	d.group.Go(func() { d.keepClean(ctx) })
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for {
		d.claimAll(ctx, working)
		select {
		case <-ctx.Done():
			return nil
		case <-poll.C:
		case <-d.wake:
			select { // let more of the same burst commit
			case <-ctx.Done():
				return nil
			case <-time.After(claimGap):
			}
		}
	}
}

func (d *Dispatcher) poke() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// listen turns the database's notifications into wake-ups; without a connection the
// poll finds the work.
func (d *Dispatcher) listen(ctx context.Context) {
	for ctx.Err() == nil {
		if err := postgres.Listen(ctx, d.pool, channel, d.poke); err != nil && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

// claimAll starts an attempt for every delivery that is due and has a place. Attempts go on
// as long as working.
func (d *Dispatcher) claimAll(ctx, working context.Context) {
	for _, of := range [...]standing{proven, unproven} {
		free := d.freePlaces(of)
		if free == 0 {
			continue
		}
		claimed, err := claim(ctx, d.pool, d.now(), wanted{of: of, limit: free})
		if err != nil {
			if ctx.Err() == nil {
				slog.Warn("webhook deliveries not claimed", "error", err)
			}
			return
		}
		for _, c := range claimed {
			d.occupy(of, -1)
			d.group.Go(func() { d.work(working, c, of) })
		}
	}
}

func (d *Dispatcher) freePlaces(of standing) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.places[of]
}

func (d *Dispatcher) occupy(of standing, change int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.places[of] += change
}

// work attempts one delivery and, while its target keeps answering well, the
// subscription's next ones in the same place.
func (d *Dispatcher) work(ctx context.Context, c claimed, of standing) {
	defer d.poke()
	defer d.occupy(of, +1)
	// The database or this host may have stood still since the claim: an attempt that may
	// outlive its lease would meet that of whoever takes the delivery over.
	for !d.ending.Load() && c.leased.Sub(d.now()) >= attemptTimeout {
		if c.Attempts == 1 {
			d.delay.Observe(d.now().Sub(c.CreatedAt).Seconds())
		}
		release, err := d.loadBody(ctx, &c)
		if err != nil {
			if ctx.Err() == nil {
				slog.Warn("webhook not attempted; the delivery is tried again when its lease ends", "delivery", c.ID, "error", err)
			}
			return
		}
		result := d.attempt(ctx, c)
		release()
		if ctx.Err() != nil {
			return
		}
		if err := d.record(ctx, c, result); err != nil {
			if ctx.Err() == nil {
				slog.Warn("webhook result not stored; the delivery is tried again when its lease ends", "delivery", c.ID, "error", err)
			}
			return
		}
		d.recorded(c)
		if !result.ok {
			return
		}
		more, err := claim(ctx, d.pool, d.now(), wanted{subscription: c.SubscriptionID, of: proven, limit: 1})
		if err != nil || len(more) == 0 {
			return
		}
		c = more[0]
	}
}

// attempt signs and sends one message.
func (d *Dispatcher) attempt(ctx context.Context, c claimed) outcome {
	secrets, err := openSecrets(d.box, c, d.now())
	if err != nil {
		return outcome{fault: err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	return d.client.send(ctx, letter{to: c.URL, id: c.MessageID, body: c.Body, secrets: secrets, at: time.Now()})
}
