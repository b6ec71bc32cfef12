package decide

import (
	"slices"
	"sort"
	"strings"
	"unsafe"

	"skerry/pkg/predicate"
)

// Entry is one compiled flag or config item. It is immutable.
//
// An edge holds hundreds of thousands of them, so they are small: all that is text lies
// in one piece, exactly as long as it must be, and is found by offsets.
//
//	text = key                         what follows is found from here on
//	     | `","version":N}`            the end of the handshake's answers
//	     | `{"key":"k","reason":"`     the beginning of OpenFeature's
//	     | per choice: `"k":{"value":V,"variant":"X","reason":"` | `","variant":"X","value":V,"metadata":{"version":N}}`
//	     | the predicates' programs | the key of props.<key>
type Entry struct {
	Key  string // the beginning of text
	text string
	// choices are, two for each, where the halves of its text begin; one more is where
	// the last one ends.
	choices   []uint32
	overrides []override
	rollout   *rollout // nil: none
	base      *Entry   // of a halted flag: as it is without the halt
	version   int64
	opening   uint32 // where OpenFeature's beginning begins
	fallback  Outcome
	ruled     bool // it has a rule, so its default is not static
}

// Outcome is one possible answer: a choice of the entry that gave it, and the reason.
type Outcome struct {
	choice uint16 // at most one for each override and range, and the default's
	Reason Reason
}

// span is a stretch of an entry's text.
type span struct{ start, end uint32 }

type override struct {
	when   span
	choice uint16
}

type rollout struct {
	when   span // empty: everybody
	key    span // of props.<key>
	salt   salted
	by     unitKind
	ranges []choiceRange // in order, none empty
}

type choiceRange struct {
	start, end uint32
	choice     uint16
}

type unitKind uint8

const (
	unitDistinctID unitKind = iota
	unitAnonID
	unitProp
)

func (e *Entry) at(s span) string { return e.text[s.start:s.end] }

// Decide finds the answer for a user.
func (e *Entry) Decide(c *Context) Outcome {
	for i := range e.overrides {
		if predicate.EvalProgram(e.at(e.overrides[i].when), c) {
			return Outcome{e.overrides[i].choice, ReasonOverride}
		}
	}
	if e.rollout != nil {
		if choice, ok := e.roll(e.rollout, c); ok {
			return Outcome{choice, ReasonRollout}
		}
	}
	return e.fallback
}

func (e *Entry) roll(r *rollout, c *Context) (choice uint16, ok bool) {
	unit := c.distinctID
	if r.by != unitDistinctID {
		unit = c.unit(r.by, e.at(r.key))
	}
	if len(unit) == 0 || r.when.end > 0 && !predicate.EvalProgram(e.at(r.when), c) {
		return 0, false
	}
	bucket := r.salt.bucket(unit)
	ranges := r.ranges
	if len(ranges) > 8 {
		ranges = ranges[sort.Search(len(ranges), func(i int) bool { return bucket < ranges[i].end }):]
		ranges = ranges[:min(len(ranges), 1)]
	}
	// Counting instead of stopping: which of two ranges it is cannot be foreseen, and to
	// guess wrong costs as much as the hash. Buckets are below 1<<31, so the sign of the
	// difference tells.
	at := 0
	for i := range ranges {
		at += int(1 - (bucket-ranges[i].end)>>31)
	}
	if at < len(ranges) && bucket >= ranges[at].start {
		return ranges[at].choice, true
	}
	return 0, false
}

// AppendHandshake appends an outcome of the entry as the handshake shows it:
// `"key":{"value":…,"variant":…,"reason":…,"version":…}`; config items have
// "type" for "variant".
func (e *Entry) AppendHandshake(dst []byte, o Outcome) []byte {
	half := e.choices[2*int(o.choice):][:2]
	n := len(dst)
	dst = room(dst, int(half[1]-half[0])+int(e.opening))
	n = put(dst, n, e.text, half[0], half[1])
	n = put(dst, n, reasons[o.Reason].text, 0, reasons[o.Reason].size)
	return dst[:put(dst, n, e.text, uint32(len(e.Key)), e.opening)]
}

