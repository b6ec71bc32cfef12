package store

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"skerry/replication"
)

// Part is a group of documents with a revision of its own.
type Part uint8

// The parts, in the order in which they are stored.
const (
	Flags   Part = iota // with halts
	Items               // config items
	Cohorts             // with their members
	Surveys
	Settings // the project's settings
	Parts    // how many there are
)

// Positions are the highest positions of each part in one lane, tombstones included: they
// outlive the documents, so a revision does not fall when its newest document is a
// deletion.
//
// They are stored per scope, one record of Parts big-endian integers: scope
// "<project>" has the parts that belong to the whole project, scope
// "<project>.<environment>" the others.
type Positions [Parts]replication.Position

func (p *Positions) raise(part Part, to replication.Position) { p[part] = max(p[part], to) }

// merge raises every part to o's.
func (p *Positions) merge(o Positions) {
	for i := range p {
		p[i] = max(p[i], o[i])
	}
}

// scopeOf names the record and the part that a document counts in; ok is false for
// documents that belong to no revision.
func scopeOf(p replication.Parts) (scope string, part Part, ok bool) {
	switch p.Kind {
	case replication.KindFlag, replication.KindHalt:
		return p.Project + "." + p.Env, Flags, true
	case replication.KindConfig:
		return p.Project + "." + p.Env, Items, true
	case replication.KindCohort, replication.KindCohortShard:
		return p.Project, Cohorts, true
	case replication.KindSurvey:
		return p.Project, Surveys, true
	case replication.KindProject:
		return p.Project, Settings, true
	}
	return "", 0, false
}

// revisions are the records that a batch raises, by key.
type revisions map[string]*Positions

// raise counts a document in, reading its record first when the batch has not
// touched it yet.
func (rs revisions) raise(r pebble.Reader, lane replication.Lane, generation uint32, d *replication.Document) error {
	parts, err := d.Subject.Parse()
	if err != nil {
		return nil // of a newer version's kind
	}
	scope, part, ok := scopeOf(parts)
	if !ok {
		return nil
	}
	key := string(generationKey('r', lane, generation)) + scope
	record, ok := rs[key]
	if !ok {
		read, err := readPositions(r, []byte(key))
		if err != nil {
			return err
		}
		record = &read
		rs[key] = record
	}
	record.raise(part, d.Position)
	return nil
}

func (rs revisions) write(batch *pebble.Batch) error {
	for key, record := range rs {
		if err := batch.Set([]byte(key), record.encode(), nil); err != nil {
			return fmt.Errorf("store revisions: %w", err)
		}
	}
	return nil
}

func readPositions(r pebble.Reader, key []byte) (Positions, error) {
	b, closer, err := r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return Positions{}, nil
	}
	if err != nil {
		return Positions{}, fmt.Errorf("read revisions: %w", err)
	}
	defer func() { _ = closer.Close() }() // frees a block; it cannot fail
	return decodePositions(b)
}

func (p *Positions) encode() []byte {
	b := make([]byte, 0, 8*Parts)
	for _, v := range p {
		b = binary.BigEndian.AppendUint64(b, uint64(v))
	}
	return b
}

func decodePositions(b []byte) (p Positions, err error) {
	if len(b) != 8*int(Parts) {
		return p, fmt.Errorf("revisions of %d bytes: %w", len(b), pebble.ErrCorruption)
	}
	for i := range p {
		p[i] = replication.Position(binary.BigEndian.Uint64(b[8*i:]))
	}
	return p, nil
}
