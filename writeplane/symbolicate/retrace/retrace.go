package retrace

import (
	"path"
	"strings"
)

// syntheticFile is what R8 writes as the source file of classes it made.
const syntheticFile = "R8$$SyntheticClass"

// Frame is one obfuscated frame. Line 0 is unknown.
type Frame struct {
	Class, Method, File string
	Line                int64
}

// Original is one frame of the source. Line 0 is unknown; Method is "" when only
// the class is known.
type Original struct {
	Class, Method, File string
	Line                int64
}

// Outcome says what became of a frame.
type Outcome uint8

// The outcomes.
const (
	Found       Outcome = iota
	NotFound            // the mapping does not know the class
	Synthesized         // made by the compiler; nothing of the source stands behind it
	Excess              // the chains of the stack take more than they may
)

// Result is what one frame turned into, innermost first.
type Result struct {
	Outcome Outcome
	Chain   []Original
}

// Stack retraces the frames of one stack, innermost first, of an exception whose
// class is thrown (obfuscated or original; it decides rewriteFrame rules of the
// frame it was thrown in). An outline hands its position to the frame that called
// it, so frames are not independent of each other.
//
// Where a frame has several readings the first of the file is taken; lines that
// differ among readings of one method are unknown. room bounds what all chains take, in
// bytes: the frames from the one on that goes beyond have no chain.
func (t *Table) Stack(thrown string, frames []Frame, room int) []Result {
	results := make([]Result, len(frames))
	descriptors := t.descriptors(thrown)
	top := true
	var from *Frame // the outline just left
	for i, f := range frames {
		if room < 0 {
			results[i].Outcome = Excess
			continue
		}
		result, isOutline := t.frame(f, from)
		if isOutline {
			results[i] = Result{Outcome: Synthesized}
			from = &frames[i]
			continue
		}
		from = nil
		if top && result.Outcome == Found {
			result.Result = result.rewrite(descriptors)
		}
		top = false
		if room -= result.weight(); room < 0 {
			result.Result = Result{Outcome: Excess}
		}
		results[i] = result.Result
	}
	return results
}

// weight is about what a result takes.
func (r Result) weight() (sum int) {
	for _, o := range r.Chain {
		sum += 100 + len(o.Class) + len(o.Method) + len(o.File)
	}
	return sum
}

// descriptors are the forms in which a rule may name the thrown class.
func (t *Table) descriptors(thrown string) map[string]bool {
	names := map[string]bool{descriptor(thrown): true}
	if original, ok := t.Class(thrown); ok {
		names[descriptor(original)] = true
	}
	return names
}

func descriptor(class string) string { return "L" + strings.ReplaceAll(class, ".", "/") + ";" }

// reading is a result with the rules that may still change it.
type reading struct {
	Result
	rules []rule
}

func (r reading) rewrite(thrown map[string]bool) Result {
	remove := 0
	for _, rule := range r.rules {
		holds := true
		for _, d := range rule.throws {
			holds = holds && thrown[d]
		}
		if holds {
			remove += int(rule.remove)
		}
	}
	if remove >= len(r.Chain) && remove > 0 {
		return Result{Outcome: Synthesized}
	}
	return Result{Outcome: Found, Chain: r.Chain[remove:]}
}

// frame reads one frame; from is the outline that it called, if the frame below was one.
func (t *Table) frame(f Frame, from *Frame) (out reading, isOutline bool) {
	all := t.t.Section(classes)
	c, ok := t.find(classes, classWidth, 0, all.Rows(classWidth), f.Class)
	if !ok {
		return reading{Result: Result{Outcome: NotFound}}, false
	}
	own := holder{t: t, class: t.t.String(all.At(c*classWidth + 1)), file: t.t.String(all.At(c*classWidth + 2)), sent: f.File}
	alone := reading{Result: Result{Chain: []Original{{Class: own.class, File: own.fileOf(own.class)}}}}
	m, ok := t.find(methods, methodWidth, int(all.At(c*classWidth+4)), int(all.At(c*classWidth+5)), f.Method)
	for part := c + 1; !ok && t.t.String(all.At(part*classWidth)) == f.Class && part < all.Rows(classWidth); part++ {
		m, ok = t.find(methods, methodWidth, int(all.At(part*classWidth+4)), int(all.At(part*classWidth+5)), f.Method)
	}
	if !ok {
		return alone, false
	}
	list := t.t.Section(methods)
	first, count := int(list.At(m*methodWidth+1)), int(list.At(m*methodWidth+2))
	if rows := t.t.Section(entries).Rows(entryWidth); first > rows || count > rows-first {
		return alone, false
	}
	groups := t.groups(first, count)
	line := clampLine(f.Line)
	hit := narrow(groups, line)
	if from != nil {
		if moved, ok := t.callsite(hit, *from); ok {
			line = moved
			hit = narrow(groups, line)
		}
	}
	if len(hit) == 0 {
		return alone, false
	}
	if hit[0][0].is(outline) {
		return reading{}, true
	}
	return own.read(hit, line), false
}

