package webhooks

import (
	"net/http"
	"testing"
	"time"
)

func TestScheduleEndsWithin24Hours(t *testing.T) {
	t.Parallel()
	// Supplement §8: 0, 5 s, 5 m, 30 m, 2 h, 5 h, 10 h, 5 h 40 m, each ±10%.
	want := []time.Duration{5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 340 * time.Minute}
	for range 200 {
		first := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		now := first
		for attempt, delay := range want {
			at, ok := next(now, first, attempt+1, 0)
			if !ok {
				t.Fatalf("attempt %d was the last", attempt+1)
			}
			low, high := now.Add(delay*9/10), now.Add(delay*11/10)
			if end := first.Add(24 * time.Hour); high.After(end) {
				high = end
				if low.After(end) {
					low = end
				}
			}
			if at.Before(low) || at.After(high) {
				t.Fatalf("attempt %d follows at %s, want between %s and %s", attempt+2, at, low, high)
			}
			now = at
		}
		if at, ok := next(now, first, 8, 0); ok {
			t.Fatalf("a ninth attempt at %s", at)
		}
	}
}

func TestRetryAfterCountsWhenLongerAndNeverPast24Hours(t *testing.T) {
	t.Parallel()
	first := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	if at, ok := next(first, first, 1, time.Hour); !ok || !at.Equal(first.Add(time.Hour)) {
		t.Errorf("Retry-After of an hour: %s %v", at, ok)
	}
	if at, ok := next(first, first, 1, time.Second); !ok || at.Before(first.Add(4500*time.Millisecond)) {
		t.Errorf("Retry-After under the delay: %s %v, want the delay", at, ok)
	}
	if at, ok := next(first, first, 1, 100*time.Hour); !ok || !at.Equal(first.Add(24*time.Hour)) {
		t.Errorf("Retry-After of 100 h: %s %v, want 24 h after the first attempt", at, ok)
	}
	if at, ok := next(first.Add(24*time.Hour), first, 2, 0); ok {
		t.Errorf("at the end of 24 h another attempt at %s", at)
	}
}

func TestRetryAfterIsReadInBothForms(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"120": 2 * time.Minute, " 7 ": 7 * time.Second, "Fri, 02 Jan 2026 03:05:05 GMT": time.Minute,
		"": 0, "-1": 0, "soon": 0, "1.5": 0, "1000000000000": (1<<31 - 1) * time.Second, "99999999999999999999": (1<<31 - 1) * time.Second, "Fri, 02 Jan 2026 03:00:00 GMT": 0,
	} {
		if got := retryAfter(http.Header{"Retry-After": {value}}, now); got != want {
			t.Errorf("Retry-After %q: %s, want %s", value, got, want)
		}
	}
}
