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

// memoryLog is a Log in memory: what the contract says, and nothing of a disk.
type memoryLog struct {
	mu       sync.Mutex
	ordinal  uint64
	lanes    map[Lane][]*memoryLife
	appended map[Lane]chan struct{}
	received map[Lane]uint64
}

type memoryLife struct {
	in     Incarnation
	blocks [][]byte // not freed
	firsts []uint64
	next   uint64
}

func newMemoryLog() *memoryLog {
	l := &memoryLog{lanes: map[Lane][]*memoryLife{}, appended: map[Lane]chan struct{}{}, received: map[Lane]uint64{}}
	for _, lane := range Lanes {
		l.appended[lane] = make(chan struct{})
	}
	l.restart()
	return l
}

// restart begins a new incarnation.
func (l *memoryLog) restart() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ordinal++
	for _, lane := range Lanes {
		in := Incarnation{ID: [16]byte{byte(l.ordinal), 7}, Ordinal: l.ordinal}
		l.lanes[lane] = append(l.lanes[lane], &memoryLife{in: in, next: 1})
	}
}

func (l *memoryLog) append(lane Lane, ops ...Operation) {
	var w BlockWriter
	w.Reset(Header{Lane: lane, Environment: Live, ReceivedAt: 1, Project: [16]byte{1}})
	for i := range ops {
		w.Append(&ops[i])
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	life := l.lanes[lane][len(l.lanes[lane])-1]
	block := slices.Clone(w.Bytes())
	SetFirst(block, life.next)
	life.blocks, life.firsts = append(life.blocks, block), append(life.firsts, life.next)
	life.next += uint64(len(ops))
	l.received[lane] += uint64(len(ops))
	close(l.appended[lane])
	l.appended[lane] = make(chan struct{})
}

func (l *memoryLog) Pending(lane Lane) (pending []Incarnation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, life := range l.lanes[lane] {
		if len(life.blocks) > 0 {
			pending = append(pending, life.in)
		}
	}
	return pending
}

func (l *memoryLog) Read(_ context.Context, in Incarnation, lane Lane, from uint64, budget int) (b Batch, ok bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, life := range l.lanes[lane] {
		if life.in != in {
			continue
		}
		for i, block := range life.blocks {
			d, _, err := DecodeBlock(block)
			if err != nil {
				return b, false, err
			}
			if d.End() <= from {
				continue
			}
			if ok && len(b.Data)+len(block) > budget {
				break
			}
			if !ok {
				b = Batch{Incarnation: in, Lane: lane, First: life.firsts[i]}
				ok = true
			}
			b.Data = append(b.Data, block...)
			b.Count += d.Count
		}
	}
	return b, ok, nil
}

func (l *memoryLog) Stored(in Incarnation, lane Lane, watermark uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, life := range l.lanes[lane] {
		for life.in == in && len(life.blocks) > 0 {
			d, _, err := DecodeBlock(life.blocks[0])
			if err != nil {
				return err
			}
			if d.End()-1 > watermark {
				break
			}
			life.blocks, life.firsts = life.blocks[1:], life.firsts[1:]
		}
	}
	return nil
}

func (l *memoryLog) Appended(lane Lane) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.appended[lane]
}

func (l *memoryLog) Totals() (totals []Totals) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lane := range Lanes {
		totals = append(totals, Totals{Lane: lane, Received: l.received[lane]})
	}
	return totals
}

func (l *memoryLog) pendingBlocks(lane Lane) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, life := range l.lanes[lane] {
		n += len(life.blocks)
	}
	return n
}

// memorySink is a Sink in memory that notes in which order it was given what.
type memorySink struct {
	mu      sync.Mutex
	changed chan struct{}
	cursor  map[string]uint64
	names   map[Lane][]string // event names or distinct ids, in the order of storing
	away    bool
	lose    func(Batch) bool // pretends that a batch never came
	stores  atomic.Int64
	batches atomic.Int64
}

func newMemorySink() *memorySink {
	return &memorySink{changed: make(chan struct{}), cursor: map[string]uint64{}, names: map[Lane][]string{}}
}