func clampLine(line int64) uint32 {
	if line < 0 || line > 1<<31 {
		return 0
	}
	return uint32(line)
}

// groups cuts the entries of a method into inline chains.
func (t *Table) groups(first, count int) [][]row {
	var groups [][]row
	for i := first; i < first+count; i++ {
		r := t.row(i)
		if len(groups) == 0 || r.is(startsGroup) {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], r)
	}
	return groups
}

// narrow keeps the chains that can stand for a line: those whose minified lines
// hold it, else those without minified lines; without a line, all.
func narrow(groups [][]row, line uint32) [][]row {
	var covering, without [][]row
	for _, g := range groups {
		switch {
		case g[0].covers(line):
			covering = append(covering, g)
		case !g[0].is(hasRange):
			without = append(without, g)
		}
	}
	switch {
	case len(covering) > 0:
		return covering
	case line > 0:
		return without
	}
	return groups
}

// callsite finds where in this method the outline was called from.
func (t *Table) callsite(hit [][]row, outlined Frame) (uint32, bool) {
	want := descriptor(outlined.Class) + outlined.Method + "("
	var loose *site
	for _, g := range hit {
		for _, r := range g {
			sites, _ := t.extrasOf(r)
			for _, s := range sites {
				if s.outline == "" || strings.HasPrefix(s.outline, want) {
					line, ok := s.lines[clampLine(outlined.Line)]
					return line, ok
				}
				if loose == nil {
					loose = &s
				}
			}
		}
	}
	if loose == nil {
		return 0, false
	}
	line, ok := loose.lines[clampLine(outlined.Line)]
	return line, ok
}

// holder is the class that the frame's code lies in.
type holder struct {
	t           *Table
	class, file string
	sent        string // file name as sent
}

// read turns the chains that may stand for a line into the answer.
func (h holder) read(hit [][]row, line uint32) reading {
	chain := hit[0]
	positional := chain[0].covers(line) || !chain[0].is(hasRange)
	if !positional {
		// Without a line nobody knows what was inlined: the method itself remains.
		chain = chain[len(chain)-1:]
	}
	out := reading{}
	for i, r := range chain {
		_, rules := h.t.extrasOf(r)
		out.rules = append(out.rules, rules...)
		if r.is(synthesized) {
			continue
		}
		o := Original{Class: h.class, Method: h.t.t.String(r.method)}
		if other := h.t.t.String(r.class); other != "" {
			o.Class = other
		}
		o.File = h.fileOf(o.Class)
		if positional && agree(hit, i, line) {
			o.Line = int64(r.lineAt(line))
		}
		out.Chain = append(out.Chain, o)
	}
	if len(out.Chain) == 0 {
		out.Outcome = Synthesized
	}
	return out
}

// agree reports whether all readings give the same line at depth i, or belong to
// other methods, which the choice of the first already decided.
func agree(hit [][]row, i int, line uint32) bool {
	first := hit[0]
	for _, g := range hit[1:] {
		if g[0].method != first[0].method || g[0].class != first[0].class {
			continue
		}
		if i >= len(g) || g[i].method != first[i].method || g[i].lineAt(line) != first[i].lineAt(line) {
			return false
		}
	}
	return true
}

// lineAt is the original line of a minified one.
func (r row) lineAt(line uint32) uint32 {
	switch {
	case !r.is(hasOrig):
		return line
	case r.origFrom == r.origTo:
		return r.origFrom
	case !r.is(hasRange):
		return 0 // one of several, and nothing says which
	case r.to-r.from != r.origTo-r.origFrom && line == 0:
		return 0
	}
	return min(r.origFrom+(line-r.from), r.origTo)
}

// fileOf names the source file of an original class: what the mapping says, else
// made of the outermost class's name as Java and Kotlin compilers do.
func (h holder) fileOf(class string) string {
	rows := h.t.t.Section(originals)
	if i, ok := h.t.find(originals, originalWidth, 0, rows.Rows(originalWidth), class); ok {
		return h.t.t.String(rows.At(i*originalWidth + 1))
	}
	name := class[strings.LastIndexByte(class, '.')+1:]
	for _, part := range strings.Split(name, "$") {
		if strings.HasPrefix(name, "ComposableSingletons$") && strings.HasSuffix(part, "Kt") && len(part) > 2 {
			return strings.TrimSuffix(part, "Kt") + ".kt" // Compose keeps the file's class inside its own
		}
	}
	if i := strings.IndexByte(name, '$'); i > 0 {
		name = name[:i]
	}
	if len(name) > 2 && strings.HasSuffix(name, "Kt") {
		return strings.TrimSuffix(name, "Kt") + ".kt"
	}
	if path.Ext(h.file) == ".kt" || path.Ext(h.sent) == ".kt" {
		return name + ".kt"
	}
	return name + ".java"
}
