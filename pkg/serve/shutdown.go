package serve

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"
)

// errStopping is what /readyz says of a process that has been told to stop.
var errStopping = errors.New("stopping")

// Shutdown is the end of a process behind a load balancer. When it is told to stop, it is
// no longer ready, but it goes on serving for Delay: until the balancer has noticed,
// requests still come, and a closed listener would refuse them.
type Shutdown struct {
	Delay time.Duration // 0 stops at once

	begun atomic.Bool
}

// Context returns a context that ends Delay after ctx. The caller cancels it when
// the work has ended.
func (s *Shutdown) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	working, cancel := context.WithCancel(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() {
		defer cancel()
		s.begun.Store(true)
		if s.Delay <= 0 {
			return
		}
		slog.Info("told to stop; requests are still answered for a while", "for", s.Delay)
		select {
		case <-time.After(s.Delay):
		case <-working.Done():
		}
	})
	return working, func() { forget(); cancel() }
}

// Begun tells whether the process has been told to stop.
func (s *Shutdown) Begun() bool { return s.begun.Load() }

// Handler closes a client's connection behind the answer once the process has been told
// to stop, so that the client's next one goes to another process.
func (s *Shutdown) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.Begun() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}
