package up

import (
	"math/rand/v2"
	"time"
)

const (
	backoffMin = 50 * time.Millisecond
	backoffMax = 2 * time.Second
)

// backoff spaces tries: 50 ms, doubled up to 2 s, each ±25% so that many edges do not
// come back in step.
type backoff struct {
	pause time.Duration
	until time.Time
}

func (b *backoff) grow(now time.Time) {
	b.pause = min(max(2*b.pause, backoffMin), backoffMax)
	b.until = now.Add(b.pause*3/4 + rand.N(b.pause/2))
}

func (b *backoff) reset() { *b = backoff{} }
