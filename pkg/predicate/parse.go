package predicate

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// MaxCohortName is the longest name of a cohort, in characters.
const MaxCohortName = 128

// Parse reads a text. The error is an *Error. Nothing but what the grammar allows is
// accepted, and nothing may follow.
func Parse(text string) (*Predicate, error) {
	p := parser{text: text}
	if len(text) > MaxBytes {
		return nil, p.errorAt(MaxBytes, fmt.Sprintf("text longer than %d bytes", MaxBytes))
	}
	if i := invalidUTF8(text); i >= 0 {
		return nil, p.errorAt(i, "invalid UTF-8")
	}
	root, err := p.predicate(0)
	if err != nil {
		return nil, err
	}
	p.blanks()
	if p.at < len(p.text) {
		return nil, p.errorAt(p.at, fmt.Sprintf("unexpected %s", p.found()))
	}
	return &Predicate{root: root}, nil
}

// parser is a cursor over the text; its methods take one piece each and leave the
// cursor behind it.
type parser struct {
	text string
	at   int // byte offset
}

func (p *parser) predicate(depth int) (Node, error) {
	p.blanks()
	start := p.at
	n := Node{Pos: p.pos(start)}
	var err error
	switch {
	case p.take("event:"):
		n.Kind = Event
		n.Name, err = p.name("event")
	case p.take("screen:"):
		n.Kind = Screen
		n.Name, err = p.name("screen")
	case p.take("cohort:"):
		n.Kind = Cohort
		n.Name, err = p.cohort()
	case p.take("props."):
		n.Kind = Prop
		n.Name, n.Value, err = p.prop()
	case p.take("session_count"):
		n.Kind = SessionCount
		n.Count, err = p.session()
	case p.takeGroup("AND"):
		n.Kind = And
		n.Args, err = p.args(depth+1, start)
	case p.takeGroup("OR"):
		n.Kind = Or
		n.Args, err = p.args(depth+1, start)
	default:
		return n, p.errorAt(start, fmt.Sprintf("expected event:, session_count, cohort:, screen:, props., AND( or OR(, found %s", p.found()))
	}
	return n, err
}

// takeGroup takes a keyword and its opening parenthesis, or neither.
func (p *parser) takeGroup(word string) bool {
	start := p.at
	if p.take(word) {
		p.blanks()
		if p.take("(") {
			return true
		}
	}
	p.at = start
	return false
}

func (p *parser) args(depth, start int) ([]Node, error) {
	if depth > MaxNesting {
		return nil, p.errorAt(start, fmt.Sprintf("AND and OR nested deeper than %d", MaxNesting))
	}
	var args []Node
	for {
		n, err := p.predicate(depth)
		if err != nil {
			return nil, err
		}
		args = append(args, n)
		p.blanks()
		if p.take(",") {
			continue
		}
		if !p.take(")") {
			return nil, p.errorAt(p.at, fmt.Sprintf(`expected "," or ")", found %s`, p.found()))
		}
		if len(args) < 2 {
			return nil, p.errorAt(start, "AND and OR take two or more predicates")
		}
		return args, nil
	}
}

// name takes the name of an event or a screen.
func (p *parser) name(what string) (string, error) {
	p.blanks()
	start := p.at
	if p.peek() == '"' {
		s, err := p.str()
		if err == nil && s == "" {
			return "", p.errorAt(start, "empty "+what+" name")
		}
		return s, err
	}
	for p.at < len(p.text) && isBare(p.text[p.at]) {
		p.at++
	}
	name := strings.TrimRight(p.text[start:p.at], " ")
	if name == "" {
		return "", p.errorAt(start, fmt.Sprintf("expected the %s's name, found %s", what, p.found()))
	}
	return name, nil
}

func (p *parser) cohort() (string, error) {
	p.blanks()
	start := p.at
	for p.at < len(p.text) && isKeyByte(p.text[p.at]) {
		p.at++
	}
	switch n := p.at - start; {
	case n == 0:
		return "", p.errorAt(start, fmt.Sprintf("expected a cohort's name ([A-Za-z0-9._-]), found %s", p.found()))
	case n > MaxCohortName:
		return "", p.errorAt(start, fmt.Sprintf("cohort's name longer than %d characters", MaxCohortName))
	}
	return p.text[start:p.at], nil
}

