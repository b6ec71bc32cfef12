// Package up carries what an edge has accepted to the centre: numbered operations, in order, each taken exactly once.
//
// An edge writes operations to its log in four lanes. A shipper packs the log into messages; a receiver at the centre
// takes a lane's messages in order, stores them and announces how far it came; only then does the edge free its log.
//
// Promised: the numbers of a lane have no gaps within an incarnation; nothing is freed at the edge before the centre
// has stored it; a message that comes twice, late or out of turn changes nothing. Not promised: any order between
// lanes, or between edges.
//
// This file is the wire format. It is the same on the edge's disk and in the stream, so that shipping copies bytes.
package up

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// # Numbers
//
// Operations are numbered 1, 2, 3 … per edge, incarnation and lane. An incarnation is one life of an edge's process: a
// random id, and an ordinal that rises with every start. A restored or copied log so never reuses a number.
//
// # Block
//
// What one request contributes to one lane, split at about 256 KiB. Little endian; `str` is a uvarint length with bytes.
//
//	 0        4    5    6    7        8        16     20           28         44      45         45+r
//	+--------+----+----+----+--------+--------+------+------------+----------+-------+----------+------------- ─ ─
//	| length |ver |lane|env | flags  | first  |count | received µs| project  | len r |request id| operations
//	|  u32   | 1  | u8 | u8 |  u8    |  u64   | u32  |    i64     | 16 bytes |  u8   | r bytes  |
//	+--------+----+----+----+--------+--------+------+------------+----------+-------+----------+------------- ─ ─
//	length counts everything after itself. The block covers the numbers [first, first+count).
//
// # Operation
//
//	+---------+-------+--------------------------------------------------------------------------------- ─ ─
//	| size    | flags | fields of the lane
//	| uvarint | u8    |
//	+---------+-------+--------------------------------------------------------------------------------- ─ ─
//	size counts everything after itself.
//
//	flags  1 unstorable   the operation goes to the dead letters; `reason` says why
//	       2 reference    the bytes are in the blob store
//
//	neither      event   has u8, str event_name, str distinct_id, [anon_id], [insert_id], [lib_version],
//	                     varint timestamp µs, [properties], [default_properties]
//	             people  has u8, str distinct_id, [properties]
//	             alias   str alias_id, str distinct_id, varint timestamp µs
//	             crash   16 bytes id, str body
//	             [x] is a str that is there when its bit of `has` is set:
//	                     1 anon_id, 2 insert_id, 4 lib_version, 8 properties, 16 default_properties
//	unstorable   u8 reason, 16 bytes id (crash; else zero), str distinct_id, str payload as sent
//	reference    the fields above with the large ones left out ([properties], [default_properties], body), then
//	             str blob key, uvarint size, 32 bytes SHA-256, and where in the blob they lie:
//	             uvarint offset, uvarint length of properties; the same of default_properties (length 0: absent).
//	             The blob holds the payload as sent (of a crash: the body).
//	both         u8 reason, 16 bytes id, str distinct_id, str blob key, uvarint size, 32 bytes SHA-256
//
// Identifiers and names are decoded text (UTF-8, no NUL). Properties, payloads and bodies are the client's bytes,
// valid JSON, untouched.
//
// # Message
//
// One or more whole blocks of one incarnation and lane, in number order and without gaps, compressed together.
//
//	 0     3    4     5    6      8       10   12      16      24        32            48          52
//	+-----+----+-----+----+------+-------+----+-------+-------+---------+-------------+-----------+------------ ─ ─
//	| SKU |ver |lane | 0  | part | parts | 0  | count | first | ordinal | incarnation | raw length| zstd frame
//	|     | 1  | u8  |    | u16  | u16   |    | u32   | u64   | u64     | 16 bytes    | u32       |
//	+-----+----+-----+----+------+-------+----+-------+-------+---------+-------------+-----------+------------ ─ ─
//
// A message is at most 512 KiB. A block that does not fit into one travels alone, its frame cut into `parts` messages
// that follow each other; every part repeats the header.

