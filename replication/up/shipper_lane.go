package up

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// laneShipper drains one lane. Its loop owns everything but what mu guards.
type laneShipper struct {
	lane      Lane
	subject   string
	window    int
	log       Log
	js        jetstream.JetStream
	packer    *Packer
	connected func() bool
	mail      chan struct{} // one slot: something below is new, or the connection has changed

	flying  []flight // published and not acknowledged, in order
	lastSeq uint64   // stream sequence of the newest acknowledgement
	// turnSeq is the sequence at which the first message after the last rewind lies, 0
	// while it is not acknowledged.
	turnSeq uint64
	backoff backoff

	mu     sync.Mutex
	in     Incarnation // being drained; zero: none
	next   uint64      // number to publish next
	acked  uint64      // highest number of in that the stream has acknowledged
	stored uint64      // watermark of in
	freed  uint64      // highest number of in that the log no longer has
	turn   uint64      // rewinds so far
	flew   int         // len(flying), for others to see
	fault  string
	inbox  map[Incarnation]announcement // highest watermark and latest wish, per incarnation
}

// flight is one message on its way to the stream.
type flight struct {
	end    uint64 // number after its last operation
	small  bool
	future jetstream.PubAckFuture
}

func (l *laneShipper) wake() {
	select {
	case l.mail <- struct{}{}:
	default:
	}
}

func (l *laneShipper) receive(in Incarnation, a announcement) {
	l.mu.Lock()
	if l.inbox == nil {
		l.inbox = map[Incarnation]announcement{}
	}
	// An edge has few unfinished incarnations; more than this is somebody else's noise.
	if old, ok := l.inbox[in]; ok || len(l.inbox) < 1024 {
		a.Stored = max(a.Stored, old.Stored)
		if a.Want == 0 {
			a.Want, a.Seen, a.Turn = old.Want, old.Seen, old.Turn
		}
		l.inbox[in] = a
	}
	l.mu.Unlock()
	l.wake()
}

func (l *laneShipper) describe(said *laneHello) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.in == (Incarnation{}) {
		return
	}
	said.Incarnation, said.Ordinal, said.Turn = hex.EncodeToString(l.in.ID[:]), l.in.Ordinal, l.turn
	said.Freed = l.freed
	if l.flew == 0 {
		said.Shipped = l.acked
	}
}

func (l *laneShipper) status() LaneStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := LaneStatus{Lane: l.lane.String(), Next: l.next, Stored: l.stored, Flying: l.flew, Rewinds: l.turn, Fault: l.fault}
	if l.in != (Incarnation{}) {
		s.Incarnation = l.in.String()
	}
	return s
}

func (l *laneShipper) run(ctx context.Context) {
	for ctx.Err() == nil {
		appended := l.log.Appended(l.lane) // asked for first, so that nothing slips in between
		err := l.step(ctx)
		l.note(err)
		l.wait(ctx, appended)
	}
}

// step does all that can be done now without waiting.
func (l *laneShipper) step(ctx context.Context) error {
	if err := l.readMail(); err != nil {
		return err
	}
	if err := l.land(); err != nil {
		return err
	}
	if l.backoff.until.After(time.Now()) || !l.connected() {
		return nil
	}
	return l.fill(ctx)
}

// note keeps a fault for the status until something gets through again, logs it once, and
// slows the lane down.
func (l *laneShipper) note(err error) {
	if err == nil {
		return
	}
	l.backoff.grow(time.Now())
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault == "" {
		slog.Warn("ingest lane does not get through, trying again", "lane", l.lane.String(), "error", err)
	}
	l.fault = err.Error()
}

func (l *laneShipper) wait(ctx context.Context, appended <-chan struct{}) {
	var landed <-chan *jetstream.PubAck
	var failed <-chan error
	if len(l.flying) > 0 {
		landed, failed = l.flying[0].future.Ok(), l.flying[0].future.Err()
	}
	var over <-chan time.Time
	if pause := time.Until(l.backoff.until); pause > 0 {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		over = timer.C
		appended = nil
	} else if l.full() {
		appended = nil
	}
	select {
	case <-ctx.Done():
	case <-l.mail:
	case <-appended:
	case <-over:
	case ack := <-landed:
		l.landed(ack)
	case err := <-failed:
		l.lost(fmt.Errorf("publish: %w", err))
	}
}

// readMail applies what the centre has announced.
func (l *laneShipper) readMail() error {
	l.mu.Lock()
	inbox := l.inbox
	l.inbox = nil
	l.mu.Unlock()
	for in, a := range inbox {
		if err := l.log.Stored(in, l.lane, a.Stored); err != nil {
			l.receive(in, a) // kept for the next try
			return fmt.Errorf("free the log up to %d: %w", a.Stored, err)
		}
		if in != l.in {
			continue
		}
		l.mu.Lock()
		l.stored = max(l.stored, a.Stored)
		l.mu.Unlock()
		if l.next <= l.stored {
			// An earlier life of this lane's loop had sent more than this one knows.
			l.set(l.stored + 1)
		}
		if l.answers(a) {
			l.rewind(max(a.Want, a.Stored+1))
		}
	}
	return nil
}

