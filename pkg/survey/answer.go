package survey

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits that no configuration lifts.
const (
	// MaxText is the length in code points of a text answer to a question
	// without a max_length of its own.
	MaxText = 1_000_000
	// maxListed is how many different entries of an array are looked at: more
	// than a question may have options.
	maxListed = MaxOptions + 1
)

type answerKind uint8

const (
	absent       answerKind = iota // not given, null or ""
	numberAnswer                   // any JSON number
	textAnswer                     // a string with something in it
	boolAnswer
	listAnswer  // an array of strings, perhaps empty
	otherAnswer // an object, or an array with something else in it
)

// Answer is one answer as it was given, whether or not it is valid.
type Answer struct {
	kind  answerKind
	raw   []byte
	text  string   // textAnswer
	truth bool     // boolAnswer
	list  []string // listAnswer: the different entries, in the order given
}

// ReadAnswer reads one valid JSON value, in time linear in its length.
func ReadAnswer(raw []byte) Answer {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return Answer{}
	}
	switch raw[0] {
	case 'n':
		return Answer{}
	case 't', 'f':
		return Answer{kind: boolAnswer, raw: raw, truth: raw[0] == 't'}
	case '"':
		text := unquote(raw)
		if text == "" {
			return Answer{}
		}
		return Answer{kind: textAnswer, raw: raw, text: text}
	case '[':
		return readList(raw)
	case '{':
		return Answer{kind: otherAnswer, raw: raw}
	}
	return Answer{kind: numberAnswer, raw: raw}
}

func readList(raw []byte) Answer {
	a := Answer{kind: listAnswer, raw: raw}
	seen := make(map[string]bool)
	elements(raw, func(value []byte) bool {
		if value[0] != '"' {
			a.kind, a.list = otherAnswer, nil
			return false
		}
		// Strings past the bound are not collected, yet still checked to be strings.
		if len(a.list) < maxListed {
			if entry := unquote(value); !seen[entry] {
				seen[entry] = true
				a.list = append(a.list, entry)
			}
		}
		return true
	})
	return a
}

// given reports whether the answer counts as one to a question of the kind: null
// and "" never do, an empty array does not for a multiselect.
func (a Answer) given(questionKind string) bool {
	return a.kind != absent && (questionKind != Multiselect || a.kind != listAnswer || len(a.list) > 0)
}

func (a Answer) equals(s scalar) bool {
	if a.kind != s.kind {
		return false
	}
	switch a.kind {
	case numberAnswer:
		return a.number() == s.number
	case textAnswer:
		return a.text == s.text
	}
	return a.truth == s.truth
}

func (a Answer) order(s scalar) (order int, ok bool) {
	if a.kind != s.kind {
		return 0, false
	}
	switch a.kind {
	case numberAnswer:
		switch n := a.number(); {
		case n < s.number:
			return -1, true
		case n > s.number:
			return 1, true
		}
		return 0, true
	case textAnswer:
		return strings.Compare(a.text, s.text), true
	}
	return 0, false
}

// number is the answer's nearest float64; 1e999 is infinite, which compares as it should.
func (a Answer) number() float64 {
	n, _ := strconv.ParseFloat(string(a.raw), 64)
	return n
}

// Reasons why an answer is invalid (specification, POST /api/pulse/responses).
const (
	ReasonOutOfRange = "value_out_of_range"
	ReasonWrongType  = "wrong_type"
	ReasonNotAllowed = "option_not_allowed"
	ReasonTooLong    = "length_too_long"
	ReasonUnknown    = "unknown_question"
)

// check validates a given answer. The value is what is stored: 7.0 becomes 7, an
// option chosen twice stands once. A reason other than "" means that it is invalid.
func (q *question) check(a Answer) (value json.RawMessage, reason string) {
	switch q.Kind {
	case NPS, Rating, CSAT, Likert:
		return q.checkWhole(a)
	case Boolean:
		if a.kind != boolAnswer {
			return nil, ReasonWrongType
		}
		return strconv.AppendBool(nil, a.truth), ""
	case Multiselect:
		return q.checkList(a)
	}
	if a.kind != textAnswer {
		return nil, ReasonWrongType
	}
	switch q.Kind {
	case Select:
		if !slices.Contains(q.Config.Options, a.text) {
			return nil, ReasonNotAllowed
		}
	case Date:
		if _, err := time.Parse(time.DateOnly, a.text); err != nil {
			return nil, ReasonWrongType
		}
	case Text:
		if longerThan(a.text, q.maxLength()) {
			return nil, ReasonTooLong
		}
	}
	return quote(a.text), ""
}

func (q *question) checkWhole(a Answer) (json.RawMessage, string) {
	if a.kind != numberAnswer {
		return nil, ReasonWrongType
	}
	number := readWhole(string(a.raw))
	switch {
	case number.state == notWhole:
		return nil, ReasonWrongType
	case number.state == beyond || number.value < int64(q.min) || number.value > int64(q.max):
		return nil, ReasonOutOfRange
	}
	return strconv.AppendInt(nil, number.value, 10), ""
}

func (q *question) checkList(a Answer) (json.RawMessage, string) {
	if a.kind != listAnswer {
		return nil, ReasonWrongType
	}
	for _, entry := range a.list {
		if !slices.Contains(q.Config.Options, entry) {
			return nil, ReasonNotAllowed
		}
	}
	value := []byte{'['}
	for i, entry := range a.list {
		if i > 0 {
			value = append(value, ',')
		}
		value = append(value, quote(entry)...)
	}
	return append(value, ']'), ""
}

func (q *question) maxLength() int {
	if q.Config.MaxLength != nil {
		return *q.Config.MaxLength
	}
	return MaxText
}

// longerThan counts code points, and only where counting bytes does not settle it.
func longerThan(s string, limit int) bool {
	return len(s) > limit && utf8.RuneCountInString(s) > limit
}

// quote writes a JSON string without the HTML escapes that json.Marshal adds.
func quote(s string) []byte {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(s); err != nil {
		panic("BUG: a string does not marshal: " + err.Error())
	}
	return bytes.TrimRight(out.Bytes(), "\n")
}