const (
	wireVersion = 1

	// MaxMessageBytes bounds one message, header and compressed blocks together.
	MaxMessageBytes = 512 << 10
	// TargetBlockBytes is where a request's operations are split into blocks. One operation is never split.
	TargetBlockBytes = 256 << 10
	// MaxInlineBytes is the largest payload that travels in a block; a larger one goes to the blob store.
	MaxInlineBytes = 16 << 20
	// MaxRawBytes bounds what a message may decompress to.
	MaxRawBytes = MaxInlineBytes + 1<<20
	// MaxRequestIDBytes bounds the request id of a block.
	MaxRequestIDBytes = 128

	blockHeaderBytes   = 45
	messageHeaderBytes = 52
)

// ErrCorrupt reports bytes that no encoder of this package wrote.
var ErrCorrupt = errors.New("corrupt ingest data")

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

// Lane is one of the independent, ordered queues from an edge to the centre.
type Lane uint8

// The lanes. Their numbers are part of the wire format.
const (
	LaneAlias  Lane = 1
	LanePeople Lane = 2
	LaneEvent  Lane = 3
	LaneCrash  Lane = 4
)

// Lanes lists every lane, in the order in which a batch is processed.
var Lanes = [...]Lane{LaneAlias, LanePeople, LaneEvent, LaneCrash}

func (l Lane) String() string {
	switch l {
	case LaneAlias:
		return "alias"
	case LanePeople:
		return "people"
	case LaneEvent:
		return "event"
	case LaneCrash:
		return "crash"
	}
	return fmt.Sprintf("lane(%d)", uint8(l))
}

// Valid reports whether l is one of Lanes.
func (l Lane) Valid() bool { return l >= LaneAlias && l <= LaneCrash }

// ParseLane is the inverse of String.
func ParseLane(s string) (Lane, bool) {
	for _, l := range Lanes {
		if l.String() == s {
			return l, true
		}
	}
	return 0, false
}

// Environment is `live` or `test`, as one byte.
type Environment uint8

// The environments. Their numbers are part of the wire format.
const (
	Live Environment = 1
	Test Environment = 2
)

func (e Environment) String() string {
	switch e {
	case Live:
		return "live"
	case Test:
		return "test"
	}
	return fmt.Sprintf("environment(%d)", uint8(e))
}

// ParseEnvironment is the inverse of String.
func ParseEnvironment(s string) (Environment, bool) {
	switch s {
	case "live":
		return Live, true
	case "test":
		return Test, true
	}
	return 0, false
}

// Incarnation is one life of an edge's process. Ordinals order the lives of one edge; ids tell apart two lives that
// claim the same ordinal (a restored disk).
type Incarnation struct {
	ID      [16]byte
	Ordinal uint64
}

func (i Incarnation) String() string { return fmt.Sprintf("%d-%x", i.Ordinal, i.ID) }

// Reason says why an operation can only go to the dead letters.
type Reason uint8

// The reasons. Their numbers are part of the wire format.
const (
	ReasonNUL       Reason = 1 // a string holds \u0000, which PostgreSQL's text cannot
	ReasonSurrogate Reason = 2 // a string holds half of a surrogate pair: no Unicode text
	ReasonTooLong   Reason = 3 // a member that is kept beside the properties is longer than a row should hold
)

