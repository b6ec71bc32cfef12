package native

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
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

// The limits of one name. A reference costs three bytes and may stand for all that was
// before it, so a hostile name of some hundred bytes could be written in gigabytes.
const (
	maxV0Depth   = 500
	maxV0Written = 64 << 10
)

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
	if p.out.Len()+len(s) > maxV0Written {
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

// lifetime writes the lifetime that was bound n binders ago; 0 is one that was erased.
func (p *v0Parser) lifetime(n uint64) {
	switch {
	case n == 0:
		p.write("'_")
	case n > p.bound:
		if p.silent == 0 {
			p.fail()
		}
	case p.bound-n < 26:
		p.write("'" + string(rune('a'+p.bound-n)))
	default:
		p.write("'_" + strconv.FormatUint(p.bound-n, 10))
	}
}

// binder reads `for<'a, …>` and what its lifetimes are good in.
func (p *v0Parser) binder(body func()) {
	lifetimes := p.optional('G')
	if lifetimes > maxV0Written {
		p.fail()
	}
	for i := range lifetimes {
		if i == 0 {
			p.write("for<")
		} else {
			p.write(", ")
		}
		p.bound++
		p.lifetime(1)
	}
	if lifetimes > 0 {
		p.write("> ")
	}
	body()
	p.bound -= lifetimes
}

var v0Basic = map[byte]string{
	'a': "i8", 'b': "bool", 'c': "char", 'd': "f64", 'e': "str", 'f': "f32", 'h': "u8", 'i': "isize", 'j': "usize",
	'l': "i32", 'm': "u32", 'n': "i128", 'o': "u128", 'p': "_", 's': "i16", 't': "u16", 'u': "()", 'v': "...",
	'x': "i64", 'y': "u64", 'z': "!",
}

func (p *v0Parser) typ() {
	p.deeper()
	defer func() { p.depth-- }()
	tag := p.next()
	if name, ok := v0Basic[tag]; ok {
		p.write(name)
		return
	}
	switch tag {
	case 'R', 'Q':
		p.write("&")
		if p.eat('L') {
			if n := p.base62(); n > 0 {
				p.lifetime(n)
				p.write(" ")
			}
		}
		if tag == 'Q' {
			p.write("mut ")
		}
		p.typ()
	case 'P':
		p.write("*const ")
		p.typ()
	case 'O':
		p.write("*mut ")
		p.typ()
	case 'A', 'S':
		p.write("[")
		p.typ()
		if tag == 'A' {
			p.write("; ")
			p.constant(true)
		}
		p.write("]")
	case 'T':
		p.tuple(p.typ)
	case 'F':
		p.binder(p.function)
	case 'D':
		p.dynamic()
	case 'W':
		p.typ()
		p.write(" is ")
		p.pattern()
	case 'B':
		p.reference(p.typ)
	default:
		p.at--
		p.path(false)
	}
}

func (p *v0Parser) function() {
	if p.eat('U') {
		p.write("unsafe ")
	}
	if p.eat('K') {
		abi := "C"
		if !p.eat('C') {
			if p.at < len(p.text) && p.text[p.at] == 'u' {
				p.fail() // every calling convention has a name in ASCII
			}
			abi = strings.ReplaceAll(p.identifier(), "_", "-")
		}
		p.write(`extern "` + abi + `" `)
	}
	p.write("fn(")
	p.list(", ", p.typ)
	p.write(")")
	if !p.eat('u') { // nothing is said of a function that returns ()
		p.write(" -> ")
		p.typ()
	}
}

func (p *v0Parser) dynamic() {
	p.write("dyn ")
	p.binder(func() { p.list(" + ", p.trait) })
	if !p.eat('L') {
		p.fail()
	}
	if n := p.base62(); n > 0 {
		p.write(" + ")
		p.lifetime(n)
	}
}

// trait reads a trait with its associated types, which are written among its
// arguments: `Iterator<Item = u8>`.
func (p *v0Parser) trait() {
	open := p.openPath()
	for p.eat('p') {
		if open {
			p.write(", ")
		} else {
			p.write("<")
			open = true
		}
		p.write(p.identifier() + " = ")
		p.typ()
	}
	if open {
		p.write(">")
	}
}

// openPath reads a path and leaves its arguments, if it has any, without the last ">".
func (p *v0Parser) openPath() (open bool) {
	switch {
	case p.eat('B'):
		p.reference(func() { open = p.openPath() })
	case p.eat('I'):
		p.path(false)
		p.write("<")
		p.list(", ", p.argument)
		open = true
	default:
		p.path(false)
	}
	return open
}

// pattern is what a type was narrowed to.
func (p *v0Parser) pattern() {
	p.deeper()
	defer func() { p.depth-- }()
	switch p.next() {
	case 'R':
		p.constant(false)
		p.write("..=")
		p.constant(false)
	case 'O':
		p.list(" | ", p.pattern)
	case 'N':
		p.write("!null")
	default:
		p.fail()
	}
}

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
