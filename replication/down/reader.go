package down

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"skerry/replication"
)

// reader is one session's way through a stream: either on from the disk's cursor
// (generation is nil), or everything from the stream's beginning into a new generation,
// which is taken into service when the epoch's marker has been read and what has been
// read is whole; from then on it goes on like the other.
type reader struct {
	follower   *Follower
	stream     jetstream.Stream
	fold       fold
	floor      replication.Position
	generation Generation
	marked     bool // the marker of this epoch has been read, or was known at the start

	pending []replication.Document // read and not stored
	bytes   int                    // of pending
	ready   int                    // so many of pending are whole transactions,
	cursor  Cursor                 // and this is the cursor behind them

	mu    sync.Mutex // the watcher looks at these
	epoch replication.Epoch
	seq   uint64
	live  bool // what is read goes into the state that is served
}

func (r *reader) progress() (replication.Epoch, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.epoch, r.seq
}

func (r *reader) moveTo(epoch replication.Epoch, seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.epoch, r.seq = epoch, seq
}

// orphaned tells whether the state that the session continues has gone from the disk.
func (r *reader) orphaned() bool {
	r.mu.Lock()
	live := r.live
	r.mu.Unlock()
	_, have := r.follower.disk.Cursor(r.follower.lane)
	return live && !have
}

func (r *reader) goLive() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live = true
}

// begin compares the disk with the stream.
func (r *reader) begin(ctx context.Context) error {
	f := r.follower
	cursor, have := f.disk.Cursor(f.lane)
	info, err := r.stream.Info(ctx)
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", f.lane.Stream(), err)
	}
	marker, epoch, err := r.readMarker(ctx)
	if err != nil {
		return err
	}
	if !f.anew && have && epoch == cursor.Epoch && info.State.LastSeq >= cursor.Seq && cursor.Position >= marker.Floor {
		r.fold.at, r.floor, r.marked = cursor.Position, cursor.Floor, true
		r.moveTo(cursor.Epoch, cursor.Seq)
		r.goLive()
		return nil
	}
	r.floor = marker.Floor
	return r.beginAnew()
}

// beginAnew makes the reader take everything, from the beginning of the stream.
func (r *reader) beginAnew() error {
	generation, err := r.follower.disk.Begin(r.follower.lane)
	if err != nil {
		return fmt.Errorf("begin a new generation: %w", err)
	}
	r.generation = generation
	r.follower.note(func(s *FollowerStatus) { s.Filling = true })
	return nil
}

// readMarker reads the stream's marker; its epoch is zero when there is none.
func (r *reader) readMarker(ctx context.Context) (replication.Marker, replication.Epoch, error) {
	msg, err := r.stream.GetLastMsgForSubject(ctx, string(replication.EpochSubject(r.follower.lane)))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return replication.Marker{}, replication.Epoch{}, nil
	}
	if err != nil {
		return replication.Marker{}, replication.Epoch{}, fmt.Errorf("read the marker: %w", err)
	}
	d, err := replication.Decode(msg.Data)
	if err != nil {
		return replication.Marker{}, replication.Epoch{}, fmt.Errorf("read the marker: %w", err)
	}
	marker, err := replication.ParseMarker(d.Body)
	return marker, d.Epoch, err
}

// next waits for the next message. While whole transactions are pending it does not
// wait long: the stream's count of what is to come, by which settle hopes for more, may
// be wrong.
func (r *reader) next(ctx context.Context, messages jetstream.MessagesContext) (jetstream.Msg, error) {
	if r.ready == 0 || r.generation != nil {
		return messages.Next(jetstream.NextContext(ctx))
	}
	msg, err := messages.Next(jetstream.NextMaxWait(10 * time.Millisecond))
	if !errors.Is(err, nats.ErrTimeout) {
		return msg, err
	}
	if err := r.settle(false, true); err != nil {
		return nil, err
	}
	return messages.Next(jetstream.NextContext(ctx))
}

// take takes one message of the stream.
func (r *reader) take(ctx context.Context, msg jetstream.Msg) error {
	meta, err := msg.Metadata()
	if err != nil {
		return fmt.Errorf("message without metadata: %w", err)
	}
	f, seq := r.follower, meta.Sequence.Stream
	d, err := replication.Decode(msg.Data())
	if err != nil || d.Lane != f.lane || string(d.Subject) != msg.Subject() {
		f.log.Warn("foreign message in the stream, passed over", "seq", seq, "subject", msg.Subject(), "error", err)
		return nil
	}
	epoch, _ := r.progress()
	if epoch == (replication.Epoch{}) {
		epoch = d.Epoch
	}
	if d.Epoch != epoch {
		return fmt.Errorf("the stream has gone over to epoch %s", d.Epoch)
	}
	r.moveTo(epoch, seq)
	f.note(func(s *FollowerStatus) { s.Heard, s.Head = time.Now(), max(s.Head, d.Position) })
	whole, err := r.read(&d, seq, func() (uint64, error) { return r.lastSeq(ctx) })
	if err != nil {
		return err
	}
	if whole {
		r.ready = len(r.pending)
		r.cursor = Cursor{Epoch: epoch, Seq: seq, Position: r.fold.at, Floor: r.floor}
	}
	return r.settle(whole, meta.NumPending == 0)
}

