package down

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"skerry/replication"
)

// laneWriter publishes one lane while its publisher leads. Only run's goroutine writes
// the fields under mu.
type laneWriter struct {
	publisher *Publisher
	lane      replication.Lane
	woken     chan struct{}
	log       *slog.Logger
	stream    jetstream.Stream
	stored    int    // messages since the stream's end was looked at, up to window; see send
	skipped   uint64 // impossible documents that this epoch's stream lacks, as far as this process has met them

	mu       sync.Mutex
	epoch    replication.Epoch
	position replication.Position // published
	seq      uint64               // the stream's last sequence, expected by the next publish
	renewals int
	failure  error
	first    time.Time // when the present failure was first met,
	last     time.Time // and when last
}

func (l *laneWriter) status() LaneStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return LaneStatus{Epoch: l.epoch, Position: l.position, Seq: l.seq, Renewals: l.renewals, Err: l.failure}
}

func (l *laneWriter) report(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = time.Now()
	if l.failure == nil {
		l.first = l.last
	}
	l.failure = err
}

// failing is why the lane has failed again and again for so long; nil when it has not.
// What takes long is no failure.
func (l *laneWriter) failing(d time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last.Sub(l.first) < d {
		return nil
	}
	return l.failure
}

func (l *laneWriter) moveTo(epoch replication.Epoch, p replication.Position, seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.epoch, l.position, l.seq = epoch, p, seq
}

// run serves the lane until ctx ends. After any fault it judges the stream anew: whatever
// happened to a publish whose answer was lost, the stream's last message tells.
func (l *laneWriter) run(ctx context.Context) {
	l.report(nil)
	const longest = 5 * time.Second
	pause := 50 * time.Millisecond
	for ctx.Err() == nil {
		began := time.Now()
		err := l.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > longest {
			pause = 50 * time.Millisecond
		}
		l.log.Warn("publish state", "error", err, "again_in", pause)
		l.report(err)
		sleep(ctx, pause)
		pause = min(2*pause, longest)
	}
}

func (l *laneWriter) serve(ctx context.Context) error {
	if err := l.takeOver(ctx); err != nil {
		return fmt.Errorf("take over: %w", err)
	}
	l.report(nil)
	poll := time.NewTicker(l.publisher.config.Poll)
	defer poll.Stop()
	var swept time.Time
	for {
		if err := l.drain(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.woken:
		case <-poll.C:
			if err := l.verify(ctx); err != nil {
				return err
			}
			l.publisher.heartbeat(l.lane, l.status())
			if time.Since(swept) > l.publisher.config.Sweep {
				swept = time.Now()
				if err := l.sweep(ctx); err != nil {
					return fmt.Errorf("sweep tombstones: %w", err)
				}
			}
		}
	}
}

// takeOver makes the lane's stream continue the database's history, by a new epoch where
// it does not.
func (l *laneWriter) takeOver(ctx context.Context) error {
	l.stored = 0
	stream, err := l.publisher.js.CreateOrUpdateStream(ctx, StreamConfig(l.lane, l.publisher.config.Replicas))
	if err != nil {
		return fmt.Errorf("open stream %s: %w", l.lane.Stream(), err)
	}
	l.stream = stream
	head, err := l.publisher.ledger.Head(ctx, l.lane)
	if err != nil {
		return err
	}
	verdict, err := l.judge(ctx, head)
	if err != nil {
		return err
	}
	if verdict.broken != "" {
		level := slog.LevelWarn
		if head.Timeline == "" {
			level = slog.LevelInfo // nothing broke: it was asked for
		}
		former := head.Epoch
		if head, err = l.publisher.ledger.Renew(ctx, l.lane, verdict.seen); err != nil {
			return fmt.Errorf("begin a new epoch: %w", err)
		}
		l.log.Log(ctx, level, "a new epoch begins", "reason", verdict.broken, "epoch", head.Epoch.String(),
			"former", former.String(), "seen", verdict.seen)
		l.skipped = 0
		l.mu.Lock()
		l.renewals++
		l.mu.Unlock()
	}
	if head.Unpurged {
		return l.purge(ctx, head, verdict.seq)
	}
	if verdict.position != head.Published || verdict.seq != head.Seq {
		if err := l.publisher.ledger.Published(ctx, l.lane, head.Epoch, verdict.position, verdict.seq); err != nil {
			return fmt.Errorf("adopt what was published: %w", err)
		}
	}
	l.moveTo(head.Epoch, verdict.position, verdict.seq)
	return nil
}