func (p *parser) prop() (key, value string, err error) {
	start := p.at
	if p.peek() == '"' {
		if key, err = p.str(); err != nil {
			return "", "", err
		}
	} else {
		for p.at < len(p.text) && isBareKey(p.text[p.at]) {
			p.at++
		}
		key = p.text[start:p.at]
	}
	if key == "" {
		return "", "", p.errorAt(start, "expected a property's key")
	}
	p.blanks()
	if !p.take("=") {
		return "", "", p.errorAt(p.at, fmt.Sprintf(`expected "=", found %s`, p.found()))
	}
	p.blanks()
	if p.peek() != '"' {
		return "", "", p.errorAt(p.at, fmt.Sprintf("expected a text in double quotes, found %s", p.found()))
	}
	value, err = p.str()
	return key, value, err
}

func (p *parser) session() (int64, error) {
	p.blanks()
	if !p.take(">=") {
		return 0, p.errorAt(p.at, fmt.Sprintf(`expected ">=", found %s`, p.found()))
	}
	p.blanks()
	start := p.at
	var n int64
	for ; p.at < len(p.text) && p.text[p.at] >= '0' && p.text[p.at] <= '9'; p.at++ {
		d := int64(p.text[p.at] - '0')
		if n > (math.MaxInt64-d)/10 {
			return 0, p.errorAt(start, "number too large")
		}
		n = n*10 + d
	}
	if p.at == start {
		return 0, p.errorAt(start, fmt.Sprintf("expected a whole number, found %s", p.found()))
	}
	return n, nil
}

// str takes a JSON string. The cursor stands on its opening quote.
func (p *parser) str() (string, error) {
	start := p.at
	for i := start + 1; i < len(p.text); i++ {
		switch c := p.text[i]; {
		case c == '\\':
			i++
		case c < 0x20:
			return "", p.errorAt(i, "control character in a text; write it as an escape")
		case c == '"':
			p.at = i + 1
			return p.unquote(start)
		}
	}
	return "", p.errorAt(start, "text without closing quote")
}

func (p *parser) unquote(start int) (string, error) {
	raw := p.text[start:p.at]
	if !strings.Contains(raw, `\`) {
		return raw[1 : len(raw)-1], nil
	}
	if i := loneSurrogate(raw); i >= 0 {
		return "", p.errorAt(start+i, "half of a surrogate pair")
	}
	var s string
	if json.Unmarshal([]byte(raw), &s) != nil {
		return "", p.errorAt(start, "bad escape in a text")
	}
	return s, nil
}

// loneSurrogate finds a \u escape that is half of a pair without the other half: decoders
// replace it silently, and two different texts would become one.
func loneSurrogate(raw string) int {
	for i := 0; i+1 < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		if u, ok := hex4(raw, i); ok && u >= 0xd800 && u < 0xe000 {
			low, ok := hex4(raw, i+6)
			if u >= 0xdc00 || !ok || low < 0xdc00 || low >= 0xe000 {
				return i
			}
			i += 6 + 5
			continue
		}
		i++
	}
	return -1
}

// hex4 reads the escape \uXXXX at i.
func hex4(s string, i int) (rune, bool) {
	if i+6 > len(s) || s[i] != '\\' || s[i+1] != 'u' {
		return 0, false
	}
	var u rune
	for _, c := range []byte(s[i+2 : i+6]) {
		switch {
		case c >= '0' && c <= '9':
			u = u<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			u = u<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return u, true
}

func (p *parser) blanks() {
	for p.at < len(p.text) && isBlank(p.text[p.at]) {
		p.at++
	}
}

func (p *parser) take(word string) bool {
	if !strings.HasPrefix(p.text[p.at:], word) {
		return false
	}
	p.at += len(word)
	return true
}

func (p *parser) peek() byte {
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

// found describes what stands at the cursor, for an error.
func (p *parser) found() string {
	if p.at >= len(p.text) {
		return "the end"
	}
	r, _ := utf8.DecodeRuneInString(p.text[p.at:])
	return fmt.Sprintf("%q", r)
}

// pos turns a byte offset into the position that people count: characters from 1.
func (p *parser) pos(at int) int { return utf8.RuneCountInString(p.text[:at]) + 1 }

func (p *parser) errorAt(at int, reason string) error {
	return &Error{Pos: p.pos(at), Reason: reason}
}

func invalidUTF8(s string) int {
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}
