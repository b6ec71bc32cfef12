package store

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"skerry/replication"
	"skerry/replication/down"
)

// Cursor is the lane's stored cursor; ok is false when the lane has no state that could
// be continued.
func (s *Store) Cursor(lane replication.Lane) (down.Cursor, bool) {
	if c := s.cursors[lane].Load(); c != nil && !s.damaged.Load() {
		return c.Cursor, true
	}
	return down.Cursor{}, false
}

// Apply stores whole transactions together with the cursor behind them, and serves them
// when they are synced.
func (s *Store) Apply(lane replication.Lane, documents []replication.Document, to down.Cursor) error {
	if err := s.roomy(); err != nil {
		return err
	}
	s.writing[lane].Lock()
	defer s.writing[lane].Unlock()
	now := s.cursors[lane].Load()
	if now == nil || s.damaged.Load() {
		return ErrSetAside
	}
	next := &cursor{Cursor: to, generation: now.generation}
	err := s.writeServed(func(db *pebble.DB, batch *pebble.Batch) error {
		if err := addDocuments(db, batch, lane, next.generation, documents); err != nil {
			return err
		}
		return batch.Set(cursorKey(lane), next.encode(), nil)
	})
	if err != nil {
		return err
	}
	s.cursors[lane].Store(next)
	s.observe(Change{Lane: lane, Documents: documents, Floor: to.Floor})
	s.sealSoon()
	return nil
}

// Begin opens a new generation of the lane beside the one that is served. A damaged
// database is set aside now, when somebody is there who can fill a new one.
func (s *Store) Begin(lane replication.Lane) (down.Generation, error) {
	if err := s.replaceDamaged(); err != nil {
		return nil, err
	}
	s.writing[lane].Lock()
	defer s.writing[lane].Unlock()
	number := uint32(1)
	served := s.cursors[lane].Load()
	if served != nil {
		number = served.generation + 1
	}
	opened := 0
	err := s.write(pebble.NoSync, func(_ *pebble.DB, batch *pebble.Batch) error {
		opened = s.opened
		return dropOthers(batch, lane, number-1)
	})
	if err != nil {
		return nil, err
	}
	return &generation{store: s, lane: lane, number: number, opened: opened}, nil
}

// Still runs fn while nothing is stored in the lane, and when everything that can be read
// of it has been observed. fn must not write.
func (s *Store) Still(lane replication.Lane, fn func()) {
	s.writing[lane].Lock()
	defer s.writing[lane].Unlock()
	fn()
}

// generation is a lane's state that is being taken anew.
type generation struct {
	store  *Store
	lane   replication.Lane
	number uint32
	opened int // the database it was begun in
}

// current guards a write, which holds swap, against a database that is not the one that
// the generation was begun in.
func (g *generation) current() error {
	if g.opened != g.store.opened || g.store.damaged.Load() {
		return ErrSetAside
	}
	return nil
}

// Add stores documents, unseen.
func (g *generation) Add(documents []replication.Document) error {
	if err := g.store.roomy(); err != nil {
		return err
	}
	g.store.writing[g.lane].Lock()
	defer g.store.writing[g.lane].Unlock()
	return g.store.write(pebble.NoSync, func(db *pebble.DB, batch *pebble.Batch) error {
		if err := g.current(); err != nil {
			return err
		}
		return addDocuments(db, batch, g.lane, g.number, documents)
	})
}

// Serve takes the generation into service in place of the present one, which is deleted.
// Readers that began before read the old one to their end: Pebble's iterators are
// snapshots.
func (g *generation) Serve(to down.Cursor) error {
	s := g.store
	s.writing[g.lane].Lock()
	defer s.writing[g.lane].Unlock()
	next := &cursor{Cursor: to, generation: g.number}
	err := s.writeServed(func(_ *pebble.DB, batch *pebble.Batch) error {
		if err := g.current(); err != nil {
			return err
		}
		if err := dropOthers(batch, g.lane, g.number); err != nil {
			return err
		}
		return batch.Set(cursorKey(g.lane), next.encode(), nil)
	})
	if err != nil {
		return err
	}
	s.cursors[g.lane].Store(next)
	s.observe(Change{Lane: g.lane, Anew: true, Floor: to.Floor})
	s.sealSoon()
	return nil
}

