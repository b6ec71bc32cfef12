package up

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"skerry/pkg/natsserver/natstest"
)

func TestASecondReceiverTakesOverAfterTheFirst(t *testing.T) {
	t.Parallel()
	ns, log, sink := natstest.New(t), newMemoryLog(), newMemorySink()
	table := leases()
	second := table
	second.self = "b"
	_, stop := startReceiver(t, ns, sink, table)
	startReceiver(t, ns, sink, second)
	startShipper(t, ns, log)
	log.events(0, 100)
	sink.wait(t, LaneEvent, 50)
	stop()
	log.events(100, 200)
	expectInOrder(t, sink.wait(t, LaneEvent, 200), 200)
	expectFreed(t, log, LaneEvent)
}

func TestBehindTheGapOfASilentEdgeNothingIsDropped(t *testing.T) {
	t.Parallel()
	ns, log, sink := natstest.New(t), newMemoryLog(), newMemorySink()
	js := ns.JetStream(t)
	for _, lane := range Lanes {
		if _, err := js.CreateOrUpdateStream(t.Context(), streamConfig(lane, StreamLimits{})); err != nil {
			t.Fatal(err)
		}
	}
	_, stop := startShipper(t, ns, log)
	log.append(LaneEvent, event(0))
	waitUntil(t, "the first is in the stream", func() bool { return eventStream(t, js).Msgs == 1 })
	log.append(LaneEvent, event(1))
	waitUntil(t, "the second is in the stream", func() bool { return eventStream(t, js).Msgs == 2 })
	stop() // the edge is gone for good
	stream, err := js.Stream(t.Context(), LaneEvent.Stream())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	receiver, _ := startReceiver(t, ns, sink, leases())
	waitUntil(t, "the lane is held", func() bool {
		for _, l := range receiver.Status() {
			if l.Edge == "e1" && l.Lane == "event" && l.Held && l.Want == 1 {
				return true
			}
		}
		return false
	})
	if eventStream(t, js).Msgs != 1 {
		t.Error("the message behind the gap is gone")
	}
}

// weighingSink notes how many bytes of payloads in the blob store each transaction was given.
type weighingSink struct {
	*memorySink
	heaviest atomic.Int64
}

func (s *weighingSink) Store(ctx context.Context, edge string, batches []Batch) (Outcome, error) {
	outcome, err := s.memorySink.Store(ctx, edge, batches)
	if err != nil {
		return outcome, err
	}
	weight := int64(0)
	for i := range batches {
		blocks, err := batches[i].Blocks()
		if err != nil {
			return Outcome{}, err
		}
		for _, block := range blocks {
			var op Operation
			for ops := block.Operations(); ops.Next(&op); {
				if op.Ref != nil {
					weight += op.Ref.Size
				}
			}
		}
	}
	s.heaviest.Store(max(s.heaviest.Load(), weight))
	return outcome, nil
}

func TestPayloadsInTheBlobStoreWeighInATransaction(t *testing.T) {
	t.Parallel()
	ns, log, sink := natstest.New(t), newMemoryLog(), &weighingSink{memorySink: newMemorySink()}
	startReceiver(t, ns, sink, leases())
	sink.setAway(true)
	shipper, _ := startShipper(t, ns, log)
	sent := func(next uint64) {
		t.Helper()
		waitUntil(t, "all is in the stream", func() bool {
			s := shipper.Status()[laneIndex(LaneEvent)]
			return s.Next == next && s.Flying == 0
		})
	}
	for i := range 20 {
		op := event(i)
		op.Ref = &Reference{Key: fmt.Sprintf("ingest/e1/%d", i), Size: MaxInlineBytes + 1}
		log.append(LaneEvent, op)
		sent(uint64(i + 2)) // alone in its message, as an edge's log reads it
	}
	sink.setAway(false)
	expectInOrder(t, sink.wait(t, LaneEvent, 20), 20)
	if n := sink.heaviest.Load(); n > MaxInlineBytes+1 {
		t.Errorf("a transaction had %d payloads to store", n/MaxInlineBytes)
	}
}