func (r Reason) String() string {
	switch r {
	case ReasonNUL:
		return "nul_character"
	case ReasonSurrogate:
		return "lone_surrogate"
	case ReasonTooLong:
		return "member_too_long"
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}

// Span is a range of bytes in a blob. A length of 0 means that the member is absent.
type Span struct{ Offset, Length int64 }

// Reference is where an operation's payload lies when it is too large to travel in a block.
type Reference struct {
	Key                           string
	Size                          int64
	SHA256                        [32]byte
	Properties, DefaultProperties Span
}

// Operation is one decoded operation of any lane; fields of other lanes are zero. The slices point into the block
// they were decoded from. A nil slice of an optional member means that it was absent.
type Operation struct {
	// Unstorable is not 0 when the operation belongs to the dead letters: then only DistinctID (where the lane has
	// one), ID (crash) and Raw, the payload as sent, or Ref are set.
	Unstorable Reason
	// Ref is not nil when the payload is in the blob store: then Properties, DefaultProperties and Raw are nil.
	Ref *Reference

	EventName, DistinctID        []byte
	AnonID, InsertID, LibVersion []byte
	AliasID                      []byte
	Timestamp                    int64    // µs since 1970; event and alias
	ID                           [16]byte // crash
	Properties                   []byte   // raw JSON object
	DefaultProperties            []byte   // raw JSON object
	Raw                          []byte   // crash: the body; unstorable: the payload; raw JSON object
}

const (
	flagUnstorable = 1
	flagReference  = 2

	hasAnonID            = 1
	hasInsertID          = 2
	hasLibVersion        = 4
	hasProperties        = 8
	hasDefaultProperties = 16
)

// AppendOperation encodes op behind dst.
func AppendOperation(dst []byte, lane Lane, op *Operation) []byte {
	start := len(dst)
	// The size goes in front as a uvarint whose length depends on it: room for the usual two bytes, moved when wrong.
	dst = append(dst, 0, 0)
	dst = appendFields(dst, lane, op)
	size := len(dst) - start - 2
	n := uvarintLen(uint64(size))
	if n != 2 {
		dst = append(dst, make([]byte, max(n-2, 0))...)
		copy(dst[start+n:], dst[start+2:start+2+size])
		dst = dst[:start+n+size]
	}
	binary.PutUvarint(dst[start:start+n], uint64(size))
	return dst
}

func appendFields(dst []byte, lane Lane, op *Operation) []byte {
	var flags byte
	if op.Unstorable != 0 {
		flags |= flagUnstorable
	}
	if op.Ref != nil {
		flags |= flagReference
	}
	dst = append(dst, flags)
	if op.Unstorable != 0 {
		dst = append(dst, byte(op.Unstorable))
		dst = append(dst, op.ID[:]...)
		dst = appendStr(dst, op.DistinctID)
		if op.Ref == nil {
			return appendStr(dst, op.Raw)
		}
		return appendBlob(dst, op.Ref)
	}
	dst = appendLaneFields(dst, lane, op)
	if op.Ref != nil {
		dst = appendBlob(dst, op.Ref)
		for _, s := range [...]Span{op.Ref.Properties, op.Ref.DefaultProperties} {
			dst = binary.AppendUvarint(dst, uint64(s.Offset))
			dst = binary.AppendUvarint(dst, uint64(s.Length))
		}
	}
	return dst
}

func appendLaneFields(dst []byte, lane Lane, op *Operation) []byte {
	switch lane {
	case LaneEvent:
		dst = append(dst, op.has())
		dst = appendStr(dst, op.EventName)
		dst = appendStr(dst, op.DistinctID)
		dst = appendOptional(dst, op.AnonID)
		dst = appendOptional(dst, op.InsertID)
		dst = appendOptional(dst, op.LibVersion)
		dst = binary.AppendVarint(dst, op.Timestamp)
		dst = appendOptional(dst, op.Properties)
		return appendOptional(dst, op.DefaultProperties)
	case LanePeople:
		dst = append(dst, op.has()&hasProperties)
		dst = appendStr(dst, op.DistinctID)
		return appendOptional(dst, op.Properties)
	case LaneAlias:
		dst = appendStr(dst, op.AliasID)
		dst = appendStr(dst, op.DistinctID)
		return binary.AppendVarint(dst, op.Timestamp)
	case LaneCrash:
		dst = append(dst, op.ID[:]...)
		if op.Ref != nil {
			return dst
		}
		return appendStr(dst, op.Raw)
	}
	panic("BUG: no such lane: " + lane.String())
}

func (op *Operation) has() (b byte) {
	for _, m := range [...]struct {
		bit  byte
		text []byte
	}{
		{hasAnonID, op.AnonID}, {hasInsertID, op.InsertID}, {hasLibVersion, op.LibVersion},
		{hasProperties, op.Properties}, {hasDefaultProperties, op.DefaultProperties},
	} {
		if m.text != nil {
			b |= m.bit
		}
	}
	return b
}

func appendBlob(dst []byte, ref *Reference) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(ref.Key)))
	dst = append(dst, ref.Key...)
	dst = binary.AppendUvarint(dst, uint64(ref.Size))
	return append(dst, ref.SHA256[:]...)
}

