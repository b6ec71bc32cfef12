package event

import (
	"encoding/binary"
	"io"
	"math/bits"
)

// The grammar of JSON, on top of the scanner's window. Each method steps over one
// production and is false at a fault.

// peek is the next byte, and 0 at the end: a 0 is never valid where the grammar peeks.
func (s *scanner) peek() byte {
	if s.pos < len(s.buf) || s.more() {
		return s.buf[s.pos]
	}
	return 0
}

// blank skips white space and peeks.
func (s *scanner) blank() byte {
	for {
		c := s.peek()
		if c > ' ' || (c != ' ' && c != '\n' && c != '\t' && c != '\r') {
			return c
		}
		s.pos++
	}
}

// finish requires that nothing but white space follows.
func (s *scanner) finish() bool {
	return s.blank() == 0 && s.pos == len(s.buf) && (s.src == nil && s.err == nil || s.err == io.EOF) &&
		(s.src == nil || s.valid == len(s.buf))
}

// value skips one value, which may have blanks before it.
func (s *scanner) value() bool {
	switch c := s.blank(); {
	case c == '"':
		return s.str()
	case c == '{':
		return s.object()
	case c == '[':
		return s.array()
	case c == '-' || c-'0' <= 9:
		return s.number()
	case c == 't':
		return s.word("true")
	case c == 'f':
		return s.word("false")
	case c == 'n':
		return s.word("null")
	}
	return false
}

func (s *scanner) word(w string) bool {
	for i := range len(w) {
		if s.peek() != w[i] {
			return false
		}
		s.pos++
	}
	return true
}

// enter steps into a container; false when it is nested too deep.
func (s *scanner) enter() bool {
	s.pos++
	s.depth++
	return s.depth <= MaxDepth
}

func (s *scanner) object() bool {
	if !s.enter() {
		return false
	}
	if s.blank() == '}' {
		return s.leave()
	}
	for {
		if s.blank() != '"' || !s.str() || s.blank() != ':' {
			return false
		}
		s.pos++
		if !s.value() {
			return false
		}
		switch s.blank() {
		case ',':
			s.pos++
		case '}':
			return s.leave()
		default:
			return false
		}
	}
}

func (s *scanner) array() bool {
	if !s.enter() {
		return false
	}
	if s.blank() == ']' {
		return s.leave()
	}
	for {
		if !s.value() {
			return false
		}
		switch s.blank() {
		case ',':
			s.pos++
		case ']':
			return s.leave()
		default:
			return false
		}
	}
}

func (s *scanner) leave() bool {
	s.pos++
	s.depth--
	return true
}

func (s *scanner) number() bool {
	if s.peek() == '-' {
		s.pos++
	}
	if s.peek() == '0' {
		s.pos++
	} else if !s.digits() {
		return false
	}
	if s.peek() == '.' {
		s.pos++
		if !s.digits() {
			return false
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.pos++
		if c := s.peek(); c == '+' || c == '-' {
			s.pos++
		}
		return s.digits()
	}
	return true
}

// digits skips one digit or more.
func (s *scanner) digits() bool {
	if s.peek()-'0' > 9 {
		return false
	}
	for s.peek()-'0' <= 9 {
		s.pos++
	}
	return true
}

// str skips a string whose opening quote is at pos, and notes in seen what
// its escapes mean.
func (s *scanner) str() bool {
	s.pos++
	for {
		s.pos += plain(s.buf[s.pos:])
		switch c := s.peek(); {
		case c == '"':
			s.pos++
			return true
		case c == '\\':
			if !s.escape() {
				return false
			}
		case c < ' ': // a control character, or the end
			return false
		}
	}
}

// plain is how many bytes at the front of b are neither quote nor backslash nor control
// character. It looks at eight bytes at a time; a byte-wise loop is three times slower on
// usual properties.
func plain(b []byte) int {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	i := 0
	for ; i+8 <= len(b); i += 8 {
		v := binary.LittleEndian.Uint64(b[i:])
		quote, slash := v^(ones*'"'), v^(ones*'\\')
		// Each term sets the high bit of bytes that match; the lowest set one is exact
		// (borrows run upward only).
		hit := ((quote-ones)&^quote | (slash-ones)&^slash | (v-ones*' ')&^v) & highs
		if hit != 0 {
			return i + bits.TrailingZeros64(hit)/8
		}
	}
	for ; i < len(b); i++ {
		if c := b[i]; c == '"' || c == '\\' || c < ' ' {
			return i
		}
	}
	return i
}

// escape skips an escape whose backslash is at pos; of a surrogate pair, both.
func (s *scanner) escape() bool {
	s.seen |= seenEscape
	s.pos++
	switch s.peek() {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.pos++
		return true
	case 'u':
		return s.unicode()
	}
	return false
}

func (s *scanner) unicode() bool {
	r, ok := s.hex4()
	switch {
	case !ok:
		return false
	case r == 0:
		s.seen |= seenNUL
	case r >= 0xDC00 && r < 0xE000:
		s.seen |= seenLone
	case r >= 0xD800 && r < 0xDC00:
		return s.lowSurrogate()
	}
	return true
}

// lowSurrogate follows a high one; when it does not, the high one is alone.
func (s *scanner) lowSurrogate() bool {
	for {
		if s.peek() != '\\' {
			s.seen |= seenLone
			return true
		}
		s.pos++
		switch s.peek() {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			s.seen |= seenLone
			s.pos++
			return true
		case 'u':
		default:
			return false
		}
		r, ok := s.hex4()
		switch {
		case !ok:
			return false
		case r >= 0xDC00 && r < 0xE000:
			return true
		}
		s.seen |= seenLone
		if r == 0 {
			s.seen |= seenNUL
		}
		if r < 0xD800 || r >= 0xDC00 {
			return true
		} // else: another high one, which wants its own low one
	}
}

// hex4 reads the u at pos and four digits.
func (s *scanner) hex4() (r rune, ok bool) {
	s.pos++
	for range 4 {
		c := s.peek()
		switch {
		case c-'0' <= 9:
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
		s.pos++
	}
	return r, true
}
