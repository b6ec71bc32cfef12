package decide

import (
	"errors"
	"strconv"
)

// SetSession reads the session's number, in digits; empty means unknown.
func (c *Context) SetSession(text []byte) error {
	if len(text) == 0 {
		return nil
	}
	var n int64
	for _, d := range text {
		if d < '0' || d > '9' || n > (1<<63-1-int64(d-'0'))/10 {
			return c.setSessionSlowly(text)
		}
		n = n*10 + int64(d-'0')
	}
	c.session = n
	return nil
}

// setSessionSlowly accepts whole numbers in other spellings: 3.0, 3e2.
func (c *Context) setSessionSlowly(text []byte) error {
	if !isNumber(string(text)) {
		return ErrSession
	}
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil || f < 0 || f >= 1<<63 || f != float64(int64(f)) {
		return ErrSession
	}
	c.session = int64(f)
	return nil
}

// SetProps reads the properties, a JSON object; empty and null mean none.
func (c *Context) SetProps(text []byte) error {
	if len(text) == 0 || string(text) == "null" {
		return nil
	}
	c.in = reader{in: text, arena: c.in.arena}
	if c.readProps() != nil || c.in.end() != nil {
		return ErrProps
	}
	c.arrange()
	return nil
}

// ReadHandshake fills the context from a handshake's JSON body. Unknown
// members are ignored.
func (c *Context) ReadHandshake(body []byte) error {
	c.in = reader{in: body, arena: c.in.arena}
	var wrong [3]error // the first in this order is reported: distinct_id, props, the others
	wrong[0] = ErrDistinctID
	more, err := c.in.open('{', '}')
	for more && err == nil {
		var key []byte
		if key, err = c.in.key(); err != nil {
			break
		}
		switch string(key) {
		case "distinct_id":
			c.distinctID, err = c.id(&wrong[0], ErrDistinctID)
			if len(c.distinctID) == 0 {
				wrong[0] = ErrDistinctID
			}
		case "anon_id":
			c.anonID, err = c.id(&wrong[2], ErrAnonID)
		case "session_count":
			err = c.readSession(&wrong[2])
		case "props":
			c.props = c.props[:0]
			wrong[1] = nil
			switch c.in.peek() {
			case '{':
				err = c.readProps()
			case 'n':
				err = c.in.word("null")
			default:
				wrong[1] = ErrProps
				err = c.skip()
			}
		default:
			err = c.skip()
		}
		if err == nil {
			more, err = c.in.more('}')
		}
	}
	if err == nil {
		err = c.in.end()
	}
	if err != nil {
		return ErrSyntax
	}
	c.arrange()
	return errors.Join(wrong[0], wrong[1], wrong[2])
}

// ReadOpenFeature fills the context from the body of an OpenFeature evaluation:
// {"context":{"targetingKey":…, …}}. anon_id and session_count are taken as such,
// everything else as properties.
func (c *Context) ReadOpenFeature(body []byte) error {
	c.in = reader{in: body, arena: c.in.arena}
	wrong := ErrDistinctID
	more, err := c.in.open('{', '}')
	for more && err == nil {
		var key []byte
		if key, err = c.in.key(); err != nil {
			break
		}
		switch {
		case string(key) != "context":
			err = c.skip()
		case c.in.peek() == 'n':
			err = c.in.word("null")
		case c.in.peek() != '{':
			wrong = ErrContext
			err = c.skip()
		default:
			c.distinctID, c.anonID, c.session, c.props = nil, nil, -1, c.props[:0]
			wrong = nil
			err = c.readEvaluationContext(&wrong)
			if wrong == nil && len(c.distinctID) == 0 {
				wrong = ErrDistinctID
			}
		}
		if err == nil {
			more, err = c.in.more('}')
		}
	}
	if err == nil {
		err = c.in.end()
	}
	if err != nil {
		return ErrSyntax
	}
	c.arrange()
	return wrong
}

func (c *Context) readEvaluationContext(wrong *error) error {
	more, err := c.in.open('{', '}')
	for more && err == nil {
		var key []byte
		if key, err = c.in.key(); err != nil {
			return err
		}
		switch string(key) {
		case "targetingKey":
			c.distinctID, err = c.id(wrong, ErrContext)
		case "anon_id":
			c.anonID, err = c.id(wrong, ErrAnonID)
		case "session_count":
			err = c.readSession(wrong)
		default:
			err = c.readProp(key)
		}
		if err == nil {
			more, err = c.in.more('}')
		}
	}
	return err
}

// id takes a string or null; anything else sets wrong. The later of two members wins, so
// a right one clears it.
func (c *Context) id(wrong *error, fault error) ([]byte, error) {
	if *wrong == fault {
		*wrong = nil
	}
	switch c.in.peek() {
	case '"':
		return c.in.str()
	case 'n':
		return nil, c.in.word("null")
	}
	*wrong = fault
	return nil, c.skip()
}

func (c *Context) readSession(wrong *error) error {
	if *wrong == ErrSession {
		*wrong = nil
	}
	c.session = -1
	switch d := c.in.peek(); {
	case d == 'n':
		return c.in.word("null")
	case d == '-' || d >= '0' && d <= '9':
		text, err := c.in.scalar()
		if err == nil && c.SetSession(text) != nil {
			*wrong = ErrSession
		}
		return err
	}
	*wrong = ErrSession
	return c.skip()
}

// skip passes a value.
func (c *Context) skip() error {
	var err error
	n := len(c.scratch)
	c.scratch, err = c.in.compact(c.scratch)
	c.scratch = c.scratch[:n]
	return err
}

func (c *Context) readProps() error {
	more, err := c.in.open('{', '}')
	for more && err == nil {
		var key []byte
		if key, err = c.in.key(); err == nil {
			err = c.readProp(key)
		}
		if err == nil {
			more, err = c.in.more('}')
		}
	}
	return err
}

func (c *Context) readProp(key []byte) error {
	p := prop{key: key}
	var err error
	switch d := c.in.peek(); d {
	case '"':
		p.kind = propString
		p.text, err = c.in.str()
	case '{', '[':
		p.kind = propOther
		start := len(c.scratch)
		c.scratch, err = c.in.compact(c.scratch)
		p.text = c.scratch[start:len(c.scratch):len(c.scratch)]
	default:
		p.text, err = c.in.scalar()
		switch d {
		case 'n':
			p.kind = propNull
		case 't', 'f':
			p.kind = propBool
		default:
			p.kind = propNumber
		}
	}
	c.props = append(c.props, p)
	return err
}
