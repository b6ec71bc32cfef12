package crash

import (
	"bytes"
	"encoding/json"
)

// A report is read by spans of its own text: a map or a slice of all that it holds takes
// fifty times as much memory as a hostile body, such as millions of empty frames. What
// follows reads only text that json.Valid has accepted.

const blanks = " \t\r\n"

// value is the value that s begins with, and what stands behind it and the blanks there.
func value(s []byte) (v, rest []byte) {
	n := 0
	switch s[0] {
	case '"':
		n = quoted(s)
	case '{', '[':
		n = nested(s)
	default:
		if n = bytes.IndexAny(s, ",]}"+blanks); n < 0 {
			n = len(s)
		}
	}
	return s[:n], bytes.TrimLeft(s[n:], blanks)
}

// quoted is the length of the string that s begins with.
func quoted(s []byte) int {
	for n := 1; ; n++ {
		switch s[n] {
		case '\\':
			n++
		case '"':
			return n + 1
		}
	}
}

// nested is the length of the object or array that s begins with.
func nested(s []byte) int {
	for n, depth := 0, 0; ; n++ {
		switch s[n] {
		case '"':
			n += quoted(s[n:]) - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return n + 1
			}
		}
	}
}

// within is what stands behind the opening bracket, or nil when nothing does but its end.
func within(s []byte) []byte {
	if s = bytes.TrimLeft(s[1:], blanks); s[0] == '}' || s[0] == ']' {
		return nil
	}
	return s
}

// behind is what follows the comma or colon, or nil at the closing bracket.
func behind(s []byte) []byte {
	if s[0] == '}' || s[0] == ']' {
		return nil
	}
	return bytes.TrimLeft(s[1:], blanks)
}

// object finds members of an object by their exact names: encoding/json's decoding into
// structs would also take "RELEASE" for release. Of duplicates the last wins.
func object(s []byte, names ...string) (members map[string]json.RawMessage, ok bool) {
	if s = bytes.Trim(s, blanks); len(s) == 0 || s[0] != '{' {
		return nil, false
	}
	members = make(map[string]json.RawMessage, len(names))
	for s = within(s); s != nil; {
		var key, member []byte
		key, s = value(s)
		member, s = value(behind(s))
		s = behind(s)
		for _, name := range names {
			if isName(key, name) {
				members[name] = member
			}
		}
	}
	return members, true
}

// isName compares a quoted key with a name.
func isName(key []byte, name string) bool {
	if bytes.IndexByte(key, '\\') < 0 {
		return string(key[1:len(key)-1]) == name
	}
	var plain string
	return json.Unmarshal(key, &plain) == nil && plain == name
}

// elements calls do with each element of an array until it returns false; ok is false
// when s is none.
func elements(s []byte, do func(element []byte) bool) (ok bool) {
	if s[0] != '[' {
		return false
	}
	for s = within(s); s != nil; {
		var element []byte
		element, s = value(s)
		if !do(element) {
			break
		}
		s = behind(s)
	}
	return true
}