// writeServed is write for what is to be served: it is synced, and visible when it is.
// Pebble shows a batch to readers before it is synced, and keeps what is not synced in
// the process for a while: an edge that is killed forgets it. If it had been read, the
// edge would come back with a lower revision than it had served. So readers look at a
// snapshot, which is taken here. The one writer at a time is the price; both lanes'
// writes are rare, or large.
func (s *Store) writeServed(fill func(db *pebble.DB, batch *pebble.Batch) error) error {
	s.serving.Lock()
	defer s.serving.Unlock()
	return s.write(pebble.Sync, fill)
}

// write commits what fill puts into a batch. The caller holds the lane's writing lock,
// and serving for a synced one.
func (s *Store) write(how *pebble.WriteOptions, fill func(db *pebble.DB, batch *pebble.Batch) error) error {
	s.swap.RLock()
	defer s.swap.RUnlock()
	if s.db == nil {
		return ErrSetAside
	}
	batch := s.db.NewBatch()
	defer func() { _ = batch.Close() }() // frees memory; it cannot fail
	if err := fill(s.db, batch); err != nil {
		s.suspect(err)
		return err
	}
	if err := batch.Commit(how); err != nil {
		s.suspect(err)
		return fmt.Errorf("commit to the state store: %w", err)
	}
	if how.Sync {
		s.show()
	}
	return nil
}

func addDocuments(r pebble.Reader, batch *pebble.Batch, lane replication.Lane, generation uint32, documents []replication.Document) error {
	raised := revisions{}
	for i := range documents {
		d := &documents[i]
		if err := raised.raise(r, lane, generation, d); err != nil {
			return err
		}
		key := documentKey(lane, generation, d.Subject)
		if d.Tombstone() {
			if err := batch.Delete(key, nil); err != nil {
				return fmt.Errorf("delete %s: %w", d.Subject, err)
			}
			continue
		}
		value := make([]byte, 16, 16+len(d.Body))
		binary.BigEndian.PutUint64(value, uint64(d.Position))
		binary.BigEndian.PutUint64(value[8:], uint64(d.ChangedAt))
		if err := batch.Set(key, append(value, d.Body...), nil); err != nil {
			return fmt.Errorf("store %s: %w", d.Subject, err)
		}
	}
	return raised.write(batch)
}

// A cursor as it is stored. Integers are big-endian.
//
//	offset  size
//	     0     1  version, 1
//	     1     4  generation
//	     5    16  epoch
//	    21     8  sequence in the stream
//	    29     8  position
//	    37     8  floor
const cursorLen = 45

func cursorKey(lane replication.Lane) []byte { return []byte{'c', byte(lane)} }

func (c *cursor) encode() []byte {
	b := binary.BigEndian.AppendUint32([]byte{1}, c.generation)
	b = append(b, c.Epoch[:]...)
	b = binary.BigEndian.AppendUint64(b, c.Seq)
	b = binary.BigEndian.AppendUint64(b, uint64(c.Position))
	return binary.BigEndian.AppendUint64(b, uint64(c.Floor))
}

func decodeCursor(b []byte) (*cursor, error) {
	if len(b) != cursorLen || b[0] != 1 {
		return nil, fmt.Errorf("cursor of %d bytes: %w", len(b), pebble.ErrCorruption)
	}
	return &cursor{generation: binary.BigEndian.Uint32(b[1:]), Cursor: down.Cursor{
		Epoch:    replication.Epoch(b[5:21]),
		Seq:      binary.BigEndian.Uint64(b[21:]),
		Position: replication.Position(binary.BigEndian.Uint64(b[29:])),
		Floor:    replication.Position(binary.BigEndian.Uint64(b[37:])),
	}}, nil
}

// readCursor reads a lane's cursor, nil when there is none.
func readCursor(r pebble.Reader, lane replication.Lane) (*cursor, error) {
	b, closer, err := r.Get(cursorKey(lane))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the %s cursor: %w", lane, err)
	}
	defer func() { _ = closer.Close() }() // frees a block; it cannot fail
	return decodeCursor(b)
}
