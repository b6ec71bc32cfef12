package up

import (
	"encoding/binary"
)

// Span is a range of bytes in a blob. A length of 0 means that the member is absent.
type Span struct{ Offset, Length int64 }

// Reference is where an operation's payload lies when it is too large to travel in a block.
type Reference struct {
	Key                           string
	Size                          int64
	SHA256                        [32]byte
	Properties, DefaultProperties Span
}

// Operation is one decoded operation of any lane; fields of other lanes are zero. The
// slices point into the block they were decoded from. A nil slice of an optional member
// means that it was absent.
type Operation struct {
	// Unstorable is not 0 when the operation belongs to the dead letters: then only
	// DistinctID (where the lane has one), ID (crash) and Raw, the payload as sent, or
	// Ref are set.
	Unstorable Reason
	// Ref is not nil when the payload is in the blob store: then Properties,
	// DefaultProperties and Raw are nil.
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
	// The size goes in front as a uvarint whose length depends on it: room for the usual
	// two bytes, moved when wrong.
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

// DecodeOperation decodes the first operation in src into op and returns what follows it.
// It allocates only for a reference; op's slices point into src.
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
