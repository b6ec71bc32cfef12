package native

import (
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// The parameters of punycode (RFC 3492, section 5).
const punyBase, punyLeast, punyMost, punySkew, punyDamp, punyBias, punyFirst = 36, 1, 26, 38, 700, 72, 128

// punycode decodes an identifier that is not ASCII (RFC 3492, with "_" for its "-"):
// the characters that are, then which others stand where among them.
func punycode(coded string) (plain string, ok bool) {
	var text []rune
	if i := strings.LastIndexByte(coded, '_'); i >= 0 {
		text, coded = []rune(coded[:i]), coded[i+1:]
	}
	if coded == "" {
		return "", false
	}
	char, at, bias, damp := punyFirst, 0, punyBias, punyDamp
	for coded != "" {
		var step int
		if step, coded, ok = punyNumber(coded, bias); !ok || step > math.MaxInt32-at {
			return "", false
		}
		at += step
		places := len(text) + 1
		bias, damp = punyAdapt(step/damp, places), 2
		char, at = char+at/places, at%places
		if char > utf8.MaxRune || !utf8.ValidRune(rune(char)) {
			return "", false
		}
		text = slices.Insert(text, at, rune(char))
		at++
	}
	return string(text), true
}

// punyNumber reads one number, of digits whose weight depends on those before them.
func punyNumber(coded string, bias int) (n int, rest string, ok bool) {
	weight := 1
	for k := punyBase; coded != ""; k += punyBase {
		digit := strings.IndexByte("abcdefghijklmnopqrstuvwxyz0123456789", coded[0])
		coded = coded[1:]
		if digit < 0 || digit > (math.MaxInt32-n)/weight {
			return 0, "", false
		}
		n += digit * weight
		threshold := min(max(k-bias, punyLeast), punyMost)
		if digit < threshold {
			return n, coded, true
		}
		if weight > math.MaxInt32/(punyBase-threshold) {
			return 0, "", false
		}
		weight *= punyBase - threshold
	}
	return 0, "", false
}

// punyAdapt is the bias of the next number.
func punyAdapt(step, places int) int {
	step += step / places
	k := 0
	for ; step > (punyBase-punyLeast)*punyMost/2; k += punyBase {
		step /= punyBase - punyLeast
	}
	return k + (punyBase-punyLeast+1)*step/(step+punySkew)
}
