// Package instant reads and writes points in time as the interface shows them:
// RFC 3339 in UTC with milliseconds out, any valid ISO 8601 offset in (supplement §1).
package instant

import (
	"fmt"
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
func (t *Time) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	if len(b) < 2 || b[0] != '"' || b[len(b)-1] != '"' {
		return fmt.Errorf("time is no string")
	}
	parsed, err := Parse(string(b[1 : len(b)-1]))
	if err != nil {
		return err
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
