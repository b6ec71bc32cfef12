package up

import (
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"skerry/pkg/natsserver"
)

// A server of the operator's own may have no room for two gigabytes of events.
func TestAStreamThatIsRefusedDoesNotKeepTheOthersAway(t *testing.T) {
	t.Parallel()
	server, err := natsserver.Start(natsserver.Config{Dir: t.TempDir(), MaxStore: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	nc, err := nats.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	r, err := NewReceiver(ReceiverConfig{}, nil, nil, nc)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	start := func(e *edge) { found[e.id] = true }
	for range 2 {
		err = r.look(t.Context(), start)
		if err == nil || !strings.Contains(err.Error(), "make stream INGEST of 2147483648 bytes") || strings.Count(err.Error(), "\n") > 0 {
			t.Errorf("the refusal is told as %v", err)
		}
		for _, lane := range Lanes {
			if _, err := r.js.Stream(t.Context(), lane.Stream()); errors.Is(err, jetstream.ErrStreamNotFound) != (lane == LaneEvent) {
				t.Errorf("stream of lane %s: %v", lane, err)
			}
		}
		if _, err := r.js.Publish(t.Context(), Subject(LaneCrash, "e1"), []byte("x")); err != nil {
			t.Error(err)
		}
	}
	if !found["e1"] {
		t.Error("an edge that has left messages in another lane's stream is not found")
	}
	// One that is there already and may not grow goes on as it is.
	if _, err := r.js.CreateStream(t.Context(), streamConfig(LaneEvent, StreamLimits{MaxBytes: 1 << 20})); err != nil {
		t.Fatal(err)
	}
	if _, err := r.js.Publish(t.Context(), Subject(LaneEvent, "e2"), []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := r.look(t.Context(), start); err == nil || !found["e2"] {
		t.Errorf("edges %v are found beside a stream that may not grow: %v", found, err)
	}
}
