package native

import (
	"cmp"
	"debug/dwarf"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"skerry/writeplane/symbolicate/flat"
)

// The limits of one image's debug information.
const (
	maxDepth  = 1_000      // nesting of entries
	maxOrigin = 16         // abstract origins and specifications in a row
	maxRows   = 30_000_000 // line rows of one sequence
	maxScopes = 20_000_000
	maxName   = 16 << 10 // bytes of a name before demangling
)

// lineRow begins a run of addresses of one source position; file 0 is none.
type lineRow struct{ addr, file, line, column uint32 }

const noScope = 0

// collector gathers what the DWARF of one image says, addresses relative to base.
type collector struct {
	img  *image
	data *dwarf.Data
	b    *flat.Builder
	base uint64

	out    recorder
	scopes uint32
	rows   []lineRow // of the present sequence
	pieces []piece   // of the present unit
	names  map[dwarf.Offset]name
	syms   []symbol // sorted by address

	look     *dwarf.Reader // for names elsewhere
	files    []uint32      // of the present unit, as interned strings
	fileIDs  map[*dwarf.LineFile]uint32
	function []nested // ranges of the present function
	warning  error

	budget int          // entries still possible: each takes a byte
	ahead  dwarf.Offset // the next entry lies here or behind
}

// name is an interned name; linked tells that it is a linkage name demangled.
type name struct {
	at     uint32
	linked bool
}

// collect reads all units. A unit that is damaged costs itself, not the others.
func (c *collector) collect() error {
	r := c.data.Reader()
	c.look = c.data.Reader()
	for {
		unit, err := c.next(r)
		if err != nil {
			return c.spoiled(err)
		}
		if unit == nil {
			return nil
		}
		// A skeleton is what split debug information leaves in the file itself: where the
		// code and its lines are, at times what was inlined.
		if unit.Tag != dwarf.TagCompileUnit && unit.Tag != dwarf.TagSkeletonUnit {
			if err := c.skip(r, unit); err != nil {
				return c.spoiled(err)
			}
			continue
		}
		if err := c.unit(r, unit); err != nil {
			return c.spoiled(err)
		}
	}
}

// unit reads one unit: its files, for they are where calls stand; its functions; then
// its lines, which are written at once.
func (c *collector) unit(r *dwarf.Reader, unit *dwarf.Entry) error {
	c.pieces = c.pieces[:0]
	table, err := c.lineTable(unit)
	if err != nil {
		c.warning = err
	}
	var damage error
	if unit.Children {
		damage = c.children(r, noScope, false, 0)
	}
	c.pieces = settle(c.pieces)
	var covered []span
	if table != nil {
		if covered, err = c.lines(table); err != nil {
			if errors.Is(err, ErrLimit) {
				return err
			}
			c.warning = err
		}
	}
	sortSpans(covered)
	c.out.withoutLines(c.pieces, covered)
	if damage != nil {
		return damage
	}
	return c.out.check()
}

// next reads the next entry, which must lie behind the last one and within the
// section: siblings that point back would lead the library around for ever, and
// after some damage it goes on inventing ends of lists.
func (c *collector) next(r *dwarf.Reader) (*dwarf.Entry, error) {
	e, err := r.Next()
	if err != nil {
		return nil, malformed("read debug entries: %w", err)
	}
	if c.budget--; c.budget < 0 {
		return nil, malformed("there are more debug entries than bytes of them")
	}
	if e == nil || e.Tag == 0 { // the end of a list of children has no offset
		return e, nil
	}
	if e.Offset < c.ahead {
		return nil, malformed("debug entries lead back from %d to %d", c.ahead, e.Offset)
	}
	c.ahead = e.Offset + 1
	return e, nil
}

// skip passes the children of e. The library's own way follows siblings without
// asking where they lead.
func (c *collector) skip(r *dwarf.Reader, e *dwarf.Entry) error {
	if !e.Children {
		return nil
	}
	for depth := 1; depth > 0; {
		if sibling, ok := e.Val(dwarf.AttrSibling).(dwarf.Offset); ok && e.Children && sibling > e.Offset {
			r.Seek(sibling)
			if depth--; depth == 0 {
				return nil
			}
		}
		var err error
		if e, err = c.next(r); err != nil {
			return err
		}
		switch {
		case e == nil:
			return nil
		case e.Tag == 0:
			depth--
		case e.Children:
			depth++
		}
	}
	return nil
}

// spoiled keeps what was read before the damage, when that is anything.
func (c *collector) spoiled(err error) error {
	if errors.Is(err, ErrLimit) || len(c.out.heads) == 0 {
		return err
	}
	c.warning = err
	return nil
}

