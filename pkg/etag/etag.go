// Package etag compares entity tags as RFC 9110 section 13.1 says, without allocating.
package etag

import "bytes"

// NoneMatch reports whether an If-None-Match header names tag, so that the answer
// is 304. The header may be a list or "*"; comparison is weak (W/ is ignored on
// both sides). tag includes its quotes.
func NoneMatch(header, tag []byte) bool {
	return contains(header, tag, true)
}

// Match reports whether an If-Match header admits a resource whose tag is tag.
// Comparison is strong: a weak tag never matches. tag includes its quotes.
func Match(header, tag []byte) bool {
	return contains(header, tag, false)
}

func contains(header, tag []byte, weak bool) bool {
	if weak {
		tag = bytes.TrimPrefix(tag, []byte("W/"))
	}
	for len(header) > 0 {
		header = bytes.TrimLeft(header, " \t,")
		if len(header) == 0 {
			return false
		}
		if header[0] == '*' {
			return true
		}
		isWeak := bytes.HasPrefix(header, []byte("W/"))
		if isWeak {
			header = header[2:]
		}
		if len(header) == 0 || header[0] != '"' {
			return false // not a list of tags; nothing behind it can be trusted
		}
		end := bytes.IndexByte(header[1:], '"')
		if end < 0 {
			return false
		}
		candidate := header[:end+2]
		header = header[end+2:]
		if (weak || !isWeak) && bytes.Equal(candidate, tag) {
			return true
		}
	}
	return false
}
