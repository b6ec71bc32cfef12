package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/gowebpki/jcs"
)

// canonicalJSON is v as JSON in the form of RFC 8785, with secrets taken out. nil is
// nil. A number that a double cannot hold exactly is written as a string, as RFC 7493
// advises: the canonical form knows doubles only, and a rounded number would let two
// different snapshots have one hash.
func canonicalJSON(v any) ([]byte, error) {
	if v == nil {
		return nil, nil
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("marshal snapshot: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var tree any
	if err := decoder.Decode(&tree); err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	if tree == nil {
		return nil, nil
	}
	return appendTree(nil, tree), nil
}

func appendTree(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		return strconv.AppendBool(b, v)
	case json.Number:
		return appendNumber(b, string(v))
	case string:
		return appendString(b, redact(v))
	case []any:
		b = append(b, '[')
		for i, each := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendTree(b, each)
		}
		return append(b, ']')
	case map[string]any:
		return appendObject(b, v)
	}
	panic(fmt.Sprintf("BUG: %T in decoded JSON", v))
}

func appendObject(b []byte, members map[string]any) []byte {
	names := make([]string, 0, len(members))
	for name := range members {
		names = append(names, name)
	}
	slices.SortFunc(names, compareUTF16)
	b = append(b, '{')
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, name), ':')
		if text, isText := members[name].(string); isText && text != "" && secretName(name) {
			b = appendString(b, redacted)
			continue
		}
		b = appendTree(b, members[name])
	}
	return append(b, '}')
}

// compareUTF16 is RFC 8785's order of member names: by UTF-16 code units, which is
// not that of UTF-8 once there are characters outside the basic plane.
func compareUTF16(a, b string) int {
	if ascii(a) && ascii(b) {
		return strings.Compare(a, b)
	}
	return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

func appendNumber(b []byte, text string) []byte {
	float, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return appendString(b, text)
	}
	if integer := strings.TrimLeft(text, "-0123456789") == ""; integer {
		if exact, err := strconv.ParseInt(text, 10, 64); err != nil || exact > 1<<53 || exact < -(1<<53) {
			return appendString(b, text)
		}
	}
	canonical, err := jcs.NumberToJSON(float)
	if err != nil {
		return appendString(b, text)
	}
	return append(b, canonical...)
}

const hexDigits = "0123456789abcdef"

// appendString writes s as RFC 8785 does: only what JSON demands is escaped.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\b':
			b = append(b, `\b`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\f':
			b = append(b, `\f`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r < ' ':
			b = append(b, '\\', 'u', '0', '0', hexDigits[r>>4], hexDigits[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

const redacted = "[redacted]"

// secretShapes are this service's own secrets and tokens wherever they stand in a
// text: keys, webhook secrets, JWTs.
var secretShapes = regexp.MustCompile(`sk_(?:live|test|deploy)_[0-9A-Za-z]{16,}|whsec_[0-9A-Za-z+/=_-]{16,}|eyJ[0-9A-Za-z_-]+\.[0-9A-Za-z_-]+\.[0-9A-Za-z_-]*`)

// redact takes secrets out of a text. Modules do not hand secrets over; this is for
// what people paste into notes and reasons, and for the day when a module errs.
func redact(s string) string {
	if !strings.Contains(s, "sk_") && !strings.Contains(s, "whsec_") && !strings.Contains(s, "eyJ") {
		return s
	}
	return secretShapes.ReplaceAllString(s, redacted)
}

var secretNames = []string{"secret", "password", "token", "access_token", "refresh_token", "client_secret", "private_key",
	"authorization", "x-api-key", "signing_secret", "webhook_secret"}

func secretName(name string) bool { return slices.Contains(secretNames, strings.ToLower(name)) }

// storable makes a text one that Postgres takes: valid UTF-8 without NUL.
func storable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