func (s *memorySink) Store(_ context.Context, edge string, batches []Batch) (Outcome, error) {
	s.stores.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return Outcome{}, errors.New("the store is away")
	}
	defer func() {
		close(s.changed)
		s.changed = make(chan struct{})
	}()
	key := fmt.Sprint(edge, batches[0].Lane, batches[0].Incarnation)
	for i, b := range batches {
		s.batches.Add(1)
		if b.First > s.cursor[key]+1 || s.lose != nil && s.lose(b) {
			return Outcome{Taken: i, Stored: s.cursor[key]}, nil
		}
		blocks, err := b.Blocks()
		if err != nil {
			return Outcome{}, err
		}
		for _, block := range blocks {
			var op Operation
			for ops := block.Operations(); ops.Next(&op); {
				if ops.Number() > s.cursor[key] {
					s.names[b.Lane] = append(s.names[b.Lane], string(op.DistinctID))
				}
			}
		}
		s.cursor[key] = max(s.cursor[key], b.End()-1)
	}
	return Outcome{Taken: len(batches), Stored: s.cursor[key]}, nil
}

func (s *memorySink) Stored(_ context.Context, edge string, lane Lane, in Incarnation) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return 0, errors.New("the store is away")
	}
	return s.cursor[fmt.Sprint(edge, lane, in)], nil
}

func (s *memorySink) Lost(_ context.Context, edge string, lane Lane, in Incarnation, through uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := fmt.Sprint(edge, lane, in)
	s.cursor[key] = max(s.cursor[key], through)
	return nil
}

func (s *memorySink) Report(context.Context, string, []Totals) error { return nil }

func (s *memorySink) setAway(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

// wait blocks until the lane has n operations.
func (s *memorySink) wait(t *testing.T, lane Lane, n int) []string {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		s.mu.Lock()
		names, changed := slices.Clone(s.names[lane]), s.changed
		s.mu.Unlock()
		if len(names) >= n {
			return names
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("%d of %d operations of lane %s after 30 s", len(names), n, lane)
		}
	}
}

// oneHolder is a lease table in memory.
type oneHolder struct {
	mu     *sync.Mutex
	holder map[string]string
	self   string
}

func (o oneHolder) Acquire(_ context.Context, name string, _ time.Duration) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if h := o.holder[name]; h != "" && h != o.self {
		return false, nil
	}
	o.holder[name] = o.self
	return true, nil
}

func (o oneHolder) Release(_ context.Context, name string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.holder[name] == o.self {
		delete(o.holder, name)
	}
	return nil
}

func leases() oneHolder { return oneHolder{mu: &sync.Mutex{}, holder: map[string]string{}, self: "a"} }

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
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for log.pendingBlocks(lane) > 0 {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("the log still holds %d blocks", log.pendingBlocks(lane))
		}
	}
}

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
	for i := range 100 {
		log.append(LaneEvent, event(i))
	}
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
	waitUntil(t, "the message is in the stream", func() bool {
		stream, err := js.Stream(t.Context(), LaneEvent.Stream())
		return err == nil && stream.CachedInfo().State.Msgs == 1
	})
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

// landing is a message whose acknowledgement the test gives.
type landing struct{ ok chan *jetstream.PubAck }

func (l landing) Ok() <-chan *jetstream.PubAck { return l.ok }
func (landing) Err() <-chan error              { return nil }
func (landing) Msg() *nats.Msg                 { return nil }

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

