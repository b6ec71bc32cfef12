package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// watch ends a request that nobody waits for, or that nobody will answer. It looks now
// and then, since most answers are quick.
type watch struct {
	over     chan struct{}
	running  sync.WaitGroup
	signs    *signs
	moving   atomic.Int64 // when this request began, or was last seen to move
	answered atomic.Bool  // the answer has begun
}

const watchEvery = 500 * time.Millisecond

var (
	errGone   = fmt.Errorf("the client has gone: %w", context.Canceled)
	errSilent = errors.New("the write plane answers nobody")
)

// watch begins to watch. cancel is called with errGone when the client closes its
// connection while it waits for an answer to begin (later, writing to it tells), and with
// errSilent when the write plane has stopped answering.
func (r *Relay) watch(conn net.Conn, cancel context.CancelCauseFunc) *watch {
	w := &watch{over: make(chan struct{}), signs: r.signs}
	w.moved()
	every := min(watchEvery, r.config.Patience)
	w.running.Go(func() {
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-w.over:
				return
			case <-t.C:
			}
			switch {
			case !w.answered.Load() && closedByPeer(conn):
				cancel(errGone)
				return
			case r.signs.silent(w.moving.Load()):
				cancel(errSilent)
				return
			}
		}
	})
	return w
}

// moved is called when a part of a body has passed.
func (w *watch) moved() { w.moving.Store(w.signs.now()) }

// stop ends the watch, and waits for that.
func (w *watch) stop() {
	close(w.over)
	w.running.Wait()
}

// signs are the write plane's signs of life. A process that is frozen, or behind a
// network that swallows everything, still has its connections: only that it answers tells
// that it lives. An answer that takes long is no sign of the contrary, so while nothing
// is heard of it, the write plane is asked something that it can always answer, on a
// connection of its own.
//
// Times are since begun, so that a clock that is set does not matter.
type signs struct {
	begun    time.Time
	patience time.Duration
	question *http.Request
	client   *http.Client
	stop     context.CancelFunc
	asking   sync.WaitGroup

	lastHeard  atomic.Int64 // when the last answer of any kind began
	unanswered atomic.Int64 // when the last question was asked that got no answer
	busy       atomic.Bool  // a question is under way
}

func newSigns(base *url.URL, patience time.Duration, dial func(context.Context, string, string) (net.Conn, error)) *signs {
	ctx, stop := context.WithCancel(context.Background())
	target := *base
	target.Path = "/.well-known/jwks.json" // it stands in memory
	question := (&http.Request{Method: http.MethodGet, URL: &target, Host: base.Host, Header: http.Header{}}).WithContext(ctx)
	return &signs{begun: time.Now(), patience: patience, question: question, stop: stop, client: &http.Client{
		Timeout:       patience,
		Transport:     &http.Transport{DialContext: dial, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (s *signs) close() {
	s.stop()
	s.asking.Wait()
}

func (s *signs) now() int64 { return int64(time.Since(s.begun)) }

func (s *signs) heard() { s.lastHeard.Store(s.now()) }

// silent tells whoever has waited since a time that the write plane answers nobody:
// nothing was heard for s.patience, and then not even the question was answered.
func (s *signs) silent(since int64) bool {
	last := max(since, s.lastHeard.Load())
	switch {
	case s.now()-last < int64(s.patience):
		return false
	case s.unanswered.Load() > last:
		return true
	case s.busy.CompareAndSwap(false, true):
		s.asking.Go(func() {
			defer s.busy.Store(false)
			s.ask()
		})
	}
	return false
}

func (s *signs) ask() {
	asked := s.now()
	resp, err := s.client.Do(s.question.Clone(s.question.Context()))
	if err != nil {
		s.unanswered.Store(asked)
		return
	}
	_ = resp.Body.Close() // whatever it says
	s.heard()
}
