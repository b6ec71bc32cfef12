package buffer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"skerry/replication/up"
)

// edgeEntry is the first or last entry of a lane of a life.
func (b *Buffer) edgeEntry(ordinal uint64, lane up.Lane, move func(*pebble.Iterator) bool) (e entry, ok bool, err error) {
	it, err := b.logIter(ordinal, lane)
	if err != nil {
		return e, false, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	if !move(it) {
		return e, false, it.Error()
	}
	e, err = iterEntry(it)
	e.body = nil
	return e, err == nil, err
}

// entryAt is the entry that holds number n, without its body, or the next one behind.
func (b *Buffer) entryAt(ordinal uint64, lane up.Lane, n uint64) (e entry, ok bool, err error) {
	return b.edgeEntry(ordinal, lane, func(it *pebble.Iterator) bool { return seek(it, ordinal, lane, n) })
}

func (b *Buffer) logIter(ordinal uint64, lane up.Lane) (*pebble.Iterator, error) {
	from := logKey(prefixLog, lane, ordinal, 0)
	return b.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: after(from[:10])})
}

// seek moves to the entry that holds n, or the next one behind.
func seek(it *pebble.Iterator, ordinal uint64, lane up.Lane, n uint64) bool {
	// The shipper goes forward, so nearly always an entry begins with n. Looking backward
	// copies a whole entry.
	if it.SeekGE(logKey(prefixLog, lane, ordinal, n)) {
		if first, err := parseLogKey(it.Key()); err == nil && first == n {
			return true
		}
	}
	key := logKey(prefixLog, lane, ordinal, n+1)
	if it.SeekLT(key) {
		if e, err := iterEntry(it); err != nil || e.end() > n {
			return true // a damaged entry is reported by whoever reads it
		}
	}
	return it.SeekGE(key)
}

func iterEntry(it *pebble.Iterator) (entry, error) {
	value, err := it.ValueAndErr()
	if err != nil {
		return entry{}, err
	}
	return decodeEntry(it.Key(), value)
}

// Read implements up.Log.
func (b *Buffer) Read(ctx context.Context, in up.Incarnation, lane up.Lane, from uint64, budget int) (batch up.Batch, ok bool, err error) {
	b.mu.Lock()
	l := b.lifeLocked(in)
	if l == nil || b.closed {
		closed := b.closed
		b.mu.Unlock()
		if closed {
			return batch, false, ErrClosed
		}
		return batch, false, nil
	}
	s := l.lanes[lane]
	b.mu.Unlock()
	from = max(from, s.freed+1)
	if from > s.durable {
		return batch, false, nil
	}
	r := reader{b: b, ctx: ctx, batch: up.Batch{Incarnation: in, Lane: lane}, from: from, last: s.durable, stored: s.stored, budget: budget}
	if err := r.read(); err != nil {
		return up.Batch{}, false, fmt.Errorf("read ingest buffer: %w", err)
	}
	return r.batch, r.batch.Count > 0, nil
}

// reader gathers blocks for one batch.
type reader struct {
	b          *Buffer
	ctx        context.Context
	batch      up.Batch
	from, last uint64 // numbers wanted; what is behind last may not be on the disk yet
	stored     uint64 // at the centre, when it said so last
	budget     int
}

func (r *reader) read() (err error) {
	ordinal, lane := r.batch.Incarnation.Ordinal, r.batch.Lane
	it, err := r.b.logIter(ordinal, lane)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := seek(it, ordinal, lane, r.from); ok; ok = it.Next() {
		e, err := iterEntry(it)
		if err != nil {
			return err
		}
		if e.first > r.last {
			return nil
		}
		full, err := r.take(&e)
		if err != nil || full {
			return err
		}
	}
	return it.Error()
}

// take adds the entry's blocks from number from on; full when no more fits.
func (r *reader) take(e *entry) (full bool, err error) {
	if e.shape == entrySpooled {
		return r.takeSpooled(e)
	}
	if room := r.budget - len(r.batch.Data); room > 0 { // at once: growing block by block copies what is there
		r.batch.Data = slices.Grow(r.batch.Data, min(len(e.body), room))
	}
	for rest := e.body; len(rest) > 0; {
		block, behind, err := up.DecodeBlock(rest)
		if err != nil {
			return false, err
		}
		raw := rest[:len(rest)-len(behind)]
		rest = behind
		if block.End() <= r.from {
			continue
		}
		if full, err := r.add(&block, raw); full || err != nil {
			return full, err
		}
	}
	return false, nil
}

// add appends a numbered block unless it is over the budget. The first one always fits.
func (r *reader) add(block *up.Block, raw []byte) (full bool, err error) {
	switch {
	case r.batch.Count == 0:
		r.batch.First = block.First
	case len(r.batch.Data)+len(raw) > r.budget:
		return true, nil
	case block.First != r.batch.End():
		return false, fmt.Errorf("%w: %s %d follows %d", up.ErrCorrupt, block.Lane, block.First, r.batch.End())
	}
	r.batch.Data = append(r.batch.Data, raw...)
	r.batch.Count += block.Count
	return len(r.batch.Data) >= r.budget, nil
}

