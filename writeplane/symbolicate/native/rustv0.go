package native

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// rustV0 reads Rust's own mangling scheme, v0 (RFC 2603), and writes names as
// rustc-demangle does without hashes: `a::main::{closure#0}`. ok is false for what is
// not of the scheme; a suffix of the compiler (".llvm.123") is dropped.
//
// The library reads the scheme too, but takes a 0 and the digit behind it for one
// number. A closure is an identifier of length 0, so closures in closures came out
// mangled, or in the wrong order: a name in forty of a large program.
func rustV0(mangled string) (written string, ok bool) {
	text, isV0 := strings.CutPrefix(mangled, "_R")
	if !isV0 || text == "" || !upper(text[0]) { // a digit would be a version to come
		return "", false
	}
	p := &v0Parser{text: text}
	defer func() {
		if fault := recover(); fault != nil {
			if fault != errV0 {
				panic(fault)
			}
			written, ok = "", false
		}
	}()
	p.path(true)
	if p.at < len(text) && upper(text[p.at]) { // the crate that made this copy of a generic
		p.silent++
		p.path(false)
		p.silent--
	}
	if p.at < len(text) && text[p.at] != '.' {
		return "", false
	}
	return p.out.String(), true
}

// maxV0Depth bounds how deep the parts of one name are nested.
const maxV0Depth = 500

// errV0 ends the reading of a name; it never leaves rustV0.
var errV0 = errors.New("not a v0 name")

func upper(c byte) bool { return 'A' <= c && c <= 'Z' }

// v0Parser reads a name and writes it as it goes. Its methods are named for the
// productions of the scheme and panic with errV0.
type v0Parser struct {
	text   string // behind "_R"; references count from its beginning
	at     int
	out    strings.Builder
	silent int // above 0: what is read is not written
	depth  int
	bound  uint64 // lifetimes bound by the `for<…>` around
}

func (p *v0Parser) fail() { panic(errV0) }

func (p *v0Parser) deeper() {
	if p.depth++; p.depth > maxV0Depth {
		p.fail()
	}
}

func (p *v0Parser) write(s string) {
	if p.silent > 0 {
		return
	}
	if p.out.Len()+len(s) > maxWritten {
		p.fail()
	}
	p.out.WriteString(s)
}

func (p *v0Parser) next() byte {
	if p.at == len(p.text) {
		p.fail()
	}
	p.at++
	return p.text[p.at-1]
}

// eat takes c if it stands next.
func (p *v0Parser) eat(c byte) bool {
	if p.at == len(p.text) || p.text[p.at] != c {
		return false
	}
	p.at++
	return true
}

// list reads up to an E; it tells how many parts there were.
func (p *v0Parser) list(separator string, part func()) (n int) {
	for ; !p.eat('E'); n++ {
		if n > 0 {
			p.write(separator)
		}
		part()
	}
	return n
}

// tuple is a list in parentheses; one of one part is told from a part in parentheses
// by its comma.
func (p *v0Parser) tuple(part func()) {
	p.write("(")
	if p.list(", ", part) == 1 {
		p.write(",")
	}
	p.write(")")
}

// base62 is 0 for "_", and one more than the digits say otherwise.
func (p *v0Parser) base62() uint64 {
	if p.eat('_') {
		return 0
	}
	var n uint64
	for !p.eat('_') {
		var digit uint64
		switch c := p.next(); {
		case '0' <= c && c <= '9':
			digit = uint64(c - '0')
		case 'a' <= c && c <= 'z':
			digit = uint64(c-'a') + 10
		case upper(c):
			digit = uint64(c-'A') + 36
		default:
			p.fail()
		}
		if n >= math.MaxUint64/62-1 { // room for the digit, and for the ones that are added
			p.fail()
		}
		n = n*62 + digit
	}
	return n + 1
}

// optional is 0 where the tag does not stand, else one more than the number behind it.
func (p *v0Parser) optional(tag byte) uint64 {
	if !p.eat(tag) {
		return 0
	}
	return p.base62() + 1
}

func (p *v0Parser) disambiguator() uint64 { return p.optional('s') }

// decimal ends behind a 0: what follows is no part of it.
func (p *v0Parser) decimal() int {
	c := p.next()
	if c < '0' || c > '9' {
		p.fail()
	}
	n := int(c - '0')
	for n > 0 && p.at < len(p.text) && '0' <= p.text[p.at] && p.text[p.at] <= '9' {
		if n = n*10 + int(p.next()-'0'); n > len(p.text) {
			p.fail()
		}
	}
	return n
}

func (p *v0Parser) identifier() string {
	coded := p.eat('u')
	n := p.decimal()
	p.eat('_')
	if n > len(p.text)-p.at {
		p.fail()
	}
	word := p.text[p.at : p.at+n]
	p.at += n
	if !coded {
		return word
	}
	if p.silent > 0 {
		return ""
	}
	plain, ok := punycode(word)
	if !ok {
		p.fail()
	}
	return plain
}

// reference reads once more what stands further up, and comes back.
func (p *v0Parser) reference(read func()) {
	here := p.at - 1
	to := p.base62()
	if to >= uint64(here) {
		p.fail()
	}
	if p.silent > 0 {
		return
	}
	back := p.at
	p.at = int(to)
	p.deeper()
	read()
	p.depth--
	p.at = back
}

// path reads a path. A value's generic arguments stand behind `::`, a type's do not.
func (p *v0Parser) path(value bool) {
	p.deeper()
	defer func() { p.depth-- }()
	switch tag := p.next(); tag {
	case 'C':
		p.disambiguator()
		p.write(p.identifier())
	case 'N':
		p.nested(value)
	case 'M', 'X', 'Y': // an inherent impl, a trait's impl, a trait's own definition
		if tag != 'Y' {
			p.disambiguator()
			p.silent++
			p.path(false)
			p.silent--
		}
		p.write("<")
		p.typ()
		if tag != 'M' {
			p.write(" as ")
			p.path(false)
		}
		p.write(">")
	case 'I':
		p.path(value)
		if value {
			p.write("::")
		}
		p.write("<")
		p.list(", ", p.argument)
		p.write(">")
	case 'B':
		p.reference(func() { p.path(value) })
	default:
		p.fail()
	}
}

// nested reads a name within a path. Those of a namespace in upper case were made by
// the compiler and are told apart by number.
func (p *v0Parser) nested(value bool) {
	space := p.next()
	if !upper(space) && (space < 'a' || space > 'z') {
		p.fail()
	}
	p.path(value)
	number := p.disambiguator()
	name := p.identifier()
	if !upper(space) {
		if name != "" {
			p.write("::" + name)
		}
		return
	}
	kind := string(rune(space))
	switch space {
	case 'C':
		kind = "closure"
	case 'S':
		kind = "shim"
	}
	if name != "" {
		name = ":" + name
	}
	p.write("::{" + kind + name + "#" + strconv.FormatUint(number, 10) + "}")
}

func (p *v0Parser) argument() {
	switch {
	case p.eat('L'):
		p.lifetime(p.base62())
	case p.eat('K'):
		p.constant(false)
	default:
		p.typ()
	}
}
