package publish

import (
	"testing"

	"github.com/nats-io/nats.go"

	"skerry/replication"
	"skerry/replication/down"
	"skerry/writeplane/lease"
)

// A process that reaches the database and not the streams must not keep the lease from one that reaches both.
func TestPublisherThatIsCutOffFromTheStreamsGivesUpItsLease(t *testing.T) {
	b := newBench(t)
	nowhere, err := nats.Connect("nats://127.0.0.1:1", nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nowhere.Close)
	leases := lease.New(b.pool, "a")
	cutOff, err := down.NewPublisher(nowhere, New(b.pool), leases, New(b.pool).Listen, quick(0))
	if err != nil {
		t.Fatal(err)
	}
	if held, err := leases.Acquire(t.Context(), down.LeaseName, quick(0).Term); err != nil || !held {
		t.Fatal(held, err)
	}
	run(t, cutOff)
	b.start("b", New(b.pool), nil)
	b.put(map[replication.Subject]any{flag(1): 1})
	b.settled()
}
