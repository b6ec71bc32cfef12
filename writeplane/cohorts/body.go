package cohorts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"unicode/utf8"

	"skerry/pkg/jsonbody"
	"skerry/pkg/problem"
	"skerry/writeplane/form"
)

// maxBody bounds a body with a member list: a million ids of 200 characters of one byte
// each fit.
const maxBody = 256 << 20

// body is a management body whose lists of members may be long: those are read element by
// element, so that a list costs its own strings and not a decoded tree beside them. A
// tree takes many times its text, so all else together may be as long as any other
// management body.
type body struct {
	form  *form.Form
	given map[string]bool     // members that are there and not null
	lists map[string][]string // those of names
	share share
}

// release gives back the room that the lists take. They must not be used any more.
func (b *body) release() { b.share.release() }

// readBody reads an object; the members called names are lists of strings. What is returned
// without an error is to be released.
func (m *Module) readBody(r *http.Request, names ...string) (*body, error) {
	b := &body{given: map[string]bool{}, lists: map[string][]string{}, share: share{of: m.room}}
	if err := b.read(r, names); err != nil {
		b.release()
		return nil, err
	}
	return b, nil
}

func (b *body) read(r *http.Request, names []string) error {
	src := &source{in: r.Body, limit: maxBody, grow: func(read int64) error { return b.share.grow(r.Context(), read) }}
	d := json.NewDecoder(src)
	d.UseNumber()
	members := map[string]any{}
	err := b.members(d, src, members, names)
	switch {
	case src.over && src.limit < maxBody:
		return problem.Newf(problem.TooLarge, "payload_too_large", "what is no list of members is larger than %d bytes", jsonbody.Limit)
	case src.over:
		return problem.Newf(problem.TooLarge, "payload_too_large", "the body is larger than %d bytes", maxBody)
	case src.denied != nil:
		return src.denied
	case src.invalid:
		return jsonbody.Invalid("the body is not UTF-8")
	case src.half:
		return jsonbody.ErrHalf
	case err != nil:
		return err
	}
	b.form = form.New(members)
	return nil
}

func (b *body) members(d *json.Decoder, src *source, members map[string]any, names []string) error {
	room := int64(jsonbody.Limit) // for what is no list
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return jsonbody.Invalid("the body is not a JSON object")
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return malformed(err)
		}
		name := t.(string) // the decoder gives nothing else in this place
		if slices.Contains(names, name) {
			err = b.list(d, name)
		} else {
			var v any
			began := d.InputOffset()
			src.limit = min(src.read+room, maxBody)
			if err = d.Decode(&v); err != nil {
				return malformed(err)
			}
			src.limit = maxBody
			room = max(room-(d.InputOffset()-began), 0)
			members[name] = v
			b.given[name] = v != nil
		}
		if err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return malformed(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return jsonbody.Invalid("there are bytes behind the JSON object")
	}
	return nil
}

func (b *body) list(d *json.Decoder, name string) error {
	t, err := d.Token()
	switch {
	case err != nil:
		return malformed(err)
	case t == nil:
		delete(b.lists, name)
		b.given[name] = false
		return nil
	case t != json.Delim('['):
		return jsonbody.Invalid("%s must be an array", name)
	}
	list := []string{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return malformed(err)
		}
		s, ok := t.(string)
		if !ok {
			return jsonbody.Invalid("%s[%d] must be a string", name, len(list))
		}
		if len(list) == MaxMembers {
			return tooMany(name)
		}
		list = append(list, s)
	}
	if _, err := d.Token(); err != nil {
		return malformed(err)
	}
	b.lists[name] = list
	b.given[name] = true
	return nil
}

func tooMany(what string) error {
	return problem.Newf(problem.Invalid, "too_large", "%s: at most %d are possible", what, MaxMembers)
}

func malformed(err error) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return jsonbody.Invalid("malformed JSON at byte %d", syntax.Offset)
	}
	return jsonbody.Invalid("malformed JSON: it ends too early")
}

// source passes a body on, bounded and checked to be Unicode: the decoder would replace
// what is not.
type source struct {
	in      io.Reader
	read    int64
	limit   int64  // of read
	tail    []byte // a character's first bytes, at the end of the last piece
	escapes jsonbody.Surrogates
	grow    func(read int64) error // is asked for room for what has been read
	denied  error                  // what it said
	over    bool
	invalid bool // not UTF-8
	half    bool // half of a surrogate pair
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.in.Read(p)
	if s.read += int64(n); s.read > s.limit {
		s.over = true
		return 0, fmt.Errorf("body over %d bytes", s.limit)
	}
	if s.denied = s.grow(s.read); s.denied != nil {
		return 0, s.denied
	}
	if !s.check(p[:n], err != nil) {
		s.invalid = true
		return 0, errors.New("invalid UTF-8")
	}
	if s.half = s.escapes.Half(p[:n]); s.half {
		return 0, jsonbody.ErrHalf
	}
	return n, err
}

func (s *source) check(p []byte, last bool) bool {
	if len(s.tail) > 0 {
		p = append(s.tail, p...)
		s.tail = nil
	}
	for i := len(p) - 1; i >= 0 && i >= len(p)-utf8.UTFMax && !last; i-- {
		if !utf8.RuneStart(p[i]) {
			continue
		}
		if !utf8.FullRune(p[i:]) {
			s.tail = slices.Clone(p[i:])
			p = p[:i]
		}
		break
	}
	return utf8.Valid(p)
}
