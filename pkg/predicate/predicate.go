// Package predicate is the targeting expression of the service: its one grammar, parser,
// printer and evaluator. Rules of flags and config items, cohorts and the targeting of
// surveys all go through it.
//
//	predicate = event | screen | cohort | session | prop | group
//	event     = "event:" name                 the named event was dispatched in this session
//	screen    = "screen:" name                the named screen was entered
//	cohort    = "cohort:" key                 the user is in the cohort
//	session   = "session_count" ">=" digits   the user's Nth or later session
//	prop      = "props." propkey "=" string   the profile property equals the text
//	group     = ("AND" | "OR") "(" predicate "," predicate { "," predicate } ")"
//	name      = bare | string                 bare: no quote, comma, parenthesis or control character
//	propkey   = barekey | string              barekey: as bare, and neither "=" nor a blank
//	key       = [A-Za-z0-9._-]{1,128}
//	string    = a JSON string
//
// Blanks (space, tab, CR, LF) may stand between any two tokens. Names of events, screens
// and properties that hold other characters are written as JSON strings.
//
// It promises: parsing is bounded in time and depth by the limits below; String prints
// the canonical form, and parsing that gives an equal tree; evaluation does not allocate.
// It does not know where the facts come from (see Facts), nor which cohorts exist.
package predicate

import (
	"fmt"
	"iter"
	"strconv"
	"strings"
)

// Limits of a predicate's text. See supplement §4.
const (
	MaxBytes   = 4096 // bytes of text
	MaxNesting = 32   // AND and OR inside each other
)

// Kind is the form of a node.
type Kind uint8

// The forms of the specification, in its order.
const (
	Event Kind = iota + 1
	SessionCount
	Cohort
	Screen
	Prop
	And
	Or
)

// String names the form as it starts in text.
func (k Kind) String() string {
	switch k {
	case Event:
		return "event:"
	case SessionCount:
		return "session_count"
	case Cohort:
		return "cohort:"
	case Screen:
		return "screen:"
	case Prop:
		return "props."
	case And:
		return "AND"
	case Or:
		return "OR"
	}
	return "Kind(" + strconv.Itoa(int(k)) + ")"
}

// Node is one form with its operands. Only the fields of its kind are set.
type Node struct {
	Kind  Kind
	Pos   int    // where it starts: characters of the text, from 1
	Name  string // Event, Cohort, Screen: the name; Prop: the key
	Value string // Prop: the text it is compared with
	Count int64  // SessionCount: N
	Args  []Node // And, Or: two or more
}

// Predicate is a parsed text. It is immutable; any number of goroutines may evaluate it.
type Predicate struct {
	root Node
}

// Root is the tree. Callers must not change it.
func (p *Predicate) Root() *Node { return &p.root }

// Error says what is wrong with a text and where.
type Error struct {
	Pos    int // characters of the text, from 1; one past the end when something is missing there
	Reason string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s at position %d", e.Reason, e.Pos)
}

// Nodes walks the tree from the top, parents before their operands.
func (p *Predicate) Nodes() iter.Seq[*Node] {
	return func(yield func(*Node) bool) { walk(&p.root, yield) }
}

func walk(n *Node, yield func(*Node) bool) bool {
	if !yield(n) {
		return false
	}
	for i := range n.Args {
		if !walk(&n.Args[i], yield) {
			return false
		}
	}
	return true
}

// CheckServer reports the first form that only a client can evaluate: rules and
// cohorts are decided by the server, which sees neither events nor screens. The error
// is an *Error or nil.
func (p *Predicate) CheckServer() error {
	for n := range p.Nodes() {
		if n.Kind == Event || n.Kind == Screen {
			return &Error{Pos: n.Pos, Reason: n.Kind.String() + " is known to the client only and cannot be used here"}
		}
	}
	return nil
}

// Facts answers what a predicate asks about one user at one moment.
type Facts interface {
	// SessionAtLeast reports whether the session's number is known and n or higher.
	SessionAtLeast(n int64) bool
	// PropIs reports whether the property has the text as its value.
	PropIs(key, value string) bool
	// InCohort reports whether the user is in the cohort; an unknown cohort holds nobody.
	InCohort(name string) bool
	// SawEvent and SawScreen speak of the current session.
	SawEvent(name string) bool
	SawScreen(name string) bool
}

// Eval tells whether the predicate is true of f. Operands are asked from left to right,
// only as far as needed.
func (p *Predicate) Eval(f Facts) bool { return p.root.eval(f) }

func (n *Node) eval(f Facts) bool {
	switch n.Kind {
	case Prop:
		return f.PropIs(n.Name, n.Value)
	case Cohort:
		return f.InCohort(n.Name)
	case SessionCount:
		return f.SessionAtLeast(n.Count)
	case And:
		for i := range n.Args {
			if !n.Args[i].eval(f) {
				return false
			}
		}
		return true
	case Or:
		for i := range n.Args {
			if n.Args[i].eval(f) {
				return true
			}
		}
		return false
	case Event:
		return f.SawEvent(n.Name)
	case Screen:
		return f.SawScreen(n.Name)
	}
	return false
}

// String prints the canonical text: spaced as in the specification, or without blanks
// where those would pass MaxBytes (a text close to the limit must not grow out of it).
func (p *Predicate) String() string {
	var b strings.Builder
	p.root.print(&b, " ")
	if b.Len() > MaxBytes {
		b.Reset()
		p.root.print(&b, "")
	}
	return b.String()
}

func (n *Node) print(b *strings.Builder, gap string) {
	switch n.Kind {
	case Event, Screen:
		b.WriteString(n.Kind.String())
		printName(b, n.Name, isBare)
	case Cohort:
		b.WriteString("cohort:" + n.Name)
	case SessionCount:
		b.WriteString("session_count" + gap + ">=" + gap + strconv.FormatInt(n.Count, 10))
	case Prop:
		b.WriteString("props.")
		printName(b, n.Name, isBareKey)
		b.WriteString(gap + "=" + gap)
		printString(b, n.Value)
	case And, Or:
		b.WriteString(n.Kind.String() + "(")
		for i := range n.Args {
			if i > 0 {
				b.WriteString("," + gap)
			}
			n.Args[i].print(b, gap)
		}
		b.WriteByte(')')
	}
}

func printName(b *strings.Builder, name string, bare func(byte) bool) {
	if isBareName(name, bare) {
		b.WriteString(name)
		return
	}
	printString(b, name)
}

// isBareName reports whether name reads back as it is: non-empty, of bare characters,
// without blanks at its ends.
func isBareName(name string, bare func(byte) bool) bool {
	if name == "" || isBlank(name[0]) || isBlank(name[len(name)-1]) {
		return false
	}
	for i := range len(name) {
		if !bare(name[i]) {
			return false
		}
	}
	return true
}

// printString writes a JSON string with as few escapes as JSON allows, so that text in
// any script stays within the limit that its source kept.
func printString(b *strings.Builder, s string) {
	const hex = "0123456789abcdef"
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c == '\b':
			b.WriteString(`\b`)
		case c == '\t':
			b.WriteString(`\t`)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\f':
			b.WriteString(`\f`)
		case c == '\r':
			b.WriteString(`\r`)
		case c < 0x20:
			b.WriteString(`\u00`)
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

func isBare(c byte) bool {
	return c >= 0x20 && c != 0x7f && c != '"' && c != ',' && c != '(' && c != ')'
}

func isBareKey(c byte) bool { return isBare(c) && c != '=' && c != ' ' }

func isKeyByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}
