// Package sourcemap reads source maps after ECMA-426 and looks positions up.
//
// It promises: index maps with line and column offsets (the column holds on a
// section's first line only), ignore lists, sourceRoot, null sources, segments of
// one, four and five fields; no panic and no memory beyond a small multiple of the
// text on any input. It does not fetch anything, and it does not read the proposed
// scopes and range mappings.
//
// Build turns a map into its lookup form, a flat byte string that can be stored and
// opened again without work. All numbers are little-endian:
//
//	"SKSM1\n" pad[2]
//	u32 sources, names, blocks, segmentBytes, textBytes
//	sources × u32  offset of its text in the string table
//	names   × u32  likewise
//	sources × u8   flags: 1 ignored, 2 null
//	blocks  × (u32 line, u32 column, u32 offset)         first position of each block
//	segmentBytes   the blocks' segments as varint deltas
//	textBytes      the string table: uvarint length and bytes, each
//
// A block holds 32 segments; its deltas start from zero. Flat arrays of five
// numbers a segment would be three times as large and no faster than the cache
// miss that a lookup costs anyway.
package sourcemap

import (
	"encoding/binary"
	"errors"
	"sort"

	"skerry/writeplane/symbolicate/flat"
)

const (
	magic     = "SKSM1\n\x00\x00"
	headSize  = len(magic) + 5*4
	blockSize = 32

	flagIgnored = 1
	flagNull    = 2
)

type kind uint8

const (
	kindUnmapped kind = iota // one field: generated code without an original
	kindSource               // four fields
	kindNamed                // five fields
	kindBad                  // refers to a source or position that does not exist
)

type segment struct {
	column             int64
	srcLine, srcColumn int64
	source, name       uint32
	kind               kind
}

type blockHead struct{ line, column, offset uint32 }

// builder collects segments in generated order.
type builder struct {
	sourceAt, nameAt []uint32
	sourceFlags      []byte
	sourceIDs        map[sourceKey]uint32
	nameIDs          map[string]uint32
	textAt           map[string]uint32
	text             []byte

	line    int64 // the generated line that pending belongs to
	pending []segment

	blocks  []blockHead
	data    []byte
	inBlock int
	last    segment // deltas count from it
	lastLn  int64
}

type sourceKey struct {
	name          string
	null, ignored bool
}

func newBuilder() *builder {
	return &builder{sourceIDs: map[sourceKey]uint32{}, nameIDs: map[string]uint32{}, textAt: map[string]uint32{}}
}

func (b *builder) string(s string) uint32 {
	if at, ok := b.textAt[s]; ok {
		return at
	}
	at := uint32(len(b.text))
	b.text = append(binary.AppendUvarint(b.text, uint64(len(s))), s...)
	b.textAt[s] = at
	return at
}

func (b *builder) source(s string, null, ignored bool) uint32 {
	key := sourceKey{s, null, ignored}
	if id, ok := b.sourceIDs[key]; ok {
		return id
	}
	id := uint32(len(b.sourceAt))
	var flags byte
	if ignored {
		flags |= flagIgnored
	}
	if null {
		flags |= flagNull
	}
	b.sourceAt = append(b.sourceAt, b.string(s))
	b.sourceFlags = append(b.sourceFlags, flags)
	b.sourceIDs[key] = id
	return id
}

func (b *builder) name(s string) uint32 {
	if id, ok := b.nameIDs[s]; ok {
		return id
	}
	id := uint32(len(b.nameAt))
	b.nameAt = append(b.nameAt, b.string(s))
	b.nameIDs[s] = id
	return id
}

var errTooLarge = errors.New("the lookup form would exceed 4 GiB")

// add takes a segment; lines must not go back.
func (b *builder) add(line int64, s segment) error {
	if line != b.line {
		b.flushLine()
		b.line = line
	}
	if len(b.data) > 1<<32-1<<20 {
		return errTooLarge
	}
	b.pending = append(b.pending, s)
	return nil
}

func (b *builder) flushLine() {
	sortLine(b.pending)
	for _, s := range b.pending {
		b.put(b.line, s)
	}
	b.pending = b.pending[:0]
}