// verdict is what the stream says to a publisher that takes over.
type verdict struct {
	broken   string               // why the stream does not continue the database's history; empty: it does
	seen     replication.Position // the highest position found in the stream
	position replication.Position // how far the stream is
	seq      uint64
}

// judge compares the stream's end with the database.
func (l *laneWriter) judge(ctx context.Context, head Head) (verdict, error) {
	state, document, found, err := l.end(ctx)
	if err != nil {
		return verdict{}, err
	}
	v := verdict{position: head.Published, seq: state.LastSeq}
	if found {
		v.seen = document.Position
	}
	if v.broken = breach(head, state.LastSeq, state.Msgs, document, found); v.broken != "" || !found {
		return v, nil
	}
	token, known, err := l.publisher.ledger.Committed(ctx, l.lane, document.TxLast)
	if err != nil {
		return verdict{}, err
	}
	if !known || token != document.Commit {
		v.broken = "the database does not have the stream's last transaction: it went back"
		return v, nil
	}
	v.position = document.Position
	if v.broken, err = l.missing(ctx, v.position, state.Msgs); err != nil {
		return verdict{}, err
	}
	return v, nil
}

// missing says so when the stream has fewer messages than documents were published up to
// p: a server that finds a part of its file damaged leaves it out. Edges that were there
// have what it held; new ones would never get it.
func (l *laneWriter) missing(ctx context.Context, p replication.Position, messages uint64) (string, error) {
	documents, err := l.publisher.ledger.Count(ctx, l.lane, p)
	if err != nil || messages+l.skipped >= documents {
		return "", err
	}
	return fmt.Sprintf("the stream has %d messages for %d documents", messages, documents), nil
}

// breach names what makes it impossible that the stream continues the head's history;
// empty when it may.
func breach(head Head, lastSeq, messages uint64, last replication.Document, found bool) string {
	switch {
	case head.Timeline == "":
		return "first start, or a restore was declared"
	case head.Timeline != head.Present:
		return "the database's timeline changed"
	case head.Unpurged:
		// Its beginner died before it purged the stream, or this is a copy of the
		// database from just then and the epoch has long had a history that this database
		// knows nothing of. The two cannot be told apart with certainty.
		return "a new epoch was begun and not finished"
	case lastSeq < head.Seq:
		return "the stream ends before what was published"
	case messages == 0 && head.Held:
		return "the stream was emptied"
	case messages > 0 && !found:
		return "the stream's last message is no document"
	case found && last.Epoch != head.Epoch:
		return "the stream is of another epoch"
	case found && last.Position < head.Published:
		return "the stream's last message is older than what was published"
	}
	return ""
}

// end reads the stream's state and its last document; found is false when there is none.
// Every replica of the stream answers for its messages, also one that is a moment behind,
// as some are when a leader has just gone and the publisher takes over anew. So that the
// last message is not there is believed only when it is so for a second.
func (l *laneWriter) end(ctx context.Context) (state jetstream.StreamState, d replication.Document, found bool, err error) {
	for tries := 1; ; tries++ {
		info, err := l.stream.Info(ctx)
		if err != nil {
			return state, d, false, fmt.Errorf("look at stream %s: %w", l.lane.Stream(), err)
		}
		d, found, err = l.read(ctx, info.State.LastSeq)
		if err != nil || found || info.State.Msgs == 0 || tries == 10 {
			return info.State, d, found, err
		}
		sleep(ctx, 100*time.Millisecond)
	}
}

