package retrace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"skerry/writeplane/symbolicate/flat"
)

// The lookup form is a flat table:
//
//	classes   obfuscated, original, file, flags, first method, methods   sorted by obfuscated name; a
//	          class written in parts has a row for each
//	methods   obfuscated name, first entry, entries                      sorted by name within a class
//	entries   flags, from, to, original from, original to, class, method, offset of extras + 1
//	extras    varints: call sites and rules of an entry
//	originals original class, file                                       sorted by class
const (
	magic = "SKRTRC1\n"

	classes, methods, entries, extras, originals = 0, 1, 2, 3, 4
	sections                                     = 5

	classWidth, methodWidth, entryWidth, originalWidth = 6, 3, 8, 2
)

const (
	hasRange    = 1 << iota // from and to hold
	hasOrig                 // original from and to hold
	synthesized             // made by the compiler
	outline                 // code moved out of several methods
	startsGroup             // first (innermost) entry of an inline chain
)

// ErrMalformed is the fault of a text without a single readable mapping line.
var ErrMalformed = errors.New("not a mapping file")

// namespace is where the uuids of mapping files without an id come from.
var namespace = uuid.NewSHA1(uuid.NameSpaceDNS, []byte("guardsquare.com"))

// Build reads a mapping file and returns its lookup form for Open.
func Build(data []byte) (index []byte, warnings []string, err error) {
	b, warnings, err := build(data)
	if err != nil {
		return nil, warnings, err
	}
	index, err = b.Bytes()
	return index, warnings, err
}

// BuildTo is Build without a copy of the whole form in memory.
func BuildTo(data []byte, out io.Writer) (warnings []string, err error) {
	b, warnings, err := build(data)
	if err != nil {
		return warnings, err
	}
	_, err = b.WriteTo(out)
	return warnings, err
}

func build(data []byte) (b *flat.Builder, warnings []string, err error) {
	w := writer{b: flat.NewBuilder(magic, sections), files: map[uint32]uint32{}}
	r := reader{done: w.class}
	r.read(data)
	if len(w.classes) == 0 {
		return nil, nil, ErrMalformed
	}
	if r.skipped > 0 {
		warnings = append(warnings, fmt.Sprintf("%d of %d lines are not understood", r.skipped, r.lines))
	}
	w.finish()
	return w.b, warnings, nil
}

// headBytes is how far a mapping's header is searched for its id.
const headBytes = 64 << 10

// ID returns the id a mapping is found by: pg_map_id of its header, else the uuid
// of its bytes.
func ID(data []byte) string {
	head := data[:min(len(data), headBytes)]
	for line := range bytes.Lines(head) {
		text := strings.TrimSpace(string(line))
		if text != "" && text[0] != '#' {
			break
		}
		if id, ok := strings.CutPrefix(strings.TrimSpace(strings.TrimPrefix(text, "#")), "pg_map_id:"); ok {
			if id = strings.ToLower(strings.TrimSpace(id)); id != "" {
				return id
			}
		}
	}
	return uuid.NewSHA1(namespace, data).String()
}

// writer makes the lookup form, class by class. It knows strings by their offsets: a mapping
// may have millions.
type writer struct {
	b       *flat.Builder
	classes [][classWidth]uint32
	files   map[uint32]uint32 // original class → source file
}

func (w *writer) class(c *class) {
	b := w.b
	obfuscated, original, file := b.String(c.obfuscated), b.String(c.original), b.String(c.file)
	if c.file != "" && c.file != syntheticFile {
		w.files[original] = file
	}
	flags := uint32(0)
	if c.synthesized {
		flags |= synthesized
	}
	names := make([]string, 0, len(c.methods))
	for name := range c.methods {
		names = append(names, name)
	}
	slices.Sort(names)
	w.classes = append(w.classes, [classWidth]uint32{
		obfuscated, original, file, flags,
		uint32(b.Len(methods) / (4 * methodWidth)), uint32(len(names)),
	})
	for _, name := range names {
		list := c.methods[name]
		b.U32(methods, b.String(name), uint32(b.Len(entries)/(4*entryWidth)), uint32(len(list)))
		spread(c, list)
		chain := 0
		for i, e := range list {
			if chain++; i == 0 || chain > maxChain || !continues(list[i-1], e) {
				chain = 1
			}
			e.write(b, chain == 1)
		}
	}
}

func (w *writer) finish() {
	slices.SortStableFunc(w.classes, func(a, b [classWidth]uint32) int { return bytes.Compare(w.b.Text(a[0]), w.b.Text(b[0])) })
	for _, c := range w.classes {
		w.b.U32(classes, c[:]...)
	}
	w.classes = nil
	names := make([]uint32, 0, len(w.files))
	for name := range w.files {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b uint32) int { return bytes.Compare(w.b.Text(a), w.b.Text(b)) })
	for _, name := range names {
		w.b.U32(originals, name, w.files[name])
	}
}

// spread gives what is said once of a method to all of its lines, and marks the
// methods of a class that the compiler made.
func spread(c *class, list []*entry) {
	type signature struct{ class, method, args string }
	synthetic, outlined := map[signature]bool{}, map[signature]bool{}
	for _, e := range list {
		s := signature{e.class, e.method, e.args}
		synthetic[s] = synthetic[s] || e.synthesized || c.synthesized && e.class == ""
		outlined[s] = outlined[s] || e.outline
	}
	for _, e := range list {
		s := signature{e.class, e.method, e.args}
		e.synthesized, e.outline = synthetic[s], outlined[s]
	}
}

