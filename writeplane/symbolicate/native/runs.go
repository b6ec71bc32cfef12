package native

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"

	"skerry/writeplane/symbolicate/flat"
)

// The positions of an image are kept as runs: stretches of addresses without a gap,
// one for each sequence of a line table. A run is written as soon as its unit is
// read, in blocks of rows that are coded as differences, so that a debug file of
// 300 MB needs a fraction of that while it is indexed and afterwards:
//
//	blocks  address, offset, rows   the first address of each block, sorted
//	rows    per row: uvarint address difference<<2 | new file<<1 | new scope,
//	        then varint differences of file and scope where they are new, of line,
//	        and uvarint column. A block begins from zero at its own address.
//
// The last row of a run has scope, file and line 0: nothing is known from there on.

const (
	blockRows  = 64
	blockWidth = 3
)

// position is what is known of an address and those behind it.
type position struct{ addr, scope, file, line, column uint32 }

func (p position) same(o position) bool {
	o.addr = p.addr
	return p == o
}

// blockHead is where a block begins.
type blockHead struct{ addr, offset, rows uint32 }

// runOf is a finished run: heads[from:to], addresses low to high.
type runOf struct {
	low, high uint32
	from, to  int
}

// recorder writes runs into the rows section of a table.
type recorder struct {
	b     *flat.Builder
	heads []blockHead
	runs  []runOf

	open    bool
	first   int // head of the present run
	last    position
	inBlock int
	buf     []byte
}

// put says what is known from an address on, which must not be below the last.
func (r *recorder) put(p position) {
	if r.open && p.same(r.last) {
		return
	}
	if !r.open {
		r.open, r.first, r.inBlock = true, len(r.heads), 0
	}
	before := r.last
	if r.inBlock == 0 {
		r.heads = append(r.heads, blockHead{p.addr, uint32(r.b.Len(rows)), 0})
		before = position{addr: p.addr}
	}
	r.inBlock = (r.inBlock + 1) % blockRows
	r.heads[len(r.heads)-1].rows++
	head := uint64(p.addr-before.addr) << 2
	if p.file != before.file {
		head |= 2
	}
	if p.scope != before.scope {
		head |= 1
	}
	r.buf = binary.AppendUvarint(r.buf[:0], head)
	if head&2 != 0 {
		r.buf = binary.AppendVarint(r.buf, int64(p.file)-int64(before.file))
	}
	if head&1 != 0 {
		r.buf = binary.AppendVarint(r.buf, int64(p.scope)-int64(before.scope))
	}
	r.buf = binary.AppendVarint(r.buf, int64(p.line)-int64(before.line))
	r.buf = binary.AppendUvarint(r.buf, uint64(p.column))
	r.b.Append(rows, r.buf)
	r.last = p
}

// end closes the run at the first address that it does not cover.
func (r *recorder) end(high uint32) {
	if !r.open {
		return
	}
	low := r.heads[r.first].addr
	r.put(position{addr: high})
	r.runs = append(r.runs, runOf{low, high, r.first, len(r.heads)})
	r.open, r.last = false, position{}
}

// maxRowBytes bounds the rows of an image: offsets have 32 bits.
const maxRowBytes = 1 << 30

func (r *recorder) check() error {
	if r.b.Len(rows) > maxRowBytes {
		return fmt.Errorf("%w: the positions take more than %d bytes", ErrLimit, maxRowBytes)
	}
	return nil
}

// finish writes the block heads in order of address. Of runs that overlap (functions
// that the linker folded into one) the first read keeps the addresses.
func (r *recorder) finish() {
	slices.SortStableFunc(r.runs, func(a, b runOf) int { return cmp.Compare(a.low, b.low) })
	end := uint32(0)
	for _, run := range r.runs {
		if run.low < end {
			continue
		}
		for _, h := range r.heads[run.from:run.to] {
			r.b.U32(blocks, h.addr, h.offset, h.rows)
		}
		end = run.high
	}
}

// sequence writes one sequence of line rows, split by the pieces of functions that
// hold its addresses. rows are sorted; the last only ends the sequence.
func (r *recorder) sequence(rows []lineRow, pieces []piece) {
	end := rows[len(rows)-1].addr
	next, _ := slices.BinarySearchFunc(pieces, rows[0].addr, func(p piece, addr uint32) int { return cmp.Compare(p.low, addr) })
	if next > 0 && pieces[next-1].high > rows[0].addr {
		next--
	}
	for i := 0; i+1 < len(rows); i++ {
		row := rows[i]
		for low := row.addr; low < rows[i+1].addr; {
			for next < len(pieces) && pieces[next].high <= low {
				next++
			}
			scope, high := uint32(noScope), rows[i+1].addr
			if next < len(pieces) {
				if p := pieces[next]; p.low > low {
					high = min(high, p.low)
				} else {
					scope, high = p.scope, min(high, p.high)
				}
			}
			r.put(position{low, scope, row.file, row.line, row.column})
			low = high
		}
	}
	r.end(end)
}

// withoutLines writes pieces that no sequence covers: functions whose lines nobody
// wrote down. covered is sorted.
func (r *recorder) withoutLines(pieces []piece, covered []span) {
	for _, p := range pieces {
		i := sort.Search(len(covered), func(i int) bool { return covered[i].high > uint64(p.low) })
		if i < len(covered) && covered[i].low < uint64(p.high) {
			continue
		}
		r.put(position{addr: p.low, scope: p.scope})
		r.end(p.high)
	}
}

// find decodes the position that holds an address.
func (img *Image) find(at uint32) (position, bool) {
	heads, data := img.t.Section(blocks), img.t.Section(rows)
	i := sort.Search(heads.Rows(blockWidth), func(i int) bool { return heads.At(i*blockWidth) > at }) - 1
	if i < 0 {
		return position{}, false
	}
	from := heads.At(i*blockWidth + 1)
	if uint64(from) >= uint64(len(data)) {
		return position{}, false
	}
	p, found := position{addr: heads.At(i * blockWidth)}, position{}
	d := flat.NewDeltas(data[from:])
	for range min(heads.At(i*blockWidth+2), blockRows) {
		if p = next(&d, p); d.Broken() || p.addr > at {
			break
		}
		found = p
	}
	return found, found.scope != noScope || found.file != 0
}

// next is the row behind p.
func next(d *flat.Deltas, p position) position {
	head := d.Uvarint()
	p.addr += uint32(head >> 2)
	if head&2 != 0 {
		p.file += uint32(d.Varint())
	}
	if head&1 != 0 {
		p.scope += uint32(d.Varint())
	}
	p.line += uint32(d.Varint())
	p.column = uint32(d.Uvarint())
	return p
}
