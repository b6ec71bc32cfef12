package buffer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"skerry/replication/tally"
	"skerry/replication/up"
)

// Group commit. Whoever appends puts its blocks into the present group, gives them their
// numbers and waits; one committer takes the group, writes it as one synced Pebble batch
// and wakes all who wait. So a number is given out in the order in which it reaches the
// disk, and a crash can cut the log only at its end.
//
// The obvious way is a Pebble commit per request: Pebble groups syncs by itself. But
// numbers would have to be given before its commit pipeline orders the batches, and then
// a crash could leave a gap. And a group's blocks share one key: with single events that
// is a hundred times fewer keys to insert, flush and free.

const (
	// entryBytes is where a group starts another log entry.
	entryBytes = 256 << 10
	// groupBytes is where appenders wait for the committer: it bounds the memory that
	// they hold together.
	groupBytes = 8 << 20
)

type group struct {
	lanes  [up.LaneCrash + 1][]run
	bytes  int64
	counts map[usageKey]uint64
	done   chan struct{} // closed when the group is on the disk, or err is set
	err    error
	late   chan struct{} // closed when the disk is full and nobody is to wait any longer
	closed bool          // late is; guarded by the buffer's mu
}

// run is what will be one log entry.
type run struct {
	entry
	blocks []byte // header and blocks of an inline entry
}

func newGroup() *group {
	return &group{done: make(chan struct{}), late: make(chan struct{}), counts: map[usageKey]uint64{}}
}

// Append writes a request's blocks, all or none, and returns when they are on the disk.
// Each must be complete (up.BlockWriter.Bytes) and hold one operation or more.
func (b *Buffer) Append(blocks ...[]byte) error {
	p, err := b.Put(blocks...)
	if err != nil {
		return err
	}
	return p.Wait()
}

// Pending is blocks that have their numbers and are on their way to the disk.
type Pending struct{ group *group }

// Wait returns when the blocks are on the disk. After an error nobody knows whether
// they are.
func (p Pending) Wait() error {
	select {
	case <-p.group.done:
		return p.group.err
	case <-p.group.late:
		return ErrFull
	}
}

