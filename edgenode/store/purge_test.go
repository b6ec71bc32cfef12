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

// TestTombstonePurgedBeforeItWasRead: a transaction deletes both documents of a pair; the edge reads the first deletion,
// and before it reads the second one this is purged for its age. The marker that stood in the stream before the purge says
// so, and the edge must not take the gap for a version that was replaced.
func TestTombstonePurgedBeforeItWasRead(t *testing.T) {
	t.Parallel()
	server := natstest.New(t)
	js := server.JetStream(t)
	var streams [replication.Lanes]jetstream.Stream
	for lane := range replication.Lanes {
		var err error
		if streams[lane], err = js.CreateStream(t.Context(), down.StreamConfig(lane, 1)); err != nil {
			t.Fatal(err)
		}
	}
	epoch := replication.Epoch{7}
	put := func(s replication.Subject, p, first, last replication.Position, body string) {
		t.Helper()
		d := replication.Document{Lane: s.Lane(), Subject: s, Position: p, TxFirst: first, TxLast: last, Through: last, Epoch: epoch}
		if body != "" {
			d.Body = []byte(body)
		}
		if _, err := js.Publish(t.Context(), string(s), d.Append(nil)); err != nil {
			t.Fatal(err)
		}
	}
	marker := func(lane replication.Lane, p replication.Position, floor string) {
		t.Helper()
		put(replication.EpochSubject(lane), p, p, p, `{"epoch":"`+epoch.String()+`","floor":`+floor+`}`)
	}
	put(left(0), 101, 101, 102, "1")
	put(right(0), 102, 101, 102, "1")
	marker(replication.Normal, 103, "100")
	marker(replication.Urgent, 101, "100")

	e := &edge{t: t, fs: vfs.NewMem(), conn: server.Connect(t)}
	t.Cleanup(e.stop)
	e.start()
	serves := func(position replication.Position, pair bool) {
		t.Helper()
		downtest.Eventually(t, func() (said string) {
			if c, _ := e.disk.Cursor(replication.Normal); c.Position != position {
				return "the edge is elsewhere"
			}
			err := e.disk.Read(func(look *Snapshot) error {
				_, okL, _ := look.Get(left(0))
				_, okR, _ := look.Get(right(0))
				if okL != pair || okR != pair {
					said = "the edge serves something else"
				}
				return nil
			})
			if err != nil {
				return err.Error()
			}
			return said
		})
	}
	serves(103, true)

	old, err := streams[replication.Normal].GetLastMsgForSubject(t.Context(), string(right(0)))
	if err != nil {
		t.Fatal(err)
	}
	if err := streams[replication.Normal].DeleteMsg(t.Context(), old.Sequence); err != nil {
		t.Fatal(err)
	}
	put(left(0), 104, 104, 105, "") // 105, the other deletion, is purged
	marker(replication.Normal, 106, "105")
	serves(106, false)

	put(left(1), 107, 107, 108, "2")
	put(right(1), 108, 107, 108, "2")
	serves(108, false)
	if resets := e.followers[replication.Normal].Status().Resets; resets != 2 {
		t.Errorf("state was taken anew %d times, want 2: at the start and for the purge", resets)
	}
}
