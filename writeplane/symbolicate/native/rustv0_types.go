package native

import (
	"strconv"
	"strings"
)

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
	if lifetimes > maxWritten {
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
