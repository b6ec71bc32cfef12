package event

import (
	"time"
	"unicode/utf8"

	"skerry/pkg/instant"
)

// check judges the members that were read as those of a payload of the kind.
func (p *Parser) check(kind Kind) (garbage, valid bool) {
	if p.payload.kind != '{' {
		return false, false
	}
	switch kind {
	case Track:
		return p.checkTrack()
	case People:
		return p.checkPeople()
	case Alias:
		return p.checkAlias()
	}
	return false, false
}

func (p *Parser) checkTrack() (garbage, valid bool) {
	op, m := &p.op, &p.members
	garbage, valid = p.id(distinctID, &op.DistinctID)
	valid = valid && p.limited(eventName, maxEventName, &op.EventName) && op.EventName != nil &&
		p.limited(insertID, maxInsertID, &op.InsertID) &&
		p.optional(anonID, &op.AnonID) && p.optional(libVersion, &op.LibVersion) &&
		p.object(properties) && p.object(defaultProperties) && p.time()
	if op.Timestamp-p.now > maxAhead.Microseconds() {
		op.Timestamp = p.now
	}
	p.storable(m[eventName], m[insertID], m[anonID], m[libVersion], m[properties], m[defaultProperties])
	return garbage, valid
}

func (p *Parser) checkPeople() (garbage, valid bool) {
	garbage, valid = p.id(distinctID, &p.op.DistinctID)
	p.storable(p.members[properties])
	return garbage, valid && p.object(properties)
}

func (p *Parser) checkAlias() (garbage, valid bool) {
	garbageAlias, validAlias := p.id(aliasID, &p.op.AliasID)
	garbage, valid = p.id(distinctID, &p.op.DistinctID)
	return garbage || garbageAlias, valid && validAlias && p.time()
}

// storable notes why the operation cannot be stored. An id that cannot is garbage already.
func (p *Parser) storable(members ...member) {
	for i := range members {
		m := &members[i]
		switch {
		case p.op.Unstorable != 0:
			return
		case m.seen&seenNUL != 0:
			p.op.Unstorable = NUL
		case m.seen&seenLone != 0:
			p.op.Unstorable = LoneSurrogate
		case m.overlong:
			p.op.Unstorable = TooLong
		}
	}
}

// id reads a required id; one that is too long to be held, or no text, is garbage.
func (p *Parser) id(i int, to *[]byte) (garbage, valid bool) {
	m := &p.members[i]
	if m.kind != '"' || m.to-m.from == 2 {
		return false, false
	}
	if m.overlong || m.seen&(seenLone|seenNUL) != 0 {
		return true, true
	}
	*to = p.decoded(m)
	return Garbage(*to), true
}

// optional reads a string that may be absent.
func (p *Parser) optional(i int, to *[]byte) bool {
	m := &p.members[i]
	if m.kind == '"' {
		if !m.overlong {
			*to = p.decoded(m)
		}
		return true
	}
	return m.absent()
}

// limited reads a string of 1 to most characters that may be absent.
func (p *Parser) limited(i, most int, to *[]byte) bool {
	m := &p.members[i]
	if m.overlong || !p.optional(i, to) {
		return false
	}
	if m.absent() || (len(*to) > 0 && len(*to) <= most) {
		return true
	}
	n := utf8.RuneCount(*to)
	return n > 0 && n <= most
}

// object requires an object or nothing.
func (p *Parser) object(i int) bool {
	m := &p.members[i]
	return m.kind == '{' || m.absent()
}

// time reads the timestamp; the default is the time of receipt.
func (p *Parser) time() bool {
	m := &p.members[timestamp]
	if m.absent() {
		p.op.Timestamp = p.now
		return true
	}
	if m.kind != '"' || m.overlong {
		return false
	}
	text := p.decoded(m)
	if us, ok := utcMillis(text); ok {
		p.op.Timestamp = us
		return true
	}
	if len(text) > 64 {
		return false
	}
	t, err := instant.Parse(string(text))
	if err != nil {
		return false
	}
	p.op.Timestamp = t.UnixMicro()
	return true
}

// utcMillis reads 2026-01-02T03:04:05Z with or without a fraction of three or six digits:
// what clients send. time.Parse costs ten times as much, which would be a third of an
// event's validation.
func utcMillis(b []byte) (us int64, ok bool) {
	n := len(b)
	if (n != 20 && n != 24 && n != 27) || b[4] != '-' || b[7] != '-' || b[10] != 'T' || b[13] != ':' || b[16] != ':' || b[n-1] != 'Z' {
		return 0, false
	}
	year, month, day := digits(b[0:4]), digits(b[5:7]), digits(b[8:10])
	hour, minute, second := digits(b[11:13]), digits(b[14:16]), digits(b[17:19])
	fraction := 0
	if n > 20 {
		if b[19] != '.' {
			return 0, false
		}
		fraction = digits(b[20 : n-1])
		if n == 24 {
			fraction *= 1000
		}
	}
	// What is odd in any way goes to the slow and thorough reader.
	if year < 2 || month < 1 || month > 12 || day < 1 || day > 28 || hour < 0 || hour > 23 || minute < 0 || minute > 59 ||
		second < 0 || second > 59 || fraction < 0 {
		return 0, false
	}
	return time.Date(year, time.Month(month), day, hour, minute, second, 0, time.UTC).Unix()*1e6 + int64(fraction), true
}

// digits is the number that b writes, or a negative one.
func digits(b []byte) int {
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' {
			return -1 << 40
		}
		n = n*10 + int(c-'0')
	}
	return n
}