// offered is a message as a stream offers it.
type offered struct {
	jetstream.Msg
	data  []byte
	times uint64
	acks  *int
}

func (m offered) Data() []byte { return m.data }

func (m offered) Ack() error { *m.acks++; return nil }

func (m offered) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{NumDelivered: m.times}, nil
}

// A stream offers again what was not acknowledged for two minutes, in the midst of what it offers first.
func TestPartsAreNotDroppedForWhatTheStreamOffersAgain(t *testing.T) {
	t.Parallel()
	packer, err := NewPacker()
	if err != nil {
		t.Fatal(err)
	}
	pack := func(i int, properties []byte) [][]byte {
		var w BlockWriter
		w.Reset(Header{Lane: LaneEvent, Environment: Live, ReceivedAt: 1})
		op := event(i)
		op.Properties = properties
		w.Append(&op)
		SetFirst(w.Bytes(), uint64(i+1))
		messages, err := packer.Pack(&Batch{Lane: LaneEvent, First: uint64(i + 1), Count: 1, Data: w.Bytes()})
		if err != nil {
			t.Fatal(err)
		}
		return messages
	}
	small, parts := pack(0, nil)[0], pack(1, incompressible(3<<20))
	for name, offers := range map[string][]offered{
		"between parts": {{data: small, times: 1}, {data: parts[0], times: 1}, {data: parts[1], times: 1}, {data: small, times: 2}},
		"before parts":  {{data: small, times: 2}, {data: parts[2], times: 1}},
		"a part":        {{data: parts[0], times: 1}, {data: parts[1], times: 1}, {data: parts[0], times: 2}},
	} {
		acks := 0
		l := newLaneReceiver(nil, newEdge("e1"), LaneEvent)
		if l.unpacker, err = NewUnpacker(); err != nil {
			t.Fatal(err)
		}
		for i, m := range offers {
			m.acks = &acks
			if err := l.unpack(m); errors.Is(err, errRepeated) != (i == len(offers)-1) {
				t.Errorf("%s: message %d: %v", name, i, err)
			}
		}
		if acks != 0 {
			t.Errorf("%s: %d messages are gone from the stream", name, acks)
		}
		l.unpacker.Close()
	}
}

// passedOver is a store that has passed over the first numbers of a lane, when their edge was retired.
type passedOver struct {
	*memorySink
	missing atomic.Uint64 // up to this number, all is missing; 0: nothing is
}

func (s *passedOver) Store(ctx context.Context, edge string, batches []Batch) (Outcome, error) {
	outcome, err := s.memorySink.Store(ctx, edge, batches)
	if s.missing.Load() > 0 {
		outcome.Stored = 0
	}
	return outcome, err
}

func (s *passedOver) Stored(ctx context.Context, edge string, lane Lane, in Incarnation) (uint64, error) {
	if s.missing.Load() > 0 {
		return 0, nil
	}
	return s.memorySink.Stored(ctx, edge, lane, in)
}

func (s *passedOver) Lost(_ context.Context, _ string, _ Lane, _ Incarnation, through uint64) error {
	if through >= s.missing.Load() {
		s.missing.Store(0)
	}
	return nil
}

func TestAnEdgeThatHasFreedWhatWasPassedOverGoesOn(t *testing.T) {
	t.Parallel()
	ns, log, sink := natstest.New(t), newMemoryLog(), &passedOver{memorySink: newMemorySink()}
	log.events(0, 60)
	in := log.Pending(LaneEvent)[0]
	if err := log.Stored(in, LaneEvent, 20); err != nil { // as a store said that has since been taken back in time
		t.Fatal(err)
	}
	sink.missing.Store(20)
	sink.cursor[fmt.Sprint("e1", LaneEvent, in)] = 40
	startReceiver(t, ns, sink, leases())
	startShipper(t, ns, log)
	if names := sink.wait(t, LaneEvent, 20); len(names) != 20 || names[0] != "u40" {
		t.Errorf("stored %v", names)
	}
	expectFreed(t, log, LaneEvent)
}