func (b *builder) put(line int64, s segment) {
	if b.inBlock == 0 {
		b.blocks = append(b.blocks, blockHead{uint32(line), uint32(s.column), uint32(len(b.data))})
		b.last, b.lastLn = segment{}, line
	}
	b.inBlock = (b.inBlock + 1) % blockSize
	dLine := line - b.lastLn
	column := s.column
	if dLine == 0 {
		column -= b.last.column
	}
	b.data = binary.AppendUvarint(b.data, uint64(dLine)<<2|uint64(s.kind))
	b.data = binary.AppendUvarint(b.data, uint64(column))
	b.lastLn = line
	if s.kind == kindSource || s.kind == kindNamed {
		b.data = binary.AppendVarint(b.data, int64(s.source)-int64(b.last.source))
		b.data = binary.AppendVarint(b.data, s.srcLine-b.last.srcLine)
		b.data = binary.AppendVarint(b.data, s.srcColumn-b.last.srcColumn)
		if s.kind == kindNamed {
			b.data = binary.AppendVarint(b.data, int64(s.name)-int64(b.last.name))
		} else {
			s.name = b.last.name
		}
		b.last = s
		return
	}
	b.last.column = s.column
}

func (b *builder) bytes() []byte {
	size := headSize + 4*(len(b.sourceAt)+len(b.nameAt)) + len(b.sourceFlags) + 12*len(b.blocks) + len(b.data) + len(b.text)
	out := append(make([]byte, 0, size), magic...)
	for _, n := range []int{len(b.sourceAt), len(b.nameAt), len(b.blocks), len(b.data), len(b.text)} {
		out = binary.LittleEndian.AppendUint32(out, uint32(n))
	}
	for _, at := range b.sourceAt {
		out = binary.LittleEndian.AppendUint32(out, at)
	}
	for _, at := range b.nameAt {
		out = binary.LittleEndian.AppendUint32(out, at)
	}
	out = append(out, b.sourceFlags...)
	for _, h := range b.blocks {
		out = binary.LittleEndian.AppendUint32(out, h.line)
		out = binary.LittleEndian.AppendUint32(out, h.column)
		out = binary.LittleEndian.AppendUint32(out, h.offset)
	}
	return append(append(out, b.data...), b.text...)
}

// Table answers lookups from a lookup form. It only reads, so any number of
// goroutines may share it.
type Table struct {
	sourceAt, nameAt []byte
	flags            []byte
	blocks           []byte
	data, text       []byte
}

var errIndex = errors.New("not a lookup form of a source map")

// Open checks the frame of a lookup form and returns it as a Table that keeps
// using index. Damage inside shows as positions not found, never as a panic.
func Open(index []byte) (*Table, error) {
	if len(index) < headSize || string(index[:len(magic)]) != magic {
		return nil, errIndex
	}
	var n [5]uint64
	for i := range n {
		n[i] = uint64(binary.LittleEndian.Uint32(index[len(magic)+4*i:]))
	}
	rest := index[headSize:]
	if 4*(n[0]+n[1])+n[0]+12*n[2]+n[3]+n[4] != uint64(len(rest)) {
		return nil, errIndex
	}
	cut := func(size uint64) []byte {
		part := rest[:size:size]
		rest = rest[size:]
		return part
	}
	return &Table{
		sourceAt: cut(4 * n[0]), nameAt: cut(4 * n[1]), flags: cut(n[0]),
		blocks: cut(12 * n[2]), data: cut(n[3]), text: cut(n[4]),
	}, nil
}

// Outcome says what a lookup found.
type Outcome uint8

// The outcomes of Lookup.
const (
	Found    Outcome = iota
	NotFound         // nothing maps the position, or generated code without an original
	Bad              // the segment refers to a source or position that does not exist
)

// Position is an original position; lines and columns count from 1.
type Position struct {
	Source     string
	NullSource bool // the map has the position but names no file
	Ignored    bool // the map lists the source as third-party code
	Line       int64
	Column     int64
	Name       string // "" when the map gives none
}

