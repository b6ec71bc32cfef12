package down_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"skerry/pkg/natsserver/natstest"
	"skerry/replication"
	"skerry/replication/down"
	"skerry/replication/down/downtest"
)

// crossing is a ledger that lets something happen when a publisher of the normal lane has read what it is to send, and has
// sent none of it.
type crossing struct {
	*downtest.Ledger
	meanwhile func()
}

func (c *crossing) Pending(ctx context.Context, lane replication.Lane, epoch replication.Epoch, after replication.Position) ([]replication.Document, error) {
	documents, err := c.Ledger.Pending(ctx, lane, epoch, after)
	if lane == replication.Normal && len(documents) > 0 && c.meanwhile != nil {
		c.meanwhile()
		c.meanwhile = nil
	}
	return documents, err
}

// A publisher that is stopped leaves messages under way, which the stream may get when its successor has looked at the
// stream's end. They take the places that the successor's first messages were meant for, and must not make room for its
// later ones: the first would be missing for ever.
func TestMessagesOfAFormerPublisherLeaveNoHole(t *testing.T) {
	t.Parallel()
	server := natstest.New(t)
	js := server.JetStream(t)
	ledger := downtest.New()
	subject := func(i int) replication.Subject {
		return replication.FlagSubject("0190a3c1-7d2e-7c3a-9f10-0a1b2c3d4e5f", "live", strconv.Itoa(i))
	}
	commit := func(body string, from, to int) {
		bodies := map[replication.Subject][]byte{}
		for i := from; i < to; i++ {
			bodies[subject(i)] = []byte(body)
		}
		ledger.Commit(bodies)
	}
	streamed := func() {
		t.Helper()
		downtest.Eventually(t, func() string {
			stream, err := js.Stream(t.Context(), replication.Normal.Stream())
			if err != nil {
				return err.Error()
			}
			for s, want := range ledger.Documents(replication.Normal) {
				msg, err := stream.GetLastMsgForSubject(t.Context(), string(s))
				if err != nil {
					return string(s) + ": " + err.Error()
				}
				if got, err := replication.Decode(msg.Data); err != nil || !downtest.Equal(got, want) {
					return "the stream has " + downtest.String(got) + ", want " + downtest.String(want)
				}
			}
			return ""
		})
	}
	commit(`"old"`, 0, 10)
	_, stop := downtest.Publish(t, server.Connect(t), ledger, down.PublisherConfig{})
	streamed()
	stop()

	head, err := ledger.Head(t.Context(), replication.Normal)
	if err != nil {
		t.Fatal(err)
	}
	commit(`"mid"`, 0, 3)
	former, err := ledger.Pending(t.Context(), replication.Normal, head.Epoch, head.Published)
	if err != nil || len(former) != 3 {
		t.Fatal(len(former), err)
	}
	commit(`"new"`, 0, 3)
	commit(`"new"`, 5, 8)
	successor := &crossing{Ledger: ledger, meanwhile: func() {
		for i, d := range former {
			_, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: string(d.Subject), Data: d.Append(nil)}, jetstream.WithExpectLastSequence(head.Seq+uint64(i)))
			if err != nil {
				t.Error(err)
			}
		}
	}}
	p, err := down.NewPublisher(server.Connect(t), successor, successor, successor.Listen, down.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	downtest.Run(t, p.Run)
	streamed()
	if n := p.Status().Lanes[replication.Normal].Renewals; n != 0 {
		t.Errorf("%d new epochs", n)
	}
}
