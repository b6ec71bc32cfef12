package instant

import (
	"fmt"
	"time"
)

// Wanted says what Parse reads, for messages.
const Wanted = "an ISO 8601 time such as 2026-01-02T03:04:05.678Z"

// Parse reads an ISO 8601 time: a calendar, week or ordinal date in the extended or basic
// form, alone or with a time of the same form, whose seconds and minutes may be left out
// and whose last part may have a fraction; with Z or any offset (±hh, ±hhmm, ±hh:mm).
// 24:00 ends a day, and a leap second is the instant behind it. Without an offset it is
// in UTC, as all timestamps of the interface are; a date alone means its first instant.
// What lies outside the years 1 to 9999 in UTC is refused, since Layout cannot show it.
// The instant that begins the year 1 is read a microsecond late, which Layout does not
// show either: some clients send it when they have no time, and the zero Time stands for
// no time at all.
func Parse(s string) (time.Time, error) {
	r := reader{rest: s}
	t, ok := r.instant()
	switch year := t.Year(); {
	case !ok:
		return time.Time{}, fmt.Errorf("%q is not "+Wanted, s)
	case year < 1:
		return time.Time{}, fmt.Errorf("%q is before the year 1", s)
	case year > 9999:
		return time.Time{}, fmt.Errorf("%q is after the year 9999", s)
	case t.IsZero():
		t = t.Add(time.Microsecond)
	}
	return t, nil
}

// reader takes a text apart from its front.
type reader struct{ rest string }

// skip takes the next byte if it is one of these.
func (r *reader) skip(any string) bool {
	if r.rest != "" {
		for i := range len(any) {
			if r.rest[0] == any[i] {
				r.rest = r.rest[1:]
				return true
			}
		}
	}
	return false
}

// digits is how many stand in front.
func (r *reader) digits() int {
	n := 0
	for n < len(r.rest) && '0' <= r.rest[n] && r.rest[n] <= '9' {
		n++
	}
	return n
}

// number takes n digits, whose value has to be within the bounds.
func (r *reader) number(n, least, most int) (int, bool) {
	if r.digits() < n {
		return 0, false
	}
	v := 0
	for _, c := range []byte(r.rest[:n]) {
		v = v*10 + int(c-'0')
	}
	r.rest = r.rest[n:]
	return v, least <= v && v <= most
}

func (r *reader) instant() (time.Time, bool) {
	t, extended, ok := r.date()
	if !ok || r.rest == "" {
		return t, ok
	}
	if !r.skip("Tt") {
		return t, false
	}
	since, leap, ok := r.clock(extended)
	if !ok {
		return t, false
	}
	offset, ok := r.offset()
	t = t.Add(since - offset)
	// Leap seconds are inserted at the end of a day in UTC, nowhere else.
	if leap && t.Truncate(time.Second) != t.Truncate(24*time.Hour) {
		return t, false
	}
	return t, ok && r.rest == ""
}

// date is the first instant of a date; extended tells whether its parts are separated.
func (r *reader) date() (t time.Time, extended, ok bool) {
	front := r.digits()
	year, ok := r.number(4, 0, 9999)
	if !ok {
		return t, false, false
	}
	extended = r.skip("-")
	first := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
	switch n := r.digits(); {
	case r.skip("W"):
		t, ok = r.week(first, extended)
	case extended && n == 3, !extended && front == 7:
		var day int
		day, ok = r.number(3, 1, 366)
		t = first.AddDate(0, 0, day-1)
		ok = ok && t.Year() == year
	case extended && n == 2, !extended && front == 8:
		t, ok = r.day(first, extended)
	default:
		return t, false, false
	}
	return t, extended, ok
}

// day reads month and day of the year that begins with first.
func (r *reader) day(first time.Time, extended bool) (time.Time, bool) {
	month, ok := r.number(2, 1, 12)
	if !ok || (extended && !r.skip("-")) {
		return first, false
	}
	day, ok := r.number(2, 1, 31)
	t := first.AddDate(0, month-1, day-1)
	return t, ok && int(t.Month()) == month
}

// week reads week and day of the week. The first week of a year is the one with its
// fourth of January.
func (r *reader) week(first time.Time, extended bool) (time.Time, bool) {
	week, ok := r.number(2, 1, 53)
	if !ok || (extended && !r.skip("-")) {
		return first, false
	}
	day, ok := r.number(1, 1, 7)
	if !ok {
		return first, false
	}
	fourth := first.AddDate(0, 0, 3)
	monday := fourth.AddDate(0, 0, -(int(fourth.Weekday())+6)%7)
	t := monday.AddDate(0, 0, 7*(week-1)+day-1)
	of, is := t.ISOWeek()
	return t, of == first.Year() && is == week
}

// clock is the time since the day began; leap tells whether it is in a leap second.
func (r *reader) clock(extended bool) (since time.Duration, leap, ok bool) {
	hour, ok := r.number(2, 0, 24)
	if !ok {
		return 0, false, false
	}
	unit := time.Hour
	since = time.Duration(hour) * unit
	for _, part := range []struct {
		unit time.Duration
		most int
	}{{time.Minute, 59}, {time.Second, 60}} {
		if extended && !r.skip(":") || !extended && r.digits() == 0 {
			break
		}
		n, ok := r.number(2, 0, part.most)
		if !ok {
			return 0, false, false
		}
		leap = n == 60
		unit = part.unit
		since += time.Duration(n) * unit
	}
	if r.skip(".,") {
		fraction, ok := r.fraction(unit)
		if !ok {
			return 0, false, false
		}
		since += fraction
	}
	return since, leap, hour < 24 || since == 24*time.Hour
}

// fraction reads the digits behind the point, to the billionth of the unit, which
// is whole seconds.
func (r *reader) fraction(unit time.Duration) (time.Duration, bool) {
	n := r.digits()
	billionths, scale := time.Duration(0), time.Duration(1e9)
	for _, c := range []byte(r.rest[:min(n, 9)]) {
		scale /= 10
		billionths += time.Duration(c-'0') * scale
	}
	r.rest = r.rest[n:]
	return billionths * (unit / time.Second), n > 0
}

// offset is how far the time is ahead of UTC.
func (r *reader) offset() (time.Duration, bool) {
	if r.rest == "" || r.skip("Zz") {
		return 0, true
	}
	sign := time.Duration(1)
	if r.skip("-") {
		sign = -1
	} else if !r.skip("+") {
		return 0, false
	}
	hours, ok := r.number(2, 0, 23)
	minutes := 0
	if ok && (r.skip(":") || r.rest != "") {
		minutes, ok = r.number(2, 0, 59)
	}
	return sign * (time.Duration(hours)*time.Hour + time.Duration(minutes)*time.Minute), ok
}