// Lookup finds the original of a generated position; line and column count from 1.
// It is the last segment of the line at or before the column; when several stand
// at exactly the column, the first of them in the map.
func (t *Table) Lookup(line, column int64) (Position, Outcome) {
	if line < 1 || column < 1 || line > 1<<31 || column > 1<<32 {
		return Position{}, NotFound
	}
	line, column = line-1, column-1
	first := sort.Search(len(t.blocks)/12, func(i int) bool {
		h := t.block(i)
		return int64(h.line) > line || int64(h.line) == line && int64(h.column) >= column
	})
	// Equal positions may straddle blocks: begin one before the first that is not less.
	c := cursor{t: t, block: max(first-1, 0)}
	seg, ok := c.find(line, column)
	if !ok {
		return Position{}, NotFound
	}
	return t.position(seg)
}

func (t *Table) block(i int) blockHead {
	b := t.blocks[12*i:]
	return blockHead{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[8:])}
}

func (t *Table) position(s segment) (Position, Outcome) {
	switch s.kind {
	case kindUnmapped:
		return Position{}, NotFound
	case kindBad:
		return Position{}, Bad
	}
	source, ok := t.string(t.sourceAt, s.source)
	if !ok || s.srcLine < 0 || s.srcColumn < 0 {
		return Position{}, Bad
	}
	p := Position{Source: source, Line: s.srcLine + 1, Column: s.srcColumn + 1}
	p.Ignored = t.flags[s.source]&flagIgnored != 0
	p.NullSource = t.flags[s.source]&flagNull != 0
	if s.kind == kindNamed {
		p.Name, _ = t.string(t.nameAt, s.name)
	}
	return p, Found
}

func (t *Table) string(at []byte, i uint32) (string, bool) {
	if uint64(i)*4+4 > uint64(len(at)) {
		return "", false
	}
	from := binary.LittleEndian.Uint32(at[4*i:])
	if uint64(from) >= uint64(len(t.text)) {
		return "", false
	}
	size, n := binary.Uvarint(t.text[from:])
	if n <= 0 || size > uint64(len(t.text)-int(from)-n) {
		return "", false
	}
	start := int(from) + n
	return string(t.text[start : start+int(size)]), true
}

// cursor decodes segments forward from the start of a block.
type cursor struct {
	t     *Table
	block int
}

// find returns the segment that answers (line, column): see Lookup.
func (c *cursor) find(line, column int64) (best segment, ok bool) {
	for ; c.block < len(c.t.blocks)/12; c.block++ {
		h := c.t.block(c.block)
		if int64(h.line) > line || int64(h.line) == line && int64(h.column) > column {
			return best, ok
		}
		end := uint32(len(c.t.data))
		if c.block+1 < len(c.t.blocks)/12 {
			end = c.t.block(c.block + 1).offset
		}
		if uint64(h.offset) > uint64(end) || uint64(end) > uint64(len(c.t.data)) {
			return best, ok
		}
		d := flat.NewDeltas(c.t.data[h.offset:end])
		at, s := int64(h.line), segment{}
		for d.More() {
			at, s = next(&d, at, s)
			if d.Broken() || at > line || at == line && s.column > column {
				return best, ok
			}
			if at != line {
				continue
			}
			if best, ok = s, true; s.column == column {
				return best, ok
			}
		}
	}
	return best, ok
}

// next is the segment behind last, and its line.
func next(d *flat.Deltas, line int64, last segment) (int64, segment) {
	head := d.Uvarint()
	column := int64(d.Uvarint())
	s := last
	s.kind = kind(head & 3)
	if step := int64(head >> 2); step != 0 {
		line += step
		s.column = column
	} else {
		s.column = last.column + column
	}
	if s.kind == kindSource || s.kind == kindNamed {
		s.source = uint32(int64(last.source) + d.Varint())
		s.srcLine += d.Varint()
		s.srcColumn += d.Varint()
		if s.kind == kindNamed {
			s.name = uint32(int64(last.name) + d.Varint())
		}
	}
	return line, s
}
