// Package retrace reads the mapping files of ProGuard and R8 and turns frames of
// obfuscated programs back into frames of their source.
//
// It knows class and method renames, inlining, overloads, source files, synthesized
// methods, outlines with their call sites, and rewriteFrame rules (R8's mapping file
// versions up to 2.2; residual signatures are accepted, and frames carry no signature to
// compare them with). It promises no panic and bounded memory on any text: a line it
// cannot read is skipped and counted. It keeps only what frames need, so lines about
// fields are skipped.
package retrace

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
)

// A mapping file is read line by line:
//
//	original.Class -> obfuscated:
//	    [from:to:]type [other.Class.]method(arguments)[:originalFrom[:originalTo]] -> obfuscated
//	    type field -> obfuscated
//	# {"id":…}            about the class or member above

// class is one class of the mapping while it is read.
type class struct {
	original, obfuscated string
	file                 string
	synthesized          bool
	methods              map[string][]*entry // by obfuscated name, in file order
}

// entry is one method line.
type entry struct {
	from, to         uint32 // minified lines; hasRange
	origFrom, origTo uint32 // original lines; hasOrig, pairOrig when both were written
	hasRange         bool
	hasOrig          bool
	pairOrig         bool
	class            string // original class when it is another one, else ""
	method, args     string
	synthesized      bool
	outline          bool
	callsites        []callsite
	rules            []rule
	said             int // of maxSaid
}

// room reports whether n more of what may be said of a line can be, and counts it.
func (e *entry) room(n int) bool {
	if e == nil || e.said+n > maxSaid {
		return false
	}
	e.said += n
	return true
}

type callsite struct {
	outline   string // descriptor of the outline, "" when not given
	positions map[string]uint32
}

type rule struct {
	throws []string // descriptors, all of which must hold
	remove uint32
}

// The bounds of a mapping. What goes beyond is skipped: one frame reads all lines of its
// method, and all that is said of one line, into memory.
const (
	maxLine  = 1 << 20 // bytes; R8 writes descriptors of a few KB at most
	maxLines = 1 << 16 // of one method name in a class; R8 writes some thousand
	maxSaid  = 1 << 10 // positions and conditions said of one line; R8 says a few dozen
)

// reader goes through a file and hands each class on when it ends: a mapping of
// 100 MB is never in memory as a whole.
type reader struct {
	done    func(*class)
	skipped int
	lines   int

	class *class
	entry *entry // the member above; nil after a class line or a field
	field bool   // the member above is a field
}

func (r *reader) read(data []byte) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	for len(data) > 0 {
		line := data
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			line, data = data[:i], data[i+1:]
		} else {
			data = nil
		}
		line = bytes.TrimRight(line, "\r")
		if len(line) > maxLine {
			r.skipped++
			continue
		}
		r.line(string(line))
	}
	r.end()
}

// end hands the present class on.
func (r *reader) end() {
	if r.class != nil {
		r.done(r.class)
	}
	r.class, r.entry, r.field = nil, nil, false
}

func (r *reader) line(line string) {
	text := strings.TrimSpace(line)
	switch {
	case text == "":
	case text[0] == '#':
		r.comment(strings.TrimSpace(text[1:]))
	case line[0] != ' ' && line[0] != '\t' && strings.HasSuffix(text, ":"):
		r.lines++
		r.end()
		if !r.classLine(text) {
			r.skipped++
		}
	default:
		r.lines++
		if !r.member(text) {
			r.skipped++
		}
	}
}

func (r *reader) classLine(text string) bool {
	original, obfuscated, ok := strings.Cut(strings.TrimSuffix(text, ":"), " -> ")
	original, obfuscated = strings.TrimSpace(original), strings.TrimSpace(obfuscated)
	if !ok || original == "" || obfuscated == "" || strings.ContainsAny(original, " (") {
		return false
	}
	r.class = &class{original: original, obfuscated: obfuscated, methods: map[string][]*entry{}}
	return true
}

