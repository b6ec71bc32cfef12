package buffer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"skerry/replication/up"
)

// Freeing is lazy: each time leaves a range tombstone, and ten thousands of them would
// slow every read. Nothing is lost by being late, because the receiver skips what it has.
const (
	freeLookEvery = 250 * time.Millisecond
	freeBytes     = 8 << 20
	freeAfter     = 30 * time.Second
)

// Stored implements up.Log.
func (b *Buffer) Stored(in up.Incarnation, lane up.Lane, watermark uint64) error {
	if !lane.Valid() {
		return fmt.Errorf("stored watermark of %s", lane)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.lifeLocked(in); l != nil {
		s := &l.lanes[lane]
		s.stored = max(s.stored, min(watermark, s.durable))
	}
	return nil
}

func (b *Buffer) freeLoop(ctx context.Context) {
	tick := time.NewTicker(freeLookEvery)
	defer tick.Stop()
	const second = int(time.Second / freeLookEvery)
	for n := 0; ; n++ {
		select {
		case <-tick.C:
			if n%second == 0 {
				b.mu.Lock()
				b.growth.sample(b.held)
				b.mu.Unlock()
			}
			b.freeWhere(b.dueLocked)
		case <-ctx.Done():
			return
		}
	}
}

// freeAll deletes everything that the centre has stored.
func (b *Buffer) freeAll() { b.freeWhere(func(*life, up.Lane) bool { return true }) }

// freeWhere deletes what the centre has stored of the lanes for which it is wanted. It
// asks with mu held.
func (b *Buffer) freeWhere(wanted func(*life, up.Lane) bool) {
	b.freeMu.Lock()
	defer b.freeMu.Unlock()
	for {
		l, lane, upTo := b.nextToFree(wanted)
		if l == nil {
			break
		}
		if err := b.freeLane(l, lane, upTo); err != nil {
			b.cfg.Log.Error("ingest buffer: free what is stored", "lane", lane.String(), "error", err)
			return
		}
	}
	if err := b.dropFinishedLives(); err != nil {
		b.cfg.Log.Error("ingest buffer: drop finished incarnation", "error", err)
	}
}

// nextToFree chooses a lane of a life that has something to free and is wanted.
func (b *Buffer) nextToFree(wanted func(*life, up.Lane) bool) (*life, up.Lane, uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.lives {
		for _, lane := range up.Lanes {
			s := &l.lanes[lane]
			if s.stored != s.freed && s.stored != s.tried && wanted(l, lane) {
				s.freedAt, s.tried = b.cfg.Now(), s.stored
				return l, lane, s.stored
			}
		}
	}
	return nil, 0, 0
}

// dueLocked reports whether what is stored of a lane is worth a tombstone.
func (b *Buffer) dueLocked(l *life, lane up.Lane) bool {
	s := &l.lanes[lane]
	bytes := s.bytes - s.gone
	if s.pending() > 0 {
		bytes = int64(float64(bytes) * float64(s.stored-s.freed) / float64(s.durable-s.freed)) // about
	}
	return bytes >= freeBytes || b.cfg.Now().Sub(s.freedAt) >= freeAfter || (l != b.life && s.pending() == 0)
}

// freeLane deletes the entries of the lane that end at upTo or before.
func (b *Buffer) freeLane(l *life, lane up.Lane, upTo uint64) error {
	b.mu.Lock()
	freed, gone := l.lanes[lane].freed, l.lanes[lane].gone
	b.mu.Unlock()
	e, ok, err := b.entryAt(l.Ordinal, lane, upTo)
	if err != nil {
		return err
	}
	bound := upTo + 1
	switch {
	case !ok:
	case e.end()-1 > upTo:
		bound, gone = e.first, e.sum-e.size
	default:
		gone = e.sum
	}
	if bound == freed+1 {
		return nil // all in one entry, of which a part is pending
	}
	batch := b.db.NewBatch()
	err = errors.Join(
		batch.DeleteRange(logKey(prefixLog, lane, l.Ordinal, freed+1), logKey(prefixLog, lane, l.Ordinal, bound), nil),
		b.freeSpools(batch, lane, l.Ordinal, freed+1, bound),
		batch.Set(watermarkKey(lane, l.Ordinal), u64(upTo), nil))
	if err != nil {
		return errors.Join(err, batch.Close())
	}
	if err := batch.Commit(pebble.NoSync); err != nil {
		return err
	}
	b.mu.Lock()
	s := &l.lanes[lane]
	b.held -= gone - s.gone
	s.freed, s.gone = bound-1, gone
	b.mu.Unlock()
	return batch.Close()
}

// freeSpools deletes the chunks and payloads of the spooled entries in [from, to).
func (b *Buffer) freeSpools(batch *pebble.Batch, lane up.Lane, ordinal, from, to uint64) error {
	first, bound := logKey(prefixSpooled, lane, ordinal, from), logKey(prefixSpooled, lane, ordinal, to)
	any := false
	err := scan(b.db, first, bound, func(_, body []byte) error {
		any = true
		spool := binary.BigEndian.Uint64(body)
		chunks := chunkKey(ordinal, spool, lane, 0)
		chunks = chunks[:len(chunks)-8]
		if err := batch.DeleteRange(chunks, after(chunks), nil); err != nil {
			return err
		}
		for body = body[8:]; len(body) >= 8; body = body[8:] {
			pieces := append(spoolKey(prefixPiece, ordinal, spool), body[:8]...)
			if err := batch.DeleteRange(pieces, after(pieces), nil); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || !any {
		return err
	}
	return batch.DeleteRange(first, bound, nil)
}

// dropFinishedLives forgets earlier incarnations of which everything is freed; their
// counts go into the base.
func (b *Buffer) dropFinishedLives() error {
	for {
		l := b.finishedLife()
		if l == nil {
			return nil
		}
		batch := b.db.NewBatch()
		err := batch.Delete(incarnationKey(l.Ordinal), nil)
		for _, lane := range up.Lanes {
			b.mu.Lock()
			base := b.base[lane] + l.lanes[lane].durable
			b.mu.Unlock()
			err = errors.Join(err, batch.Set(baseKey(lane), u64(base), nil), batch.Delete(watermarkKey(lane, l.Ordinal), nil))
		}
		if err != nil {
			return errors.Join(err, batch.Close())
		}
		if err := batch.Commit(pebble.NoSync); err != nil {
			return err
		}
		b.mu.Lock()
		b.lives = slices.DeleteFunc(slices.Clone(b.lives), func(other *life) bool { return other == l })
		for _, lane := range up.Lanes {
			b.base[lane] += l.lanes[lane].durable
		}
		b.mu.Unlock()
		if err := batch.Close(); err != nil {
			return err
		}
	}
}

func (b *Buffer) finishedLife() *life {
	b.mu.Lock()
	defer b.mu.Unlock()
next:
	for _, l := range b.lives {
		if l == b.life {
			continue
		}
		for _, lane := range up.Lanes {
			if l.lanes[lane].freed != l.lanes[lane].durable {
				continue next
			}
		}
		return l
	}
	return nil
}
