package sourcemap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// A source map is mostly two kinds of enormous strings: sourcesContent and
// mappings. The scanner below walks the text in place, by spans, so that a map of
// 500 MB costs no copy of it; encoding/json would hold every string twice.

var errJSON = errors.New("malformed JSON")

const maxDepth = 512

type scanner struct {
	data []byte
	pos  int
}

func (s *scanner) fail(what string) error {
	return fmt.Errorf("%w at byte %d: %s", errJSON, s.pos, what)
}

func (s *scanner) blanks() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\r', '\n':
			s.pos++
		default:
			return
		}
	}
}

// peek returns the next byte that is no blank, or 0 at the end.
func (s *scanner) peek() byte {
	s.blanks()
	if s.pos == len(s.data) {
		return 0
	}
	return s.data[s.pos]
}

// take consumes c or fails.
func (s *scanner) take(c byte) error {
	if s.peek() != c {
		return s.fail(fmt.Sprintf("expected %q", c))
	}
	s.pos++
	return nil
}

// str consumes a string and returns its text with the quotes, still escaped.
func (s *scanner) str() ([]byte, error) {
	if err := s.take('"'); err != nil {
		return nil, err
	}
	start, quote := s.pos-1, -1
	for {
		// The next quote is looked for again only when an escape swallowed it: a
		// source of 30 MB is one string with a million escapes before its end.
		if quote < s.pos {
			i := bytes.IndexByte(s.data[s.pos:], '"')
			if i < 0 {
				return nil, s.fail("a string does not end")
			}
			quote = s.pos + i
		}
		escape := bytes.IndexByte(s.data[s.pos:quote], '\\')
		if escape < 0 {
			s.pos = quote + 1
			return s.data[start:s.pos], nil
		}
		if s.pos += escape + 2; s.pos > len(s.data) {
			return nil, s.fail("a string does not end")
		}
	}
}

// value consumes any value and returns its span.
func (s *scanner) value() ([]byte, error) {
	s.blanks()
	start := s.pos
	if err := s.skip(0); err != nil {
		return nil, err
	}
	return s.data[start:s.pos], nil
}

func (s *scanner) skip(depth int) error {
	if depth > maxDepth {
		return s.fail("nested too deeply")
	}
	switch c := s.peek(); {
	case c == '"':
		_, err := s.str()
		return err
	case c == '{':
		return s.object(func([]byte) error { return s.skip(depth + 1) })
	case c == '[':
		return s.array(func() error { return s.skip(depth + 1) })
	default:
		return s.scalar()
	}
}

func (s *scanner) scalar() error {
	start := s.pos
	for s.pos < len(s.data) && !bytes.ContainsRune([]byte(",]}: \t\r\n\""), rune(s.data[s.pos])) {
		s.pos++
	}
	if !json.Valid(s.data[start:s.pos]) {
		s.pos = start
		return s.fail("expected a value")
	}
	return nil
}

// object calls member at the start of each member's value; it must consume it.
func (s *scanner) object(member func(key []byte) error) error {
	if err := s.take('{'); err != nil {
		return err
	}
	if s.peek() == '}' {
		s.pos++
		return nil
	}
	for {
		key, err := s.str()
		if err != nil {
			return err
		}
		if err := s.take(':'); err != nil {
			return err
		}
		if err := member(key); err != nil {
			return err
		}
		if s.peek() == ',' {
			s.pos++
			continue
		}
		return s.take('}')
	}
}

// array calls item at the start of each element; it must consume it.
func (s *scanner) array(item func() error) error {
	if err := s.take('['); err != nil {
		return err
	}
	if s.peek() == ']' {
		s.pos++
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if s.peek() == ',' {
			s.pos++
			continue
		}
		return s.take(']')
	}
}

// members reads the top level of one object into spans by name; of duplicate
// keys the last wins. Only the names asked for are kept.
func members(data []byte, names ...string) (map[string][]byte, error) {
	s := scanner{data: data}
	if s.peek() != '{' {
		return nil, s.fail("expected an object")
	}
	found := make(map[string][]byte, len(names))
	err := s.object(func(key []byte) error {
		value, err := s.value()
		if err != nil {
			return err
		}
		for _, name := range names {
			if is(key, name) {
				found[name] = value
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if s.peek() != 0 {
		return nil, s.fail("bytes behind the object")
	}
	return found, nil
}

// is compares a quoted key with a name, unescaping only when it has escapes.
func is(quoted []byte, name string) bool {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return string(quoted[1:len(quoted)-1]) == name
	}
	s, ok := text(quoted)
	return ok && s == name
}

// text decodes a quoted string; ok is false when the value is none.
func text(value []byte) (s string, ok bool) {
	if len(value) < 2 || value[0] != '"' {
		return "", false
	}
	if bytes.IndexByte(value, '\\') < 0 {
		return string(bytes.ToValidUTF8(value[1:len(value)-1], []byte("\uFFFD"))), true
	}
	return s, json.Unmarshal(value, &s) == nil
}

// raw is text without a copy where no escape demands one.
func raw(value []byte) ([]byte, bool) {
	if len(value) >= 2 && value[0] == '"' && bytes.IndexByte(value, '\\') < 0 {
		return value[1 : len(value)-1], true
	}
	s, ok := text(value)
	return []byte(s), ok
}

func present(value []byte) bool { return len(value) > 0 && string(value) != "null" }
