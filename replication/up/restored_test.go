package up

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"skerry/pkg/natsserver/natstest"
)

func TestAStoreTakenBackInTimeGoesOnWithWhatTheEdgeStillHas(t *testing.T) {
	t.Parallel()
	ns, log, sink := natstest.New(t), newMemoryLog(), newMemorySink()
	_, stop := startReceiver(t, ns, sink, leases())
	startShipper(t, ns, log)
	log.events(0, 50)
	sink.wait(t, LaneEvent, 50)
	expectFreed(t, log, LaneEvent)
	stop()
	restored := newMemorySink() // knows nothing of the fifty
	startReceiver(t, ns, restored, leases())
	log.events(50, 60)
	if names := restored.wait(t, LaneEvent, 10); len(names) != 10 || names[0] != "u50" || names[9] != "u59" {
		t.Errorf("stored %v", names)
	}
	expectFreed(t, log, LaneEvent)
}

// lazyLog frees late, as an edge's disk does: what is stored stays readable for a while.
type lazyLog struct {
	*memoryLog
	mu     sync.Mutex
	stored uint64
}

func (l *lazyLog) Stored(_ Incarnation, lane Lane, watermark uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lane == LaneEvent {
		l.stored = max(l.stored, watermark)
	}
	return nil
}

func (l *lazyLog) Pending(lane Lane) []Incarnation {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.memoryLog.mu.Lock()
	defer l.memoryLog.mu.Unlock()
	if life := l.lanes[lane][0]; lane == LaneEvent && life.next-1 > l.stored {
		return []Incarnation{life.in}
	}
	return nil
}

func (l *lazyLog) watermark() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stored
}

// The server that took over from one that died may miss what was committed last.
func TestAStoreTakenBackInTimeGetsAgainWhatTheEdgeHasNotFreed(t *testing.T) {
	t.Parallel()
	ns, log, sink := natstest.New(t), &lazyLog{memoryLog: newMemoryLog()}, newMemorySink()
	_, stop := startReceiver(t, ns, sink, leases())
	startShipper(t, ns, log)
	log.events(0, 50)
	waitUntil(t, "all is stored", func() bool { return log.watermark() == 50 })
	stop()
	in := log.lanes[LaneEvent][0].in
	restored := newMemorySink() // misses the last ten
	restored.cursor[fmt.Sprint("e1", LaneEvent, in)] = 40
	startReceiver(t, ns, restored, leases())
	log.events(50, 60)
	names := restored.wait(t, LaneEvent, 20)
	for i, name := range names {
		if len(names) != 20 || name != fmt.Sprintf("u%d", 40+i) {
			t.Fatalf("stored %v", names)
		}
	}
	waitUntil(t, "all is stored", func() bool { return log.watermark() == 60 })
}

// interrupted is a store that refuses reports for a while.
type interrupted struct {
	*memorySink
	away    atomic.Bool
	refused atomic.Int64
}

func (s *interrupted) Report(context.Context, string, []Totals) error {
	if s.away.Load() {
		s.refused.Add(1)
		return errors.New("the store is away")
	}
	return nil
}

func TestAStoreThatWasAwayIsAskedHowFarItIs(t *testing.T) {
	t.Parallel()
	ns, log, sink := natstest.New(t), &lazyLog{memoryLog: newMemoryLog()}, &interrupted{memorySink: newMemorySink()}
	startReceiver(t, ns, sink, leases())
	startShipper(t, ns, log)
	log.events(0, 50)
	waitUntil(t, "all is stored", func() bool { return log.watermark() == 50 })
	sink.away.Store(true)
	waitUntil(t, "it is seen to be away", func() bool { return sink.refused.Load() > 0 })
	sink.mu.Lock() // another server is in its place, which misses the last ten
	sink.names[LaneEvent] = sink.names[LaneEvent][:40]
	sink.cursor[fmt.Sprint("e1", LaneEvent, log.lanes[LaneEvent][0].in)] = 40
	sink.mu.Unlock()
	sink.away.Store(false)
	expectInOrder(t, sink.wait(t, LaneEvent, 50), 50) // though nothing new comes
}

// One history, many ways in which the store forgets the end of it while two receivers take turns.
func TestHoweverOftenAStoreIsTakenBackNothingIsMissedOrDoubled(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		ns, log, sink := natstest.New(t), &lazyLog{memoryLog: newMemoryLog()}, newMemorySink()
		first := leases()
		second := first
		second.self = "b"
		_, stop := startReceiver(t, ns, sink, first)
		startReceiver(t, ns, sink, second)
		startShipper(t, ns, log)
		rng := rand.New(rand.NewPCG(seed, 1))
		n := 0
		var names []string
		cursor := map[string]uint64{}
		for round := range 40 {
			for range 1 + rng.IntN(30) {
				log.append(LaneEvent, event(n))
				n++
			}
			sink.wait(t, LaneEvent, n-rng.IntN(30))
			sink.mu.Lock()
			if rng.IntN(2) == 0 {
				names, cursor = slices.Clone(sink.names[LaneEvent]), maps.Clone(sink.cursor)
			} else {
				sink.names[LaneEvent], sink.cursor = slices.Clone(names), maps.Clone(cursor)
			}
			sink.mu.Unlock()
			if round == 20 {
				stop()
			}
		}
		log.append(LaneEvent, event(n)) // without which nobody would notice that the last were forgotten
		expectInOrder(t, sink.wait(t, LaneEvent, n+1), n+1)
		waitUntil(t, "all is stored", func() bool { return log.watermark() == uint64(n+1) })
	}
}
