// Package stream tells clients that an environment has changed: Server-Sent Events, as
// OpenFeature clients expect them (supplement §4).
//
//	: open
//	id: <revision>
//
//	id: <revision>
//	data: {"type":"refetchEvaluation","etag":"\"<revision of the module>\"","module":"switch","revision":"<revision>"}
//
// It promises: a change is announced once it can be read here; a slow reader holds
// nothing up and gets one message for all that it missed; a stream ends within a second
// of its key's revocation, after 30 minutes (±20%, so that clients do not come back all
// at once), and with the edge. A stream costs one goroutine and its connection, nothing
// of the HTTP server.
package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"skerry/edgenode/gate"
	"skerry/edgenode/parties"
	"skerry/edgenode/view"
	"skerry/pkg/serve"
	"skerry/replication"
)

// Config has the times of streams. Zero values mean the defaults.
type Config struct {
	Heartbeat time.Duration // between signs of life; 0 means 15 s
	Life      time.Duration // of a stream, ±20%; 0 means 30 min
	Stall     time.Duration // in which a reader must take a message; 0 means 10 s
	Check     time.Duration // between looks at the streams' keys; 0 means 500 ms
	Streams   int           // at once; 0 means 50,000, or a quarter of the files that the process may open
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&c.Heartbeat, 15*time.Second)
	set(&c.Life, 30*time.Minute)
	set(&c.Stall, 10*time.Second)
	set(&c.Check, 500*time.Millisecond)
	if c.Streams == 0 {
		c.Streams = min(50_000, serve.OpenFiles()/4)
	}
	return c
}

// Module serves the endpoint.
type Module struct {
	gate   *gate.Gate
	views  *view.Store
	config Config

	mu      sync.Mutex
	closing bool
	open    map[*stream]struct{}
	held    map[parties.Party]int64 // how many of open each has
	refused uint64                  // for want of room
	warned  time.Time               // when the log was last told of that
	running sync.WaitGroup
}

// New returns the module. Its streams need Run.
func New(g *gate.Gate, views *view.Store, config Config) *Module {
	return &Module{gate: g, views: views, config: config.withDefaults(), open: map[*stream]struct{}{}, held: map[parties.Party]int64{}}
}

// Stats are the streams of this process.
type Stats struct {
	Open    int    // now
	AtMost  int    // as many may be
	Refused uint64 // answered 503 because there were as many
}

// Stats tells how many streams there are.
func (m *Module) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Stats{Open: len(m.open), AtMost: m.config.Streams, Refused: m.refused}
}

// Run ends streams whose keys do not hold any more, until ctx ends; then it ends all and
// waits for them.
func (m *Module) Run(ctx context.Context) error {
	tick := time.NewTicker(m.config.Check)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			m.endRevoked()
		case <-ctx.Done():
			m.mu.Lock()
			m.closing = true
			for s := range m.open {
				s.end()
			}
			m.mu.Unlock()
			m.running.Wait()
			return nil
		}
	}
}

func (m *Module) endRevoked() {
	m.mu.Lock()
	all := make([]*stream, 0, len(m.open))
	for s := range m.open {
		all = append(all, s)
	}
	m.mu.Unlock()
	for _, s := range all {
		if _, holds := m.views.Key(s.key.Hash); !holds && m.views.Ready() {
			s.end()
		}
	}
}

// stream is one open stream.
type stream struct {
	m     *Module
	key   view.Key
	of    [2]parties.Party
	since string // Last-Event-ID: the revision up to which the client has heard
	sub   *view.Subscription
	ended chan struct{}
	once  sync.Once
}

func (s *stream) end() { s.once.Do(func() { close(s.ended) }) }

// Serve serves GET /api/v1/stream.
func (m *Module) Serve(ctx *fasthttp.RequestCtx) {
	pass := m.gate.Admit(ctx, gate.Changes)
	if pass.Refusal != gate.Admitted {
		gate.Changes.Refuse(ctx, pass)
		return
	}
	h := &ctx.Response.Header
	if ctx.IsHead() {
		h.SetContentType("text/event-stream")
		return
	}
	s := &stream{m: m, key: pass.Key, of: parties.Of(pass.Key.ProjectID, m.gate.ClientIP(ctx)),
		since: string(ctx.Request.Header.Peek("Last-Event-ID")), ended: make(chan struct{})}
	if !m.mayOpen(s) {
		h.SetContentType("application/json")
		h.Set("Retry-After", "10")
		ctx.SetStatusCode(fasthttp.StatusServiceUnavailable)
		ctx.SetBodyString(`{"error":"Service temporarily unavailable"}`)
		return
	}
	h.SetContentType("text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // proxies must not collect messages
	h.SetContentLength(-2)           // until the connection ends
	h.SetConnectionClose()
	head := append([]byte(nil), h.Header()...)
	ctx.HijackSetNoResponse(true)
	ctx.Hijack(func(c net.Conn) {
		// Only here: the server does not hand over the connection of a client that
		// has gone.
		if m.admit(s) {
			s.take(c, head)
		}
	})
}

// mayOpen tells whether another stream may begin. Who is turned away is counted, and the
// log is told once a minute: an EventSource of a page that is answered 503 does not try
// again, so that page hears of no change.
func (m *Module) mayOpen(s *stream) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.placeLocked(s); ok {
		return true
	}
	if !m.closing {
		m.refused++
		if now := time.Now(); now.Sub(m.warned) > time.Minute {
			m.warned = now
			slog.Warn("change streams are turned away", "open", len(m.open))
		}
	}
	return false
}

