package event

import (
	"bytes"
	"unicode"
	"unicode/utf8"
)

const (
	minID = 2   // characters
	maxID = 200 // characters
)

// Garbage reports whether an id cannot be anybody's (supplement §3). Such an id would
// merge strangers into one person: it is what a client sends when a variable was never
// set. An empty id is not garbage but a fault of its own.
func Garbage(id []byte) bool {
	if !utf8.Valid(id) || bytes.IndexByte(id, 0) >= 0 {
		return true
	}
	id = bytes.TrimSpace(id)
	if n := len(id); n >= 2 && (id[0] == '"' || id[0] == '\'') && id[n-1] == id[0] {
		id = bytes.TrimSpace(id[1 : n-1])
	}
	if len(id) > maxID || len(id) < utf8.UTFMax*minID { // bytes, not yet characters: most ids need no counting
		if n := utf8.RuneCount(id); n < minID || n > maxID {
			return true
		}
	}
	return onlyZeros(id) || garbageWord(id)
}

// onlyZeros holds for ids of zeros, dashes and blanks only; the nil UUID is one of them.
func onlyZeros(id []byte) bool {
	for _, r := range string(id) {
		if r != '0' && r != '-' && !unicode.IsSpace(r) {
			return false
		}
	}
	return true
}

// garbageWord compares without regard to case.
func garbageWord(id []byte) bool {
	const longest = len("not_authenticated")
	if len(id) > longest {
		return false
	}
	var lower [longest]byte
	for i, c := range id {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		lower[i] = c
	}
	switch string(lower[:len(id)]) {
	case "anonymous", "anonymous-user", "anon", "guest", "backend", "system", "user", "unknown",
		"distinct_id", "distinctid", "id", "email", "not_authenticated",
		"undefined", "null", "nil", "none", "nan", "n/a", "na", "true", "false",
		"[object object]", "<nil>", "[]", "{}", "-1", "lmy47d":
		return true
	}
	return false
}
