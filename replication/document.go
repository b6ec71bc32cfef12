package replication

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
)

// Epoch identifies one continuous history of a lane. Positions of different epochs are
// not to be compared. It is a UUID; the zero value means "none yet".
type Epoch [16]byte

// String prints the UUID's usual form.
func (e Epoch) String() string {
	h := hex.EncodeToString(e[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// TokenLen is a Token's length in bytes.
const TokenLen = 16

// Token identifies one transaction by random bytes. A position that carries another token
// than the database's commit at that position belongs to a history which the database no
// longer has.
type Token [TokenLen]byte

// Document is what an edge must know about one thing.
type Document struct {
	Lane     Lane
	Subject  Subject
	Position Position
	TxFirst  Position // first position of this transaction in this lane
	TxLast   Position // last position of this transaction in this lane
	// Through is the highest position in the lane when the publisher read this document.
	// Positions missing before this one (their documents have changed again) were
	// superseded at or below it, so a reader who misses some has whole transactions again
	// once it has read that far. The database does not keep it; the publisher sets it.
	Through   Position
	Commit    Token
	Epoch     Epoch
	ChangedAt int64  // when, in microseconds since 1970
	Body      []byte // JSON of a type in pkg/state; nil is a tombstone: the thing is gone
}

// Tombstone tells whether the document says that its thing is gone.
func (d *Document) Tombstone() bool { return d.Body == nil }

// Marker is the body of a lane's KindEpoch document. It is published last when a
// stream is filled, so whoever has read it (and everything before it) has the lane's
// whole state.
type Marker struct {
	Epoch string `json:"epoch"`
	// Floor is the highest position whose tombstone has been purged. A reader whose own
	// position is lower may have missed a deletion and takes everything anew; revisions
	// are never below it, on any edge.
	Floor Position `json:"floor"`
}

// ParseMarker reads a marker's body.
func ParseMarker(body []byte) (Marker, error) {
	var m Marker
	if err := json.Unmarshal(body, &m); err != nil {
		return Marker{}, fmt.Errorf("parse marker: %w", err)
	}
	return m, nil
}

// The envelope, as it lies in a stream's message and in the edge's store. Integers are
// big-endian.
//
//	offset  size
//	     0     1  version, 1
//	     1     1  lane
//	     2     1  flags: bit 0 = tombstone (then the body is empty), all others 0
//	     3     1  0
//	     4     8  position
//	    12     8  first position of the transaction
//	    20     8  last position of the transaction
//	    28     8  through
//	    36    16  token of the transaction
//	    52    16  epoch
//	    68     8  changed at, µs
//	    76     2  length of the subject, n
//	    78     n  subject
//	  78+n     …  body
//	   end     4  CRC-32C of everything before
const (
	envelopeVersion   = 1
	envelopeHead      = 78
	envelopeTail      = 4
	envelopeTombstone = 1
)

// ErrEnvelope means that bytes are not an envelope which this version wrote.
var ErrEnvelope = errors.New("not a document envelope")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Append appends the document's envelope to b. The document must be valid.
func (d *Document) Append(b []byte) []byte {
	start := len(b)
	var flags byte
	if d.Tombstone() {
		flags = envelopeTombstone
	}
	b = append(b, envelopeVersion, byte(d.Lane), flags, 0)
	b = binary.BigEndian.AppendUint64(b, uint64(d.Position))
	b = binary.BigEndian.AppendUint64(b, uint64(d.TxFirst))
	b = binary.BigEndian.AppendUint64(b, uint64(d.TxLast))
	b = binary.BigEndian.AppendUint64(b, uint64(d.Through))
	b = append(b, d.Commit[:]...)
	b = append(b, d.Epoch[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(d.ChangedAt))
	b = binary.BigEndian.AppendUint16(b, uint16(len(d.Subject)))
	b = append(b, d.Subject...)
	b = append(b, d.Body...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// Validate checks what Append and Decode rely on.
func (d *Document) Validate() error {
	err := d.Subject.Valid()
	switch {
	case err != nil:
		return err
	case d.Subject.Lane() != d.Lane:
		return fmt.Errorf("document %s: lane %s", d.Subject, d.Lane)
	case d.Position == 0 || d.TxFirst == 0 || d.Position < d.TxFirst || d.Position > d.TxLast:
		return fmt.Errorf("document %s: position %d outside its transaction %d..%d", d.Subject, d.Position, d.TxFirst, d.TxLast)
	case len(d.Body) > MaxBody:
		return fmt.Errorf("document %s: body of %d bytes", d.Subject, len(d.Body))
	case d.Body != nil && len(d.Body) == 0:
		return fmt.Errorf("document %s: empty body", d.Subject)
	}
	return nil
}

// Decode reads an envelope. The document's body is a part of b, not a copy.
func Decode(b []byte) (Document, error) {
	if len(b) < envelopeHead+envelopeTail {
		return Document{}, fmt.Errorf("%w: %d bytes", ErrEnvelope, len(b))
	}
	if b[0] != envelopeVersion || b[2] > envelopeTombstone || b[3] != 0 {
		return Document{}, fmt.Errorf("%w: version %d, flags %d", ErrEnvelope, b[0], b[2])
	}
	end := len(b) - envelopeTail
	if crc32.Checksum(b[:end], castagnoli) != binary.BigEndian.Uint32(b[end:]) {
		return Document{}, fmt.Errorf("%w: checksum", ErrEnvelope)
	}
	body := envelopeHead + int(binary.BigEndian.Uint16(b[76:]))
	if body > end {
		return Document{}, fmt.Errorf("%w: subject past the end", ErrEnvelope)
	}
	d := Document{
		Lane:      Lane(b[1]),
		Position:  Position(binary.BigEndian.Uint64(b[4:])),
		TxFirst:   Position(binary.BigEndian.Uint64(b[12:])),
		TxLast:    Position(binary.BigEndian.Uint64(b[20:])),
		Through:   Position(binary.BigEndian.Uint64(b[28:])),
		Commit:    Token(b[36:52]),
		Epoch:     Epoch(b[52:68]),
		ChangedAt: int64(binary.BigEndian.Uint64(b[68:])),
		Subject:   Subject(b[envelopeHead:body]),
	}
	if b[2]&envelopeTombstone == 0 {
		d.Body = b[body:end:end]
	} else if body != end {
		return Document{}, fmt.Errorf("%w: tombstone with a body", ErrEnvelope)
	}
	if err := d.Validate(); err != nil {
		return Document{}, fmt.Errorf("%w: %w", ErrEnvelope, err)
	}
	return d, nil
}