// lineTable opens the line program of a unit and numbers its files.
func (c *collector) lineTable(unit *dwarf.Entry) (lr *dwarf.LineReader, err error) {
	defer guard(&err)
	c.files, c.fileIDs = nil, map[*dwarf.LineFile]uint32{}
	if lr, err = c.data.LineReader(unit); err != nil {
		return nil, malformed("read line table: %w", err)
	}
	if lr == nil {
		return nil, nil
	}
	for _, f := range lr.Files() {
		c.files = append(c.files, c.fileID(f))
	}
	return lr, nil
}

func (c *collector) fileID(f *dwarf.LineFile) uint32 {
	if f == nil || f.Name == "" {
		return 0
	}
	n, ok := c.fileIDs[f]
	if !ok {
		n = c.b.String(cut(f.Name))
		c.fileIDs[f] = n
	}
	return n
}

// lines writes the sequences of a line program, reading it by its rows, and returns
// what they cover. SeekPC would be shorter and answers unknown for some addresses
// that are covered.
func (c *collector) lines(lr *dwarf.LineReader) (covered []span, err error) {
	defer guard(&err)
	c.rows = c.rows[:0]
	var entry dwarf.LineEntry
	for {
		if err := lr.Next(&entry); errors.Is(err, io.EOF) {
			return covered, nil // a sequence that does not end covers nothing
		} else if err != nil {
			return covered, malformed("read line table: %w", err)
		}
		if !entry.EndSequence {
			if c.row(entry); len(c.rows) > maxRows {
				return covered, fmt.Errorf("%w: a sequence of more than %d line rows", ErrLimit, maxRows)
			}
			continue
		}
		if end, ok := c.relative(entry.Address); ok && c.isCode(end) {
			c.rows = append(c.rows, lineRow{addr: max(end, c.rows[len(c.rows)-1].addr)})
			c.out.sequence(c.rows, c.pieces)
			covered = append(covered, span{uint64(c.rows[0].addr), uint64(end)})
			if err := c.out.check(); err != nil {
				return covered, err
			}
		}
		c.rows = c.rows[:0]
	}
}

// isCode reports whether the rows so far describe code that the image has.
func (c *collector) isCode(end uint32) bool {
	return len(c.rows) > 0 && end > c.rows[0].addr && inside(c.img.code, c.base+uint64(c.rows[0].addr))
}

// relative is an address in the form of the table; ok is false for one below the
// image or 4 GiB above its start.
func (c *collector) relative(address uint64) (uint32, bool) {
	if address < c.base || address-c.base >= math.MaxUint32 {
		return 0, false
	}
	return uint32(address - c.base), true
}

func (c *collector) row(e dwarf.LineEntry) {
	addr, ok := c.relative(e.Address)
	if !ok {
		return
	}
	row := lineRow{addr: addr, file: c.fileID(e.File), line: clamp(e.Line), column: clamp(e.Column)}
	if n := len(c.rows); n > 0 {
		switch last := &c.rows[n-1]; {
		case addr < last.addr:
			return // addresses of a sequence only rise
		case addr == last.addr:
			*last = row // the last word on an address counts
			return
		}
	}
	c.rows = append(c.rows, row)
}

func clamp(n int) uint32 { return uint32(max(0, min(n, math.MaxInt32))) }

// children walks the entries below the one just read. scope is the function or
// inlined call around them; within tells whether there is one.
func (c *collector) children(r *dwarf.Reader, scope uint32, within bool, depth int32) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: entries nested deeper than %d", ErrLimit, maxDepth)
	}
	for {
		e, err := c.next(r)
		if err != nil {
			return err
		}
		if e == nil || e.Tag == 0 {
			return nil
		}
		if err := c.entry(r, e, scope, within, depth); err != nil {
			return err
		}
	}
}

func (c *collector) entry(r *dwarf.Reader, e *dwarf.Entry, scope uint32, within bool, depth int32) error {
	switch e.Tag {
	case dwarf.TagSubprogram:
		return c.subprogram(r, e, depth)
	case dwarf.TagInlinedSubroutine:
		if within {
			inner, err := c.scope(e, scope, c.name(e).at)
			if err != nil {
				return err
			}
			c.ranges(e, inner, depth)
			scope = inner
		}
	case dwarf.TagNamespace, dwarf.TagLexDwarfBlock, dwarf.TagModule, dwarf.TagTryDwarfBlock, dwarf.TagCatchDwarfBlock,
		dwarf.TagStructType, dwarf.TagClassType, dwarf.TagUnionType, dwarf.TagInterfaceType:
	default:
		return c.skip(r, e)
	}
	if !e.Children {
		return nil
	}
	return c.children(r, scope, within, depth+1)
}