// Put is Append without the wait. The blocks are copied, so that whoever waits need not
// hold them: with hundreds waiting, memory that goes to the next request at once stays in
// the processor's caches. Nothing may be answered before Wait.
func (b *Buffer) Put(blocks ...[]byte) (Pending, error) {
	var size int64
	for _, block := range blocks {
		size += int64(len(block))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.admitLocked(size); err != nil {
		return Pending{}, err
	}
	g := b.group
	for _, block := range blocks {
		b.appendLocked(g, block)
	}
	return Pending{g}, nil
}

// admitLocked waits for room in the group and takes size bytes of the budget.
func (b *Buffer) admitLocked(size int64) error {
	for b.group.bytes > groupBytes && !b.closed && b.committed == nil && !b.fullLocked() {
		b.taken.Wait()
	}
	return b.holdLocked(size)
}

// holdLocked takes size bytes of the budget.
func (b *Buffer) holdLocked(size int64) error {
	switch {
	case b.closed:
		return ErrClosed
	case b.committed != nil:
		return b.committed
	case b.fullLocked() || b.held+size > b.cfg.MaxBytes || !b.disk.roomLocked(b, size):
		return ErrFull
	}
	b.held += size
	return nil
}

// appendLocked numbers a block and adds it to the group.
func (b *Buffer) appendLocked(g *group, block []byte) {
	lane := up.Lane(block[5])
	count := binary.LittleEndian.Uint32(block[16:])
	received := int64(binary.LittleEndian.Uint64(block[20:]))
	state := &b.life.lanes[lane]
	runs := g.lanes[lane]
	if n := len(runs); n == 0 || runs[n-1].shape != entryInline || len(runs[n-1].blocks)+len(block) > entryBytes {
		runs = append(runs, run{entry: entry{shape: entryInline, first: state.next, oldest: received}})
		runs[n].blocks = b.spareLocked()
		g.lanes[lane] = runs
	}
	r := &runs[len(runs)-1]
	at := len(r.blocks)
	r.blocks = append(r.blocks, block...)
	up.SetFirst(r.blocks[at:], state.next)
	r.count += count
	r.size += int64(len(block))
	r.oldest = min(r.oldest, received)
	state.next += uint64(count)
	g.bytes += int64(len(block))
	if lane == up.LaneEvent {
		g.counts[eventKey([16]byte(block[28:44]), received)] += uint64(count)
	}
	b.signalLocked()
}

// spareLocked is memory for a run, with room for its header in front.
func (b *Buffer) spareLocked() []byte {
	n := len(b.spare)
	if n == 0 {
		return make([]byte, entryHeaderBytes, 4096)
	}
	blocks := b.spare[n-1]
	b.spare = b.spare[:n-1]
	return blocks[:entryHeaderBytes]
}

func eventKey(project [16]byte, received int64) usageKey {
	return usageKey{month: monthOf(time.UnixMicro(received)), project: project, metric: tally.Events}
}

func (b *Buffer) signalLocked() {
	select {
	case b.gathered <- struct{}{}:
	default:
	}
}

// commitLoop is the committer. It ends when ctx does, after a last group.
func (b *Buffer) commitLoop(ctx context.Context) {
	for {
		select {
		case <-b.gathered:
			b.commitGroup()
		case <-ctx.Done():
			b.commitGroup()
			return
		}
	}
}

func (b *Buffer) commitGroup() {
	b.mu.Lock()
	g := b.group
	b.group = newGroup()
	b.taken.Broadcast()
	err := b.committed
	b.mu.Unlock()
	if err == nil {
		waits := time.AfterFunc(patience, func() { b.answerLate(g) })
		err = b.write(g)
		waits.Stop()
	}
	b.mu.Lock()
	if err != nil {
		// What stands on the disk is not known, so no number may be given out behind it:
		// this life is over.
		g.err, b.committed = err, err
		b.taken.Broadcast()
	} else {
		b.wroteLocked(g)
	}
	b.mu.Unlock()
	close(g.done)
}

// write puts the group on the disk. Only the committer calls it, so sums and counts need
// no lock: no one else moves them.
func (b *Buffer) write(g *group) error {
	batch := b.db.NewBatch(pebble.WithMaxRetainedSizeBytes(groupBytes + 1<<20))
	me := b.life
	for _, lane := range up.Lanes {
		sum := me.lanes[lane].bytes
		for i := range g.lanes[lane] {
			r := &g.lanes[lane][i]
			sum += r.size
			r.sum = sum
			if err := r.put(batch, lane, me.Ordinal); err != nil {
				return errors.Join(err, batch.Close())
			}
		}
	}
	for k, n := range g.counts {
		if err := batch.Set(k.key(), u64(b.usage.get(k)+n), nil); err != nil {
			return errors.Join(err, batch.Close())
		}
	}
	if batch.Empty() {
		return batch.Close()
	}
	if err := batch.Commit(pebble.Sync); err != nil {
		return fmt.Errorf("commit to ingest buffer: %w", err)
	}
	return batch.Close()
}

func (r *run) put(batch *pebble.Batch, lane up.Lane, ordinal uint64) error {
	key := logKey(prefixLog, lane, ordinal, r.first)
	if r.shape == entryInline {
		r.appendHeader(r.blocks[:0])
		return batch.Set(key, r.blocks, nil)
	}
	if err := batch.Set(key, append(r.appendHeader(nil), r.body...), nil); err != nil {
		return err
	}
	return batch.Set(logKey(prefixSpooled, lane, ordinal, r.first), r.body, nil)
}

// wroteLocked makes a group that is on the disk visible.
func (b *Buffer) wroteLocked(g *group) {
	me := b.life
	for _, lane := range up.Lanes {
		runs := g.lanes[lane]
		if len(runs) == 0 {
			continue
		}
		s := &me.lanes[lane]
		for i := range runs {
			s.bytes += runs[i].size
			s.durable = runs[i].end() - 1
			if c := cap(runs[i].blocks); c > 0 && c <= 2*entryBytes && len(b.spare) < groupBytes/entryBytes {
				b.spare = append(b.spare, runs[i].blocks)
			}
		}
		close(b.appended[lane])
		b.appended[lane] = make(chan struct{})
	}
	for k, n := range g.counts {
		b.usage.add(k, n)
	}
}

// patience is how long those who append wait for a disk that is full.
const patience = 2 * time.Second

// fullLocked reports that something waits for space: what is appended now would wait, too.
func (b *Buffer) fullLocked() bool { return b.group.closed || b.space.Waiting() }

// answerLate ends the waiting for a group whose writing waits for space, and for what was
// gathered behind it. Both have their numbers and will be written: nobody knows when, so
// nobody is told that they were.
func (b *Buffer) answerLate(g *group) {
	select {
	case <-g.done:
		return
	default:
	}
	if !b.space.Waiting() { // the disk is only slow
		time.AfterFunc(patience, func() { b.answerLate(g) })
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, waits := range []*group{g, b.group} {
		if !waits.closed {
			waits.closed = true
			close(waits.late)
		}
	}
	b.signalLocked() // what was gathered makes room for others as soon as it can, though it may be nothing
	b.taken.Broadcast()
}