// AppendOpenFeature appends an outcome of the entry as the whole answer of a single
// evaluation, which is also an element of a bulk one.
func (e *Entry) AppendOpenFeature(dst []byte, o Outcome) []byte {
	if o.Reason == ReasonError {
		dst = appendString(append(dst, `{"key":`...), e.Key)
		return append(dst, `,"errorCode":"GENERAL","errorDetails":"the stored definition cannot be evaluated"}`...)
	}
	half := e.choices[2*int(o.choice)+1:][:2]
	reason := &openReasons[o.Reason]
	if o.Reason == ReasonDefault && !e.ruled {
		reason = &openReasons[0]
	}
	n := len(dst)
	dst = room(dst, int(half[1]-half[0])+int(e.choices[0]))
	n = put(dst, n, e.text, e.opening, e.choices[0])
	n = put(dst, n, reason.text, 0, reason.size)
	n = put(dst, n, e.text, half[0], half[1])
	if o.Reason == ReasonHalted {
		return append(dst[:n-2], `,"halted":true}}`...)
	}
	return dst[:n]
}

// An answer is put together from three short texts. To append them costs three calls of
// memmove, which for a hundred flags take a third of the time; in steps of sixteen bytes,
// which need no call, they take hardly longer than one text. A text must have so much
// behind it that the last step stays inside.
const step = 16

// padded is a short text with what put needs behind it.
type padded struct {
	text string
	size uint32
}

func pad(text string) padded { return padded{text + strings.Repeat(" ", step-1), uint32(len(text))} }

// room makes room for n bytes more, for a reason, and for the last step; the result is as
// long as it can be.
func room(dst []byte, n int) []byte {
	if n += 3 * step; cap(dst)-len(dst) < n {
		dst = slices.Grow(dst, n)
	}
	return dst[:cap(dst)]
}

// put writes a stretch of the text at dst[n:], and gives where it ends. What comes behind
// that is overwritten.
func put(dst []byte, n int, text string, from, to uint32) int {
	end := n + int(to-from)
	for i := int(from); i < int(to); i += step {
		copy(dst[n:n+step], text[i:i+step])
		n += step
	}
	return end
}

// Halted is the flag under a halt, or without its halt (nil), whether or not it is halted
// now. It needs no definition: that a flag is halted changes nothing else of it.
func (e *Entry) Halted(h *HaltDefinition) *Entry {
	base := e
	if e.base != nil {
		base = e.base
	}
	if h == nil {
		return base
	}
	var out *Entry
	if h.Version >= base.version {
		k := compiler{entry: &Entry{Key: base.Key, version: h.Version}, flag: true}
		k.entry.fallback = k.outcome(ReasonHalted, h.DefaultValue, h.DefaultVariant)
		out = k.done()
	} else {
		short := *base
		short.overrides, short.rollout, short.fallback.Reason = nil, nil, ReasonHalted
		out = &short
	}
	out.base = base
	return out
}

// Size is about how many bytes the entry holds, as they are taken from the heap.
func (e *Entry) Size() int {
	n := allocated(int(unsafe.Sizeof(*e))) + allocated(len(e.text)) + allocated(4*len(e.choices)) +
		allocated(len(e.overrides)*int(unsafe.Sizeof(override{})))
	if e.rollout != nil {
		n += allocated(int(unsafe.Sizeof(*e.rollout))) + allocated(len(e.rollout.ranges)*int(unsafe.Sizeof(choiceRange{})))
	}
	if e.base != nil {
		n += e.base.Size()
	}
	return n
}

// allocated is how much of the heap an object of n bytes takes: sizes go in steps, about
// an eighth apart.
func allocated(n int) int {
	if n <= 256 {
		return (n + 15) &^ 15
	}
	return n + n/16
}
