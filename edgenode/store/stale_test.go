package store

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"skerry/pkg/natsserver/natstest"
	"skerry/replication"
	"skerry/replication/down"
	"skerry/replication/down/downtest"
)

// TestOlderMessagesAtTheEndHoldNothingBack: a former publisher's message stands behind a newer one, and nothing behind it.
// An edge that was away reads as far as the stream went when it met the gap, and that is the older message.
func TestOlderMessagesAtTheEndHoldNothingBack(t *testing.T) {
	t.Parallel()
	server := natstest.New(t)
	js := server.JetStream(t)
	for lane := range replication.Lanes {
		if _, err := js.CreateStream(t.Context(), down.StreamConfig(lane, 1)); err != nil {
			t.Fatal(err)
		}
	}
	epoch := replication.Epoch{7}
	put := func(s replication.Subject, p replication.Position, body string) {
		t.Helper()
		d := replication.Document{Lane: s.Lane(), Subject: s, Position: p, TxFirst: p, TxLast: p, Through: p, Epoch: epoch, Body: []byte(body)}
		if _, err := js.Publish(t.Context(), string(s), d.Append(nil)); err != nil {
			t.Fatal(err)
		}
	}
	flag := func(key string) replication.Subject { return replication.FlagSubject(project, "live", key) }
	put(flag("a"), 101, "1")
	for lane := range replication.Lanes {
		put(replication.EpochSubject(lane), 102, `{"epoch":"`+epoch.String()+`","floor":100}`)
	}
	e := &edge{t: t, fs: vfs.NewMem(), conn: server.Connect(t)}
	t.Cleanup(e.stop)
	e.start()
	serves := func(position replication.Position) {
		t.Helper()
		downtest.Eventually(t, func() string {
			if c, _ := e.disk.Cursor(replication.Normal); c.Position != position {
				return "the edge is elsewhere: " + downtest.String(replication.Document{Position: c.Position})
			}
			return ""
		})
	}
	serves(102)
	e.stop()
	put(flag("c"), 105, "1") // 103 and 104 have changed again
	put(flag("b"), 104, "0")
	e.start()
	serves(105)
}
