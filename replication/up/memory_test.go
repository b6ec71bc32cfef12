package up

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

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

// events appends the events number from to end-1.
func (l *memoryLog) events(from, end int) {
	for i := from; i < end; i++ {
		l.append(LaneEvent, event(i))
	}
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
