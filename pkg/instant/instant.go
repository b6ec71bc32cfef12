// Package instant reads and writes points in time as the interface shows them:
// RFC 3339 in UTC with milliseconds out, any valid ISO 8601 offset in (supplement §1).
package instant

import (
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"time"
)

// Layout is the form in which every answer shows a time.
const Layout = "2006-01-02T15:04:05.000Z"

// Format renders t in UTC with milliseconds.
func Format(t time.Time) string { return t.UTC().Format(Layout) }

// Append appends the form of Format to b without allocating.
func Append(b []byte, t time.Time) []byte { return t.UTC().AppendFormat(b, Layout) }

// Time is a time.Time that marshals as Format does. The zero Time marshals as null.
type Time struct{ time.Time }

// Of wraps t.
func Of(t time.Time) Time { return Time{t} }

// OfPtr wraps t; nil stays nil.
func OfPtr(t *time.Time) *Time {
	if t == nil {
		return nil
	}
	return &Time{*t}
}

// MarshalJSON implements json.Marshaler.
func (t Time) MarshalJSON() ([]byte, error) {
	if t.IsZero() {
		return []byte("null"), nil
	}
	b := append(make([]byte, 0, len(Layout)+2), '"')
	return append(Append(b, t.Time), '"'), nil
}

// UnmarshalJSON implements json.Unmarshaler with Parse's forms; null leaves t as it is.
// A fault is an *json.UnmarshalTypeError, to which encoding/json adds the member's name.
func (t *Time) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	var text string // some encoders escape the plus sign of an offset
	if err := json.Unmarshal(b, &text); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return &json.UnmarshalTypeError{Value: wrong.Value, Type: reflect.TypeFor[Time]()}
		}
		return err
	}
	parsed, err := Parse(text)
	if err != nil {
		return &json.UnmarshalTypeError{Value: strconv.Quote(text[:min(len(text), len(Layout))]), Type: reflect.TypeFor[Time]()}
	}
	t.Time = parsed
	return nil
}

// Next is the present in the precision that answers show, but always after before: a
// resource's tag covers the time of its last change, so no two changes may share one.
func Next(before time.Time) time.Time {
	if t := time.Now().UTC().Truncate(time.Millisecond); t.After(before) {
		return t
	}
	return before.Add(time.Millisecond)
}
