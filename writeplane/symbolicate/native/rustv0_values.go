package native

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// constant reads a value. One that is no literal stands in braces where a type could,
// and bare within another value.
func (p *v0Parser) constant(inner bool) {
	p.deeper()
	defer func() { p.depth-- }()
	tag := p.next()
	switch tag {
	case 'p':
		p.write("_")
	case 'a', 's', 'l', 'x', 'n', 'i':
		if p.eat('n') {
			p.write("-")
		}
		p.write(decimalOf(p.hex()))
	case 'h', 't', 'm', 'y', 'o', 'j':
		p.write(decimalOf(p.hex()))
	case 'b':
		switch p.hex() {
		case "0":
			p.write("false")
		case "1":
			p.write("true")
		default:
			p.fail()
		}
	case 'c':
		n, err := strconv.ParseUint(p.hex(), 16, 32)
		if err != nil || !utf8.ValidRune(rune(n)) {
			p.fail()
		}
		p.write("'" + escaped(rune(n), '\'') + "'")
	case 'B':
		p.reference(func() { p.constant(inner) })
	case 'R':
		if p.eat('e') {
			p.literal()
			return
		}
		p.compound(tag, inner)
	case 'e', 'Q', 'A', 'T', 'V':
		p.compound(tag, inner)
	default:
		p.fail()
	}
}

func (p *v0Parser) compound(tag byte, inner bool) {
	if !inner {
		p.write("{")
	}
	part := func() { p.constant(true) }
	switch tag {
	case 'e': // a str is what the literal, a &str, points to
		p.write("*")
		p.literal()
	case 'R':
		p.write("&")
		part()
	case 'Q':
		p.write("&mut ")
		part()
	case 'A':
		p.write("[")
		p.list(", ", part)
		p.write("]")
	case 'T':
		p.tuple(part)
	case 'V':
		p.path(true)
		p.fields(part)
	}
	if !inner {
		p.write("}")
	}
}

// fields are those of a struct or of a variant.
func (p *v0Parser) fields(part func()) {
	switch p.next() {
	case 'U':
	case 'T':
		p.write("(")
		p.list(", ", part)
		p.write(")")
	case 'S':
		p.write(" { ")
		p.list(", ", func() {
			p.disambiguator()
			p.write(p.identifier() + ": ")
			part()
		})
		p.write(" }")
	default:
		p.fail()
	}
}

// hex reads lower-case hexadecimal digits up to a "_", without leading zeros but for 0.
func (p *v0Parser) hex() string {
	from := p.at
	for !p.eat('_') {
		if c := p.next(); (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			p.fail()
		}
	}
	digits := strings.TrimLeft(p.text[from:p.at-1], "0")
	if digits == "" {
		return "0"
	}
	return digits
}

// decimalOf leaves what is past 64 bits in hexadecimal.
func decimalOf(hex string) string {
	n, err := strconv.ParseUint(hex, 16, 64)
	if err != nil {
		return "0x" + hex
	}
	return strconv.FormatUint(n, 10)
}

// literal reads a string: its bytes in hexadecimal.
func (p *v0Parser) literal() {
	from := p.at
	p.hex()
	digits := p.text[from : p.at-1]
	text := make([]byte, 0, len(digits)/2)
	for i := 0; i+1 < len(digits); i += 2 {
		b, _ := strconv.ParseUint(digits[i:i+2], 16, 8) // hex saw to the digits
		text = append(text, byte(b))
	}
	if len(digits)%2 != 0 || !utf8.Valid(text) {
		p.fail()
	}
	p.write(`"`)
	for _, r := range string(text) {
		p.write(escaped(r, '"'))
	}
	p.write(`"`)
}

// escaped is a character within quotes, as Rust's Debug writes it.
func escaped(r, quote rune) string {
	switch r {
	case 0:
		return `\0`
	case '\t':
		return `\t`
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\\', quote:
		return `\` + string(r)
	}
	if unicode.IsPrint(r) && !unicode.Is(unicode.M, r) {
		return string(r)
	}
	return `\u{` + strconv.FormatInt(int64(r), 16) + "}"
}