// subprogram adds a function that has code, with all that is inlined into it.
func (c *collector) subprogram(r *dwarf.Reader, e *dwarf.Entry, depth int32) error {
	if e.Val(dwarf.AttrLowpc) == nil && e.Val(dwarf.AttrRanges) == nil {
		return c.skip(r, e)
	}
	called := c.name(e)
	if !called.linked {
		called.at = c.bySymbol(called.at, e)
	}
	scope, err := c.scope(e, noScope, called.at)
	if err != nil {
		return err
	}
	outer := c.function // a function within a function (nested, or in a local class)
	c.function = nil
	c.ranges(e, scope, depth)
	if e.Children {
		if err := c.children(r, scope, true, depth+1); err != nil {
			return err
		}
	}
	c.pieces = flatten(c.function, c.pieces)
	c.function = outer
	return nil
}

// ranges adds the addresses of an entry to the present function.
func (c *collector) ranges(e *dwarf.Entry, scope uint32, depth int32) {
	list, err := c.data.Ranges(e)
	if err != nil {
		c.warning = malformed("read address ranges: %w", err)
		return
	}
	for _, pair := range list {
		low, ok := c.relative(pair[0])
		if !ok || pair[1] <= pair[0] || !inside(c.img.code, pair[0]) {
			continue
		}
		high, ok := c.relative(pair[1])
		if !ok {
			high = math.MaxUint32
		}
		c.function = append(c.function, nested{piece{low, high, scope}, depth})
	}
}

// scope writes a function or inlined call; numbers count from 1.
func (c *collector) scope(e *dwarf.Entry, parent, called uint32) (uint32, error) {
	if c.scopes >= maxScopes {
		return 0, fmt.Errorf("%w: more than %d functions", ErrLimit, maxScopes)
	}
	file := uint32(0)
	if n, ok := e.Val(dwarf.AttrCallFile).(int64); ok && n >= 0 && n < int64(len(c.files)) {
		file = c.files[n]
	}
	line, _ := e.Val(dwarf.AttrCallLine).(int64)
	column, _ := e.Val(dwarf.AttrCallColumn).(int64)
	c.b.U32(scopes, parent, called, file, clamp64(line), clamp64(column))
	c.scopes++
	return c.scopes, nil
}

func clamp64(n int64) uint32 { return uint32(max(0, min(n, math.MaxInt32))) }

// name is the demangled name of a function, interned. A linkage name anywhere in
// the chain of origins wins over a plain one, which lacks namespace and types.
func (c *collector) name(e *dwarf.Entry) name {
	linkage, plain := namesOf(e)
	origin, ok := originOf(e)
	if !ok || linkage != "" {
		return c.demangled(linkage, plain)
	}
	if n, ok := c.names[origin]; ok {
		return n
	}
	at := origin
	for range maxOrigin {
		c.look.Seek(at)
		next, err := c.look.Next()
		if err != nil || next == nil {
			break
		}
		l, p := namesOf(next)
		if plain == "" {
			plain = p
		}
		if linkage = l; linkage != "" {
			break
		}
		if at, ok = originOf(next); !ok {
			break
		}
	}
	n := c.demangled(linkage, plain)
	c.names[origin] = n
	return n
}

// bySymbol is the name of a function that has no linkage name (static, or in an
// anonymous namespace): that of the symbol at its start, which tells more.
func (c *collector) bySymbol(plain uint32, e *dwarf.Entry) uint32 {
	list, err := c.data.Ranges(e)
	if err != nil || len(list) == 0 {
		return plain
	}
	i, ok := slices.BinarySearchFunc(c.syms, list[0][0], func(s symbol, low uint64) int { return cmp.Compare(s.low, low) })
	if !ok {
		return plain
	}
	symbol := c.syms[i].name
	if !strings.HasPrefix(symbol, "_Z") && !strings.HasPrefix(symbol, "_R") && plain != 0 {
		return plain // an alias, which the source may not know
	}
	return c.b.String(Demangle(symbol))
}

func originOf(e *dwarf.Entry) (dwarf.Offset, bool) {
	if at, ok := e.Val(dwarf.AttrAbstractOrigin).(dwarf.Offset); ok {
		return at, true
	}
	at, ok := e.Val(dwarf.AttrSpecification).(dwarf.Offset)
	return at, ok
}

// mipsLinkageName is what compilers wrote before DWARF 4 had an attribute for it.
const mipsLinkageName dwarf.Attr = 0x2007

func namesOf(e *dwarf.Entry) (linkage, plain string) {
	linkage, _ = e.Val(dwarf.AttrLinkageName).(string)
	if linkage == "" {
		linkage, _ = e.Val(mipsLinkageName).(string)
	}
	plain, _ = e.Val(dwarf.AttrName).(string)
	return linkage, plain
}

func (c *collector) demangled(linkage, plain string) name {
	if linkage == "" {
		return name{at: c.b.String(cut(plain))}
	}
	return name{at: c.b.String(Demangle(linkage)), linked: true}
}
