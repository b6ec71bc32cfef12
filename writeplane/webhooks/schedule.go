package webhooks

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// delays lie between one attempt and the next: attempts at 0, 5 s, 5 m, 30 m, 2 h,
// 5 h, 10 h and 5 h 40 m after the one before (supplement §8).
var delays = [...]time.Duration{
	5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 5*time.Hour + 40*time.Minute,
}

// horizon is how long after its first attempt a delivery may still be tried.
const horizon = 24 * time.Hour

// next tells when to try again after a delivery's attempt number `attempts` failed at
// now, or ok=false when it was the last. retryAfter is what the target asked for, 0
// for nothing; it counts when it is longer than the schedule's own delay.
func next(now, first time.Time, attempts int, retryAfter time.Duration) (at time.Time, ok bool) {
	end := first.Add(horizon)
	if attempts > len(delays) || !now.Before(end) {
		return time.Time{}, false
	}
	delay := delays[attempts-1]
	delay += time.Duration((rand.Float64()*0.2 - 0.1) * float64(delay)) // ±10%, so that failures do not march in step
	at = now.Add(max(delay, retryAfter))
	if at.After(end) {
		at = end
	}
	return at, true
}

// retryAfter reads the header of that name: whole seconds or an HTTP date.
func retryAfter(header http.Header, now time.Time) time.Duration {
	value := strings.TrimSpace(header.Get("Retry-After"))
	seconds, err := strconv.ParseUint(value, 10, 31)
	if err == nil || errors.Is(err, strconv.ErrRange) { // one too large is the largest, as RFC 9111 reads its like
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil && at.After(now) {
		return at.Sub(now)
	}
	return 0
}
