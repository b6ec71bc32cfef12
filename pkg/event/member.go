package event

// The members of payloads of all kinds. An operation's type can follow its payload,
// so all are noted.
const (
	eventName = iota
	distinctID
	anonID
	insertID
	libVersion
	timestamp
	properties
	defaultProperties
	aliasID
	memberCount
	unknownMember = -1
)

// member is a value that was read, by its place in the body.
type member struct {
	kind     byte // first byte of its text; 0: absent
	seen     byte // what the scanner saw in its strings
	overlong bool // a string over MaxMemberBytes
	from, to int64
	kept     []byte // its text, when the window has moved on
}

func (m *member) absent() bool { return m.kind == 0 || m.kind == 'n' }

func memberOf(name []byte) int {
	switch string(name) {
	case "event_name":
		return eventName
	case "distinct_id":
		return distinctID
	case "anon_id":
		return anonID
	case "insert_id":
		return insertID
	case "lib_version":
		return libVersion
	case "timestamp":
		return timestamp
	case "properties":
		return properties
	case "default_properties":
		return defaultProperties
	case "alias_id":
		return aliasID
	}
	return unknownMember
}

// firstMember steps into the object at pos; more is false when it is empty (and
// then behind pos).
func (s *scanner) firstMember() (more, ok bool) {
	if !s.enter() {
		return false, false
	}
	if s.blank() == '}' {
		return false, s.leave()
	}
	return true, true
}

// nextMember steps behind a member's value.
func (s *scanner) nextMember() (more, ok bool) {
	switch s.blank() {
	case ',':
		s.pos++
		return true, true
	case '}':
		return false, s.leave()
	}
	return false, false
}

// key reads a member's name and the colon. The name is valid until the next call of the
// scanner; one that is too long to be known comes out empty.
func (p *Parser) key() (name []byte, ok bool) {
	s := &p.s
	if s.blank() != '"' {
		return nil, false
	}
	m := member{kind: '"', from: s.off()}
	s.hold, s.overlong, s.seen = s.off(), false, 0
	ok = s.str()
	m.to, m.seen = s.off(), s.seen
	const longest = int64(len(`"default_properties"`) * len(`\u0000`)) // every character escaped
	if ok && !s.overlong && m.to-m.from <= longest {
		if m.seen == 0 {
			name = s.text(m.from+1, m.to-1)
			// The usual case: the colon is there already, and the name need not be copied.
			if s.pos < len(s.buf) && s.buf[s.pos] == ':' {
				s.hold = -1
				s.pos++
				return name, true
			}
		}
		name = append([]byte(nil), p.decoded(&m)...)
	}
	s.hold = -1
	if !ok || s.blank() != ':' {
		return nil, false
	}
	s.pos++
	return name, true
}

// read reads one value and notes it in m.
func (p *Parser) read(m *member) bool {
	s := &p.s
	*m = member{kind: s.blank(), from: s.off()}
	s.seen, s.overlong = 0, false
	if m.kind == '"' {
		s.hold = m.from
	}
	ok := s.value()
	s.hold = -1
	m.to, m.seen = s.off(), s.seen
	if m.kind == '"' {
		m.overlong = s.overlong || m.to-m.from > MaxMemberBytes
		if ok && s.teed >= 0 {
			p.keep(m)
		}
	}
	return ok
}

// keepMembers copies the strings read so far before the window that holds them moves on.
func (p *Parser) keepMembers() {
	for i := range p.members {
		p.keep(&p.members[i])
	}
}

func (p *Parser) keep(m *member) {
	// A member without an end is the one being read: the window holds it, and read keeps
	// it when it has ended.
	if m.kind == '"' && m.kept == nil && !m.overlong && m.to > m.from {
		m.kept = append([]byte(nil), p.s.text(m.from, m.to)...)
	}
}

// decoded is the text of a string that is not overlong. It is valid until the next
// operation or move of the window.
func (p *Parser) decoded(m *member) []byte {
	raw := m.kept
	if raw == nil {
		raw = p.s.text(m.from, m.to)
	}
	raw = raw[1 : len(raw)-1]
	if m.seen&seenEscape == 0 {
		return raw[:len(raw):len(raw)]
	}
	start := len(p.scratch)
	p.scratch = unescape(p.scratch, raw)
	return p.scratch[start:len(p.scratch):len(p.scratch)]
}
