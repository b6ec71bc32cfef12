package event

import (
	"io"
	"time"
)

// Parser reads bodies, one after the other. Its memory is reused: keep parsers in a pool.
// Not safe for use by several goroutines.
type Parser struct {
	s      scanner
	sink   Sink
	now    int64 // µs
	window []byte

	members [memberCount]member
	op      Operation
	scratch []byte // decoded text of the present operation
	payload struct {
		kind     byte // first byte of the payload's text; 0: absent
		from, to int64
	}

	counts Counts
	faults faults
}

// faults of a batch's operations. They wait for the end, because a fault of the text, and
// a later `operations`, win.
type faults struct {
	noArray     bool
	unknownType bool
	payload     error // of the first operation that has one
}

func (f *faults) any() bool { return f.noArray || f.unknownType || f.payload != nil }

// NewParser returns a Parser.
func NewParser() *Parser {
	p := &Parser{}
	p.s.spill = func(b []byte) error { return p.sink.Large(b) }
	p.s.spilled = p.keepMembers
	return p
}

// Single reads a body that is one payload of the kind, from memory. now is the
// time of receipt.
func (p *Parser) Single(body []byte, kind Kind, now time.Time, sink Sink) (Counts, error) {
	p.reset(nil, body, now, sink)
	return p.single(kind)
}

// SingleFrom is Single of a stream.
func (p *Parser) SingleFrom(src io.Reader, kind Kind, now time.Time, sink Sink) (Counts, error) {
	p.stream(src, now, sink)
	return p.single(kind)
}

// Batch reads the body of a batch from memory.
func (p *Parser) Batch(body []byte, now time.Time, sink Sink) (Counts, error) {
	p.reset(nil, body, now, sink)
	return p.batch()
}

// BatchFrom is Batch of a stream.
func (p *Parser) BatchFrom(src io.Reader, now time.Time, sink Sink) (Counts, error) {
	p.stream(src, now, sink)
	return p.batch()
}

func (p *Parser) stream(src io.Reader, now time.Time, sink Sink) {
	if p.window == nil {
		p.window = make([]byte, 0, WindowBytes)
	}
	p.reset(src, p.window[:0], now, sink)
}

func (p *Parser) reset(src io.Reader, buf []byte, now time.Time, sink Sink) {
	p.s.reset(src, buf)
	p.sink, p.now = sink, now.UnixMicro()
	p.counts, p.faults = Counts{}, faults{}
	p.startOperation()
}

// fault turns a failure of the scanner into the error that the caller returns.
func (p *Parser) fault() error {
	if err := p.s.fault(); err != errSyntax {
		return err
	}
	return ErrBody
}

func (p *Parser) single(kind Kind) (Counts, error) {
	if p.s.err != nil || p.s.blank() != '{' || !p.readPayload() || !p.s.finish() {
		return Counts{}, p.fault()
	}
	if err := p.finishOperation(kind); err != nil {
		return Counts{}, err
	}
	if p.faults.payload != nil {
		return Counts{}, p.faults.payload
	}
	return p.counts, nil
}

func (p *Parser) batch() (Counts, error) {
	s := &p.s
	if s.err != nil || s.blank() != '{' {
		return Counts{}, p.fault()
	}
	given, err := p.batchMembers()
	switch {
	case err != nil:
		return Counts{}, err
	case !s.finish():
		return Counts{}, p.fault()
	case p.faults.noArray:
		return Counts{}, ErrBody
	case !given:
		return Counts{}, ErrNoOperations
	case p.faults.unknownType:
		return Counts{}, ErrUnknownType
	case p.faults.payload != nil:
		return Counts{}, p.faults.payload
	}
	return p.counts, nil
}

// batchMembers reads the outermost object; given tells whether the last
// `operations` has elements.
func (p *Parser) batchMembers() (given bool, err error) {
	s := &p.s
	again := false
	more, ok := s.firstMember()
	for ; ok && more; more, ok = s.nextMember() {
		name, ok := p.key()
		if !ok {
			return false, p.fault()
		}
		if string(name) != "operations" {
			if !s.value() {
				return false, p.fault()
			}
			continue
		}
		if again {
			if err := p.sink.Restart(); err != nil {
				return false, err
			}
			p.counts, p.faults = Counts{}, faults{}
		}
		again = true
		if given, err = p.operations(); err != nil {
			return false, err
		}
	}
	if !ok {
		return false, p.fault()
	}
	return given, nil
}

