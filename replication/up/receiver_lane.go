package up

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// gatherBytes and gatherCount bound one transaction: long enough to pay for itself,
	// short enough that an alias, which waits for the transactions before it, is visible
	// within its two seconds.
	gatherBytes = 16 << 20
	gatherCount = 20_000
	// prefetch is how many messages of a lane may wait in memory; of usual events, some
	// 100 KiB each.
	prefetch = 32
	// fetchFor is how long one request for messages stands.
	fetchFor = 3 * time.Second
	// lostAfter is how long what the edge has sent may neither be stored nor come:
	// then it was lost on its way to us, and the stream would offer it again only
	// after ackWait.
	lostAfter = 3 * time.Second
	// ackWait is how long the stream waits before it offers an unacknowledged message
	// again. Nothing depends on it: a lane in trouble starts anew, and a repetition
	// is skipped.
	ackWait = 2 * time.Minute
)

// laneReceiver takes one lane of one edge. Its loop owns all of it.
type laneReceiver struct {
	r    *Receiver
	e    *edge
	lane Lane

	messages chan jetstream.Msg
	unpacker *Unpacker
	parts    []jetstream.Msg // of a batch that is not complete
	queue    []item          // unpacked, in order, not taken yet
	stored   map[Incarnation]uint64
	returns  uint64 // of the store, as stored knows it
	gap      *gap
	repeated bool      // the stream has offered something again, so that what comes need not be in order
	moved    time.Time // when a message last came or was done with
	backoff  backoff
}

// item is a batch with the messages that carried it.
type item struct {
	batch    Batch
	messages []jetstream.Msg
	seq      uint64
}

// gap is what is missing now.
type gap struct {
	in   Incarnation
	want uint64
	seen uint64
	said time.Time // when it was last announced
}

func newLaneReceiver(r *Receiver, e *edge, lane Lane) *laneReceiver {
	return &laneReceiver{r: r, e: e, lane: lane, stored: map[Incarnation]uint64{}}
}

// run consumes the lane until ctx ends; after a fault it starts anew.
func (l *laneReceiver) run(ctx context.Context) {
	l.e.show(l.lane, func(*ReceivedLane) {})
	for ctx.Err() == nil {
		err := l.consume(ctx)
		if ctx.Err() != nil {
			return
		}
		l.e.show(l.lane, func(s *ReceivedLane) {
			if s.Fault == "" {
				slog.Warn("ingest lane stopped, trying again", "edge", l.e.id, "lane", l.lane.String(), "error", err)
			}
			s.Fault = err.Error()
		})
		l.backoff.grow(time.Now())
		pause(ctx, time.Until(l.backoff.until))
	}
}

// consume opens the lane at the oldest message that the stream holds and works until
// something fails.
func (l *laneReceiver) consume(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var err error
	if l.unpacker, err = NewUnpacker(); err != nil {
		return err
	}
	defer l.unpacker.Close()
	l.parts, l.queue, l.gap, l.repeated = nil, nil, nil, false
	clear(l.stored)
	consumer, err := l.open(ctx)
	if err != nil {
		return err
	}
	l.messages, l.moved = make(chan jetstream.Msg), time.Now()
	ended := make(chan error, 1)
	go func() { ended <- l.feed(ctx, consumer) }()
	err = l.loop(ctx, ended)
	cancel()
	<-ended
	return err
}

// open makes the lane's consumer anew, so that it begins with the oldest message whatever
// a former owner was handed.
func (l *laneReceiver) open(ctx context.Context) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	name := l.lane.String() + "-" + l.e.id
	if err := l.r.js.DeleteConsumer(ctx, l.lane.Stream(), name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) && !missingStream(err) {
		return nil, fmt.Errorf("remove consumer %s: %w", name, err)
	}
	consumer, err := l.r.js.CreateConsumer(ctx, l.lane.Stream(), jetstream.ConsumerConfig{
		Name: name, Durable: name, FilterSubject: Subject(l.lane, l.e.id),
		DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: ackWait, MaxAckPending: 1024, InactiveThreshold: time.Hour,
	})
	if err != nil {
		return nil, fmt.Errorf("make consumer %s: %w", name, err)
	}
	return consumer, nil
}

// feed asks for some messages at a time. The client's own iterator is not used: while
// the store is away it keeps hearing heartbeats, and drops messages when they have
// filled its buffer.
func (l *laneReceiver) feed(ctx context.Context, consumer jetstream.Consumer) error {
	for ctx.Err() == nil {
		if err := l.fetch(ctx, consumer); err != nil {
			return fmt.Errorf("read the stream: %w", err)
		}
	}
	return ctx.Err()
}

func (l *laneReceiver) fetch(ctx context.Context, consumer jetstream.Consumer) error {
	asking, cancel := context.WithTimeout(ctx, fetchFor)
	defer cancel()
	some, err := consumer.Fetch(prefetch, jetstream.FetchContext(asking))
	if err != nil {
		return err
	}
	for m := range some.Messages() {
		select {
		case l.messages <- m:
		case <-ctx.Done():
			// Whoever still fills the channel ends with the context.
		}
	}
	if err := some.Error(); err != nil && ctx.Err() == nil {
		return err // also when the server has not said that it has nothing: it is away
	}
	return nil
}

