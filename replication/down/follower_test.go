package down

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"skerry/replication"
)

// blank is a disk that holds nothing and is never written to.
type blank struct{ Disk }

func (blank) Cursor(replication.Lane) (c Cursor, ok bool) { return c, false }

func TestFollowerSaysThatNATSIsAway(t *testing.T) {
	t.Parallel()
	conn, err := nats.Connect("nats://127.0.0.1:1", nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	f, err := NewFollower(conn, replication.Normal, blank{}, FollowerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	for f.Status().Err == nil {
		select {
		case <-ended:
			t.Fatal("the follower ended")
		case <-time.After(time.Millisecond):
		}
	}
	if got := f.Status().Err.Error(); !strings.HasPrefix(got, "no connection to NATS: ") || strings.Contains(got, "buffer") {
		t.Errorf("status: %q", got)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
}
