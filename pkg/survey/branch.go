package survey

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits of a branching predicate, the same as for targeting predicates.
const (
	MaxPredicateBytes   = 4096
	MaxPredicateNesting = 32
)

// Branch is a compiled branching predicate: a condition on one question's answer.
//
//	predicate  = conjunction { "OR" conjunction }
//	conjunction = term { "AND" term }
//	term       = "AND" "(" predicate "," predicate {"," predicate} ")"
//	           | "OR"  "(" predicate "," predicate {"," predicate} ")"
//	           | "(" predicate ")"
//	           | "answered"
//	           | "answer" ("=" | "!=" | "<" | "<=" | ">" | ">=") value
//	           | "answer" "in" "[" value {"," value} "]"
//	           | "answer" "contains" string
//	value      = JSON number | JSON string | "true" | "false"
//
// An unanswered question satisfies nothing but what does not mention `answer` or
// `answered`, so `answer != 3` is false where there is no answer. Values of different
// types are never equal, so `answer != "3"` holds for the number 3. Order is
// defined between two numbers and between two strings (by code point, which orders
// ISO dates of the same form by time). `contains` finds an entry of a multiselect,
// or a part of a string.
type Branch struct{ root node }

// BranchError tells what is wrong with a branching predicate, and where: Pos counts
// characters of the text from 1, one past the end when something is missing there.
type BranchError struct {
	Pos    int
	Reason string
}

func (e *BranchError) Error() string {
	return fmt.Sprintf("%s at position %d", e.Reason, e.Pos)
}

// ParseBranch compiles a branching predicate. The error is a *BranchError.
func ParseBranch(text string) (*Branch, error) {
	if len(text) > MaxPredicateBytes {
		return nil, &BranchError{1, fmt.Sprintf("text longer than %d bytes", MaxPredicateBytes)}
	}
	if !utf8.ValidString(text) {
		return nil, &BranchError{1, "invalid UTF-8"}
	}
	p := &branchParser{text: text}
	root, err := p.predicate(0)
	if err != nil {
		return nil, err
	}
	if p.space(); p.at < len(p.text) {
		return nil, p.fault("unexpected text behind the predicate")
	}
	return &Branch{root}, nil
}

// Matches evaluates the predicate on an answer.
func (b *Branch) Matches(answer Answer) bool { return b.root.matches(answer) }

// node is one part of a compiled predicate.
type node interface{ matches(Answer) bool }

type (
	all      []node
	some     []node
	answered struct{}
	compare  struct {
		op    string
		value scalar
	}
	oneOf    []scalar
	contains string
)

func (n all) matches(a Answer) bool {
	return !slices.ContainsFunc(n, func(part node) bool { return !part.matches(a) })
}

func (n some) matches(a Answer) bool {
	return slices.ContainsFunc(n, func(part node) bool { return part.matches(a) })
}

func (answered) matches(a Answer) bool { return a.kind != absent }

func (n compare) matches(a Answer) bool {
	if a.kind == absent {
		return false
	}
	switch n.op {
	case "=":
		return a.equals(n.value)
	case "!=":
		return !a.equals(n.value)
	}
	order, ok := a.order(n.value)
	if !ok {
		return false
	}
	switch n.op {
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	default:
		return order >= 0
	}
}

func (n oneOf) matches(a Answer) bool { return slices.ContainsFunc(n, a.equals) }

func (n contains) matches(a Answer) bool {
	switch a.kind {
	case textAnswer:
		return strings.Contains(a.text, string(n))
	case listAnswer:
		return slices.Contains(a.list, string(n))
	}
	return false
}

// scalar is a value written in a predicate.
type scalar struct {
	kind   answerKind // numberAnswer, textAnswer or boolAnswer
	number float64
	text   string
	truth  bool
}

// branchParser is a cursor over the text, in bytes; its methods take one piece each.
type branchParser struct {
	text string
	at   int
}

func (p *branchParser) fault(format string, args ...any) error {
	return &BranchError{utf8.RuneCountInString(p.text[:p.at]) + 1, fmt.Sprintf(format, args...)}
}

func (p *branchParser) space() {
	for p.at < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.at]) >= 0 {
		p.at++
	}
}

// symbol takes s if it stands next.
func (p *branchParser) symbol(s string) bool {
	p.space()
	if !strings.HasPrefix(p.text[p.at:], s) {
		return false
	}
	p.at += len(s)
	return true
}

// word takes the keyword w if it stands next as a whole word.
func (p *branchParser) word(w string) bool {
	p.space()
	rest := p.text[p.at:]
	if !strings.HasPrefix(rest, w) || (len(rest) > len(w) && isWordByte(rest[len(w)])) {
		return false
	}
	p.at += len(w)
	return true
}

func isWordByte(b byte) bool {
	return b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= utf8.RuneSelf
}

func (p *branchParser) predicate(depth int) (node, error) {
	return p.chain("OR", depth, p.conjunction, func(parts []node) node { return some(parts) })
}