// answers tells whether a wish is younger than the last rewind. Many wishes for the same
// number arrive while the first is being fulfilled.
func (l *laneShipper) answers(a announcement) bool {
	switch {
	case a.Want == 0 || a.Want >= l.next:
		return false
	case a.Seen == 0:
		return a.Turn == l.turn && len(l.flying) == 0
	}
	return l.turnSeq != 0 && a.Seen > l.turnSeq
}

// rewind goes back to number n; what is flying may land unnoticed. A number below the
// watermark is wanted by a database that has been taken back in time: what the log has
// not freed is sent to it again.
func (l *laneShipper) rewind(n uint64) {
	l.flying, l.turnSeq = nil, 0
	l.mu.Lock()
	l.turn++
	l.flew, l.acked, l.stored = 0, 0, min(l.stored, n-1)
	l.mu.Unlock()
	l.set(n)
}

func (l *laneShipper) set(next uint64) {
	l.mu.Lock()
	l.next = next
	l.mu.Unlock()
}

// land takes what has landed at the head of the flight, without waiting.
func (l *laneShipper) land() error {
	for len(l.flying) > 0 {
		select {
		case ack := <-l.flying[0].future.Ok():
			l.landed(ack)
		case err := <-l.flying[0].future.Err():
			l.lost(fmt.Errorf("publish: %w", err))
			return nil
		default:
			return nil
		}
	}
	return nil
}

func (l *laneShipper) landed(ack *jetstream.PubAck) {
	end := l.flying[0].end
	l.flying = l.flying[1:]
	if ack.Sequence <= l.lastSeq {
		// Sequences only rise, so this is another stream, or one that has lost its end.
		slog.Warn("the stream has lost messages, sending again", "lane", l.lane.String(), "sequence", ack.Sequence, "before", l.lastSeq)
		l.lastSeq = ack.Sequence
		l.rewind(l.stored + 1)
		return
	}
	l.lastSeq = ack.Sequence
	if l.turnSeq == 0 {
		l.turnSeq = ack.Sequence
	}
	l.backoff.reset()
	l.mu.Lock()
	l.fault = ""
	l.flew, l.acked = len(l.flying), max(l.acked, end-1)
	l.mu.Unlock()
}

// lost goes back to the first message whose fate is unknown, slower.
func (l *laneShipper) lost(err error) {
	first := l.stored + 1
	l.mu.Lock()
	first = max(first, l.acked+1)
	l.mu.Unlock()
	l.rewind(first)
	l.note(err)
}

// full tells whether nothing may be sent before something has landed. Many small messages
// would cost the centre a transaction each: with some on their way, the next one waits
// for company. The log is not even read then, which would cost a busy edge more than the
// message itself.
func (l *laneShipper) full() bool {
	n := len(l.flying)
	return n >= l.window || n >= 2 && l.flying[n-1].small
}

// fill publishes until the window is full or the log is sent.
func (l *laneShipper) fill(ctx context.Context) error {
	if err := l.choose(); err != nil {
		return err
	}
	for !l.full() && l.in != (Incarnation{}) {
		batch, ok, err := l.log.Read(ctx, l.in, l.lane, l.next, PackBudget)
		if err != nil {
			return fmt.Errorf("read the log at %d: %w", l.next, err)
		}
		if !ok {
			return nil
		}
		if batch.First > l.next {
			l.mu.Lock()
			l.freed = batch.First - 1
			l.mu.Unlock()
		}
		if err := l.publish(&batch); err != nil {
			return err
		}
	}
	return nil
}

// choose picks the oldest incarnation that still holds something.
func (l *laneShipper) choose() error {
	pending := l.log.Pending(l.lane)
	var oldest Incarnation
	if len(pending) > 0 {
		oldest = pending[0]
	}
	if oldest == l.in || (len(pending) == 0 && len(l.flying) > 0) {
		return nil
	}
	if len(pending) == 0 {
		return nil // the present one is drained; it may go on
	}
	l.flying, l.turnSeq = nil, 0
	l.mu.Lock()
	l.in, l.next, l.acked, l.stored, l.freed, l.flew = oldest, 1, 0, 0, 0, 0
	l.turn++
	l.mu.Unlock()
	return nil
}

func (l *laneShipper) publish(b *Batch) error {
	messages, err := l.packer.Pack(b)
	if err != nil {
		return fmt.Errorf("pack %s %d: %w", l.lane, b.First, err)
	}
	for i, m := range messages {
		future, err := l.js.PublishAsync(l.subject, m, jetstream.WithRetryAttempts(0))
		if err != nil {
			return fmt.Errorf("publish: %w", err) // next stays, so the whole batch is tried again
		}
		f := flight{end: b.First, small: len(b.Data) < PackBudget/4, future: future}
		if i == len(messages)-1 {
			f.end = b.End() // only the last part completes the batch
		}
		l.flying = append(l.flying, f)
	}
	l.mu.Lock()
	l.next, l.flew = b.End(), len(l.flying)
	l.mu.Unlock()
	return nil
}