// read fetches one message of the stream; found is false when there is none or it is not
// a document of the lane.
func (l *laneWriter) read(ctx context.Context, seq uint64) (d replication.Document, found bool, err error) {
	if seq == 0 {
		return d, false, nil
	}
	msg, err := l.stream.GetMsg(ctx, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return d, false, nil
	}
	if err != nil {
		return d, false, fmt.Errorf("read message %d of %s: %w", seq, l.lane.Stream(), err)
	}
	d, err = replication.Decode(msg.Data)
	if err != nil || d.Lane != l.lane {
		l.log.Warn("foreign message in the stream", "seq", seq, "subject", msg.Subject, "error", err)
		return d, false, nil
	}
	return d, true, nil
}

// purge empties the stream, up to the sequence at which it was judged, for a new epoch.
// Its sequence goes on. A publisher that was paused before this line cannot purge what
// its successor has published since.
func (l *laneWriter) purge(ctx context.Context, head Head, seq uint64) error {
	if seq > 0 {
		if err := l.stream.Purge(ctx, jetstream.WithPurgeSequence(seq+1)); err != nil {
			return fmt.Errorf("purge %s: %w", l.lane.Stream(), err)
		}
	}
	info, err := l.stream.Info(ctx)
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", l.lane.Stream(), err)
	}
	if info.State.LastSeq != seq || info.State.Msgs != 0 {
		return fmt.Errorf("%s stands at %d with %d messages after it was purged up to %d", l.lane.Stream(), info.State.LastSeq, info.State.Msgs, seq)
	}
	if err := l.publisher.ledger.Published(ctx, l.lane, head.Epoch, head.Published, seq); err != nil {
		return fmt.Errorf("store that the stream is purged: %w", err)
	}
	l.moveTo(head.Epoch, head.Published, seq)
	return nil
}

// drain publishes until nothing is pending.
func (l *laneWriter) drain(ctx context.Context) error {
	for {
		at := l.status()
		documents, err := l.publisher.ledger.Pending(ctx, l.lane, at.Epoch, at.Position)
		if err != nil {
			return fmt.Errorf("read pending documents: %w", err)
		}
		if len(documents) == 0 {
			return nil
		}
		if err := l.send(ctx, at, documents); err != nil {
			return err
		}
	}
}

// send publishes documents in order and stores how far it came. Every publish names the
// sequence that it expects to follow: if one is refused or lost, so are all later ones,
// unless somebody else's message has taken its place.
//
// Nobody else's may. A publisher that was stopped leaves messages under way, window at
// most, which expect sequences from the one it had reached. If they came just now, the
// first of ours would be refused and, with the sequence that theirs have moved on, a
// later one be stored: what lies between would never be sent. So each of the first window
// messages after a look at the stream's end awaits its acknowledgement. When they are
// stored, the stream is past every sequence that anybody's message under way expects, and
// all but the last few are sent unacknowledged.
func (l *laneWriter) send(ctx context.Context, at LaneStatus, documents []replication.Document) error {
	for len(documents) > 0 {
		part := documents[:min(len(documents), window)]
		documents = documents[len(part):]
		seq, err := l.publish(ctx, at.Seq, part)
		if err != nil {
			return err
		}
		at.Position, at.Seq = part[len(part)-1].Position, seq
		l.moveTo(at.Epoch, at.Position, at.Seq)
		if err := l.publisher.ledger.Published(ctx, l.lane, at.Epoch, at.Position, at.Seq); err != nil {
			return fmt.Errorf("store what is published: %w", err)
		}
	}
	return nil
}

