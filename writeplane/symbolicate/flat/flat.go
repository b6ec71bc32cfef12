// Package flat keeps tables of numbers and strings in one byte string that can be
// stored, read back and searched without being decoded.
//
// It promises that Open and every reader answer damaged bytes with ok=false or a
// zero, never with a panic. It does not detect damage: whoever stores the bytes
// keeps their hash. All numbers are little-endian:
//
//	magic[8]  u32 sections  sections × u64 length  sections × bytes
//
// The last section is the string table: uvarint length and bytes, each string once,
// named by its offset. Offset 0 is the empty string.
package flat

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math"
	"strings"
)

const magicSize = 8

// Builder collects the sections of a table.
type Builder struct {
	magic    string
	sections [][]byte
	text     []byte
	full     bool

	// Offsets of the strings by their hash. A key of the string itself would keep a second
	// copy of it in memory, and the line that it was read from. Strings whose hash another
	// one has stand in also.
	seed maphash.Seed
	at   map[uint64]uint32
	also map[string]uint32
}

// NewBuilder starts a table of some sections beside the strings. magic has eight bytes.
func NewBuilder(magic string, sections int) *Builder {
	if len(magic) != magicSize {
		panic("BUG: the magic of a flat table is not eight bytes: " + magic)
	}
	return &Builder{magic: magic, sections: make([][]byte, sections), text: []byte{0}, seed: maphash.MakeSeed(), at: map[uint64]uint32{}, also: map[string]uint32{}}
}

// String interns s and returns its offset.
func (b *Builder) String(s string) uint32 {
	if s == "" {
		return 0
	}
	return b.intern(maphash.String(b.seed, s), s)
}

func (b *Builder) intern(hash uint64, s string) uint32 {
	at, hashed := b.at[hash]
	if hashed && string(text(b.text, at)) == s {
		return at
	}
	if at, ok := b.also[s]; ok {
		return at
	}
	if len(b.text)+len(s)+binary.MaxVarintLen64 > math.MaxUint32 {
		b.full = true
		return 0
	}
	at = uint32(len(b.text))
	b.text = append(binary.AppendUvarint(b.text, uint64(len(s))), s...)
	if hashed {
		b.also[strings.Clone(s)] = at
	} else {
		b.at[hash] = at
	}
	return at
}

// Text is the string at an offset, until the next one is interned; it must not be changed.
func (b *Builder) Text(at uint32) []byte { return text(b.text, at) }

// U32 appends numbers to a section.
func (b *Builder) U32(section int, numbers ...uint32) {
	for _, n := range numbers {
		b.sections[section] = binary.LittleEndian.AppendUint32(b.sections[section], n)
	}
}

// Append appends raw bytes to a section.
func (b *Builder) Append(section int, p []byte) {
	b.sections[section] = append(b.sections[section], p...)
}

// Len is the present length of a section in bytes.
func (b *Builder) Len(section int) int { return len(b.sections[section]) }

// ErrTooLarge is the fault of a table whose strings or sections exceed 4 GiB.
var ErrTooLarge = errors.New("the lookup form would exceed 4 GiB")

// Bytes returns the finished table.
func (b *Builder) Bytes() ([]byte, error) {
	size := magicSize + 4 + 8*(len(b.sections)+1) + len(b.text)
	for _, s := range b.sections {
		size += len(s)
	}
	out := bytes.NewBuffer(make([]byte, 0, size))
	_, err := b.WriteTo(out)
	return out.Bytes(), err
}

// WriteTo writes the finished table without holding a second copy of it.
func (b *Builder) WriteTo(w io.Writer) (int64, error) {
	all := append(append([][]byte{}, b.sections...), b.text)
	head := binary.LittleEndian.AppendUint32([]byte(b.magic), uint32(len(all)))
	for _, s := range all {
		if len(s) > math.MaxUint32 || b.full {
			return 0, ErrTooLarge
		}
		head = binary.LittleEndian.AppendUint64(head, uint64(len(s)))
	}
	written := int64(0)
	for _, p := range append([][]byte{head}, all...) {
		n, err := w.Write(p)
		written += int64(n)
		if err != nil {
			return written, fmt.Errorf("write table: %w", err)
		}
	}
	return written, nil
}

// Table reads what a Builder wrote. It never writes, so goroutines may share it.
type Table struct {
	sections []Section
	text     []byte
}

// Section is one run of little-endian u32 numbers, or of raw bytes.
type Section []byte

var errTable = errors.New("not a lookup form of this kind")

// Open checks the frame; the table keeps using data.
func Open(magic string, sections int, data []byte) (*Table, error) {
	n := sections + 1
	head := magicSize + 4 + 8*n
	if len(data) < head || string(data[:magicSize]) != magic || binary.LittleEndian.Uint32(data[magicSize:]) != uint32(n) {
		return nil, errTable
	}
	rest := data[head:]
	t := &Table{sections: make([]Section, n)}
	for i := range t.sections {
		size := binary.LittleEndian.Uint64(data[magicSize+4+8*i:])
		if size > uint64(len(rest)) {
			return nil, errTable
		}
		t.sections[i], rest = Section(rest[:size:size]), rest[size:]
	}
	if len(rest) != 0 {
		return nil, errTable
	}
	t.text = t.sections[n-1]
	return t, nil
}

// Section returns section i.
func (t *Table) Section(i int) Section { return t.sections[i] }

// String returns the string at an offset; "" for one that lies outside.
func (t *Table) String(at uint32) string { return string(t.Text(at)) }

// Text is String without the copy; it must not be changed.
func (t *Table) Text(at uint32) []byte { return text(t.text, at) }

// text is the string at an offset of a string table.
func text(table []byte, at uint32) []byte {
	if uint64(at) >= uint64(len(table)) {
		return nil
	}
	size, n := binary.Uvarint(table[at:])
	if n <= 0 || size > uint64(len(table)-int(at)-n) {
		return nil
	}
	start := int(at) + n
	return table[start : start+int(size)]
}

// Rows is the number of whole rows of width numbers.
func (s Section) Rows(width int) int { return len(s) / (4 * width) }

// At is number i, or 0 outside.
func (s Section) At(i int) uint32 {
	if i < 0 || i > len(s)/4-1 {
		return 0
	}
	return binary.LittleEndian.Uint32(s[4*i:])
}
