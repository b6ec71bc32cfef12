package ingest

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"

	"skerry/replication/up"
	"skerry/writeplane/identity"
)

// row is one operation on its way into the store.
type row struct {
	up.Operation
	scope      identity.Scope
	number     uint64
	receivedAt int64  // µs
	canonical  string // not "": the identifier that distinct_id stands for
	fate       fate
	reason     string // of the dead
}

// fate is what becomes of an operation.
type fate uint8

const (
	stored fate = iota
	duplicate
	erased
	dead
)

// load is what one transaction takes: the operations of some batches that were not
// taken before, and what they have in common.
type load struct {
	edge   string
	lane   up.Lane
	in     up.Incarnation
	rows   []row
	scopes []identity.Scope // each once
	oldest time.Time        // earliest receipt
}

// read decodes the operations of a batch that wanted picks by number.
func (l *load) read(b *up.Batch, wanted func(number uint64) bool) error {
	blocks, err := b.Blocks()
	if err != nil {
		return err
	}
	news := make([]int, len(blocks)) // operations of each block; noted only when the whole batch can be read
	for i := range blocks {
		block := &blocks[i]
		scope := identity.Scope{Project: block.Project, Environment: block.Environment}
		before := len(l.rows)
		ops := block.Operations()
		for {
			l.rows = append(l.rows, row{})
			r := &l.rows[len(l.rows)-1]
			if !ops.Next(&r.Operation) {
				l.rows = l.rows[:len(l.rows)-1]
				break
			}
			if !wanted(ops.Number()) {
				l.rows = l.rows[:len(l.rows)-1]
				continue
			}
			r.scope, r.number, r.receivedAt = scope, ops.Number(), block.ReceivedAt
		}
		if err := ops.Err(); err != nil {
			return err
		}
		news[i] = len(l.rows) - before
	}
	for i := range blocks {
		l.note(identity.Scope{Project: blocks[i].Project, Environment: blocks[i].Environment}, blocks[i].ReceivedAt, news[i])
	}
	return nil
}

func (l *load) note(scope identity.Scope, receivedAt int64, n int) {
	if n == 0 {
		return
	}
	if len(l.scopes) == 0 || l.scopes[len(l.scopes)-1] != scope && !slices.Contains(l.scopes, scope) {
		l.scopes = append(l.scopes, scope)
	}
	at := time.UnixMicro(receivedAt).UTC()
	if l.oldest.IsZero() || at.Before(l.oldest) {
		l.oldest = at
	}
}

// ids are the identifiers that the operations name.
func (l *load) ids() (ids []identity.ID) {
	for i := range l.rows {
		r := &l.rows[i]
		ids = append(ids, identity.ID{Scope: r.scope, Text: string(r.DistinctID)})
		if l.lane == up.LaneAlias {
			ids = append(ids, identity.ID{Scope: r.scope, Text: string(r.AliasID)})
		}
	}
	return ids
}

// pick returns the rows of one fate.
func (l *load) pick(f fate) []*row {
	var picked []*row
	for i := range l.rows {
		if l.rows[i].fate == f {
			picked = append(picked, &l.rows[i])
		}
	}
	return picked
}

func (l *load) counts() (counts [4]int64) {
	for i := range l.rows {
		counts[l.rows[i].fate]++
	}
	return counts
}

func (r *row) die(reason string) { r.fate, r.reason = dead, reason }

func (r *row) received() time.Time { return time.UnixMicro(r.receivedAt).UTC() }

// eventID makes an event's id: a UUIDv7 of the time of receipt whose other bits follow
// from what the event is, so that the same event has the same id however often it is
// stored, replayed or compared.
func eventID(edge string, in up.Incarnation, lane up.Lane, number uint64, receivedAt int64) (id uuid.UUID) {
	var key [100]byte
	b := append(key[:0], edge...)
	b = append(b, 0, byte(lane))
	b = append(b, in.ID[:]...)
	b = binary.BigEndian.AppendUint64(b, number)
	sum := sha256.Sum256(b)
	copy(id[:], sum[:])
	ms := uint64(max(receivedAt/1000, 0))
	id[0], id[1], id[2], id[3], id[4], id[5] = byte(ms>>40), byte(ms>>32), byte(ms>>24), byte(ms>>16), byte(ms>>8), byte(ms)
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return id
}

// payload is the operation's payload as a client would send it: as it was sent where
// that is known, else made of its members again.
func (r *row) payload(lane up.Lane) []byte {
	if r.Raw != nil {
		return r.Raw
	}
	var b bytes.Buffer
	b.WriteByte('{')
	member := func(name string, value []byte) {
		if value == nil {
			return
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		b.WriteString(`"` + name + `":`)
		b.Write(value)
	}
	text := func(name string, value []byte) {
		if value != nil {
			quoted, _ := json.Marshal(string(value)) // a string always marshals
			member(name, quoted)
		}
	}
	at := func(name string) {
		quoted, _ := json.Marshal(time.UnixMicro(r.Timestamp).UTC().Format(time.RFC3339Nano))
		member(name, quoted)
	}
	switch lane {
	case up.LaneEvent:
		text("event_name", r.EventName)
		text("distinct_id", r.DistinctID)
		text("anon_id", r.AnonID)
		text("insert_id", r.InsertID)
		text("lib_version", r.LibVersion)
		at("timestamp")
		member("properties", r.Properties)
		member("default_properties", r.DefaultProperties)
	case up.LanePeople:
		text("distinct_id", r.DistinctID)
		member("properties", r.Properties)
	case up.LaneAlias:
		text("alias_id", r.AliasID)
		text("distinct_id", r.DistinctID)
		at("timestamp")
	}
	b.WriteByte('}')
	return b.Bytes()
}