func (p *branchParser) conjunction(depth int) (node, error) {
	return p.chain("AND", depth, p.term, func(parts []node) node { return all(parts) })
}

// chain reads one or more parts with the infix keyword between them.
func (p *branchParser) chain(keyword string, depth int, part func(int) (node, error), join func([]node) node) (node, error) {
	first, err := part(depth)
	if err != nil {
		return nil, err
	}
	parts := []node{first}
	for p.word(keyword) {
		next, err := part(depth)
		if err != nil {
			return nil, err
		}
		parts = append(parts, next)
	}
	if len(parts) == 1 {
		return first, nil
	}
	return join(parts), nil
}

func (p *branchParser) term(depth int) (node, error) {
	if depth > MaxPredicateNesting {
		return nil, p.fault("nested deeper than %d", MaxPredicateNesting)
	}
	switch {
	case p.word("AND"):
		parts, err := p.arguments("AND", depth+1)
		return all(parts), err
	case p.word("OR"):
		parts, err := p.arguments("OR", depth+1)
		return some(parts), err
	case p.symbol("("):
		inner, err := p.predicate(depth + 1)
		if err == nil && !p.symbol(")") {
			err = p.fault("expected )")
		}
		return inner, err
	case p.word("answered"):
		return answered{}, nil
	case p.word("answer"):
		return p.condition()
	}
	return nil, p.fault("expected answer, answered, AND, OR or (")
}

// arguments reads the parenthesised parts of the function form, two or more.
func (p *branchParser) arguments(function string, depth int) ([]node, error) {
	if !p.symbol("(") {
		return nil, p.fault("expected ( behind %s", function)
	}
	var parts []node
	for {
		part, err := p.predicate(depth)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
		if p.symbol(",") {
			continue
		}
		if len(parts) < 2 {
			return nil, p.fault("%s takes two or more predicates", function)
		}
		if !p.symbol(")") {
			return nil, p.fault("expected , or )")
		}
		return parts, nil
	}
}

func (p *branchParser) condition() (node, error) {
	if p.word("in") {
		return p.list()
	}
	if p.word("contains") {
		p.space()
		start := p.at
		value, err := p.value()
		if err != nil {
			return nil, err
		}
		if value.kind != textAnswer {
			p.at = start
			return nil, p.fault("contains takes a string")
		}
		return contains(value.text), nil
	}
	for _, op := range []string{"!=", "<=", ">=", "=", "<", ">"} {
		if !p.symbol(op) {
			continue
		}
		p.space()
		start := p.at
		value, err := p.value()
		if err != nil {
			return nil, err
		}
		if value.kind == boolAnswer && op != "=" && op != "!=" {
			p.at = start
			return nil, p.fault("true and false have no order")
		}
		return compare{op, value}, nil
	}
	return nil, p.fault("expected a comparison, in or contains")
}

func (p *branchParser) list() (node, error) {
	if !p.symbol("[") {
		return nil, p.fault("expected [")
	}
	var values oneOf
	for {
		value, err := p.value()
		if err != nil {
			return nil, err
		}
		values = append(values, value)
		if p.symbol(",") {
			continue
		}
		if !p.symbol("]") {
			return nil, p.fault("expected , or ]")
		}
		return values, nil
	}
}

func (p *branchParser) value() (scalar, error) {
	p.space()
	switch {
	case p.at == len(p.text):
		return scalar{}, p.fault("expected a value")
	case p.text[p.at] == '"':
		return p.quoted()
	case p.word("true"):
		return scalar{kind: boolAnswer, truth: true}, nil
	case p.word("false"):
		return scalar{kind: boolAnswer}, nil
	}
	return p.number()
}

func (p *branchParser) quoted() (scalar, error) {
	for end := p.at + 1; end < len(p.text); end++ {
		switch p.text[end] {
		case '\\':
			end++
		case '"':
			var text string
			if err := json.Unmarshal([]byte(p.text[p.at:end+1]), &text); err != nil {
				return scalar{}, p.fault("malformed string")
			}
			p.at = end + 1
			return scalar{kind: textAnswer, text: text}, nil
		}
	}
	return scalar{}, p.fault("the string does not end")
}

func (p *branchParser) number() (scalar, error) {
	end := p.at
	for end < len(p.text) && (strings.IndexByte("+-.", p.text[end]) >= 0 || isWordByte(p.text[end])) {
		end++
	}
	text := p.text[p.at:end]
	// json.Valid holds the text to JSON's grammar; ParseFloat alone takes
	// 0x1p2, Inf and 1_0.
	if text == "" || !(text[0] == '-' || text[0] >= '0' && text[0] <= '9') || !json.Valid([]byte(text)) {
		return scalar{}, p.fault("expected a number, a string, true or false")
	}
	number, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(number, 0) {
		return scalar{}, p.fault("the number is out of range")
	}
	p.at = end
	return scalar{kind: numberAnswer, number: number}, nil
}
