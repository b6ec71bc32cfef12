package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"skerry/replication"
)

// Entry is a stored document.
type Entry struct {
	Position  replication.Position
	ChangedAt int64 // µs since 1970
	Body      []byte
}

// Snapshot is one consistent look at both lanes. It is valid inside Store.Read's
// function only.
type Snapshot struct {
	iter    *pebble.Iterator
	cursors [replication.Lanes]*cursor
}

// ErrNoState means that a lane has no state yet.
var ErrNoState = errors.New("this edge has no state yet")

// Read runs fn on a snapshot. It fails with ErrNoState while a lane has no state. What fn
// gets lies in fn's own memory and may be kept.
func (s *Store) Read(fn func(*Snapshot) error) error {
	s.swap.RLock()
	defer s.swap.RUnlock()
	err := s.read(fn)
	s.suspect(err)
	return err
}

func (s *Store) read(fn func(*Snapshot) error) error {
	iter, err := s.iterate()
	if err != nil {
		return err
	}
	defer func() { _ = iter.Close() }() // its errors were returned by its methods
	look := &Snapshot{iter: iter}
	for lane := range replication.Lanes {
		if look.cursors[lane], err = look.cursor(lane); err != nil {
			return err
		}
	}
	return fn(look)
}

// iterate reads what is synced. The iterator outlives the snapshot that it was made of.
func (s *Store) iterate() (*pebble.Iterator, error) {
	s.look.RLock()
	defer s.look.RUnlock()
	if s.synced == nil {
		return nil, ErrNoState
	}
	iter, err := s.synced.NewIter(&pebble.IterOptions{UseL6Filters: true})
	if err != nil {
		return nil, fmt.Errorf("read the state store: %w", err)
	}
	return iter, nil
}

func (v *Snapshot) cursor(lane replication.Lane) (*cursor, error) {
	value, ok, err := v.get(cursorKey(lane))
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, ErrNoState
	}
	return decodeCursor(value)
}

// get finds one key. A bloom filter answers for most keys that are not there.
func (v *Snapshot) get(key []byte) ([]byte, bool, error) {
	if !v.iter.SeekPrefixGE(key) || !bytes.Equal(v.iter.Key(), key) {
		return nil, false, v.iter.Error()
	}
	value, err := v.iter.ValueAndErr()
	return value, err == nil, err
}

// Get finds one document.
func (v *Snapshot) Get(subject replication.Subject) (Entry, bool, error) {
	lane := subject.Lane()
	value, ok, err := v.get(documentKey(lane, v.cursors[lane].generation, subject))
	if err != nil || !ok {
		return Entry{}, false, err
	}
	entry, err := decodeEntry(value)
	return entry, err == nil, err
}

// Scan calls fn for every document of a lane whose subject begins with prefix, in order
// of subject.
func (v *Snapshot) Scan(lane replication.Lane, prefix string, fn func(replication.Subject, Entry) error) error {
	head := generationKey('d', lane, v.cursors[lane].generation)
	from := append(bytes.Clone(head), prefix...)
	// Bounds keep the iterator from looking into the block behind the last document,
	// which may be another's and damaged.
	v.iter.SetBounds(from, behind(from))
	defer v.iter.SetBounds(nil, nil)
	for ok := v.iter.SeekGE(from); ok && bytes.HasPrefix(v.iter.Key(), from); ok = v.iter.Next() {
		value, err := v.iter.ValueAndErr()
		if err != nil {
			return err
		}
		entry, err := decodeEntry(value)
		if err != nil {
			return err
		}
		if err := fn(replication.Subject(v.iter.Key()[len(head):]), entry); err != nil {
			return err
		}
	}
	return v.iter.Error()
}

// behind is the first key after all that begin with a prefix. Keys here begin with
// a letter.
func behind(prefix []byte) []byte {
	b := bytes.Clone(prefix)
	for i := len(b) - 1; ; i-- {
		if b[i]++; b[i] != 0 {
			return b[:i+1]
		}
	}
}

// Positions are the highest positions of an environment and its project in one lane, none
// below the lane's floor.
func (v *Snapshot) Positions(lane replication.Lane, project, env string) (Positions, error) {
	var all Positions
	for i := range all {
		all[i] = v.cursors[lane].Floor
	}
	for _, scope := range []string{project, project + "." + env} {
		value, ok, err := v.get(append(generationKey('r', lane, v.cursors[lane].generation), scope...))
		if err != nil {
			return Positions{}, err
		}
		if !ok {
			continue
		}
		p, err := decodePositions(value)
		if err != nil {
			return Positions{}, err
		}
		all.merge(p)
	}
	return all, nil
}

// Position is how far the lane is in this snapshot.
func (v *Snapshot) Position(lane replication.Lane) replication.Position {
	return v.cursors[lane].Position
}

func decodeEntry(b []byte) (Entry, error) {
	if len(b) < 16 {
		return Entry{}, fmt.Errorf("document of %d bytes: %w", len(b), pebble.ErrCorruption)
	}
	return Entry{
		Position:  replication.Position(binary.BigEndian.Uint64(b)),
		ChangedAt: int64(binary.BigEndian.Uint64(b[8:])),
		Body:      bytes.Clone(b[16:]),
	}, nil
}
