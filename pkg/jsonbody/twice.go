package jsonbody

import (
	"bytes"
	"encoding/json"
)

// lastOnly is body with every member once, as it was named last (supplement §1).
// encoding/json would decode a member again into what the one of that name before has
// left: null would keep it, and an object would add to it. What is no JSON stays as it is,
// for the decoder to say why.
func lastOnly(body []byte) []byte {
	if !json.Valid(body) || !namesTwice(body) {
		return body
	}
	value, err := decodeAny(body)
	if err != nil {
		return body
	}
	once, err := json.Marshal(value)
	if err != nil {
		return body
	}
	return once
}

// namesTwice reports whether any object of a valid JSON text has two members of one name.
func namesTwice(text []byte) bool {
	var open []map[string]bool // the names in each object around, nil for an array
	nameNext := false
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{':
			open, nameNext = append(open, map[string]bool{}), true
		case '[':
			open, nameNext = append(open, nil), false
		case '}', ']':
			open, nameNext = open[:len(open)-1], false
		case ',':
			nameNext = open[len(open)-1] != nil
		case '"':
			end := behindText(text, i)
			if nameNext {
				name := unescaped(text[i:end])
				names := open[len(open)-1]
				if names[name] {
					return true
				}
				names[name], nameNext = true, false
			}
			i = end - 1
		}
	}
	return false
}

// behindText is where the text that begins at i has ended.
func behindText(text []byte, i int) int {
	for i++; text[i] != '"'; i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// unescaped is what a quoted text says.
func unescaped(quoted []byte) string {
	var said string
	if bytes.IndexByte(quoted, '\\') < 0 || json.Unmarshal(quoted, &said) != nil {
		return string(quoted[1 : len(quoted)-1])
	}
	return said
}