func appendStr(dst, s []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

func appendOptional(dst, s []byte) []byte {
	if s == nil {
		return dst
	}
	return appendStr(dst, s)
}

func uvarintLen(v uint64) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}

// DecodeOperation decodes the first operation in src into op and returns what follows it. It allocates only for a
// reference; op's slices point into src.
func DecodeOperation(src []byte, lane Lane, op *Operation) (rest []byte, err error) {
	*op = Operation{}
	r := fields{b: src}
	body := r.str()
	if r.bad {
		return nil, corrupt("operation cut off")
	}
	rest = r.b
	r = fields{b: body}
	flags := r.byte()
	switch {
	case flags&^(flagUnstorable|flagReference) != 0:
		r.bad = true
	case flags&flagUnstorable != 0:
		r.unstorable(op, flags&flagReference != 0)
	default:
		r.lane(lane, op, flags&flagReference != 0)
	}
	if r.bad || len(r.b) != 0 {
		return nil, corrupt("malformed %s operation", lane)
	}
	return rest, nil
}

// fields takes values off the front of b; past the end it sets bad and yields zeros.
type fields struct {
	b   []byte
	bad bool
}

func (r *fields) unstorable(op *Operation, ref bool) {
	op.Unstorable = Reason(r.byte())
	r.bad = r.bad || op.Unstorable == 0
	copy(op.ID[:], r.take(16))
	op.DistinctID = r.str()
	if ref {
		op.Ref = r.blob()
		return
	}
	op.Raw = r.str()
}

func (r *fields) lane(lane Lane, op *Operation, ref bool) {
	switch lane {
	case LaneEvent:
		has := r.byte()
		r.bad = r.bad || has >= 2*hasDefaultProperties
		op.EventName, op.DistinctID = r.str(), r.str()
		op.AnonID = r.optional(has & hasAnonID)
		op.InsertID = r.optional(has & hasInsertID)
		op.LibVersion = r.optional(has & hasLibVersion)
		op.Timestamp = r.varint()
		op.Properties = r.optional(has & hasProperties)
		op.DefaultProperties = r.optional(has & hasDefaultProperties)
	case LanePeople:
		has := r.byte()
		r.bad = r.bad || has&^hasProperties != 0
		op.DistinctID = r.str()
		op.Properties = r.optional(has)
	case LaneAlias:
		op.AliasID, op.DistinctID = r.str(), r.str()
		op.Timestamp = r.varint()
	case LaneCrash:
		copy(op.ID[:], r.take(16))
		if !ref {
			op.Raw = r.str()
		}
	default:
		r.bad = true
	}
	if ref {
		op.Ref = r.blob()
		op.Ref.Properties, op.Ref.DefaultProperties = r.span(op.Ref.Size), r.span(op.Ref.Size)
	}
}

func (r *fields) blob() *Reference {
	ref := &Reference{Key: string(r.str()), Size: int64(r.uvarint())}
	copy(ref.SHA256[:], r.take(32))
	r.bad = r.bad || ref.Size < 0
	return ref
}

func (r *fields) span(size int64) Span {
	s := Span{Offset: int64(r.uvarint()), Length: int64(r.uvarint())}
	r.bad = r.bad || s.Offset < 0 || s.Length < 0 || s.Offset > size || s.Length > size-s.Offset
	return s
}

func (r *fields) optional(present byte) []byte {
	if present == 0 {
		return nil
	}
	return r.str()
}

func (r *fields) str() []byte {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.bad = true
		return nil
	}
	return r.take(int(n))
}

// take never returns nil for a value that is there, so that nil can mean absence.
func (r *fields) take(n int) []byte {
	if n > len(r.b) {
		r.bad = true
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func (r *fields) byte() byte {
	if v := r.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (r *fields) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *fields) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}
