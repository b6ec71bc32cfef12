package lease

import (
	"context"
	"sync"
	"time"
)

// Keep calls renew now and then, until ctx ends or release is called, which waits for a
// call that is under way. It is for rows that carry the end of their own lease: of work
// that is taken, done and given back.
func Keep(ctx context.Context, every time.Duration, renew func(context.Context)) (release func()) {
	ctx, cancel := context.WithCancel(ctx)
	var renewal sync.WaitGroup
	renewal.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				renew(ctx)
			}
		}
	})
	return func() { cancel(); renewal.Wait() }
}