func (p *Parser) operations() (given bool, err error) {
	s := &p.s
	if c := s.blank(); c != '[' {
		p.faults.noArray = c != 'n'
		if !s.value() {
			return false, p.fault()
		}
		return false, nil
	}
	if !s.enter() {
		return false, p.fault()
	}
	if s.blank() == ']' {
		s.leave()
		return false, nil
	}
	for {
		if err := p.operation(); err != nil {
			return false, err
		}
		s.mark, s.end, s.teed = -1, -1, -1 // what follows is no payload
		switch s.blank() {
		case ',':
			s.pos++
		case ']':
			s.leave()
			return true, nil
		default:
			return false, p.fault()
		}
	}
}

// operation reads one element of operations.
func (p *Parser) operation() error {
	s := &p.s
	p.startOperation()
	if s.blank() != '{' {
		p.faults.unknownType = true
		if !s.value() {
			return p.fault()
		}
		return nil
	}
	kind, known := Kind(0), false
	more, ok := s.firstMember()
	for ; ok && more; more, ok = s.nextMember() {
		name, ok := p.key()
		if !ok {
			return p.fault()
		}
		switch string(name) {
		case "type":
			var m member
			if !p.read(&m) {
				return p.fault()
			}
			kind, known = 0, false
			if m.kind == '"' && !m.overlong {
				kind, known = parseKind(p.decoded(&m))
			}
		case "payload":
			if err := p.operationPayload(); err != nil {
				return err
			}
		default:
			if !s.value() {
				return p.fault()
			}
		}
	}
	if !ok {
		return p.fault()
	}
	if !known {
		p.faults.unknownType = true
		return p.dropLarge()
	}
	return p.finishOperation(kind)
}

// operationPayload reads the value of `payload`; of several, the last counts.
func (p *Parser) operationPayload() error {
	if err := p.dropLarge(); err != nil {
		return err
	}
	p.startOperation()
	if c := p.s.blank(); c != '{' {
		p.payload.kind = c
		if !p.s.value() {
			return p.fault()
		}
		return nil
	}
	if !p.readPayload() {
		return p.fault()
	}
	return nil
}

// startOperation forgets the operation before.
func (p *Parser) startOperation() {
	p.members = [memberCount]member{}
	p.scratch = p.scratch[:0]
	p.payload.kind = 0
	p.s.mark, p.s.end, p.s.teed = -1, -1, -1
}

func (p *Parser) dropLarge() error {
	if p.s.teed < 0 {
		return nil
	}
	p.s.teed = -1
	return p.sink.DropLarge()
}

// readPayload reads the object at pos as a payload and notes its members.
func (p *Parser) readPayload() bool {
	s := &p.s
	p.payload.kind, p.payload.from = '{', s.off()
	s.mark, s.end = s.off(), -1
	more, ok := s.firstMember()
	for ; ok && more; more, ok = s.nextMember() {
		name, ok := p.key()
		if !ok {
			return false
		}
		if i := memberOf(name); i == unknownMember {
			if !s.value() {
				return false
			}
		} else if !p.read(&p.members[i]) {
			return false
		}
	}
	p.payload.to = s.off()
	s.end = s.off()
	return ok
}

// finishOperation checks the payload as one of the kind and hands it on.
func (p *Parser) finishOperation(kind Kind) error {
	if p.s.teed >= 0 && !p.s.tee(p.s.end) {
		return p.fault()
	}
	p.op = Operation{Kind: kind}
	garbage, valid := p.check(kind)
	if !valid {
		if p.faults.payload == nil {
			p.faults.payload = kind.Fault()
		}
		return p.dropLarge()
	}
	if garbage {
		p.counts.Garbage++
		return p.dropLarge()
	}
	p.count(kind)
	if p.faults.any() {
		return p.dropLarge()
	}
	p.setPayload()
	return p.sink.Operation(&p.op)
}

func (p *Parser) count(kind Kind) {
	switch kind {
	case Track:
		p.counts.Track++
	case People:
		p.counts.People++
	case Alias:
		p.counts.Alias++
	}
}

func (p *Parser) setPayload() {
	props, defaults := &p.members[properties], &p.members[defaultProperties]
	if p.op.Kind == Alias {
		props, defaults = &member{}, &member{}
	} else if p.op.Kind == People {
		defaults = &member{}
	}
	if p.s.teed >= 0 {
		p.op.Large = true
		p.op.PropertiesAt, p.op.DefaultsAt = p.span(props), p.span(defaults)
		return
	}
	p.op.Payload = p.s.text(p.payload.from, p.payload.to)
	if !props.absent() {
		p.op.Properties = p.s.text(props.from, props.to)
	}
	if !defaults.absent() {
		p.op.DefaultProperties = p.s.text(defaults.from, defaults.to)
	}
}

func (p *Parser) span(m *member) Span {
	if m.absent() {
		return Span{}
	}
	return Span{Offset: m.from - p.payload.from, Length: m.to - m.from}
}
