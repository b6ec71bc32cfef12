package flat

import "encoding/binary"

// Deltas reads numbers that stand one after the other as uvarints, signed ones in zigzag.
// Past the end and behind a malformed number every number is 0, and Broken tells.
type Deltas struct {
	b      []byte
	broken bool
}

// NewDeltas reads b, which it keeps.
func NewDeltas(b []byte) Deltas { return Deltas{b: b} }

// Broken reports whether a number was missing or malformed.
func (d *Deltas) Broken() bool { return d.broken }

// More reports whether bytes are left.
func (d *Deltas) More() bool { return len(d.b) > 0 }

// Uvarint is the next number.
func (d *Deltas) Uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.b, d.broken = nil, true
		return 0
	}
	d.b = d.b[n:]
	return v
}

// Varint is the next signed number.
func (d *Deltas) Varint() int64 {
	u := d.Uvarint()
	return int64(u>>1) ^ -int64(u&1)
}
