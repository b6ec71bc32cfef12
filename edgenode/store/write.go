package store

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"skerry/replication"
	"skerry/replication/down"
)

// Cursor is the lane's stored cursor; ok is false when the lane has no state.
func (s *Store) Cursor(lane replication.Lane) (down.Cursor, bool) {
	if c := s.cursors[lane].Load(); c != nil {
		return c.Cursor, true
	}
	return down.Cursor{}, false
}

// Apply stores whole transactions together with the cursor behind them.
func (s *Store) Apply(lane replication.Lane, documents []replication.Document, to down.Cursor) error {
	if err := s.roomy(); err != nil {
		return err
	}
	s.writing[lane].Lock()
	defer s.writing[lane].Unlock()
	now := s.cursors[lane].Load()
	if now == nil {
		return ErrSetAside
	}
	next := &cursor{Cursor: to, generation: now.generation}
	err := s.write(func(db *pebble.DB, batch *pebble.Batch) error {
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
	if lane == replication.Urgent {
		// Pebble keeps what is not synced in the process for a while: an edge that is killed forgets it. It comes again
		// from the stream, but a halt must hold at an edge that starts without one. It is served before it is saved,
		// because waiting for the disk would delay every halt for the sake of that millisecond.
		select {
		case s.hurry <- struct{}{}:
		default:
		}
	}
	return nil
}

// Begin opens a new generation of the lane beside the one that is served.
func (s *Store) Begin(lane replication.Lane) (down.Generation, error) {
	s.writing[lane].Lock()
	defer s.writing[lane].Unlock()
	number := uint32(1)
	served := s.cursors[lane].Load()
	if served != nil {
		number = served.generation + 1
	}
	opened := 0
	err := s.write(func(_ *pebble.DB, batch *pebble.Batch) error {
		opened = s.opened
		return dropOthers(batch, lane, number-1)
	})
	if err != nil {
		return nil, err
	}
	return &generation{store: s, lane: lane, number: number, opened: opened}, nil
}

// generation is a lane's state that is being taken anew.
type generation struct {
	store  *Store
	lane   replication.Lane
	number uint32
	opened int // the database it was begun in
}

// write is Store.write, unless the database has been replaced since the generation was begun.
func (g *generation) write(fill func(db *pebble.DB, batch *pebble.Batch) error) error {
	return g.store.write(func(db *pebble.DB, batch *pebble.Batch) error {
		if g.opened != g.store.opened {
			return ErrSetAside
		}
		return fill(db, batch)
	})
}

// Add stores documents, unseen.
func (g *generation) Add(documents []replication.Document) error {
	if err := g.store.roomy(); err != nil {
		return err
	}
	g.store.writing[g.lane].Lock()
	defer g.store.writing[g.lane].Unlock()
	return g.write(func(db *pebble.DB, batch *pebble.Batch) error {
		return addDocuments(db, batch, g.lane, g.number, documents)
	})
}

// Serve takes the generation into service in place of the present one, which is deleted. Readers that began before read
// the old one to their end: Pebble's iterators are snapshots.
func (g *generation) Serve(to down.Cursor) error {
	s := g.store
	s.writing[g.lane].Lock()
	defer s.writing[g.lane].Unlock()
	next := &cursor{Cursor: to, generation: g.number}
	err := g.write(func(_ *pebble.DB, batch *pebble.Batch) error {
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
	return nil
}

// write commits what fill puts into a batch. The caller holds the lane's writing lock.
func (s *Store) write(fill func(db *pebble.DB, batch *pebble.Batch) error) error {
	s.swap.RLock()
	defer s.swap.RUnlock()
	batch := s.db.NewBatch()
	defer func() { _ = batch.Close() }() // frees memory; it cannot fail
	if err := fill(s.db, batch); err != nil {
		s.suspect(err)
		return err
	}
	if err := batch.Commit(pebble.NoSync); err != nil {
		s.suspect(err)
		return fmt.Errorf("commit to the state store: %w", err)
	}
	s.unsaved.Store(true)
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
