package natsserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// A NATS server whose disk has refused a write, most often because it was full, takes
// nothing more into the stream, or into any, for the rest of its life: whatever is
// published stays without an answer, and only its log says why. So it is looked after,
// and started again when its disk takes bytes: a start reads what is there and forgets
// the fault.
const (
	lookEvery = time.Second
	// calm is the least time between two starts: a disk that is full again at once is not
	// to keep everybody from reading.
	calm = 10 * time.Second
	// probeBytes is what the folder must take before a start: about what the
	// first minutes need.
	probeBytes = 8 << 20
)

// watch looks after the server until Stop.
func (s *Server) watch() {
	defer close(s.watched)
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	known := ""
	var last time.Time
	for {
		select {
		case <-s.stopping:
			return
		case <-look.C:
		}
		fault := s.fault()
		if fault != "" && fault != known {
			s.cfg.Log.Error("nats: streams take nothing more; the server is started again when its disk can be written to", "reason", fault)
		}
		known = fault
		if fault == "" || time.Since(last) < calm || s.probe() != nil {
			continue
		}
		last = time.Now()
		s.startAgain()
	}
}

// fault is why streams cannot be written to until the server is started again;
// empty when they can.
func (s *Server) fault() string {
	// The streams of several nodes look after themselves; only a node that has turned
	// them off for good is helped.
	health := s.ns.Healthz(&server.HealthzOptions{Details: true, JSEnabledOnly: s.cfg.Cluster != nil})
	for _, e := range health.Errors {
		if e.Type == server.HealthzErrorJetStream || e.Type == server.HealthzErrorStream && strings.Contains(e.Error, "write error") {
			return e.Error
		}
	}
	return ""
}

// probe writes to the disk as much as a server needs to go on.
func (s *Server) probe() error {
	path := filepath.Join(s.cfg.Dir, "probe")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("probe the disk: %w", err)
	}
	_, err = f.Write(make([]byte, probeBytes))
	return errors.Join(err, f.Sync(), f.Close(), os.Remove(path))
}

// startAgain stops the server and starts it, until that succeeds or Stop is called.
// Clients find it at the same address.
func (s *Server) startAgain() {
	s.shutdown()
	for {
		err := s.start()
		if err == nil {
			s.cfg.Log.Info("nats: started again")
			return
		}
		s.cfg.Log.Error("nats: does not start", "error", err)
		select {
		case <-s.stopping:
			return
		case <-time.After(calm / 2):
		}
	}
}
