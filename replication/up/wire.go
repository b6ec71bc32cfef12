// Package up carries what an edge has accepted to the centre: numbered operations, in
// order, each taken exactly once.
//
// An edge writes operations to its log in four lanes. A shipper packs the log into
// messages; a receiver at the centre takes a lane's messages in order, stores them and
// announces how far it came; only then does the edge free its log.
//
// Promised: the numbers of a lane have no gaps within an incarnation; nothing is freed at
// the edge before the centre has stored it; a message that comes twice, late or out of
// turn changes nothing. Not promised: any order between lanes, or between edges.
//
// This file is the wire format. It is the same on the edge's disk and in the stream, so
// that shipping copies bytes.
package up

import (
	"errors"
	"fmt"
)

// # Numbers
//
// Operations are numbered 1, 2, 3 … per edge, incarnation and lane. An incarnation is one
// life of an edge's process: a random id, and an ordinal that rises with every start. A
// restored or copied log so never reuses a number.
//
// # Block
//
// What one request contributes to one lane, split at about 256 KiB. Little endian; `str`
// is a uvarint length with bytes.
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
// Identifiers and names are decoded text (UTF-8, no NUL). Properties, payloads and bodies
// are the client's bytes, valid JSON, untouched.
//
// # Message
//
// One or more whole blocks of one incarnation and lane, in number order and without gaps,
// compressed together.
//
//	 0     3    4     5    6      8       10   12      16      24        32            48          52
//	+-----+----+-----+----+------+-------+----+-------+-------+---------+-------------+-----------+------------ ─ ─
//	| SKU |ver |lane | 0  | part | parts | 0  | count | first | ordinal | incarnation | raw length| zstd frame
//	|     | 1  | u8  |    | u16  | u16   |    | u32   | u64   | u64     | 16 bytes    | u32       |
//	+-----+----+-----+----+------+-------+----+-------+-------+---------+-------------+-----------+------------ ─ ─
//
// A message is at most 512 KiB. A block that does not fit into one travels alone, its
// frame cut into `parts` messages that follow each other; every part repeats the header.

const (
	wireVersion = 1

	// MaxMessageBytes bounds one message, header and compressed blocks together.
	MaxMessageBytes = 512 << 10
	// TargetBlockBytes is where a request's operations are split into blocks. One
	// operation is never split.
	TargetBlockBytes = 256 << 10
	// MaxInlineBytes is the largest payload that travels in a block; a larger one goes to
	// the blob store.
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

// Incarnation is one life of an edge's process. Ordinals order the lives of one edge; ids
// tell apart two lives that claim the same ordinal (a restored disk).
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
