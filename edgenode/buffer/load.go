package buffer

import (
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"

	"github.com/cockroachdb/pebble/v2"

	"skerry/replication/up"
)

// load reads what earlier incarnations left, begins a new one and drops the spools that
// were never committed.
func (b *Buffer) load() error {
	if err := b.checkFormat(); err != nil {
		return err
	}
	if err := b.usage.load(b.db, b.cfg.Now()); err != nil {
		return err
	}
	for _, lane := range up.Lanes {
		v, err := b.number(baseKey(lane))
		if err != nil {
			return err
		}
		b.base[lane] = v
	}
	b.lives, b.held = nil, 0
	err := scan(b.db, []byte{prefixIncarnation}, after([]byte{prefixIncarnation}), func(key, value []byte) error {
		ordinal, err := parseU64(key[1:])
		if err != nil || len(value) != 16 {
			return fmt.Errorf("%w: incarnation", up.ErrCorrupt)
		}
		l := &life{Incarnation: up.Incarnation{ID: [16]byte(value), Ordinal: ordinal}}
		b.lives = append(b.lives, l)
		return nil
	})
	if err != nil {
		return err
	}
	for _, l := range b.lives {
		for _, lane := range up.Lanes {
			if err := b.loadLane(l, lane); err != nil {
				return err
			}
			b.held += l.lanes[lane].bytes - l.lanes[lane].gone
		}
	}
	if err := b.dropOrphans(); err != nil {
		return err
	}
	return b.begin()
}

func (b *Buffer) checkFormat() error {
	v, err := b.number([]byte{prefixFormat})
	switch {
	case err != nil:
		return err
	case v > format:
		return fmt.Errorf("%w: format %d, this one reads %d", errNewerFormat, v, format)
	}
	return nil
}

// number reads a u64; an absent one is 0.
func (b *Buffer) number(key []byte) (uint64, error) {
	value, closer, err := b.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	v, err := parseU64(value)
	return v, errors.Join(err, closer.Close())
}

func (b *Buffer) loadLane(l *life, lane up.Lane) error {
	s := &l.lanes[lane]
	watermark, err := b.number(watermarkKey(lane, l.Ordinal))
	if err != nil {
		return err
	}
	s.freedAt = b.cfg.Now()
	first, ok, err := b.edgeEntry(l.Ordinal, lane, (*pebble.Iterator).First)
	if err != nil {
		return err
	}
	if !ok {
		s.next, s.durable, s.stored, s.freed = watermark+1, watermark, watermark, watermark
		return nil
	}
	last, _, err := b.edgeEntry(l.Ordinal, lane, (*pebble.Iterator).Last)
	if err != nil {
		return err
	}
	s.freed, s.gone = first.first-1, first.sum-first.size
	s.next, s.durable, s.bytes = last.end(), last.end()-1, last.sum
	s.stored = min(max(watermark, s.freed), s.durable)
	return nil
}

// begin starts the new incarnation. It is on the disk before its first number is given out.
func (b *Buffer) begin() error {
	b.me = up.Incarnation{Ordinal: 1}
	if n := len(b.lives); n > 0 {
		b.me.Ordinal = b.lives[n-1].Ordinal + 1
	}
	_, _ = rand.Read(b.me.ID[:]) // never fails, it ends the process instead
	b.life = &life{Incarnation: b.me}
	for i := range b.life.lanes {
		b.life.lanes[i].next = 1
		b.life.lanes[i].freedAt = b.cfg.Now()
	}
	b.lives = append(b.lives, b.life)
	id, err := b.number([]byte{prefixStore})
	if err != nil {
		return err
	}
	for id == 0 {
		id = mathrand.Uint64()
	}
	store := u64(id)
	b.source = fmt.Sprintf("%s.%x", b.cfg.Edge, store)
	batch := b.db.NewBatch()
	if err := errors.Join(batch.Set([]byte{prefixFormat}, u64(format), nil), batch.Set([]byte{prefixStore}, store, nil),
		batch.Set(incarnationKey(b.me.Ordinal), b.me.ID[:], nil)); err != nil {
		return errors.Join(err, batch.Close())
	}
	if err := batch.Commit(pebble.Sync); err != nil {
		return fmt.Errorf("begin incarnation: %w", err)
	}
	return batch.Close()
}

// dropOrphans deletes the chunks of spools that no log entry names: their requests were
// never answered.
func (b *Buffer) dropOrphans() error {
	named := map[[2]uint64]bool{}
	err := scan(b.db, []byte{prefixSpooled}, after([]byte{prefixSpooled}), func(key, value []byte) error {
		if len(key) != 18 || len(value) < 8 {
			return fmt.Errorf("%w: spool index", up.ErrCorrupt)
		}
		ordinal, _ := parseU64(key[2:10])
		spool, _ := parseU64(value[:8])
		named[[2]uint64{ordinal, spool}] = true
		return nil
	})
	if err != nil {
		return err
	}
	for _, prefix := range []byte{prefixChunk, prefixPiece} {
		if err := b.dropOrphansOf(prefix, named); err != nil {
			return fmt.Errorf("drop unfinished spools: %w", err)
		}
	}
	return nil
}

func (b *Buffer) dropOrphansOf(prefix byte, named map[[2]uint64]bool) (err error) {
	it, err := b.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefix}, UpperBound: after([]byte{prefix})})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; {
		key := it.Key()
		if len(key) < 17 {
			return fmt.Errorf("%w: spool key", up.ErrCorrupt)
		}
		ordinal, _ := parseU64(key[1:9])
		spool, _ := parseU64(key[9:17])
		own := spoolKey(prefix, ordinal, spool)
		if !named[[2]uint64{ordinal, spool}] {
			if err := b.db.DeleteRange(own, after(own), pebble.NoSync); err != nil {
				return err
			}
		}
		ok = it.SeekGE(after(own))
	}
	return it.Error()
}

// scan calls f for every pair in [from, to). The slices are valid until f returns.
func scan(db *pebble.DB, from, to []byte, f func(key, value []byte) error) (err error) {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if err := f(it.Key(), value); err != nil {
			return err
		}
	}
	return it.Error()
}
