package event

import "unicode/utf8"

// unescape appends the text of a string's inside, which the scanner has accepted, to dst.
// A lone surrogate becomes U+FFFD; the scanner has noted it.
func unescape(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		n := plain(raw[i:])
		dst = append(dst, raw[i:i+n]...)
		if i += n; i >= len(raw) {
			break
		}
		c := raw[i+1] // behind the backslash
		i += 2
		switch c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			var r rune
			r, i = unescapeRune(raw, i)
			dst = utf8.AppendRune(dst, r)
		default: // quote, backslash, slash
			dst = append(dst, c)
		}
	}
	return dst
}

// unescapeRune reads four digits at i and, for a high surrogate, the low one behind.
func unescapeRune(raw []byte, i int) (rune, int) {
	r := hexRune(raw[i : i+4])
	i += 4
	if r < 0xD800 || r >= 0xDC00 {
		return r, i
	}
	if i+6 <= len(raw) && raw[i] == '\\' && raw[i+1] == 'u' {
		if low := hexRune(raw[i+2 : i+6]); low >= 0xDC00 && low < 0xE000 {
			return (r-0xD800)<<10 | (low - 0xDC00) + 0x10000, i + 6
		}
	}
	return utf8.RuneError, i
}

func hexRune(b []byte) (r rune) {
	for _, c := range b {
		if c >= 'a' {
			c -= 'a' - 10
		} else if c >= 'A' {
			c -= 'A' - 10
		} else {
			c -= '0'
		}
		r = r<<4 | rune(c)
	}
	return r
}
