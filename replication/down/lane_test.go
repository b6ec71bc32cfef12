package down

import (
	"context"
	"log/slog"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"skerry/pkg/natsserver/natstest"
	"skerry/replication"
)

// behind is a stream whose messages are asked of a replica that does not have the last ones yet, for so many questions.
type behind struct {
	jetstream.Stream
	questions int
}

func (b *behind) GetMsg(ctx context.Context, seq uint64, opts ...jetstream.GetMsgOpt) (*jetstream.RawStreamMsg, error) {
	if b.questions--; b.questions >= 0 {
		return nil, jetstream.ErrMsgNotFound
	}
	return b.Stream.GetMsg(ctx, seq, opts...)
}

// committed is a ledger that knows one document, which is published.
type committed struct {
	Ledger
	document replication.Document
}

func (c committed) Committed(context.Context, replication.Lane, replication.Position) (replication.Token, bool, error) {
	return c.document.Commit, true, nil
}

func (c committed) Count(context.Context, replication.Lane, replication.Position) (uint64, error) {
	return 1, nil
}

func TestAReplicaThatIsAMomentBehindEndsNoEpoch(t *testing.T) {
	t.Parallel()
	js := natstest.New(t).JetStream(t)
	stream, err := js.CreateStream(t.Context(), StreamConfig(replication.Normal, 1))
	if err != nil {
		t.Fatal(err)
	}
	d := replication.Document{Subject: replication.ProjectSubject("p"), Position: 7, TxFirst: 7, TxLast: 7, Through: 7, Commit: replication.Token{1}, Epoch: replication.Epoch{2}, Body: []byte(`{}`)}
	if _, err := js.Publish(t.Context(), string(d.Subject), d.Append(nil)); err != nil {
		t.Fatal(err)
	}
	head := Head{Epoch: d.Epoch, Position: 7, Published: 7, Seq: 1, Held: true, Timeline: "00000001", Present: "00000001"}
	for questions, broken := range map[int]bool{0: false, 3: false, 1 << 30: true} {
		l := &laneWriter{publisher: &Publisher{ledger: committed{document: d}}, lane: replication.Normal, log: slog.New(slog.DiscardHandler), stream: &behind{stream, questions}}
		v, err := l.judge(t.Context(), head)
		if err != nil || (v.broken != "") != broken {
			t.Errorf("behind for %d questions: %+v, %v", questions, v, err)
		}
	}
}
