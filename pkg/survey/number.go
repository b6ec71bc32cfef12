package survey

import "strings"

// whole is a JSON number read exactly, since float64 would take 7.0000000000000001 for 7
// and 1e-400 for 0. state tells what is known of it.
type whole struct {
	state wholeState
	value int64 // for isWhole
}

type wholeState uint8

const (
	notWhole wholeState = iota // has a fraction
	isWhole
	beyond // whole, and past 18 digits: out of every range there is
)

// readWhole reads a valid JSON number in one pass over its text, however long its
// digits or its exponent are.
func readWhole(text string) whole {
	negative := strings.HasPrefix(text, "-")
	text = strings.TrimPrefix(text, "-")
	mantissa, exponent := text, 0
	if at := strings.IndexAny(text, "eE"); at >= 0 {
		mantissa, exponent = text[:at], readExponent(text[at+1:])
	}
	integer, fraction, _ := strings.Cut(mantissa, ".")
	digits := integer + fraction
	scale := exponent - len(fraction)
	trimmed := strings.TrimRight(digits, "0")
	scale += len(digits) - len(trimmed)
	trimmed = strings.TrimLeft(trimmed, "0")
	switch {
	case trimmed == "":
		return whole{state: isWhole}
	case scale < 0:
		return whole{state: notWhole}
	case len(trimmed)+scale > 18:
		return whole{state: beyond}
	}
	var value int64
	for _, d := range []byte(trimmed) {
		value = value*10 + int64(d-'0')
	}
	for range scale {
		value *= 10
	}
	if negative {
		value = -value
	}
	return whole{state: isWhole, value: value}
}

// readExponent stops counting where no mantissa could bring the number back: a
// mantissa's length is bounded by the memory it came in.
func readExponent(text string) int {
	const enough = 1 << 40
	negative := strings.HasPrefix(text, "-")
	text = strings.TrimLeft(text, "+-")
	exponent := 0
	for _, d := range []byte(text) {
		if exponent < enough {
			exponent = exponent*10 + int(d-'0')
		}
	}
	if negative {
		return -exponent
	}
	return exponent
}
