package up

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"skerry/pkg/natsserver/natstest"
)

// landing is a message whose acknowledgement the test gives.
type landing struct{ ok chan *jetstream.PubAck }

func (l landing) Ok() <-chan *jetstream.PubAck { return l.ok }

func (landing) Err() <-chan error { return nil }

func (landing) Msg() *nats.Msg { return nil }

// readsLog counts how often it is read, and has nothing new.
type readsLog struct {
	*memoryLog
	reads int
}

func (l *readsLog) Read(context.Context, Incarnation, Lane, uint64, int) (Batch, bool, error) {
	l.reads++
	return Batch{}, false, nil
}

func TestTheLogIsNotReadWhileSmallMessagesAreOnTheirWay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		small []bool // the messages on their way
		want  int    // reads
	}{
		"none":                {nil, 1},
		"one small":           {[]bool{true}, 1},
		"two small":           {[]bool{true, true}, 0},
		"large, then small":   {[]bool{false, true}, 0},
		"small, then large":   {[]bool{true, false}, 1},
		"large ones":          {[]bool{false, false, false}, 1},
		"as many as may be":   {[]bool{false, false, false, false}, 0},
		"small behind larges": {[]bool{false, false, true}, 0},
	} {
		log := &readsLog{memoryLog: newMemoryLog()}
		log.append(LaneEvent, event(1))
		l := &laneShipper{lane: LaneEvent, window: 4, log: log, connected: func() bool { return true }, in: log.Pending(LaneEvent)[0]}
		first := landing{make(chan *jetstream.PubAck, 1)}
		for i, small := range c.small {
			f := landing{nil}
			if i == 0 {
				f = first
			}
			l.flying = append(l.flying, flight{small: small, future: f})
		}
		if err := l.step(t.Context()); err != nil || log.reads != c.want {
			t.Errorf("%s: %d reads, want %d; %v", name, log.reads, c.want, err)
		}
		if len(c.small) != 2 || c.want != 0 {
			continue
		}
		first.ok <- &jetstream.PubAck{Sequence: 1}
		if err := l.step(t.Context()); err != nil || log.reads != 1 {
			t.Errorf("%s, one has landed: %d reads, want 1; %v", name, log.reads, err)
		}
	}
}

func TestNothingIsSentTwiceWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	ns, log, sink := natstest.New(t), newMemoryLog(), newMemorySink()
	startReceiver(t, ns, sink, leases())
	sink.setAway(true)
	shipper, _ := startShipper(t, ns, log)
	log.events(0, 20)
	js := ns.JetStream(t)
	waitUntil(t, "all is shipped", func() bool {
		s := shipper.Status()[laneIndex(LaneEvent)]
		return s.Next == 21 && s.Flying == 0 && eventStream(t, js).Msgs > 0
	})
	before := eventStream(t, js).LastSeq
	tries := sink.stores.Load()
	waitUntil(t, "the store was tried some times", func() bool { return sink.stores.Load() > tries+4 })
	if after := eventStream(t, js).LastSeq; after != before {
		t.Errorf("the stream grew from %d to %d while nothing new was sent", before, after)
	}
	sink.setAway(false)
	expectInOrder(t, sink.wait(t, LaneEvent, 20), 20)
	expectFreed(t, log, LaneEvent)
}

func TestOlderIncarnationsDrainFirst(t *testing.T) {
	t.Parallel()
	ns, log, sink := natstest.New(t), newMemoryLog(), newMemorySink()
	for i := range 90 {
		log.append(LaneEvent, event(i))
		if i%30 == 29 {
			log.restart()
		}
	}
	_, stop := startShipper(t, ns, log)
	startReceiver(t, ns, sink, leases())
	sink.wait(t, LaneEvent, 40)
	stop()
	startShipper(t, ns, log)
	expectInOrder(t, sink.wait(t, LaneEvent, 90), 90)
	expectFreed(t, log, LaneEvent)
}
