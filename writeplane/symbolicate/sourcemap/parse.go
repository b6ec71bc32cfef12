package sourcemap

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// MaxSections bounds the sections of an index map, nested ones included.
const MaxSections = 100_000

// ErrMalformed wraps every fault of a map as a whole.
var ErrMalformed = errors.New("malformed source map")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrMalformed, fmt.Errorf(format, args...))
}

// strip removes what may stand before the JSON: a byte order mark and the line
// that keeps a map from being run as a script.
func strip(data []byte) []byte {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if bytes.HasPrefix(data, []byte(")]}'")) || bytes.HasPrefix(data, []byte(")]}")) {
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			return data[i+1:]
		}
	}
	return data
}

// DebugID returns the top-level debug id of a map, lower case, or "" when it has
// none. The whole text is checked to be one JSON object.
func DebugID(data []byte) (string, error) {
	m, err := members(strip(data), "debugId", "debug_id")
	if err != nil {
		return "", malformed("%w", err)
	}
	for _, name := range []string{"debugId", "debug_id"} {
		if id, ok := text(m[name]); ok && id != "" {
			return strings.ToLower(id), nil
		}
	}
	return "", nil
}

// Build reads a source map or index map after ECMA-426 and returns its lookup
// form for Open, with warnings about segments that refer to nothing. The decoder
// continues where the standard lets it: such a segment is remembered as malformed
// and answers so; a map that is no map is ErrMalformed.
func Build(data []byte) (index []byte, warnings []string, err error) {
	b := newBuilder()
	p := parser{b: b, room: 8*len(data) + 64<<10}
	if err := p.document(strip(data), place{line: math.MaxInt64}, offset{}, 0); err != nil {
		return nil, nil, err
	}
	b.flushLine()
	if p.bad > 0 {
		warnings = append(warnings, fmt.Sprintf("%d mappings refer to sources or positions that do not exist", p.bad))
	}
	return b.bytes(), warnings, nil
}

// place is a generated position, counted from 0.
type place struct{ line, column int64 }

func (p place) before(o place) bool {
	return p.line < o.line || p.line == o.line && p.column < o.column
}

// offset is where a section begins; its column holds on its first line only.
type offset = place

type parser struct {
	b        *builder
	bad      int
	sections int
	room     int // for what sourceRoot adds to sources: a long one before each of many would take gigabytes
}

// document adds one map at off, up to but not including stop.
func (p *parser) document(data []byte, stop place, off offset, depth int) error {
	m, err := members(data, "version", "sections", "mappings", "sources", "sourceRoot", "names", "ignoreList", "x_google_ignoreList")
	if err != nil {
		return malformed("%w", err)
	}
	if v, err := strconv.ParseFloat(string(m["version"]), 64); err != nil || v != 3 {
		return malformed("version is not 3")
	}
	if sections, ok := m["sections"]; ok {
		if _, both := m["mappings"]; both {
			return malformed("it has both sections and mappings")
		}
		return p.indexMap(sections, stop, off, depth)
	}
	return p.plainMap(m, stop, off)
}

type section struct {
	at  offset
	doc []byte
}

