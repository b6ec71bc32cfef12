package native

import (
	"strconv"
	"strings"

	"github.com/ianlancetaylor/demangle"
)

// Demangle turns a mangled C++ or Rust name into its written form, Rust's without
// the hash; any other name stays as it is. What is longer than maxWritten is cut off.
func Demangle(name string) string {
	if len(name) > maxName {
		return cut(name)
	}
	if s, ok := legacyRust(name); ok {
		return s
	}
	if strings.HasPrefix(name, "_R") {
		if s, ok := rustV0(name); ok {
			return s
		}
		return name
	}
	return demangle.Filter(name, demangle.MaxLength(maxWrittenBits))
}

// maxWritten bounds what a name is written as. A reference costs three bytes and may
// stand for all that was before it, so a hostile name of some hundred bytes could be
// written in gigabytes.
const (
	maxWrittenBits = 16
	maxWritten     = 1 << maxWrittenBits
)

// cut keeps a name, or a path, from being larger than any answer needs.
func cut(name string) string { return name[:min(len(name), maxWritten)] }

var rustEscapes = strings.NewReplacer("$SP$", "@", "$BP$", "*", "$RF$", "&", "$LT$", "<", "$GT$", ">",
	"$LP$", "(", "$RP$", ")", "$C$", ",", "..", "::")

// legacyRust reads the scheme that Rust borrowed from C++: _ZN, lengths and parts,
// a last part of h and 16 hex digits, E. The library reads it too, and drops an
// underscore from parts that begin with two.
func legacyRust(name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, "_ZN")
	if !ok {
		return "", false
	}
	var parts []string
	for rest != "" && rest[0] >= '0' && rest[0] <= '9' {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		n, err := strconv.Atoi(rest[:digits])
		if err != nil || n > len(rest)-digits {
			return "", false
		}
		parts = append(parts, rest[digits:digits+n])
		rest = rest[digits+n:]
	}
	if len(parts) < 2 || rest != "E" && !strings.HasPrefix(rest, "E.") || !isHash(parts[len(parts)-1]) {
		return "", false
	}
	parts = parts[:len(parts)-1]
	for i, p := range parts {
		if strings.HasPrefix(p, "_$") {
			p = p[1:]
		}
		parts[i] = unicodeEscapes(rustEscapes.Replace(p))
	}
	return strings.Join(parts, "::"), true
}

func isHash(part string) bool {
	return len(part) == 17 && part[0] == 'h' && strings.Trim(part[1:], "0123456789abcdef") == ""
}

// unicodeEscapes replaces $u7b$ by {.
func unicodeEscapes(s string) string {
	for from := 0; ; {
		i := strings.Index(s[from:], "$u")
		if i < 0 {
			return s
		}
		i += from
		end := strings.IndexByte(s[i+2:], '$')
		if end < 0 {
			return s
		}
		code, err := strconv.ParseUint(s[i+2:i+2+end], 16, 21)
		if from = i + 1; err != nil {
			continue
		}
		s = s[:i] + string(rune(code)) + s[i+2+end+1:]
	}
}
