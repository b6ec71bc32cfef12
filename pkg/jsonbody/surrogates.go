package jsonbody

import "bytes"

// Surrogates looks for half of a surrogate pair in the escapes of a JSON text, such as
// `"\ud800"`. No Unicode text has one, and encoding/json puts U+FFFD in its place without
// a word. The zero value is ready for a text's beginning; it may come in pieces.
type Surrogates struct {
	escaped bool // behind a backslash
	digits  int  // of \uXXXX that are still to come
	code    rune // of those that came
	high    bool // the first half of a pair is behind us
}

// Half reports whether the next piece shows one.
func (s *Surrogates) Half(piece []byte) bool {
	for len(piece) > 0 {
		if *s == (Surrogates{}) {
			next := bytes.IndexByte(piece, '\\')
			if next < 0 {
				return false
			}
			piece = piece[next:]
		}
		if s.step(piece[0]) {
			return true
		}
		piece = piece[1:]
	}
	return false
}

func (s *Surrogates) step(c byte) (half bool) {
	switch {
	case s.digits > 0:
		digit, ok := hexDigit(c)
		if !ok {
			*s = Surrogates{} // malformed, which the decoder says better
			return false
		}
		s.code = s.code<<4 | digit
		if s.digits--; s.digits > 0 {
			return false
		}
		low := s.code >= 0xDC00 && s.code <= 0xDFFF
		half = low != s.high
		*s = Surrogates{high: s.code >= 0xD800 && s.code <= 0xDBFF}
		return half
	case s.escaped && c == 'u':
		*s = Surrogates{digits: 4, high: s.high}
		return false
	case s.escaped:
		half = s.high
		*s = Surrogates{}
		return half
	case c == '\\':
		s.escaped = true
		return false
	}
	return s.high
}

func hexDigit(c byte) (digit rune, ok bool) {
	switch {
	case c >= '0' && c <= '9':
		return rune(c - '0'), true
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return rune(c|0x20-'a') + 10, true
	}
	return 0, false
}

// ErrHalf is the 400 of a text with half of a surrogate pair.
var ErrHalf = Invalid("a text has half of a surrogate pair")