// takeSpooled adds a spool's chunks. They are numbered from 0; the entry says
// where that is.
func (r *reader) takeSpooled(e *entry) (full bool, err error) {
	if len(e.body) < 8 {
		return false, fmt.Errorf("%w: spooled entry %d", up.ErrCorrupt, e.first)
	}
	in := r.batch.Incarnation
	spool := binary.BigEndian.Uint64(e.body)
	prefix := chunkKey(in.Ordinal, spool, r.batch.Lane, 0)
	prefix = prefix[:len(prefix)-8]
	it, err := r.b.db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	var skip uint64
	if r.from > e.first {
		skip = r.from - e.first
	}
	ok := it.SeekLT(chunkKey(in.Ordinal, spool, r.batch.Lane, skip+1))
	if !ok {
		return false, fmt.Errorf("%w: spooled entry %d has no chunk", up.ErrCorrupt, e.first)
	}
	for ; ok; ok = it.Next() {
		full, err := r.takeChunk(e, spool, it)
		if full || err != nil {
			return full, err
		}
	}
	return false, it.Error()
}

func (r *reader) takeChunk(e *entry, spool uint64, it *pebble.Iterator) (full bool, err error) {
	value, err := it.ValueAndErr()
	if err != nil {
		return false, err
	}
	key := it.Key()
	shape := key[len(key)-1]
	raw := append([]byte(nil), value...)
	relative := binary.BigEndian.Uint64(key[len(key)-9:])
	if len(raw) < 16 {
		return false, fmt.Errorf("%w: chunk of %d bytes", up.ErrCorrupt, len(raw))
	}
	up.SetFirst(raw, e.first+relative)
	block, _, err := up.DecodeBlock(raw)
	if err != nil {
		return false, err
	}
	if shape == chunkLarge {
		// Before the payload is fetched: it can only stand alone.
		if r.batch.Count > 0 {
			return true, nil
		}
		if raw, err = r.whole(spool, &block); err != nil {
			return false, err
		}
	}
	return r.add(&block, raw)
}

// whole turns a block whose one operation has its payload in pieces into one that
// can travel.
func (r *reader) whole(spool uint64, block *up.Block) ([]byte, error) {
	var op up.Operation
	ops := block.Operations()
	if !ops.Next(&op) || op.Ref == nil || len(op.Ref.Key) != 8 {
		return nil, fmt.Errorf("%w: large operation %d: %w", up.ErrCorrupt, block.First, ops.Err())
	}
	pieces := &pieceReader{b: r.b, ordinal: r.batch.Incarnation.Ordinal, spool: spool,
		payload: binary.BigEndian.Uint64([]byte(op.Ref.Key))}
	if op.Ref.Size > up.MaxInlineBytes {
		ref := *op.Ref
		ref.Key = fmt.Sprintf("ingest/%s/%x/%s/%d", r.b.cfg.Edge, r.batch.Incarnation.ID, block.Lane, block.First)
		if block.First <= r.stored {
			r.b.forgetUpload(block.Lane) // the centre has removed it, and now misses what it had stored
		}
		if err := r.b.upload(r.ctx, block.Lane, &ref, pieces); err != nil {
			return nil, err
		}
		op.Ref = &ref
	} else if err := inline(&op, block.Lane, pieces); err != nil {
		return nil, err
	}
	var w up.BlockWriter
	w.Reset(block.Header)
	w.Append(&op)
	up.SetFirst(w.Bytes(), block.First)
	return w.Bytes(), nil
}

// inline reads the payload into the operation.
func inline(op *up.Operation, lane up.Lane, pieces io.Reader) error {
	payload := bytes.NewBuffer(make([]byte, 0, op.Ref.Size+bytes.MinRead))
	if _, err := payload.ReadFrom(pieces); err != nil {
		return err
	}
	if int64(payload.Len()) != op.Ref.Size {
		return fmt.Errorf("%w: payload of %d bytes, %d expected", up.ErrCorrupt, payload.Len(), op.Ref.Size)
	}
	if op.Unstorable != 0 || lane == up.LaneCrash {
		op.Raw = payload.Bytes()
	} else {
		op.Properties = within(payload.Bytes(), op.Ref.Properties)
		op.DefaultProperties = within(payload.Bytes(), op.Ref.DefaultProperties)
	}
	op.Ref = nil
	return nil
}

// within is the span of b; DecodeOperation has checked its bounds.
func within(b []byte, s up.Span) []byte {
	if s.Length == 0 {
		return nil
	}
	return b[s.Offset : s.Offset+s.Length]
}

// upload gives a payload to the centre, once per place while this process lives.
func (b *Buffer) upload(ctx context.Context, lane up.Lane, ref *up.Reference, r io.Reader) error {
	if b.cfg.Upload == nil {
		return errors.New("an operation over 16 MiB needs the write plane's address, which is not configured")
	}
	done := &b.uploads[lane]
	done.Lock()
	defer done.Unlock()
	if done.last == ref.Key {
		return nil
	}
	if err := b.cfg.Upload(ctx, ref.Key, ref.Size, ref.SHA256, r); err != nil {
		return fmt.Errorf("upload payload of %d bytes: %w", ref.Size, err)
	}
	done.last = ref.Key
	return nil
}

func (b *Buffer) forgetUpload(lane up.Lane) {
	done := &b.uploads[lane]
	done.Lock()
	defer done.Unlock()
	done.last = ""
}

// pieceReader reads a large payload.
type pieceReader struct {
	b                       *Buffer
	ordinal, spool, payload uint64
	piece                   uint64
	rest                    []byte
}

func (r *pieceReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		value, closer, err := r.b.db.Get(pieceKey(r.ordinal, r.spool, r.payload, r.piece))
		if errors.Is(err, pebble.ErrNotFound) {
			return 0, io.EOF
		}
		if err != nil {
			return 0, err
		}
		r.piece++
		r.rest = append(r.rest[:0], value...)
		if err := closer.Close(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
