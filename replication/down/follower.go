package down

import (
	"cmp"
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

// Cursor is how far an edge's disk is in a lane.
type Cursor struct {
	Epoch    replication.Epoch
	Seq      uint64               // the stream's sequence of the last document read
	Position replication.Position // its position
	Floor    replication.Position // the marker's, as far as known
}

// Disk is what a follower needs of the edge's disk. Every write is atomic, and what it
// stores is served at once.
type Disk interface {
	// Cursor is the lane's stored cursor; ok is false when the lane has no state.
	Cursor(lane replication.Lane) (c Cursor, ok bool)
	// Apply stores whole transactions together with the cursor behind them.
	Apply(lane replication.Lane, documents []replication.Document, c Cursor) error
	// Begin opens a new generation of the lane beside the one that is served. An earlier
	// one that was not taken into service is dropped.
	Begin(lane replication.Lane) (Generation, error)
}

// Generation is a lane's state that is being taken anew.
type Generation interface {
	// Add stores documents, unseen. A later document of a subject replaces an earlier one.
	Add(documents []replication.Document) error
	// Serve takes the generation into service in place of the present one.
	Serve(c Cursor) error
}

// FollowerConfig says how a follower works. Zero values mean the defaults.
type FollowerConfig struct {
	// MaxPending bounds the bytes of documents that wait in memory for their transactions
	// to be whole. What needs more is taken anew, on disk. 0 means 64 MiB.
	MaxPending int
	// Batch is how many documents of waiting transactions are stored at once at most. 0
	// means 256.
	Batch int
	Log   *slog.Logger // nil means slog.Default()
}

// Follower keeps one lane of an edge's disk equal to the stream.
type Follower struct {
	conn   *nats.Conn
	js     jetstream.JetStream
	lane   replication.Lane
	disk   Disk
	config FollowerConfig
	log    *slog.Logger
	anew   bool // the next session shall not resume; only Run's goroutine looks at it
	away   bool // the log says that the centre is away; only Run's goroutine looks at it

	mu     sync.Mutex
	status FollowerStatus
}

// FollowerStatus is how a follower is doing.
type FollowerStatus struct {
	Cursor  Cursor               // what is served; zero: nothing
	Serving bool                 // the lane has state
	Filling bool                 // a new generation is being taken
	Head    replication.Position // the publisher's, as last heard
	Heard   time.Time            // when the centre was last heard of; zero: not since the start
	Resets  int                  // generations taken into service since the start
	Err     error                // why it is not connected; nil when it is
}

// Lag is how many positions the edge is behind what the centre last said.
func (s FollowerStatus) Lag() uint64 {
	if s.Head <= s.Cursor.Position {
		return 0
	}
	return uint64(s.Head - s.Cursor.Position)
}

// NewFollower makes a follower. The connection should reconnect for ever.
func NewFollower(conn *nats.Conn, lane replication.Lane, disk Disk, config FollowerConfig) (*Follower, error) {
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, fmt.Errorf("open jetstream: %w", err)
	}
	if config.MaxPending == 0 {
		config.MaxPending = 64 << 20
	}
	if config.Batch == 0 {
		config.Batch = 256
	}
	if config.Log == nil {
		config.Log = slog.Default()
	}
	f := &Follower{conn: conn, js: js, lane: lane, disk: disk, config: config, log: config.Log.With("lane", lane.String())}
	f.status.Cursor, f.status.Serving = disk.Cursor(lane)
	return f, nil
}

// Status tells how the follower is doing.
func (f *Follower) Status() FollowerStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

func (f *Follower) note(change func(*FollowerStatus)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.status)
}

// errNoServer is why there is no connection when the client does not say it itself.
var errNoServer = errors.New("no server answers")

