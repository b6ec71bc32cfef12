// Package natstest gives a test a NATS server of its own, with JetStream, in
// the test's process and its temporary folder.
package natstest

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"skerry/pkg/natsserver"
)

// Server is the NATS server of one test.
type Server struct {
	tb  testing.TB
	cfg natsserver.Config
	ns  *natsserver.Server
	// URL stays the same when the server is stopped and started again.
	URL string
}

// New starts a server and stops it when the test ends.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{tb: t, cfg: natsserver.Config{Dir: t.TempDir(), MaxStore: 4 << 30}}
	s.Start()
	t.Cleanup(s.Stop)
	return s
}

// Start starts a stopped server again, on the same port and streams.
func (s *Server) Start() {
	s.tb.Helper()
	ns, err := natsserver.Start(s.cfg)
	if err != nil {
		s.tb.Fatalf("start nats: %v", err)
	}
	s.ns, s.URL = ns, ns.URL()
	s.cfg.Port = ns.Port()
}

// Stop takes the server away, as a fault would.
func (s *Server) Stop() { s.ns.Stop() }

// Connect opens a connection and closes it when the test ends.
func (s *Server) Connect(t testing.TB, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.URL, opts...)
	if err != nil {
		t.Fatalf("connect to nats: %v", err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// JetStream opens a connection as Connect does and returns its streams.
func (s *Server) JetStream(t testing.TB, opts ...nats.Option) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(s.Connect(t, opts...))
	if err != nil {
		t.Fatalf("open jetstream: %v", err)
	}
	return js
}