// maxChain bounds how deep calls are inlined.
const maxChain = 1_000

// continues reports whether e is the caller that last was inlined into: the same
// minified lines, and one original line, that of the call. A pair of original lines
// begins a chain, or an overload at the same lines.
func continues(last, e *entry) bool {
	return last.hasRange && e.hasRange && last.from == e.from && last.to == e.to && e.hasOrig && !e.pairOrig
}

func (e *entry) write(b *flat.Builder, first bool) {
	flags := uint32(0)
	for _, f := range [...]struct {
		bit uint32
		on  bool
	}{{hasRange, e.hasRange}, {hasOrig, e.hasOrig}, {synthesized, e.synthesized}, {outline, e.outline}, {startsGroup, first}} {
		if f.on {
			flags |= f.bit
		}
	}
	extra := uint32(0)
	if len(e.callsites) > 0 || len(e.rules) > 0 {
		extra = uint32(b.Len(extras)) + 1
		b.Append(extras, e.extras(b))
	}
	b.U32(entries, flags, e.from, e.to, e.origFrom, e.origTo, b.String(e.class), b.String(e.method), extra)
}

func (e *entry) extras(b *flat.Builder) []byte {
	p := binary.AppendUvarint(nil, uint64(len(e.callsites)))
	for _, c := range e.callsites {
		p = binary.AppendUvarint(p, uint64(b.String(c.outline)))
		p = binary.AppendUvarint(p, uint64(len(c.positions)))
		keys := make([]string, 0, len(c.positions))
		for at := range c.positions {
			keys = append(keys, at)
		}
		slices.Sort(keys)
		for _, at := range keys {
			line, _ := strconv.ParseUint(at, 10, 32)
			p = binary.AppendUvarint(binary.AppendUvarint(p, line), uint64(c.positions[at]))
		}
	}
	p = binary.AppendUvarint(p, uint64(len(e.rules)))
	for _, r := range e.rules {
		p = binary.AppendUvarint(binary.AppendUvarint(p, uint64(r.remove)), uint64(len(r.throws)))
		for _, t := range r.throws {
			p = binary.AppendUvarint(p, uint64(b.String(t)))
		}
	}
	return p
}

// Table answers lookups from a lookup form; goroutines may share it.
type Table struct{ t *flat.Table }

// Open checks the frame of a lookup form and keeps using it.
func Open(index []byte) (*Table, error) {
	t, err := flat.Open(magic, sections, index)
	if err != nil {
		return nil, fmt.Errorf("open mapping: %w", err)
	}
	return &Table{t}, nil
}

// row is one entry as read back.
type row struct {
	flags, from, to, origFrom, origTo, class, method, extra uint32
}

func (r row) is(flag uint32) bool { return r.flags&flag != 0 }

func (r row) covers(line uint32) bool { return r.is(hasRange) && r.from <= line && line <= r.to }

func (t *Table) row(i int) row {
	s := t.t.Section(entries)
	n := i * entryWidth
	return row{s.At(n), s.At(n + 1), s.At(n + 2), s.At(n + 3), s.At(n + 4), s.At(n + 5), s.At(n + 6), s.At(n + 7)}
}

// find searches rows of width numbers, sorted by the string of their first.
func (t *Table) find(section, width, first, count int, name string) (int, bool) {
	s := t.t.Section(section)
	rows := s.Rows(width)
	if first < 0 || first > rows || count < 0 || count > rows-first {
		return 0, false
	}
	i := sort.Search(count, func(i int) bool { return string(t.t.Text(s.At((first+i)*width))) >= name })
	if i == count || string(t.t.Text(s.At((first+i)*width))) != name {
		return 0, false
	}
	return first + i, true
}

// Class returns the original name of an obfuscated class.
func (t *Table) Class(obfuscated string) (string, bool) {
	i, ok := t.find(classes, classWidth, 0, t.t.Section(classes).Rows(classWidth), obfuscated)
	if !ok {
		return "", false
	}
	return t.t.String(t.t.Section(classes).At(i*classWidth + 1)), true
}

// extrasOf reads the call sites and rules of an entry; damage ends the list.
func (t *Table) extrasOf(r row) (sites []site, rules []rule) {
	p := []byte(t.t.Section(extras))
	if r.extra == 0 || uint64(r.extra-1) >= uint64(len(p)) {
		return nil, nil
	}
	p = p[r.extra-1:]
	next := func() uint64 {
		v, n := binary.Uvarint(p)
		if n <= 0 {
			p = nil
			return 0
		}
		p = p[n:]
		return v
	}
	for n := next(); n > 0 && len(p) > 0; n-- {
		s := site{outline: t.t.String(uint32(next())), lines: map[uint32]uint32{}}
		for k := next(); k > 0 && len(p) > 0; k-- {
			at := uint32(next())
			s.lines[at] = uint32(next())
		}
		sites = append(sites, s)
	}
	for n := next(); n > 0 && len(p) > 0; n-- {
		ru := rule{remove: uint32(next())}
		for k := next(); k > 0 && len(p) > 0; k-- {
			ru.throws = append(ru.throws, t.t.String(uint32(next())))
		}
		rules = append(rules, ru)
	}
	return sites, rules
}

// site is the call site of an outline: line in the outline → line in the caller.
type site struct {
	outline string
	lines   map[uint32]uint32
}
