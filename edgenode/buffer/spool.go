package buffer

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"

	"github.com/cockroachdb/pebble/v2"

	"skerry/replication/up"
)

// Spool takes a request that is too large for memory: its blocks go to the disk while it
// is still being checked, and count only when Commit numbers them all in one small synced
// write. That write also syncs what went before it, since all of it stands earlier in the
// same log of Pebble's.
//
// A Spool belongs to one request and is not safe for use by several goroutines. Commit
// or Put without an error, or Abort, ends it: what Put has refused is on the disk
// until Abort.
type Spool struct {
	b       *Buffer
	ordinal uint64
	id      uint64
	lanes   [up.LaneCrash + 1]spoolLane
	counts  map[usageKey]uint64
	held    int64
	ended   bool

	payload uint64 // number of the present or next large payload
	piece   uint64 // its next piece; 0: none begun
	size    int64
	sum     hash.Hash
}

type spoolLane struct {
	count    uint64
	bytes    int64
	oldest   int64
	payloads []uint64
}

const (
	chunkPlain = 0
	chunkLarge = 1 // one operation, whose payload lies in pieces
)

// NewSpool begins a spool.
func (b *Buffer) NewSpool() *Spool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spools++
	return &Spool{b: b, ordinal: b.me.Ordinal, id: b.spools, counts: map[usageKey]uint64{}}
}

// Block writes a complete block to the spool. The block is the caller's again when
// it returns.
func (s *Spool) Block(block []byte) error { return s.chunk(block, chunkPlain) }

func (s *Spool) chunk(block []byte, shape byte) error {
	lane := &s.lanes[block[5]]
	count := binary.LittleEndian.Uint32(block[16:])
	received := int64(binary.LittleEndian.Uint64(block[20:]))
	if err := s.set(append(chunkKey(s.ordinal, s.id, up.Lane(block[5]), lane.count), shape), block); err != nil {
		return err
	}
	if lane.count == 0 || received < lane.oldest {
		lane.oldest = received
	}
	lane.count += uint64(count)
	lane.bytes += int64(len(block))
	if up.Lane(block[5]) == up.LaneEvent {
		s.counts[eventKey([16]byte(block[28:44]), received)] += uint64(count)
	}
	return nil
}

// set writes a pair that is not yet synced, and takes its bytes of the budget.
func (s *Spool) set(key, value []byte) error {
	s.b.mu.Lock()
	err := s.b.holdLocked(int64(len(value)))
	s.b.mu.Unlock()
	if err != nil {
		return err
	}
	s.held += int64(len(value))
	if err := s.b.db.Set(key, value, pebble.NoSync); err != nil {
		return fmt.Errorf("spool request: %w", err)
	}
	return nil
}

// Piece writes the next piece of a large payload.
func (s *Spool) Piece(p []byte) error {
	if s.piece == 0 {
		s.size, s.sum = 0, sha256.New()
	}
	if err := s.set(pieceKey(s.ordinal, s.id, s.payload, s.piece), p); err != nil {
		return err
	}
	s.piece++
	s.size += int64(len(p))
	s.sum.Write(p)
	return nil
}

// DropPieces forgets the payload whose pieces were written last.
func (s *Spool) DropPieces() error {
	if s.piece == 0 {
		return nil
	}
	from := spoolKey(prefixPiece, s.ordinal, s.id)
	from = binary.BigEndian.AppendUint64(from, s.payload)
	if err := s.b.db.DeleteRange(from, after(from), pebble.NoSync); err != nil {
		return fmt.Errorf("spool request: %w", err)
	}
	s.release(s.size)
	s.piece = 0
	s.payload++
	return nil
}

func (s *Spool) release(n int64) {
	s.held -= n
	s.b.mu.Lock()
	s.b.held -= n
	s.b.mu.Unlock()
}

// Large writes an operation whose payload was written in pieces: h is the block's header,
// op has everything but the payload, and properties and defaults tell where in the
// payload those members lie.
func (s *Spool) Large(h up.Header, op up.Operation, properties, defaults up.Span) error {
	ref := &up.Reference{Key: string(u64(s.payload)), Size: s.size, Properties: properties, DefaultProperties: defaults}
	s.sum.Sum(ref.SHA256[:0])
	op.Ref = ref
	var w up.BlockWriter
	w.Reset(h)
	w.Append(&op)
	if err := s.chunk(w.Bytes(), chunkLarge); err != nil {
		return err
	}
	lane := &s.lanes[h.Lane]
	lane.bytes += s.size
	lane.payloads = append(lane.payloads, s.payload)
	s.piece = 0
	s.payload++
	return nil
}

// Restart forgets everything that was written, and goes on.
func (s *Spool) Restart() error {
	for _, prefix := range []byte{prefixChunk, prefixPiece} {
		own := spoolKey(prefix, s.ordinal, s.id)
		if err := s.b.db.DeleteRange(own, after(own), pebble.NoSync); err != nil {
			return fmt.Errorf("drop spooled request: %w", err)
		}
	}
	s.release(s.held)
	s.lanes, s.piece = [up.LaneCrash + 1]spoolLane{}, 0
	clear(s.counts)
	s.payload++
	return nil
}

// Abort forgets the spool. After Commit it does nothing.
func (s *Spool) Abort() error {
	if s.ended {
		return nil
	}
	s.ended = true
	return s.Restart()
}

// Commit numbers all that was written and returns when it is on the disk: all of it or,
// after an error, nothing.
func (s *Spool) Commit() error {
	p, err := s.Put()
	if err != nil {
		return err
	}
	return p.Wait()
}

// Put is Commit without the wait.
func (s *Spool) Put() (Pending, error) {
	b := s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.admitLocked(0); err != nil {
		return Pending{}, err
	}
	g := b.group
	for _, lane := range up.Lanes {
		l := &s.lanes[lane]
		if l.count == 0 {
			continue
		}
		state := &b.life.lanes[lane]
		body := u64(s.id)
		for _, p := range l.payloads {
			body = append(body, u64(p)...)
		}
		g.lanes[lane] = append(g.lanes[lane], run{entry: entry{shape: entrySpooled, first: state.next,
			count: uint32(l.count), size: l.bytes, oldest: l.oldest, body: body}})
		state.next += l.count
	}
	for k, n := range s.counts {
		g.counts[k] += n
	}
	s.ended = true
	b.signalLocked()
	return Pending{g}, nil
}