func (l *laneReceiver) loop(ctx context.Context, ended chan error) error {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		messages := l.messages
		if len(l.queue) > 0 {
			held, err := l.take(ctx)
			if err != nil {
				return err
			}
			if held {
				messages = nil // what is there fills enough memory; try again at the tick
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			ended <- err
			return err
		case m := <-messages:
			if err := l.unpack(m); err != nil {
				return err
			}
			if err := l.gather(); err != nil {
				return err
			}
		case <-tick.C:
			if err := l.idle(ctx); err != nil {
				return err
			}
		}
	}
}

// gather takes what else is there already.
func (l *laneReceiver) gather() error {
	bytes, count := int64(0), 0
	for _, it := range l.queue {
		bytes, count = bytes+it.batch.weight(), count+int(it.batch.Count)
	}
	for bytes < gatherBytes && count < gatherCount {
		before := len(l.queue)
		select {
		case m := <-l.messages:
			if err := l.unpack(m); err != nil {
				return err
			}
		case <-time.After(time.Millisecond):
			// The iterator hands out one message at a time: the next is a moment away, or
			// there is none.
			return nil
		}
		if len(l.queue) > before {
			b := &l.queue[before].batch
			bytes, count = bytes+b.weight(), count+int(b.Count)
		}
	}
	return nil
}

// errRepeated starts the lane anew. What the stream offers again comes between what it
// offers for the first time, so the parts of a batch can come out of turn although all of
// them are there; if their edge is gone, nobody could send them again.
var errRepeated = errors.New("the stream offers messages again")

// unpack adds a message to the queue. What is damaged or out of turn is dropped: the gap
// it leaves will be asked for.
func (l *laneReceiver) unpack(m jetstream.Msg) error {
	meta, err := m.Metadata()
	if err != nil {
		return fmt.Errorf("read a message's sequence: %w", err)
	}
	l.moved = time.Now()
	l.repeated = l.repeated || meta.NumDelivered > 1
	if meta.NumDelivered > 1 && len(l.parts) > 0 {
		return errRepeated
	}
	batch, complete, err := l.unpacker.Add(m.Data())
	if err == nil && batch.Lane != l.lane && complete {
		err = corrupt("batch of lane %s in lane %s", batch.Lane, l.lane)
	}
	switch {
	case errors.Is(err, ErrOutOfTurn) && l.repeated:
		return errRepeated
	case err != nil:
		if !errors.Is(err, ErrOutOfTurn) {
			slog.Error("ingest message dropped", "edge", l.e.id, "lane", l.lane.String(), "error", err)
		}
		dropped := append(l.parts, m)
		l.parts = nil
		return ackAll(dropped)
	case !complete:
		l.parts = append(l.parts, m)
		return nil
	}
	l.queue = append(l.queue, item{batch: batch, messages: append(l.parts, m), seq: meta.Sequence.Stream})
	l.parts = nil
	return nil
}

// take stores the queue, a run of batches of one incarnation at a time. held means that
// the lane has to stand still.
func (l *laneReceiver) take(ctx context.Context) (held bool, err error) {
	for len(l.queue) > 0 {
		in := l.queue[0].batch.Incarnation
		var batches []Batch
		for _, it := range l.queue {
			if it.batch.Incarnation != in {
				break
			}
			batches = append(batches, it.batch)
		}
		held, err := l.store(ctx, in, batches)
		if err != nil || held {
			return held, err
		}
	}
	return false, nil
}

// store hands batches to the sink and settles their messages. held means that the lane
// has to stand still.
func (l *laneReceiver) store(ctx context.Context, in Incarnation, batches []Batch) (held bool, err error) {
	outcome, err := l.inRoom(ctx, batches)
	if err != nil {
		return false, fmt.Errorf("store: %w", err)
	}
	l.stored[in], l.moved = outcome.Stored, time.Now()
	l.backoff.reset()
	l.e.show(l.lane, func(s *ReceivedLane) { s.Stored, s.Fault, s.Held = outcome.Stored, "", false })
	said := l.announcement(in)
	if outcome.Taken == len(batches) {
		l.closeGap(in)
	} else {
		l.openGap(in, outcome.Stored+1, l.queue[outcome.Taken].seq)
		said.Want, said.Seen = l.gap.want, l.gap.seen
	}
	if err := l.settle(outcome.Taken); err != nil {
		return false, err
	}
	l.r.announce(l.e.id, said)
	through := batches[len(batches)-1].End() - 1
	if outcome.Taken < len(batches) {
		through = batches[outcome.Taken].First - 1
	}
	if lost, err := l.lose(ctx, in, outcome.Stored, through); lost || err != nil {
		return false, err // what is left of the queue now follows
	}
	if outcome.Taken == len(batches) {
		return false, nil
	}
	if !l.e.alive() {
		// Nobody may be left to send again what is missing: what is here is not
		// thrown away.
		l.e.show(l.lane, func(s *ReceivedLane) { s.Held = true })
		return true, nil
	}
	return false, l.settle(len(batches) - outcome.Taken)
}

