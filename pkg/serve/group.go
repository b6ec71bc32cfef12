// Package serve is what a Skerry process does apart from its purpose: run
// parts together, serve HTTP with limits and a clean end, answer the operator
// (health, readiness, metrics, status, profiles), and log.
//
// It promises: the first part that ends stops all others and Run waits for
// every one; nothing is registered on net/http's default mux; API keys, tokens
// and webhook secrets that find their way into a log line are masked.
//
// It does not read flags or files, and knows nothing of either plane.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
)

// Group runs parts together. The zero value is ready.
type Group struct {
	parts []part
}

type part struct {
	name string
	run  func(context.Context) error
}

// Add names a part and says how to run it: run blocks until ctx is done, and
// then returns soon.
func (g *Group) Add(name string, run func(context.Context) error) {
	g.parts = append(g.parts, part{name, run})
}

// Run starts every part. When one ends, or ctx is done, the others' context is cancelled;
// Run returns after the last has ended. The error is that of the first part to end by
// itself, with its name; a part that ends without a reason before it is told to is an
// error too. A stop by the caller is not an error, whatever its cause.
func (g *Group) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	var later []error
	for _, p := range g.parts {
		wg.Go(func() {
			err := p.run(ctx)
			stopped := ctx.Err() != nil
			switch {
			case !stopped && err == nil:
				err = errors.New("ended by itself")
			case stopped && (err == nil || errors.Is(err, context.Canceled)):
				return
			}
			err = fmt.Errorf("%s: %w", p.name, err)
			cancel(err)
			mu.Lock()
			defer mu.Unlock()
			if context.Cause(ctx) == err { // and not the caller's reason, or another part's
				first = err
			} else {
				later = append(later, err)
			}
		})
	}
	wg.Wait()
	for _, err := range later {
		slog.Warn("a part did not end cleanly", "error", err)
	}
	return first
}
