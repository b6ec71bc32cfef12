package up

import (
	"context"
	"testing"

	"skerry/pkg/natsserver/natstest"
)

func TestEverythingArrivesOnceInOrderAndIsFreed(t *testing.T) {
	t.Parallel()
	ns, log, sink := natstest.New(t), newMemoryLog(), newMemorySink()
	startReceiver(t, ns, sink, leases())
	startShipper(t, ns, log)
	for i := range 500 {
		log.append(LaneEvent, event(2*i), event(2*i+1))
	}
	log.append(LaneAlias, Operation{AliasID: []byte("a"), DistinctID: []byte("u0")})
	expectInOrder(t, sink.wait(t, LaneEvent, 1000), 1000)
	sink.wait(t, LaneAlias, 1)
	expectFreed(t, log, LaneEvent)
	expectFreed(t, log, LaneAlias)
}

func TestABlockOfManyPartsArrivesWhole(t *testing.T) {
	t.Parallel()
	ns, log, sink := natstest.New(t), newMemoryLog(), newMemorySink()
	startReceiver(t, ns, sink, leases())
	startShipper(t, ns, log)
	big := event(0)
	big.Properties = incompressible(5 << 20)
	log.append(LaneEvent, big)
	log.append(LaneEvent, event(1))
	expectInOrder(t, sink.wait(t, LaneEvent, 2), 2)
	expectFreed(t, log, LaneEvent)
}

func TestALostMessageIsAskedForAgain(t *testing.T) {
	t.Parallel()
	ns, log, sink := natstest.New(t), newMemoryLog(), newMemorySink()
	lost := 0
	sink.lose = func(b Batch) bool {
		if b.First > 3 && lost < 3 {
			lost++
			return true
		}
		return false
	}
	startReceiver(t, ns, sink, leases())
	startShipper(t, ns, log)
	log.events(0, 100)
	expectInOrder(t, sink.wait(t, LaneEvent, 100), 100)
	expectFreed(t, log, LaneEvent)
}

func TestTheLastMessageLostIsAskedForOnIdle(t *testing.T) {
	t.Parallel()
	ns, log, sink := natstest.New(t), newMemoryLog(), newMemorySink()
	_, stop := startReceiver(t, ns, sink, leases())
	startShipper(t, ns, log)
	log.append(LaneEvent, event(0))
	sink.wait(t, LaneEvent, 1)
	expectFreed(t, log, LaneEvent)
	stop()
	log.append(LaneEvent, event(1))
	js := ns.JetStream(t)
	waitUntil(t, "the message is in the stream", func() bool { return eventStream(t, js).Msgs == 1 })
	stream, err := js.Stream(t.Context(), LaneEvent.Stream())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	startReceiver(t, ns, sink, leases())
	expectInOrder(t, sink.wait(t, LaneEvent, 2), 2)
	expectFreed(t, log, LaneEvent)
}

func TestAWipedStreamIsFilledAgain(t *testing.T) {
	t.Parallel()
	ns, log, sink := natstest.New(t), newMemoryLog(), newMemorySink()
	startReceiver(t, ns, sink, leases())
	startShipper(t, ns, log)
	log.events(0, 50)
	sink.wait(t, LaneEvent, 50)
	sink.setAway(true)
	log.events(50, 60)
	js := ns.JetStream(t)
	waitUntil(t, "messages wait in the stream", func() bool { return eventStream(t, js).Msgs > 0 })
	if err := js.DeleteStream(t.Context(), LaneEvent.Stream()); err != nil {
		t.Fatal(err)
	}
	log.events(60, 100)
	sink.setAway(false)
	expectInOrder(t, sink.wait(t, LaneEvent, 100), 100)
	expectFreed(t, log, LaneEvent)
}

func TestARestartedServerLosesNothing(t *testing.T) {
	t.Parallel()
	ns, log, sink := natstest.New(t), newMemoryLog(), newMemorySink()
	startReceiver(t, ns, sink, leases())
	startShipper(t, ns, log)
	for i := range 300 {
		log.append(LaneEvent, event(i))
		if i == 100 || i == 200 {
			ns.Stop()
		}
		if i == 150 || i == 250 {
			ns.Start()
		}
	}
	expectInOrder(t, sink.wait(t, LaneEvent, 300), 300)
	expectFreed(t, log, LaneEvent)
}

func TestAliasesPassAFullStreamOfEvents(t *testing.T) {
	t.Parallel()
	ns, log, sink := natstest.New(t), newMemoryLog(), newMemorySink()
	blocked := make(chan struct{})
	startReceiverWith(t, ns, &blockedEvents{memorySink: sink, until: blocked}, leases(),
		ReceiverConfig{Streams: StreamLimits{MaxBytes: 2 << 20}})
	shipper, _ := startShipper(t, ns, log)
	for i := range 12 {
		e := event(i)
		e.Properties = incompressible(400 << 10)
		log.append(LaneEvent, e)
	}
	waitUntil(t, "the events' stream is full", func() bool { return shipper.Status()[laneIndex(LaneEvent)].Fault != "" })
	log.append(LaneAlias, Operation{AliasID: []byte("a"), DistinctID: []byte("u")})
	sink.wait(t, LaneAlias, 1)
	close(blocked)
	expectInOrder(t, sink.wait(t, LaneEvent, 12), 12)
	expectFreed(t, log, LaneEvent)
}

// blockedEvents is a store whose events table is locked.
type blockedEvents struct {
	*memorySink
	until chan struct{}
}

func (b *blockedEvents) Store(ctx context.Context, edge string, batches []Batch) (Outcome, error) {
	if batches[0].Lane == LaneEvent {
		select {
		case <-b.until:
		case <-ctx.Done():
			return Outcome{}, ctx.Err()
		}
	}
	return b.memorySink.Store(ctx, edge, batches)
}
