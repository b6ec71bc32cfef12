package decide

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"unsafe"

	"github.com/twmb/murmur3"
)

// Context is one user at one moment: what decisions are made from. It is meant to be
// reused (Reset) and is not safe for several goroutines. It keeps pointing into the bytes
// it was filled from; they must not change until the next Reset.
type Context struct {
	distinctID []byte
	anonID     []byte // empty: none
	session    int64  // -1: unknown
	props      []prop // in order of key, each key once
	in         reader
	scratch    []byte // canonical form and compacted values

	cohorts *CohortSet
	facts   []membership // by index in cohorts
	unsure  bool         // one of facts is not known
}

// prop is one attribute.
type prop struct {
	key  []byte
	text []byte // string: decoded; number and literals: as written; the rest: JSON without blanks
	kind propKind
}

type propKind uint8

const (
	propNull propKind = iota
	propBool
	propNumber
	propString
	propOther // array or object: no predicate matches it and no unit is made of it
)

// What can be wrong with a context. Each endpoint words it.
var (
	ErrSyntax     = errors.New("not a JSON object")
	ErrDistinctID = errors.New("no distinct id")
	ErrAnonID     = errors.New("anon_id is not a string")
	ErrSession    = errors.New("session_count is not a whole number from 0")
	ErrProps      = errors.New("props is not a JSON object")
	ErrContext    = errors.New("context is not an object, or targetingKey not a string")
)

// Reset forgets everything but its memory. Unusually large memory is let go, so that one
// huge request does not stay.
func (c *Context) Reset() {
	const keep = 64 << 10
	c.distinctID, c.anonID, c.session = nil, nil, -1
	if cap(c.props) > 1024 {
		c.props = nil
	}
	clear(c.props) // the bytes they point into are not ours
	c.props = c.props[:0]
	if cap(c.scratch) > keep {
		c.scratch = nil
	}
	if cap(c.in.arena) > keep {
		c.in.arena = nil
	}
	c.in = reader{arena: c.in.arena[:0]}
	c.cohorts, c.facts, c.unsure = nil, c.facts[:0], false
}

// DistinctID is the user's id.
func (c *Context) DistinctID() []byte { return c.distinctID }

// SetDistinctID sets the user's id. An empty one is ErrDistinctID.
func (c *Context) SetDistinctID(id []byte) error {
	if len(id) == 0 {
		return ErrDistinctID
	}
	c.distinctID = id
	return nil
}

// SetAnonID sets the anonymous id; empty means none.
func (c *Context) SetAnonID(id []byte) { c.anonID = id }

func byKey(a, b prop) int { return bytes.Compare(a.key, b.key) }

// arrange sorts the properties; of equal keys the last one stays.
func (c *Context) arrange() {
	if len(c.props) < 2 {
		return
	}
	slices.SortStableFunc(c.props, byKey)
	n := 0
	for i := range c.props {
		if i+1 < len(c.props) && bytes.Equal(c.props[i].key, c.props[i+1].key) {
			continue
		}
		c.props[n] = c.props[i]
		n++
	}
	c.props = c.props[:n]
}

// prop finds a property. Contexts are small: a scan beats a search up to about eight.
func (c *Context) prop(key string) *prop {
	if len(c.props) <= 8 {
		for i := range c.props {
			if string(c.props[i].key) == key {
				return &c.props[i]
			}
		}
		return nil
	}
	lo, hi := 0, len(c.props)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if string(c.props[mid].key) < key {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(c.props) && string(c.props[lo].key) == key {
		return &c.props[lo]
	}
	return nil
}

// PropIs reports whether the property is the text: a string that equals it, or a number
// or boolean that is written so.
func (c *Context) PropIs(key, value string) bool {
	p := c.prop(key)
	return p != nil && p.kind != propNull && p.kind != propOther && string(p.text) == value
}

// SessionAtLeast reports whether the session is known and the nth or later.
func (c *Context) SessionAtLeast(n int64) bool { return c.session >= 0 && c.session >= n }

// SawEvent is false: events of the session are known to the client only.
func (c *Context) SawEvent(string) bool { return false }

// SawScreen is false: screens of the session are known to the client only.
func (c *Context) SawScreen(string) bool { return false }

// unit is what a rollout puts into buckets; empty: the context has none.
func (c *Context) unit(by unitKind, key string) []byte {
	switch by {
	case unitDistinctID:
		return c.distinctID
	case unitAnonID:
		if len(c.anonID) > 0 {
			return c.anonID
		}
		return c.distinctID
	}
	if p := c.prop(key); p != nil && p.kind != propNull && p.kind != propOther {
		return p.text
	}
	return nil
}

// Digest is a 128-bit hash of everything that a decision can depend on, in a canonical
// form: the order of properties, white space and the way strings are escaped make no
// difference. It is the same on every machine; the package's vectors keep it from
// changing unnoticed, for it is part of entity tags.
func (c *Context) Digest() [16]byte {
	start := len(c.scratch) // below lie values of properties
	b := c.scratch
	b = appendPiece(b, c.distinctID)
	b = appendPiece(b, c.anonID)
	b = binary.AppendVarint(b, c.session)
	for i := range c.props {
		b = append(b, byte(c.props[i].kind))
		b = appendPiece(b, c.props[i].key)
		b = appendPiece(b, c.props[i].text)
	}
	h1, h2 := murmur3.Sum128(b[start:])
	c.scratch = b[:start]
	var d [16]byte
	binary.BigEndian.PutUint64(d[:8], h1)
	binary.BigEndian.PutUint64(d[8:], h2)
	return d
}

func appendPiece(b, piece []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(piece))), piece...)
}

// text gives bytes as a string without a copy; it must not outlive them.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