// admit counts a stream in, from here on to leave. Where another has taken the last
// place since the client was told yes, it is not: the connection ends, and the client
// comes again.
func (m *Module) admit(s *stream) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	whose, ok := m.placeLocked(s)
	if !ok {
		return false
	}
	if whose != nil {
		whose.end()
		m.dropLocked(whose)
	}
	m.countLocked(s)
	m.running.Add(1)
	// Subscribed before the state is looked at: a change in between is announced,
	// perhaps twice.
	s.sub = m.views.Subscribe(s.key.ProjectID, s.key.Environment)
	return true
}

func (m *Module) leave(s *stream) {
	s.sub.Close()
	m.mu.Lock()
	m.dropLocked(s)
	m.mu.Unlock()
	m.running.Done()
}

// take runs the stream. A TCP connection is taken over by a second descriptor, and the
// server is let go: what it keeps for a hijacked connection (request, 8 KiB of buffer, a
// grown stack) is more than the stream itself needs.
func (s *stream) take(c net.Conn, head []byte) {
	own, err := second(c)
	if err != nil {
		defer s.m.leave(s)
		_ = s.run(c, head) // its end is all there is to say: the client has gone, or we let it go
		return
	}
	go func() {
		defer s.m.leave(s)
		defer func() { _ = own.Close() }()
		_ = s.run(own, head)
	}()
}

// second opens the connection once more.
func second(c net.Conn) (net.Conn, error) {
	for {
		switch t := c.(type) {
		case *net.TCPConn:
			file, err := t.File()
			if err != nil {
				return nil, fmt.Errorf("duplicate connection: %w", err)
			}
			own, err := net.FileConn(file)
			if err = errors.Join(err, file.Close()); err != nil {
				return nil, fmt.Errorf("duplicate connection: %w", err)
			}
			// What a reader does not take waits here, in the kernel's memory, so it
			// is little.
			return own, own.(*net.TCPConn).SetWriteBuffer(sendBuffer)
		case interface{ NetConn() net.Conn }:
			c = t.NetConn()
		case interface{ UnsafeConn() net.Conn }:
			c = t.UnsafeConn()
		default:
			return nil, errors.ErrUnsupported
		}
	}
}

// sendBuffer is what the kernel may hold of a stream, in bytes (it takes twice that for
// its own needs).
const sendBuffer = 8 << 10

var ping = []byte(": ping\n\n")

func (s *stream) run(c net.Conn, head []byte) error {
	first, ok := s.opening()
	if !ok {
		return nil
	}
	if err := s.write(c, append(head, first...)); err != nil {
		return err
	}
	config := &s.m.config
	life := time.NewTimer(time.Duration(float64(config.Life) * (0.8 + 0.4*rand.Float64())))
	defer life.Stop()
	beat := time.NewTimer(config.Heartbeat)
	defer beat.Stop()
	for {
		message := ping
		select {
		case <-s.ended:
			return nil
		case <-life.C:
			return nil
		case <-beat.C:
		case <-s.sub.C():
			if message, ok = s.news(s.sub.Take()); !ok {
				return nil
			}
		}
		beat.Reset(config.Heartbeat)
		if err := s.write(c, message); err != nil {
			return err
		}
	}
}

func (s *stream) write(c net.Conn, message []byte) error {
	if len(message) == 0 {
		return nil
	}
	if err := c.SetWriteDeadline(time.Now().Add(s.m.config.Stall)); err != nil {
		return err
	}
	_, err := c.Write(message)
	return err
}

// everything is what a client is told that comes back after a change.
const everything = view.SwitchChanged | view.ConfigChanged | view.PulseChanged | view.CohortsChanged

// opening is what a stream begins with: a comment, so that the client knows that it
// stands, and what it missed.
//
// Who missed nothing, or has not heard of anything yet, is given the revision alone. That
// is no message (there is no data), but by the rules of event streams it is what the
// client names when it comes back. Without it, a client that had heard of no change would
// miss those that are made while it has no stream: an edge's restart, or the end of a
// stream's life.
func (s *stream) opening() ([]byte, bool) {
	env, ok := s.m.views.Environment(s.key.ProjectID, s.key.Environment)
	if !ok {
		return []byte(": open\n\n"), s.since == ""
	}
	if s.since == "" || s.since == string(env.RevisionText) {
		return append(append([]byte(": open\nid: "), env.RevisionText...), "\n\n"...), true
	}
	missed, ok := s.news(everything)
	return append([]byte(": open\n\n"), missed...), ok
}

// news are the messages of a set of changed modules; ok is false when the project is gone.
func (s *stream) news(changed view.ModuleSet) ([]byte, bool) {
	env, ok := s.m.views.Environment(s.key.ProjectID, s.key.Environment)
	if !ok {
		return nil, false
	}
	if changed&view.SettingsChanged != 0 {
		changed |= view.SwitchChanged | view.ConfigChanged | view.PulseChanged // modules may have gone on or off
	}
	var b []byte
	for _, one := range [...]struct {
		bit  view.ModuleSet
		name string
		at   replication.Revision
	}{
		{view.SwitchChanged, "switch", env.Modules.Switch.Max(env.Modules.Settings)},
		{view.ConfigChanged, "config", env.Modules.Config.Max(env.Modules.Settings)},
		{view.PulseChanged, "pulse", env.Modules.Pulse.Max(env.Modules.Settings)},
		{view.CohortsChanged, "cohorts", env.Modules.Cohorts},
	} {
		if changed&one.bit == 0 {
			continue
		}
		b = append(append(b, "id: "...), env.RevisionText...)
		b = append(b, "\ndata: {\"type\":\"refetchEvaluation\",\"etag\":\"\\\""...)
		b = one.at.Append(b)
		b = append(append(b, `\"","module":"`...), one.name...)
		b = append(append(b, `","revision":"`...), env.RevisionText...)
		b = append(b, "\"}\n\n"...)
	}
	return b, true
}
