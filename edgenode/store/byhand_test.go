package store

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/nats-io/nats.go/jetstream"

	"skerry/pkg/natsserver/natstest"
	"skerry/replication"
	"skerry/replication/down"
	"skerry/replication/down/downtest"
)

// byHand are the streams of both lanes, filled message by message by the test, as no publisher alone would, and an edge
// that is not started yet.
type byHand struct {
	t       *testing.T
	js      jetstream.JetStream
	streams [replication.Lanes]jetstream.Stream
	epoch   replication.Epoch
	edge    *edge
}

func newByHand(t *testing.T) *byHand {
	t.Helper()
	server := natstest.New(t)
	h := &byHand{t: t, js: server.JetStream(t), epoch: replication.Epoch{7}}
	for lane := range replication.Lanes {
		var err error
		if h.streams[lane], err = h.js.CreateStream(t.Context(), down.StreamConfig(lane, 1)); err != nil {
			t.Fatal(err)
		}
	}
	h.edge = &edge{t: t, fs: vfs.NewMem(), conn: server.Connect(t)}
	t.Cleanup(h.edge.stop)
	return h
}

// put publishes the document at position p of the transaction from first to last; an empty body deletes.
func (h *byHand) put(s replication.Subject, p, first, last replication.Position, body string) {
	h.t.Helper()
	d := replication.Document{Lane: s.Lane(), Subject: s, Position: p, TxFirst: first, TxLast: last, Through: last, Epoch: h.epoch}
	if body != "" {
		d.Body = []byte(body)
	}
	if _, err := h.js.Publish(h.t.Context(), string(s), d.Append(nil)); err != nil {
		h.t.Fatal(err)
	}
}

// marker publishes the lane's marker of the epoch, with its floor.
func (h *byHand) marker(lane replication.Lane, p replication.Position, floor string) {
	h.t.Helper()
	h.put(replication.EpochSubject(lane), p, p, p, `{"epoch":"`+h.epoch.String()+`","floor":`+floor+`}`)
}

// serves waits until the edge is at the position of the normal lane and check, which may be nil, finds nothing to say.
func (h *byHand) serves(position replication.Position, check func(*Snapshot) string) {
	h.t.Helper()
	downtest.Eventually(h.t, func() (said string) {
		if c, _ := h.edge.disk.Cursor(replication.Normal); c.Position != position {
			return "the edge is elsewhere: " + downtest.String(replication.Document{Position: c.Position})
		}
		if check == nil {
			return ""
		}
		if err := h.edge.disk.Read(func(look *Snapshot) error { said = check(look); return nil }); err != nil {
			return err.Error()
		}
		return said
	})
}