func (p *parser) indexMap(raw []byte, stop place, off offset, depth int) error {
	if depth > 8 {
		return malformed("index maps are nested too deeply")
	}
	list, err := p.readSections(raw)
	if err != nil {
		return err
	}
	for i, s := range list {
		at := place{line: off.line + s.at.line, column: s.at.column}
		if s.at.line == 0 {
			at.column += off.column
		}
		if at.line > math.MaxInt32 { // the offsets of nested sections add up
			return malformed("a section begins behind line 2^31")
		}
		end := stop
		if i+1 < len(list) {
			next := list[i+1].at
			if !s.at.before(next) && s.at != next {
				return malformed("sections are not in order")
			}
			nextAt := place{line: off.line + next.line, column: next.column}
			if next.line == 0 {
				nextAt.column += off.column
			}
			if nextAt.before(end) {
				end = nextAt
			}
		}
		if err := p.document(s.doc, end, at, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) readSections(raw []byte) ([]section, error) {
	if len(raw) == 0 || raw[0] != '[' {
		return nil, malformed("sections is not an array")
	}
	var list []section
	s := scanner{data: raw}
	err := s.array(func() error {
		value, err := s.value()
		if err != nil {
			return err
		}
		if p.sections++; p.sections > MaxSections {
			return fmt.Errorf("more than %d sections", MaxSections)
		}
		m, err := members(value, "offset", "map")
		if err != nil {
			return err
		}
		if len(m["map"]) == 0 || m["map"][0] != '{' {
			return errors.New("a section has no map")
		}
		o, err := members(m["offset"], "line", "column")
		if err != nil {
			return errors.New("a section has no offset")
		}
		line, lineOK := index(o["line"])
		column, columnOK := index(o["column"])
		if !lineOK || !columnOK {
			return errors.New("a section's offset is no line and column")
		}
		list = append(list, section{at: offset{line: line, column: column}, doc: m["map"]})
		return nil
	})
	if err != nil {
		return nil, malformed("%w", err)
	}
	return list, nil
}

// index reads a number that is whole, not negative and fits 32 bits.
func index(value []byte) (int64, bool) {
	f, err := strconv.ParseFloat(string(value), 64)
	if err != nil || f < 0 || f > math.MaxInt32 || f != math.Trunc(f) {
		return 0, false
	}
	return int64(f), true
}

// plainMap adds the mappings of one map. Sources and names get the numbers of the
// whole table first, so that a segment costs two slice look-ups.
func (p *parser) plainMap(m map[string][]byte, stop place, off offset) error {
	mappings, ok := raw(m["mappings"])
	if !ok {
		return malformed("mappings is not a string")
	}
	root := ""
	if present(m["sourceRoot"]) {
		if root, ok = text(m["sourceRoot"]); !ok {
			return malformed("sourceRoot is not a string")
		}
	}
	ignored, err := ignoreList(m)
	if err != nil {
		return err
	}
	sources, err := strs(m["sources"], "sources", func(i int, s string, null bool) uint32 {
		if p.room -= len(root); p.room < 0 {
			return 0
		}
		return p.b.source(resolve(root, s), null, ignored[int64(i)])
	})
	if err != nil {
		return err
	}
	if p.room < 0 {
		return malformed("sourceRoot makes the sources too long")
	}
	if len(m["sources"]) == 0 {
		return malformed("sources is missing")
	}
	names, err := strs(m["names"], "names", func(_ int, s string, null bool) uint32 { return p.b.name(s) })
	if err != nil {
		return err
	}
	d := decoder{p: p, sources: sources, names: names, stop: stop, off: off}
	if err := d.run(mappings); err != nil {
		return malformed("%w", err)
	}
	return nil
}

// resolve puts the source root before a relative source.
func resolve(root, source string) string {
	if root == "" || strings.HasPrefix(source, "/") || strings.Contains(source, "://") {
		return source
	}
	return strings.TrimSuffix(root, "/") + "/" + source
}

func ignoreList(m map[string][]byte) (map[int64]bool, error) {
	value, ok := m["ignoreList"]
	if !ok {
		value = m["x_google_ignoreList"]
	}
	if !present(value) {
		return nil, nil
	}
	ignored := map[int64]bool{}
	s := scanner{data: value}
	err := s.array(func() error {
		item, err := s.value()
		if err != nil {
			return err
		}
		i, ok := index(item)
		if !ok {
			return errors.New("it has an entry that is no index")
		}
		ignored[i] = true
		return nil
	})
	if err != nil {
		return nil, malformed("ignoreList: %w", err)
	}
	return ignored, nil
}

// strs reads an array of strings and nulls, numbering each by add.
func strs(value []byte, what string, add func(i int, s string, null bool) uint32) ([]uint32, error) {
	if !present(value) {
		return nil, nil
	}
	if value[0] != '[' {
		return nil, malformed("%s is not an array", what)
	}
	var numbers []uint32
	s := scanner{data: value}
	err := s.array(func() error {
		item, err := s.value()
		if err != nil {
			return err
		}
		str, isText := text(item)
		if !isText && string(item) != "null" {
			return errors.New("an entry is not a string")
		}
		numbers = append(numbers, add(len(numbers), str, !isText))
		return nil
	})
	if err != nil {
		return nil, malformed("%s: %w", what, err)
	}
	return numbers, nil
}

// decoder walks the mappings of one plain map.
type decoder struct {
	p              *parser
	sources, names []uint32
	stop           place
	off            offset

	line, column           int64
	source, srcLine        int64
	srcColumn, name, shift int64
}

func (d *decoder) run(b []byte) error {
	d.line, d.shift = d.off.line, d.off.column
	for i := 0; i < len(b); {
		switch b[i] {
		case ';':
			d.line++
			d.column, d.shift = 0, 0
			i++
			if d.line > d.stop.line {
				return nil
			}
			if d.line > math.MaxInt32 {
				return errors.New("it has more than 2^31 lines")
			}
		case ',':
			i++
		default:
			n, err := d.segment(b[i:])
			if err != nil {
				return err
			}
			i += n
		}
	}
	return nil
}

// segment decodes 1, 4 or 5 fields and adds them to the table.
func (d *decoder) segment(b []byte) (n int, err error) {
	var fields [5]int64
	count := 0
	for n < len(b) && b[n] != ',' && b[n] != ';' {
		if count == len(fields) {
			return 0, errors.New("a segment has more than five fields")
		}
		v, used, err := vlq(b[n:])
		if err != nil {
			return 0, err
		}
		fields[count] = v
		count++
		n += used
	}
	if count == 2 || count == 3 {
		return 0, fmt.Errorf("a segment has %d fields", count)
	}
	d.column += fields[0]
	seg := segment{column: d.column + d.shift, kind: kindUnmapped}
	if count >= 4 {
		d.source += fields[1]
		d.srcLine += fields[2]
		d.srcColumn += fields[3]
		seg.kind = d.original(&seg)
	}
	if count == 5 {
		d.name += fields[4]
		if d.name >= 0 && d.name < int64(len(d.names)) && seg.kind == kindSource {
			seg.kind, seg.name = kindNamed, d.names[d.name]
		}
	}
	if seg.kind == kindBad || d.column < 0 {
		d.p.bad++
	}
	at := place{line: d.line, column: seg.column}
	if d.column < 0 || seg.column > math.MaxUint32 || !at.before(d.stop) {
		return n, nil
	}
	return n, d.p.b.add(d.line, seg)
}

func (d *decoder) original(seg *segment) kind {
	if d.source < 0 || d.source >= int64(len(d.sources)) || d.srcLine < 0 || d.srcColumn < 0 ||
		d.srcLine >= math.MaxUint32 || d.srcColumn >= math.MaxUint32 {
		return kindBad
	}
	seg.source, seg.srcLine, seg.srcColumn = d.sources[d.source], d.srcLine, d.srcColumn
	return kindSource
}

// sortLine puts the segments of a line in order of column, keeping the order of
// the text among equals. Generators nearly always write them sorted.
func sortLine(line []segment) {
	byColumn := func(a, b segment) int { return int(min(1, max(-1, a.column-b.column))) }
	if !slices.IsSortedFunc(line, byColumn) {
		slices.SortStableFunc(line, byColumn)
	}
}
