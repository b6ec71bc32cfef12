package decide

import (
	"errors"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth is how deep arrays and objects of a context or a value may be nested.
const maxDepth = 512

// reader is a strict cursor over one JSON text: RFC 8259 and valid UTF-8, nothing else.
// It exists because a context is read at every decision and must not allocate, because
// numbers must keep their digits, and because the later of two equal keys must win.
type reader struct {
	in    []byte
	at    int
	depth int
	// arena holds the strings that had escapes; it is kept from text to text. Earlier
	// results stay valid when it grows.
	arena []byte
}

var errEnd = errors.New("unexpected end")

func (r *reader) fail() error {
	if r.at >= len(r.in) {
		return errEnd
	}
	return fmt.Errorf("unexpected byte at offset %d", r.at)
}

func (r *reader) blanks() {
	for r.at < len(r.in) {
		switch r.in[r.at] {
		case ' ', '\t', '\r', '\n':
			r.at++
		default:
			return
		}
	}
}

// peek gives the first byte of the next token, 0 at the end.
func (r *reader) peek() byte {
	r.blanks()
	if r.at < len(r.in) {
		return r.in[r.at]
	}
	return 0
}

func (r *reader) take(c byte) bool {
	if r.peek() == c && r.at < len(r.in) {
		r.at++
		return true
	}
	return false
}

// end checks that nothing follows.
func (r *reader) end() error {
	r.blanks()
	if r.at < len(r.in) {
		return r.fail()
	}
	return nil
}

// open enters an object or an array. It reports whether it has a first entry.
func (r *reader) open(c, end byte) (bool, error) {
	if !r.take(c) {
		return false, r.fail()
	}
	if r.depth++; r.depth > maxDepth {
		return false, errors.New("nested too deep")
	}
	if r.take(end) {
		r.depth--
		return false, nil
	}
	return true, nil
}

// more passes the comma before another entry, or leaves.
func (r *reader) more(end byte) (bool, error) {
	if r.take(',') {
		return true, nil
	}
	if r.take(end) {
		r.depth--
		return false, nil
	}
	return false, r.fail()
}

// key takes a member's name and its colon.
func (r *reader) key() ([]byte, error) {
	r.blanks()
	k, err := r.str()
	if err == nil && !r.take(':') {
		err = r.fail()
	}
	return k, err
}

// rawString takes a string as it is written, quotes included.
func (r *reader) rawString() ([]byte, error) {
	start := r.at
	if r.at >= len(r.in) || r.in[r.at] != '"' {
		return nil, r.fail()
	}
	for r.at++; r.at < len(r.in); {
		switch c := r.in[r.at]; {
		case c == '"':
			r.at++
			return r.in[start:r.at], nil
		case c == '\\':
			if err := r.escape(); err != nil {
				return nil, err
			}
		case c < 0x20:
			return nil, r.fail()
		case c < utf8.RuneSelf:
			r.at++
		default:
			u, n := utf8.DecodeRune(r.in[r.at:])
			if u == utf8.RuneError && n == 1 {
				return nil, r.fail()
			}
			r.at += n
		}
	}
	return nil, errEnd
}

// escape passes one escape and checks its form.
func (r *reader) escape() error {
	if r.at+1 >= len(r.in) {
		r.at = len(r.in)
		return errEnd
	}
	switch r.in[r.at+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		r.at += 2
		return nil
	case 'u':
		if _, ok := hex4(r.in[r.at:]); ok {
			r.at += 6
			return nil
		}
	}
	return r.fail()
}

// str takes a string and decodes it. Without escapes the result is part of the input,
// else of the arena.
func (r *reader) str() ([]byte, error) {
	raw, err := r.rawString()
	if err != nil {
		return nil, err
	}
	raw = raw[1 : len(raw)-1]
	for i, c := range raw {
		if c == '\\' {
			return r.unescape(raw, i), nil
		}
	}
	return raw, nil
}

func (r *reader) unescape(raw []byte, i int) []byte {
	start := len(r.arena)
	r.arena = append(r.arena, raw[:i]...)
	for i < len(raw) {
		c := raw[i]
		if c != '\\' {
			r.arena = append(r.arena, c)
			i++
			continue
		}
		if raw[i+1] != 'u' {
			r.arena = append(r.arena, unescaped(raw[i+1]))
			i += 2
			continue
		}
		u, _ := hex4(raw[i:])
		i += 6
		if utf16.IsSurrogate(u) {
			low, ok := hex4(raw[i:])
			if u = utf16.DecodeRune(u, low); ok && u != utf8.RuneError {
				i += 6
			} else {
				u = utf8.RuneError
			}
		}
		r.arena = utf8.AppendRune(r.arena, u)
	}
	return r.arena[start:len(r.arena):len(r.arena)]
}

func unescaped(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

func hex4(s []byte) (rune, bool) {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, false
	}
	var u rune
	for _, c := range s[2:6] {
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

// number passes a number.
func (r *reader) number() error {
	if r.at < len(r.in) && r.in[r.at] == '-' {
		r.at++
	}
	if r.at < len(r.in) && r.in[r.at] == '0' {
		r.at++
	} else if !r.digits() {
		return r.fail()
	}
	if r.at < len(r.in) && r.in[r.at] == '.' {
		r.at++
		if !r.digits() {
			return r.fail()
		}
	}
	if r.at < len(r.in) && r.in[r.at]|0x20 == 'e' {
		r.at++
		if r.at < len(r.in) && (r.in[r.at] == '+' || r.in[r.at] == '-') {
			r.at++
		}
		if !r.digits() {
			return r.fail()
		}
	}
	return nil
}

func (r *reader) digits() bool {
	start := r.at
	for r.at < len(r.in) && r.in[r.at] >= '0' && r.in[r.at] <= '9' {
		r.at++
	}
	return r.at > start
}

func (r *reader) word(w string) error {
	if len(r.in)-r.at < len(w) || string(r.in[r.at:r.at+len(w)]) != w {
		return r.fail()
	}
	r.at += len(w)
	return nil
}

// scalar passes a string, number or literal and gives its text as written.
func (r *reader) scalar() ([]byte, error) {
	var err error
	c := r.peek()
	start := r.at
	switch {
	case c == '"':
		_, err = r.rawString()
	case c == 't':
		err = r.word("true")
	case c == 'f':
		err = r.word("false")
	case c == 'n':
		err = r.word("null")
	default:
		err = r.number()
	}
	return r.in[start:r.at], err
}

// compact passes any value and appends it without blanks between its tokens.
func (r *reader) compact(dst []byte) ([]byte, error) {
	var end byte
	switch r.peek() {
	case '{':
		end = '}'
	case '[':
		end = ']'
	default:
		text, err := r.scalar()
		return append(dst, text...), err
	}
	first := r.in[r.at]
	dst = append(dst, first)
	more, err := r.open(first, end)
	for n := 0; more && err == nil; n++ {
		if n > 0 {
			dst = append(dst, ',')
		}
		if end == '}' {
			var k []byte
			r.blanks()
			if k, err = r.rawString(); err != nil {
				break
			}
			if !r.take(':') {
				err = r.fail()
				break
			}
			dst = append(append(dst, k...), ':')
		}
		if dst, err = r.compact(dst); err == nil {
			more, err = r.more(end)
		}
	}
	return append(dst, end), err
}
