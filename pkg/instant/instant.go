// Package instant reads and writes points in time as the interface shows them:
// RFC 3339 in UTC with milliseconds out, any valid ISO 8601 offset in (supplement §1).
package instant

import (
	"fmt"
	"strings"
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

// forms are the ISO 8601 forms accepted: extended and basic offsets, a fraction
// after '.' or ',' (time.Parse takes both unasked), minutes alone, no offset, a date
// alone.
var forms = [...]string{
	time.RFC3339,
	"2006-01-02T15:04:05Z0700",
	"2006-01-02T15:04:05Z07",
	"2006-01-02T15:04Z07:00",
	"2006-01-02T15:04Z0700",
	"20060102T150405Z0700",
	"20060102T150405Z07:00",
	"2006-01-02T15:04:05",
	"2006-01-02T15:04",
	"20060102T150405",
	"2006-01-02",
}

// Parse reads an ISO 8601 time. Without an offset it is in UTC, as all timestamps of
// the interface are; a date alone means its first instant. What lies before the year 1
// in UTC is refused, since Layout cannot show it. The instant that begins the year 1 is read a microsecond
// late, which Layout does not show either: some clients send it for want of a time,
// and the zero Time stands for no time at all.
func Parse(s string) (time.Time, error) {
	upper := strings.ToUpper(s) // RFC 3339 allows t and z
	for _, form := range forms {
		t, err := time.Parse(form, upper)
		switch {
		case err != nil:
			continue
		case t.UTC().Year() < 1:
			return time.Time{}, fmt.Errorf("%q is before the year 1", s)
		case t.IsZero():
			t = t.Add(time.Microsecond)
		}
		return t.UTC(), nil
	}
	return time.Time{}, fmt.Errorf("%q is not an ISO 8601 time such as 2026-01-02T03:04:05.678Z", s)
}

// Next is the present in the precision that answers show, but always after before: a
// resource's tag covers the time of its last change, so no two changes may share one.
func Next(before time.Time) time.Time {
	if t := time.Now().UTC().Truncate(time.Millisecond); t.After(before) {
		return t
	}
	return before.Add(time.Millisecond)
}