// read takes a document, unless it is older than what has been read. It tells whether
// everything read so far is whole transactions.
func (r *reader) read(d *replication.Document, seq uint64, lastSeq func() (uint64, error)) (bool, error) {
	if d.Position <= r.fold.at {
		r.follower.log.Warn("an older position behind a newer one, passed over", "position", d.Position, "after", r.fold.at)
		return r.fold.whole(seq, lastSeq)
	}
	if err := r.keep(d); err != nil {
		return false, err
	}
	return r.fold.read(d, seq, lastSeq)
}

func (r *reader) keep(d *replication.Document) error {
	if d.Subject == replication.EpochSubject(d.Lane) {
		marker, err := replication.ParseMarker(d.Body)
		if err != nil {
			return err
		}
		if marker.Epoch != d.Epoch.String() {
			return fmt.Errorf("marker of epoch %s in epoch %s", marker.Epoch, d.Epoch)
		}
		// Tombstones below the floor that the session began with are no loss: their
		// subjects' older versions had left the stream, or the disk had read past them.
		if marker.Floor > r.floor && r.fold.missed(d.Position, marker.Floor) {
			r.follower.anew = true
			return fmt.Errorf("deletions up to position %d were purged while the edge read them", marker.Floor)
		}
		r.marked, r.floor = true, max(r.floor, marker.Floor)
	}
	r.pending = append(r.pending, *d)
	r.bytes += len(d.Subject) + len(d.Body)
	return nil
}

// lastSeq asks the stream for its present end.
func (r *reader) lastSeq(ctx context.Context) (uint64, error) {
	info, err := r.stream.Info(ctx)
	if err != nil {
		return 0, fmt.Errorf("ask for the end of %s: %w", r.follower.lane.Stream(), err)
	}
	return info.State.LastSeq, nil
}

// settle stores the pending documents that make whole transactions, as soon as the stream
// has nothing more at the moment or enough of them have come together. whole tells that
// all pending documents do; idle, that the stream has no more for now.
func (r *reader) settle(whole, idle bool) error {
	f := r.follower
	enough := len(r.pending) >= f.config.Batch || r.bytes > 1<<20
	if r.generation != nil {
		return r.settleAnew(whole, enough)
	}
	if r.ready > 0 && (idle || enough) {
		if err := f.disk.Apply(f.lane, r.pending[:r.ready], r.cursor); err != nil {
			return fmt.Errorf("store documents: %w", err)
		}
		r.forget(r.ready)
		r.served(false)
	}
	if r.bytes > f.config.MaxPending {
		f.anew = true
		return fmt.Errorf("unfinished transactions of %d bytes outgrow memory", r.bytes)
	}
	return nil
}

// settleAnew stores documents in the new generation, whole or not, and serves it as soon
// as it is whole.
func (r *reader) settleAnew(whole, enough bool) error {
	complete := r.marked && whole
	if complete || enough {
		if err := r.generation.Add(r.pending); err != nil {
			return fmt.Errorf("store documents: %w", err)
		}
		r.forget(len(r.pending))
	}
	if !complete {
		return nil
	}
	if err := r.generation.Serve(r.cursor); err != nil {
		return fmt.Errorf("take the new generation into service: %w", err)
	}
	r.generation, r.follower.anew = nil, false
	r.goLive()
	r.served(true)
	return nil
}

// forget drops the first n pending documents.
func (r *reader) forget(n int) {
	for i := range r.pending[:n] {
		r.bytes -= len(r.pending[i].Subject) + len(r.pending[i].Body)
	}
	rest := copy(r.pending, r.pending[n:])
	clear(r.pending[rest:])
	r.pending, r.ready = r.pending[:rest], 0
}

func (r *reader) served(anew bool) {
	r.follower.note(func(s *FollowerStatus) {
		s.Cursor, s.Serving, s.Filling = r.cursor, true, false
		if anew {
			s.Resets++
		}
	})
	if anew {
		r.follower.log.Info("a new generation is served", "epoch", r.cursor.Epoch.String(), "position", uint64(r.cursor.Position))
	}
}
