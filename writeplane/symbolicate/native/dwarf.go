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
	maxRows   = 40_000_000 // line rows kept
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

	rows   []lineRow
	runs   []run
	scopes []uint32 // rows of scopeWidth
	pieces []piece
	names  map[dwarf.Offset]name
	syms   []symbol // sorted by address

	look     *dwarf.Reader // for names elsewhere
	files    []uint32      // of the present unit, as interned strings
	function []nested      // ranges of the present function
	warning  error

	budget      int          // entries still possible: each takes a byte
	ahead       dwarf.Offset // the next entry lies here or behind
	scopeLinked bool         // the scope added last has a linkage name
}

// name is an interned name; linked tells that it is a linkage name demangled.
type name struct {
	at     uint32
	linked bool
}

// run is one sequence of line rows: rows[from:to], of which the last only ends it.
type run struct{ from, to int }

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
		if unit.Tag != dwarf.TagCompileUnit {
			if err := c.skip(r, unit); err != nil {
				return c.spoiled(err)
			}
			continue
		}
		if err := c.lines(unit); err != nil {
			if errors.Is(err, ErrLimit) {
				return err
			}
			c.warning = err
		}
		if !unit.Children {
			continue
		}
		if err := c.children(r, noScope, false, 0); err != nil {
			return c.spoiled(err)
		}
	}
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
	if errors.Is(err, ErrLimit) || len(c.rows) == 0 && len(c.pieces) == 0 {
		return err
	}
	c.warning = err
	return nil
}

// lines reads the line program of a unit by its rows. SeekPC would be shorter and
// answers unknown for some addresses that are covered.
func (c *collector) lines(unit *dwarf.Entry) (err error) {
	defer guard(&err)
	c.files = nil
	lr, err := c.data.LineReader(unit)
	if err != nil {
		return malformed("read line table: %w", err)
	}
	if lr == nil {
		return nil
	}
	files := map[*dwarf.LineFile]uint32{}
	number := func(f *dwarf.LineFile) uint32 {
		if f == nil || f.Name == "" {
			return 0
		}
		n, ok := files[f]
		if !ok {
			n = c.b.String(f.Name)
			files[f] = n
		}
		return n
	}
	start := len(c.rows)
	var entry dwarf.LineEntry
	for {
		if err := lr.Next(&entry); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			c.rows = c.rows[:start]
			return malformed("read line table: %w", err)
		}
		if entry.EndSequence {
			c.endRun(start, entry.Address)
			start = len(c.rows)
			continue
		}
		c.row(start, entry, number)
		if len(c.rows) > maxRows {
			return fmt.Errorf("%w: more than %d line rows", ErrLimit, maxRows)
		}
	}
	c.rows = c.rows[:start] // a sequence that does not end covers nothing
	for _, f := range lr.Files() {
		c.files = append(c.files, number(f))
	}
	return nil
}

// relative is an address in the form of the table; ok is false for one below the
// image or 4 GiB above its start.
func (c *collector) relative(address uint64) (uint32, bool) {
	if address < c.base || address-c.base >= math.MaxUint32 {
		return 0, false
	}
	return uint32(address - c.base), true
}

func (c *collector) row(start int, e dwarf.LineEntry, number func(*dwarf.LineFile) uint32) {
	addr, ok := c.relative(e.Address)
	if !ok {
		return
	}
	row := lineRow{addr: addr, file: number(e.File), line: clamp(e.Line), column: clamp(e.Column)}
	if n := len(c.rows); n > start {
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

// endRun keeps the rows since start if they describe code that the image has.
func (c *collector) endRun(start int, end uint64) {
	addr, ok := c.relative(end)
	if !ok || len(c.rows) == start || !inside(c.img.code, c.base+uint64(c.rows[start].addr)) || addr <= c.rows[start].addr {
		c.rows = c.rows[:start]
		return
	}
	c.rows = append(c.rows, lineRow{addr: max(addr, c.rows[len(c.rows)-1].addr)})
	c.runs = append(c.runs, run{start, len(c.rows)})
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
			inner, err := c.scope(e, scope)
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
	scope, err := c.scope(e, noScope)
	if err != nil {
		return err
	}
	if !c.scopeLinked {
		c.nameBySymbol(scope, e)
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

// scope adds a function or inlined call; numbers count from 1.
func (c *collector) scope(e *dwarf.Entry, parent uint32) (uint32, error) {
	if len(c.scopes) >= maxScopes*scopeWidth {
		return 0, fmt.Errorf("%w: more than %d functions", ErrLimit, maxScopes)
	}
	file := uint32(0)
	if n, ok := e.Val(dwarf.AttrCallFile).(int64); ok && n >= 0 && n < int64(len(c.files)) {
		file = c.files[n]
	}
	line, _ := e.Val(dwarf.AttrCallLine).(int64)
	column, _ := e.Val(dwarf.AttrCallColumn).(int64)
	n := c.name(e)
	c.scopeLinked = n.linked
	c.scopes = append(c.scopes, parent, n.at, file, clamp64(line), clamp64(column))
	return uint32(len(c.scopes) / scopeWidth), nil
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

// nameBySymbol gives a function without a linkage name (static, or in an anonymous
// namespace) the name of the symbol that stands at its start, which tells more.
func (c *collector) nameBySymbol(scope uint32, e *dwarf.Entry) {
	list, err := c.data.Ranges(e)
	if err != nil || len(list) == 0 {
		return
	}
	i, ok := slices.BinarySearchFunc(c.syms, list[0][0], func(s symbol, low uint64) int { return cmp.Compare(s.low, low) })
	if !ok {
		return
	}
	symbol, plain := c.syms[i].name, c.b.Text(c.scopes[(scope-1)*scopeWidth+1])
	if !strings.HasPrefix(symbol, "_Z") && !strings.HasPrefix(symbol, "_R") && plain != "" {
		return // an alias, which the source may not know
	}
	c.scopes[(scope-1)*scopeWidth+1] = c.b.String(Demangle(symbol))
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
		return name{at: c.b.String(plain)}
	}
	return name{at: c.b.String(Demangle(linkage)), linked: true}
}
