package survey

import (
	"encoding/json"
	"strings"
)

// The functions of this file split JSON that json.Valid has accepted, without
// copying it: json.RawMessage copies at every level, which triples the memory of a
// large submission. On other input they would panic or lie.

// skipSpace drops JSON blanks from the front.
func skipSpace(raw []byte) []byte {
	for len(raw) > 0 && strings.IndexByte(" \t\r\n", raw[0]) >= 0 {
		raw = raw[1:]
	}
	return raw
}

// cutValue splits off the value that raw starts with.
func cutValue(raw []byte) (value, rest []byte) {
	depth, quoted := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
			if !quoted && depth == 0 {
				return raw[:i+1], raw[i+1:]
			}
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth == 0 { // the end of what a bare number or word stands in
				return raw[:i], raw[i:]
			}
			if depth--; depth == 0 {
				return raw[:i+1], raw[i+1:]
			}
		case depth == 0 && strings.IndexByte(" \t\r\n,:", c) >= 0:
			return raw[:i], raw[i:]
		}
	}
	return raw, nil
}

// members calls each with every member of an object, in the order written; a value
// is a part of raw. A key may come twice.
func members(raw []byte, each func(key string, value []byte)) {
	raw = skipSpace(skipSpace(raw)[1:])
	for raw[0] != '}' {
		var key, value []byte
		key, raw = cutValue(raw)
		raw = skipSpace(skipSpace(raw)[1:]) // behind the colon
		value, raw = cutValue(raw)
		each(unquote(key), value)
		if raw = skipSpace(raw); raw[0] == ',' {
			raw = skipSpace(raw[1:])
		}
	}
}

// elements calls each with every element of an array until it returns false.
func elements(raw []byte, each func(value []byte) bool) {
	raw = skipSpace(skipSpace(raw)[1:])
	for raw[0] != ']' {
		var value []byte
		value, raw = cutValue(raw)
		if !each(value) {
			return
		}
		if raw = skipSpace(raw); raw[0] == ',' {
			raw = skipSpace(raw[1:])
		}
	}
}

// unquote decodes a JSON string. What UTF-16 cannot say (a lone surrogate) becomes U+FFFD.
func unquote(quoted []byte) string {
	for _, c := range quoted {
		if c == '\\' {
			var s string
			if err := json.Unmarshal(quoted, &s); err != nil {
				panic("BUG: unquote of invalid JSON: " + err.Error())
			}
			return s
		}
	}
	return string(quoted[1 : len(quoted)-1])
}
