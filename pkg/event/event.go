// Package event reads what clients send to track, people, alias and batch (supplement §3).
//
// It promises that a body is accepted exactly when it is one JSON text in UTF-8, nested
// at most 512 deep, whose members have the required shapes; that of duplicate keys the
// last wins; that properties come out as the very bytes that came in; and that memory
// stays bounded whatever the body's size, because a large payload is handed on in
// pieces. It does not store anything, know projects or keep time: the caller passes the
// time of receipt.
package event

import "time"

// Fault is what is wrong with a body, in the words of the specification.
type Fault string

func (f Fault) Error() string { return string(f) }

// The faults.
const (
	ErrBody         Fault = "Invalid body"           // no JSON, no object, too deep, operations no array
	ErrNoOperations Fault = "No operations provided" // operations absent or empty
	ErrUnknownType  Fault = "unknown operation type" // an operation that is no object or has no known type
	ErrTrack        Fault = "Invalid track payload"  // also an empty or too long event_name
	ErrPeople       Fault = "Invalid people payload"
	ErrAlias        Fault = "Invalid alias payload"
)

// Kind is the kind of an operation.
type Kind uint8

// The kinds of operations.
const (
	Track Kind = iota
	People
	Alias
)

// Fault is the error of a payload of this kind that does not have its shape.
func (k Kind) Fault() error {
	switch k {
	case Track:
		return ErrTrack
	case People:
		return ErrPeople
	case Alias:
		return ErrAlias
	}
	panic("BUG: no such kind of operation")
}

func parseKind(s []byte) (Kind, bool) {
	switch string(s) {
	case "track":
		return Track, true
	case "people":
		return People, true
	case "alias":
		return Alias, true
	}
	return 0, false
}

// Unstorable says why an accepted operation can only be kept in the dead letters.
type Unstorable uint8

// The reasons; 0 means that the operation can be stored.
const (
	NUL           Unstorable = 1 // a string holds \u0000
	LoneSurrogate Unstorable = 2 // a string holds half of a surrogate pair
	TooLong       Unstorable = 3 // a member beside the properties is over MaxMemberBytes
)

// Limits.
const (
	// MaxDepth is how deep a body may be nested, its outermost object counting as 1.
	MaxDepth = 512
	// MaxMemberBytes bounds anon_id and lib_version as sent, quotes included.
	MaxMemberBytes = 64 << 10
	// WindowBytes is how much of a streamed body is in memory at once. A payload that
	// does not fit is large.
	WindowBytes = 512 << 10

	maxEventName = 200 // characters
	maxInsertID  = 64  // characters
	maxAhead     = 24 * time.Hour
)

// Span is a range of bytes in a payload; Length 0 means absent.
type Span struct{ Offset, Length int64 }

// Operation is one accepted operation. Its slices are valid until the Sink's method
// returns. A nil slice of an optional member means that it was absent.
type Operation struct {
	Kind Kind
	// Unstorable is not 0 for an operation that belongs to the dead letters: then Payload
	// counts (and DistinctID, as far as it is text).
	Unstorable Unstorable

	EventName, DistinctID        []byte // decoded text
	AnonID, InsertID, LibVersion []byte
	AliasID                      []byte
	Timestamp                    int64  // µs since 1970; track and alias
	Properties                   []byte // raw JSON object
	DefaultProperties            []byte
	Payload                      []byte // raw JSON object, as sent

	// Large is true when the payload went to Sink.Large piece by piece. Then
	// Payload, Properties and DefaultProperties are nil and the spans tell where the
	// latter two lie in it.
	Large                    bool
	PropertiesAt, DefaultsAt Span
}

// Sink takes what a Parser reads. Nothing it was given counts before the Parser's
// method has returned without error. An error of a Sink ends the parsing and is
// returned as it is.
type Sink interface {
	// Operation takes the next accepted operation; garbage is filtered before.
	Operation(op *Operation) error
	// Large takes the next piece of a large payload; the Operation it belongs to follows
	// behind the last piece.
	Large(piece []byte) error
	// DropLarge forgets the pieces since the last Operation.
	DropLarge() error
	// Restart forgets all operations: `operations` came a second time, and the last wins.
	Restart() error
}

// Counts is what a body held. Accepted operations only, except Garbage.
type Counts struct{ Track, People, Alias, Garbage int }

// Accepted is how many operations were accepted.
func (c Counts) Accepted() int { return c.Track + c.People + c.Alias }
