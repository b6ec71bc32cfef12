package decide

import (
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Type is the type of a config item or the kind of a flag.
type Type string

// The types of config items and the kinds of flags. See supplement §4.
const (
	Bool   Type = "bool"
	Int    Type = "int"
	Float  Type = "float"
	String Type = "string"
	JSON   Type = "json"

	Boolean Type = "boolean"
	Number  Type = "number"
)

// IsItemType reports whether config items may have the type.
func (t Type) IsItemType() bool {
	return t == Bool || t == Int || t == Float || t == String || t == JSON
}

// IsFlagKind reports whether flags may have the kind.
func (t Type) IsFlagKind() bool {
	return t == Boolean || t == String || t == Number || t == JSON
}

// ValidKey reports whether a flag, config item or cohort may have the key:
// [A-Za-z0-9._-]{1,128}.
func ValidKey(key string) bool {
	if len(key) == 0 || len(key) > 128 {
		return false
	}
	for i := range len(key) {
		c := key[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}

// NormalizeValue checks a serialized value against its type and gives the text that is
// kept and served: JSON without blanks around it (json: nor inside), numbers digit by
// digit as they were written. A text of type string that is no JSON string is taken as
// bare and quoted. The error says what is wrong, without the value.
func NormalizeValue(t Type, text string) (string, error) {
	if !utf8.ValidString(text) {
		return "", errors.New("is not valid UTF-8")
	}
	trimmed := strings.Trim(text, " \t\r\n")
	switch t {
	case Bool, Boolean:
		if trimmed != "true" && trimmed != "false" {
			return "", errors.New("must be true or false")
		}
		return trimmed, nil
	case Int:
		if !isNumber(trimmed) {
			return "", errors.New("must be a whole number")
		}
		if _, err := strconv.ParseInt(trimmed, 10, 64); err != nil {
			if errors.Is(err, strconv.ErrRange) {
				return "", errors.New("must fit in 64 bits")
			}
			return "", errors.New("must be a whole number")
		}
		return trimmed, nil
	case Float, Number:
		if !isNumber(trimmed) {
			return "", errors.New("must be a number as JSON writes it")
		}
		if _, err := strconv.ParseFloat(trimmed, 64); err != nil {
			return "", errors.New("must fit in a 64-bit floating-point number")
		}
		return trimmed, nil
	case String:
		if isString(trimmed) {
			return trimmed, nil
		}
		return string(appendString(nil, text)), nil
	case JSON:
		compact, err := compactJSON(trimmed)
		if err != nil {
			return "", errors.New("must be JSON: " + err.Error())
		}
		return compact, nil
	}
	return "", errors.New("has an unknown type")
}

func isNumber(s string) bool {
	r := reader{in: []byte(s)}
	return r.number() == nil && r.at == len(r.in)
}

func isString(s string) bool {
	if s == "" || s[0] != '"' {
		return false
	}
	r := reader{in: []byte(s)}
	_, err := r.rawString()
	return err == nil && r.at == len(r.in)
}

func compactJSON(s string) (string, error) {
	r := reader{in: []byte(s)}
	out, err := r.compact(make([]byte, 0, len(s)))
	if err == nil {
		err = r.end()
	}
	return string(out), err
}

// AppendString appends valid UTF-8 as a JSON string.
func AppendString(dst, s []byte) []byte { return appendString(dst, text(s)) }

// appendString appends s as a JSON string with the escapes JSON requires and no others.
func appendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		case c == '\t':
			dst = append(dst, '\\', 't')
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}