// publish puts documents into the stream behind a sequence and returns the last one's.
func (l *laneWriter) publish(ctx context.Context, seq uint64, documents []replication.Document) (uint64, error) {
	acks := make([]jetstream.PubAckFuture, 0, len(documents))
	acknowledged := seq
	for i := range documents {
		d := &documents[i]
		if err := d.Validate(); err != nil {
			// It could never be published, and everything behind it would wait.
			l.log.Error("BUG: a document in the database is impossible, passed over", "error", err)
			l.skipped++
			continue
		}
		ack, err := l.publisher.js.PublishMsgAsync(&nats.Msg{Subject: string(d.Subject), Data: d.Append(nil)}, jetstream.WithExpectLastSequence(seq))
		if err != nil {
			return 0, fmt.Errorf("publish %s: %w", d.Subject, err)
		}
		acks = append(acks, ack)
		seq++
		if l.stored < window {
			if err := await(ctx, acks, acknowledged); err != nil {
				return 0, err
			}
			acks, acknowledged = acks[:0], seq
			l.stored++
		}
	}
	return seq, await(ctx, acks, acknowledged)
}

// await waits until every publish is acknowledged with the sequence it was meant to get.
func await(ctx context.Context, acks []jetstream.PubAckFuture, seq uint64) error {
	for _, ack := range acks {
		seq++
		select {
		case ok := <-ack.Ok():
			if ok.Sequence != seq {
				return fmt.Errorf("the stream stored %s as %d, not as %d", ack.Msg().Subject, ok.Sequence, seq)
			}
		case err := <-ack.Err():
			return fmt.Errorf("publish %s: %w", ack.Msg().Subject, err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// verify notices that the database under us is another one, that a restore was declared,
// or that somebody took over.
func (l *laneWriter) verify(ctx context.Context) error {
	head, err := l.publisher.ledger.Head(ctx, l.lane)
	if err != nil {
		return err
	}
	at := l.status()
	switch {
	case head.Epoch != at.Epoch, head.Published != at.Position, head.Seq != at.Seq, head.Unpurged:
		return fmt.Errorf("the database says %d at %d: %w", head.Published, head.Seq, ErrSuperseded)
	case head.Timeline != head.Present:
		return errors.New("the database's timeline changed, or a restore was declared")
	}
	info, err := l.stream.Info(ctx)
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", l.lane.Stream(), err)
	}
	if info.State.LastSeq != at.Seq || (info.State.Msgs == 0 && head.Held) {
		return fmt.Errorf("the stream stands at %d (%d messages), not at %d", info.State.LastSeq, info.State.Msgs, at.Seq)
	}
	return nil
}

// sweep looks whether the stream is complete, and purges tombstones that are past their
// age. First the floor is raised and published, then they are taken out of the stream,
// then out of the database: killed anywhere in between, the next sweep goes on.
func (l *laneWriter) sweep(ctx context.Context) error {
	ledger, at := l.publisher.ledger, l.status()
	epoch := at.Epoch
	info, err := l.stream.Info(ctx)
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", l.lane.Stream(), err)
	}
	if lost, err := l.missing(ctx, at.Position, info.State.Msgs); err != nil || lost != "" {
		return errors.Join(err, errors.New(lost))
	}
	if err := ledger.RaiseFloor(ctx, l.lane, epoch, time.Now().Add(-l.publisher.config.Age)); err != nil {
		return err
	}
	if err := l.drain(ctx); err != nil {
		return err
	}
	for {
		buried, err := ledger.Buried(ctx, l.lane, epoch)
		if err != nil {
			return err
		}
		for _, d := range buried {
			if err := l.bury(ctx, d); err != nil {
				return fmt.Errorf("purge %s: %w", d.Subject, err)
			}
		}
		if err := ledger.Forget(ctx, l.lane, buried); err != nil {
			return err
		}
		if len(buried) == 0 {
			return nil
		}
	}
}

// bury takes one tombstone out of the stream: by its sequence, not by its subject, so
// that a publisher that was paused here cannot take out what its successor has put in
// its place.
func (l *laneWriter) bury(ctx context.Context, d replication.Document) error {
	msg, err := l.stream.GetLastMsgForSubject(ctx, string(d.Subject))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if in, err := replication.Decode(msg.Data); err != nil || in.Position != d.Position {
		return err
	}
	if err := l.stream.DeleteMsg(ctx, msg.Sequence); err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
		return err
	}
	return nil
}