func TestAWipedStreamIsFilledAgain(t *testing.T) {
	t.Parallel()
	ns, log, sink := natstest.New(t), newMemoryLog(), newMemorySink()
	startReceiver(t, ns, sink, leases())
	startShipper(t, ns, log)
	for i := range 50 {
		log.append(LaneEvent, event(i))
	}
	sink.wait(t, LaneEvent, 50)
	sink.setAway(true)
	for i := 50; i < 60; i++ {
		log.append(LaneEvent, event(i))
	}
	js := ns.JetStream(t)
	waitUntil(t, "messages wait in the stream", func() bool {
		stream, err := js.Stream(t.Context(), LaneEvent.Stream())
		return err == nil && stream.CachedInfo().State.Msgs > 0
	})
	if err := js.DeleteStream(t.Context(), LaneEvent.Stream()); err != nil {
		t.Fatal(err)
	}
	for i := 60; i < 100; i++ {
		log.append(LaneEvent, event(i))
	}
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

func TestNothingIsSentTwiceWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	ns, log, sink := natstest.New(t), newMemoryLog(), newMemorySink()
	startReceiver(t, ns, sink, leases())
	sink.setAway(true)
	shipper, _ := startShipper(t, ns, log)
	for i := range 20 {
		log.append(LaneEvent, event(i))
	}
	js := ns.JetStream(t)
	state := func() (messages, last uint64) {
		stream, err := js.Stream(t.Context(), LaneEvent.Stream())
		if err != nil {
			return 0, 0
		}
		return stream.CachedInfo().State.Msgs, stream.CachedInfo().State.LastSeq
	}
	waitUntil(t, "all is shipped", func() bool {
		s := shipper.Status()[laneIndex(LaneEvent)]
		m, _ := state()
		return s.Next == 21 && s.Flying == 0 && m > 0
	})
	_, before := state()
	tries := sink.stores.Load()
	waitUntil(t, "the store was tried some times", func() bool { return sink.stores.Load() > tries+4 })
	if _, after := state(); after != before {
		t.Errorf("the stream grew from %d to %d while nothing new was sent", before, after)
	}
	sink.setAway(false)
	expectInOrder(t, sink.wait(t, LaneEvent, 20), 20)
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

func TestASecondReceiverTakesOverAfterTheFirst(t *testing.T) {
	t.Parallel()
	ns, log, sink := natstest.New(t), newMemoryLog(), newMemorySink()
	table := leases()
	second := table
	second.self = "b"
	_, stop := startReceiver(t, ns, sink, table)
	startReceiver(t, ns, sink, second)
	startShipper(t, ns, log)
	for i := range 100 {
		log.append(LaneEvent, event(i))
	}
	sink.wait(t, LaneEvent, 50)
	stop()
	for i := 100; i < 200; i++ {
		log.append(LaneEvent, event(i))
	}
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
	inStream := func(n uint64) func() bool {
		return func() bool {
			stream, err := js.Stream(t.Context(), LaneEvent.Stream())
			return err == nil && stream.CachedInfo().State.Msgs == n
		}
	}
	waitUntil(t, "the first is in the stream", inStream(1))
	log.append(LaneEvent, event(1))
	waitUntil(t, "the second is in the stream", inStream(2))
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
	if !inStream(1)() {
		t.Error("the message behind the gap is gone")
	}
}

func TestAStoreTakenBackInTimeGoesOnWithWhatTheEdgeStillHas(t *testing.T) {
	t.Parallel()
	ns, log, sink := natstest.New(t), newMemoryLog(), newMemorySink()
	_, stop := startReceiver(t, ns, sink, leases())
	startShipper(t, ns, log)
	for i := range 50 {
		log.append(LaneEvent, event(i))
	}
	sink.wait(t, LaneEvent, 50)
	expectFreed(t, log, LaneEvent)
	stop()
	restored := newMemorySink() // knows nothing of the fifty
	startReceiver(t, ns, restored, leases())
	for i := 50; i < 60; i++ {
		log.append(LaneEvent, event(i))
	}
	if names := restored.wait(t, LaneEvent, 10); len(names) != 10 || names[0] != "u50" || names[9] != "u59" {
		t.Errorf("stored %v", names)
	}
	expectFreed(t, log, LaneEvent)
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
func (m offered) Ack() error   { *m.acks++; return nil }
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
	for i := range 60 {
		log.append(LaneEvent, event(i))
	}
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
	for i := range 50 {
		log.append(LaneEvent, event(i))
	}
	waitUntil(t, "all is stored", func() bool { return log.watermark() == 50 })
	stop()
	in := log.lanes[LaneEvent][0].in
	restored := newMemorySink() // misses the last ten
	restored.cursor[fmt.Sprint("e1", LaneEvent, in)] = 40
	startReceiver(t, ns, restored, leases())
	for i := 50; i < 60; i++ {
		log.append(LaneEvent, event(i))
	}
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
	for i := range 50 {
		log.append(LaneEvent, event(i))
	}
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

func FuzzHellosAndAnnouncements(f *testing.F) {
	f.Add(mustMarshal(hello{Lanes: []laneHello{{Lane: "event", Received: 3, Pending: 1}}}))
	f.Add(mustMarshal(announcement{Lane: "alias", Incarnation: "00000000000000000000000000000001", Stored: 3, Want: 4}))
	f.Fuzz(func(t *testing.T, data []byte) {
		if h, err := decodeHello(data); err == nil && len(h.Lanes) > len(Lanes) {
			t.Error("more lanes than there are")
		}
		if a, lane, _, err := decodeAnnouncement(data); err == nil && (!lane.Valid() || a.Want != 0 && a.Want <= a.Stored) {
			t.Error("an impossible announcement was accepted")
		}
	})
}