// lose gives up what the edge has freed of what is missing up to a number that has come:
// it cannot send that again.
func (l *laneReceiver) lose(ctx context.Context, in Incarnation, stored, through uint64) (lost bool, err error) {
	said, ok := l.e.said(l.lane)
	if !ok || said.Ordinal != in.Ordinal || said.Incarnation != hex.EncodeToString(in.ID[:]) {
		return false, nil
	}
	through = min(said.Freed, through)
	if through <= stored {
		return false, nil
	}
	slog.Error("the edge has freed what this store does not have: it was restored from before", "edge", l.e.id,
		"lane", l.lane.String(), "first", stored+1, "last", through)
	if err := l.r.sink.Lost(ctx, l.e.id, l.lane, in, through); err != nil {
		return false, fmt.Errorf("note what is lost: %w", err)
	}
	delete(l.stored, in) // the watermark may be past what had come before
	return true, nil
}

func (l *laneReceiver) inRoom(ctx context.Context, batches []Batch) (Outcome, error) {
	room := l.r.room
	if l.lane == LaneAlias {
		room = l.r.quick
	}
	select {
	case room <- struct{}{}:
	case <-ctx.Done():
		return Outcome{}, ctx.Err()
	}
	defer func() { <-room }()
	return l.r.sink.Store(ctx, l.e.id, batches)
}

// settle acknowledges the messages of the queue's first n batches.
func (l *laneReceiver) settle(n int) error {
	for _, it := range l.queue[:n] {
		if err := ackAll(it.messages); err != nil {
			return err
		}
	}
	clear(l.queue[:n])
	l.queue = l.queue[n:]
	return nil
}

func ackAll(messages []jetstream.Msg) error {
	for _, m := range messages {
		if err := m.Ack(); err != nil && !errors.Is(err, nats.ErrMsgAlreadyAckd) {
			return fmt.Errorf("acknowledge: %w", err)
		}
	}
	return nil
}

func (l *laneReceiver) openGap(in Incarnation, want, seen uint64) {
	if l.gap == nil || l.gap.in != in || l.gap.want != want {
		slog.Info("ingest lane has a gap", "edge", l.e.id, "lane", l.lane.String(), "incarnation", in.String(), "want", want)
	}
	l.gap = &gap{in: in, want: want, seen: seen, said: time.Now()}
	l.e.show(l.lane, func(s *ReceivedLane) { s.Want = want })
}

func (l *laneReceiver) closeGap(in Incarnation) {
	if l.gap != nil && l.gap.in == in {
		l.gap = nil
		l.e.show(l.lane, func(s *ReceivedLane) { s.Want = 0 })
	}
}

func (l *laneReceiver) announcement(in Incarnation) announcement {
	return announcement{
		Lane: l.lane.String(), Incarnation: hex.EncodeToString(in.ID[:]), Ordinal: in.Ordinal, Stored: l.stored[in],
	}
}

// idle answers the edge's last hello: with the watermark always, and with a wish when
// what the edge has sent is neither stored nor on its way.
func (l *laneReceiver) idle(ctx context.Context) error {
	said, ok := l.e.said(l.lane)
	if !ok || said.Incarnation == "" || !l.e.alive() {
		return nil
	}
	in, err := parseIncarnation(said.Incarnation, said.Ordinal)
	if err != nil {
		return nil
	}
	if returns := l.e.returns.Load(); returns != l.returns {
		l.returns = returns
		clear(l.stored)
	}
	if _, known := l.stored[in]; !known {
		if l.stored[in], err = l.r.sink.Stored(ctx, l.e.id, l.lane, in); err != nil {
			return fmt.Errorf("read the watermark: %w", err)
		}
		l.e.show(l.lane, func(s *ReceivedLane) { s.Stored, s.Fault = l.stored[in], "" })
	}
	a := l.announcement(in)
	if said.Shipped > a.Stored {
		empty, err := l.drained(ctx)
		if err != nil {
			return err
		}
		if !empty && time.Since(l.moved) > lostAfter {
			return fmt.Errorf("number %d is in the stream and does not come", a.Stored+1)
		}
		if empty {
			a.Want, a.Turn = a.Stored+1, said.Turn
		}
	}
	l.r.announce(l.e.id, a)
	return nil
}

// drained tells whether the stream holds nothing more of this lane, not even on its
// way to us.
func (l *laneReceiver) drained(ctx context.Context) (bool, error) {
	if len(l.queue) > 0 || len(l.parts) > 0 {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, tickEvery)
	defer cancel()
	consumer, err := l.r.js.Consumer(ctx, l.lane.Stream(), l.lane.String()+"-"+l.e.id)
	if err != nil {
		return false, fmt.Errorf("look at the consumer: %w", err)
	}
	info := consumer.CachedInfo()
	return info.NumPending == 0 && info.NumAckPending == 0, nil
}