func (r *reader) member(text string) bool {
	left, name, ok := strings.Cut(text, " -> ")
	if !ok || r.class == nil {
		return false
	}
	left, name = strings.TrimSpace(left), strings.TrimSpace(name)
	open := strings.IndexByte(left, '(')
	if open < 0 {
		r.entry, r.field = nil, true
		return strings.Contains(left, " ")
	}
	e := &entry{}
	left = e.minified(left)
	open = strings.IndexByte(left, '(')
	end := strings.LastIndexByte(left, ')')
	space := strings.LastIndexByte(left[:max(open, 0)], ' ')
	if open < 0 || end < open || space < 0 || name == "" {
		return false
	}
	e.method, e.args = left[space+1:open], left[open+1:end]
	if dot := strings.LastIndexByte(e.method, '.'); dot > 0 {
		e.class, e.method = e.method[:dot], e.method[dot+1:]
		if e.class == r.class.original {
			e.class = ""
		}
	}
	if e.method == "" || !e.original(left[end+1:]) || len(r.class.methods[name]) == maxLines {
		return false
	}
	r.class.methods[name] = append(r.class.methods[name], e)
	r.entry, r.field = e, false
	return true
}

// minified takes "from:to:" off the front. A range that runs backwards says nothing.
func (e *entry) minified(left string) string {
	first, rest, ok := strings.Cut(left, ":")
	from, isNumber := number(first)
	if !ok || !isNumber {
		return left
	}
	second, rest, ok := strings.Cut(rest, ":")
	to, isNumber := number(second)
	if !ok || !isNumber {
		return left
	}
	if from <= to {
		e.from, e.to, e.hasRange = from, to, true
	}
	return rest
}

// original reads ":from" or ":from:to" behind the arguments.
func (e *entry) original(text string) bool {
	if text == "" {
		return true
	}
	if text[0] != ':' {
		return false
	}
	first, second, pair := strings.Cut(text[1:], ":")
	from, ok := number(first)
	if !ok {
		return false
	}
	to := from
	if pair {
		if to, ok = number(second); !ok {
			return false
		}
	}
	if from <= to {
		e.origFrom, e.origTo, e.hasOrig, e.pairOrig = from, to, true, pair
	}
	return true
}

func number(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n < math.MaxUint32
}

// information is any of the JSON comments of R8.
type information struct {
	ID         string         `json:"id"`
	FileName   string         `json:"fileName"`
	Positions  map[string]any `json:"positions"`
	Outline    string         `json:"outline"`
	Conditions []string       `json:"conditions"`
	Actions    []string       `json:"actions"`
}

func (r *reader) comment(text string) {
	if !strings.HasPrefix(text, "{") {
		return
	}
	var info information
	if json.Unmarshal([]byte(text), &info) != nil &&
		json.Unmarshal([]byte(strings.ReplaceAll(text, "'", `"`)), &info) != nil {
		return
	}
	switch info.ID {
	case "sourceFile":
		if r.class != nil {
			r.class.file = info.FileName
		}
	case "com.android.tools.r8.synthesized":
		switch {
		case r.entry != nil:
			r.entry.synthesized = true
		case r.class != nil && !r.field:
			r.class.synthesized = true
		}
	case "com.android.tools.r8.outline":
		if r.entry != nil {
			r.entry.outline = true
		}
	case "com.android.tools.r8.outlineCallsite":
		if r.entry.room(1 + len(info.Positions)) {
			r.entry.callsites = append(r.entry.callsites, callsite{info.Outline, positions(info.Positions)})
		}
	case "com.android.tools.r8.rewriteFrame":
		if rule, ok := info.rule(); ok && r.entry.room(1+len(rule.throws)) {
			r.entry.rules = append(r.entry.rules, rule)
		}
	}
}

func positions(raw map[string]any) map[string]uint32 {
	found := make(map[string]uint32, len(raw))
	for at, to := range raw {
		if line, ok := to.(float64); ok && line >= 0 && line < math.MaxUint32 {
			found[at] = uint32(line)
		}
	}
	return found
}

// rule reads conditions and actions; one that holds anything unknown is ignored
// whole, because half of a rule could remove what it was not meant to.
func (info information) rule() (rule, bool) {
	var out rule
	for _, c := range info.Conditions {
		descriptor, ok := argument(c, "throws")
		if !ok {
			return rule{}, false
		}
		out.throws = append(out.throws, descriptor)
	}
	for _, a := range info.Actions {
		arg, ok := argument(a, "removeInnerFrames")
		n, isNumber := number(arg)
		if !ok || !isNumber {
			return rule{}, false
		}
		out.remove = min(out.remove+min(n, 1<<16), 1<<16)
	}
	return out, len(out.throws) > 0 && out.remove > 0
}

func argument(text, function string) (string, bool) {
	rest, ok := strings.CutPrefix(text, function+"(")
	if !ok || !strings.HasSuffix(rest, ")") {
		return "", false
	}
	return rest[:len(rest)-1], true
}