// Run follows until ctx ends. Every connect, every fault and every contradiction begins a
// new session, which compares the disk with the stream before it reads on.
func (f *Follower) Run(ctx context.Context) error {
	const longest = 2 * time.Second
	pause := 20 * time.Millisecond
	for ctx.Err() == nil {
		began := time.Now()
		err := f.session(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > longest {
			pause = 20 * time.Millisecond
		}
		if !f.conn.IsConnected() { // whatever failed, this is why
			err = fmt.Errorf("no connection to NATS: %w", cmp.Or(f.conn.LastError(), errNoServer))
		}
		f.note(func(s *FollowerStatus) { s.Err = err; s.Filling = false })
		f.log.Debug("follow state anew", "reason", err, "in", pause)
		if pause == longest && !f.away { // a start and a short break are nothing to tell
			f.log.Warn("the centre cannot be followed, the last known state is served", "reason", err)
			f.away = true
		}
		sleep(ctx, pause)
		pause = min(2*pause, longest)
	}
	return nil
}

// session reads the stream from where the disk is, or everything anew where that is
// impossible, until something is wrong or ctx ends.
func (f *Follower) session(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := f.js.Stream(ctx, f.lane.Stream())
	if err != nil {
		return fmt.Errorf("open stream %s: %w", f.lane.Stream(), err)
	}
	r := &reader{follower: f, stream: stream}
	if err := r.begin(ctx); err != nil {
		return err
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: r.seq + 1,
	})
	if err != nil {
		return fmt.Errorf("read stream %s: %w", f.lane.Stream(), err)
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessagesWithBytesLimit(1000, 8<<20))
	if err != nil {
		return fmt.Errorf("read stream %s: %w", f.lane.Stream(), err)
	}
	defer messages.Stop()
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil) // before the wait: deferred calls run backwards
	watching.Go(func() { cancel(f.watch(ctx, r)) })
	f.note(func(s *FollowerStatus) { s.Err = nil })
	if f.away {
		f.log.Info("the centre is followed again")
		f.away = false
	}
	for {
		msg, err := r.next(ctx, messages)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("read stream %s: %w", f.lane.Stream(), err)
		}
		if err := r.take(ctx, msg); err != nil {
			return err
		}
	}
}

// watch ends the session when the connection was made anew, and when what the publisher
// says contradicts what the session reads. It is what notices a stream that was deleted
// and made again: the session would wait for ever for a sequence that lies far ahead.
func (f *Follower) watch(ctx context.Context, r *reader) error {
	connected := f.conn.StatusChanged(nats.CONNECTED)
	defer f.conn.RemoveStatusListener(connected)
	beats := make(chan *nats.Msg, 16)
	sub, err := f.conn.ChanSubscribe(f.lane.Heartbeat(), beats)
	if err != nil {
		return fmt.Errorf("listen to the publisher: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
	var before contradiction
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-connected:
			return errors.New("connected anew")
		case msg := <-beats:
			var beat Heartbeat
			if err := json.Unmarshal(msg.Data, &beat); err != nil {
				f.log.Warn("unreadable heartbeat", "error", err)
				continue
			}
			f.note(func(s *FollowerStatus) { s.Heard, s.Head = time.Now(), beat.Position })
			if r.orphaned() {
				return errors.New("the disk has lost its state")
			}
			epoch, seq := r.progress()
			if err := before.judge(beat, epoch, seq); err != nil {
				return err
			}
		}
	}
}

// contradiction compares heartbeats with what a session reads. A heartbeat and the stream
// travel apart, so one that disagrees may only be early or late: it counts when the next
// ones disagree likewise.
type contradiction struct {
	seq     uint64 // read at the last heartbeat
	foreign int    // heartbeats of another epoch in a row
	stuck   int    // heartbeats in a row that promise more than was read, while nothing is read
}

func (c *contradiction) judge(beat Heartbeat, epoch replication.Epoch, seq uint64) error {
	before := c.seq
	c.seq = seq
	if c.foreign++; epoch == (replication.Epoch{}) || epoch.String() == beat.Epoch {
		c.foreign = 0
	}
	if c.stuck++; beat.Seq <= seq || seq != before {
		c.stuck = 0
	}
	switch {
	case c.foreign >= 2:
		return fmt.Errorf("the publisher is in epoch %s", beat.Epoch)
	case beat.Seq < before:
		return fmt.Errorf("the stream ends at %d, this edge is at %d", beat.Seq, seq)
	case c.stuck >= 5:
		return fmt.Errorf("nothing read past %d, the stream ends at %d", seq, beat.Seq)
	}
	return nil
}
