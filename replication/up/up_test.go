package up

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"skerry/pkg/natsserver/natstest"
)

func TestMain(m *testing.M) {
	// The server in this process keeps a clock of its own, and ends a deleted stream's flusher late.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		// A client whose publisher is cleaned up while it begins waits for ever on what was cleaned.
		goleak.IgnoreAnyFunction("github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect"))
}

// running runs until the test ends or stop is called.
func running(t *testing.T, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func startShipper(t *testing.T, ns *natstest.Server, log Log) (s *Shipper, stop func()) {
	t.Helper()
	s, err := NewShipper(ShipperConfig{Edge: "e1", HelloEvery: 100 * time.Millisecond}, log, ns.Connect(t, patient...))
	if err != nil {
		t.Fatal(err)
	}
	return s, running(t, s.Run)
}

func startReceiver(t *testing.T, ns *natstest.Server, sink Sink, l Leases) (r *Receiver, stop func()) {
	t.Helper()
	return startReceiverWith(t, ns, sink, l, ReceiverConfig{Term: 400 * time.Millisecond})
}

func startReceiverWith(t *testing.T, ns *natstest.Server, sink Sink, l Leases, config ReceiverConfig) (r *Receiver, stop func()) {
	t.Helper()
	r, err := NewReceiver(config, sink, l, ns.Connect(t, patient...))
	if err != nil {
		t.Fatal(err)
	}
	return r, running(t, r.Run)
}

var patient = []nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond)}

func event(i int) Operation {
	return Operation{EventName: []byte("e"), DistinctID: fmt.Appendf(nil, "u%d", i), Timestamp: int64(i)}
}

func expectInOrder(t *testing.T, names []string, n int) {
	t.Helper()
	if len(names) != n {
		t.Fatalf("%d operations stored, want %d", len(names), n)
	}
	for i, name := range names {
		if name != fmt.Sprintf("u%d", i) {
			t.Fatalf("operation %d is %s", i, name)
		}
	}
}

// expectFreed waits until the edge has freed its log.
func expectFreed(t *testing.T, log *memoryLog, lane Lane) {
	t.Helper()
	waitUntil(t, fmt.Sprintf("lane %s of the log is freed", lane), func() bool { return log.pendingBlocks(lane) == 0 })
}

// eventStream is the state of the stream of events: empty while there is no such stream.
func eventStream(t *testing.T, js jetstream.JetStream) jetstream.StreamState {
	t.Helper()
	stream, err := js.Stream(t.Context(), LaneEvent.Stream())
	if err != nil {
		return jetstream.StreamState{}
	}
	return stream.CachedInfo().State
}

// incompressible is JSON that zstd cannot shrink much.
func incompressible(n int) []byte {
	b := make([]byte, 0, n+16)
	b = append(b, `{"x":"`...)
	state := uint64(88172645463325252)
	for len(b) < n {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		b = fmt.Appendf(b, "%x", state)
	}
	return append(b, `"}`...)
}

func waitUntil(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited 20 s until %s", what)
		}
	}
}
