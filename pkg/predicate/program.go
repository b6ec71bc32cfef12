package predicate

import "encoding/binary"

// A program is a predicate as bytes, for whoever holds very many of them: a tenth of what
// its tree takes, in one piece with what its owner holds besides, and nothing in it for a
// garbage collector to follow.
//
//	event, screen, cohort = kind, size, name
//	props                 = kind, size, key, size, text
//	session_count         = kind, N in 8 bytes
//	AND, OR               = kind, size, operands one after the other
//
// A kind is one byte, a size two; numbers are little-endian. A program is never longer
// than its text, so sizes fit. It is no format: it does not leave the process.

// AppendProgram appends the predicate's program.
func (p *Predicate) AppendProgram(dst []byte) []byte { return p.root.program(dst) }

func (n *Node) program(dst []byte) []byte {
	dst = append(dst, byte(n.Kind))
	switch n.Kind {
	case Event, Screen, Cohort:
		return appendSized(dst, n.Name)
	case Prop:
		return appendSized(appendSized(dst, n.Name), n.Value)
	case SessionCount:
		return binary.LittleEndian.AppendUint64(dst, uint64(n.Count))
	}
	start := len(dst)
	dst = append(dst, 0, 0)
	for i := range n.Args {
		dst = n.Args[i].program(dst)
	}
	binary.LittleEndian.PutUint16(dst[start:], uint16(len(dst)-start-2))
	return dst
}

func appendSized(dst []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint16(dst, uint16(len(s))), s...)
}

// EvalProgram tells whether the predicate of the program is true of f, as Eval does.
func EvalProgram(program string, f Facts) bool {
	if Kind(program[0]) == Prop { // by far the most frequent form alone
		name, rest := sized(program[1:])
		value, _ := sized(rest)
		return f.PropIs(name, value)
	}
	ok, _ := evalNext(program, f)
	return ok
}

// evalNext evaluates the first form and gives what follows it.
func evalNext(program string, f Facts) (ok bool, rest string) {
	kind, rest := Kind(program[0]), program[1:]
	if kind == SessionCount {
		n := uint64(0)
		for i := range 8 {
			n |= uint64(rest[i]) << (8 * i)
		}
		return f.SessionAtLeast(int64(n)), rest[8:]
	}
	name, rest := sized(rest)
	switch kind {
	case Prop:
		var value string
		value, rest = sized(rest)
		return f.PropIs(name, value), rest
	case Cohort:
		return f.InCohort(name), rest
	case Event:
		return f.SawEvent(name), rest
	case Screen:
		return f.SawScreen(name), rest
	}
	// Operands are asked only as far as needed: until one of AND is false,
	// or one of OR true.
	for operands := name; operands != ""; {
		if ok, operands = evalNext(operands, f); ok == (kind == Or) {
			break
		}
	}
	return ok, rest
}

func sized(program string) (piece, rest string) {
	n := 2 + int(program[0]) + int(program[1])<<8
	return program[2:n], program[n:]
}
