package up

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ShipperConfig says which edge ships, and how hard.
type ShipperConfig struct {
	// Edge is the edge's id: see ValidEdge.
	Edge string
	// Window is how many messages of a lane may be on their way to the stream without its
	// acknowledgement. 0 means 16, which is 8 MiB at most.
	Window int
	// HelloEvery is how often the edge says what its log holds, and so hears how far it
	// is stored. 0 means a second.
	HelloEvery time.Duration
}

// Validate names the first field that is wrong.
func (c ShipperConfig) Validate() error {
	switch {
	case !ValidEdge(c.Edge):
		return fmt.Errorf("up: Edge %q is not 1 to %d of [A-Za-z0-9_-]", c.Edge, maxEdgeIDBytes)
	case c.Window < 0 || c.Window > 1024:
		return fmt.Errorf("up: Window %d is not between 0 and 1024", c.Window)
	case c.HelloEvery < 0:
		return fmt.Errorf("up: HelloEvery %s is negative", c.HelloEvery)
	}
	return nil
}

// Shipper sends an edge's log to the centre, each lane on its own.
//
// It reads a lane forward and publishes in order, at most a window ahead of the stream's
// acknowledgements. It goes back only when the centre wants a number again, when the
// stream proves to have lost something, or when a publish failed; never because time has
// passed, for then a centre without its database would find its stream full of
// repetitions. It frees the log only at the watermark that the centre announces.
type Shipper struct {
	config ShipperConfig
	log    Log
	nc     *nats.Conn
	js     jetstream.JetStream
	packer *Packer
	lanes  [len(Lanes)]*laneShipper
}

const (
	defaultWindow     = 16
	defaultHelloEvery = time.Second
	publishTimeout    = 10 * time.Second
)

// NewShipper returns a shipper of the log over the connection, which stays the caller's.
func NewShipper(config ShipperConfig, log Log, nc *nats.Conn) (*Shipper, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if config.Window == 0 {
		config.Window = defaultWindow
	}
	if config.HelloEvery == 0 {
		config.HelloEvery = defaultHelloEvery
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncTimeout(publishTimeout))
	if err != nil {
		return nil, fmt.Errorf("open jetstream: %w", err)
	}
	packer, err := NewPacker()
	if err != nil {
		return nil, err
	}
	s := &Shipper{config: config, log: log, nc: nc, js: js, packer: packer}
	for i, lane := range Lanes {
		s.lanes[i] = &laneShipper{
			lane: lane, subject: Subject(lane, config.Edge), window: config.Window,
			log: log, js: js, packer: packer, connected: nc.IsConnected, mail: make(chan struct{}, 1),
		}
	}
	return s, nil
}

// Run ships until ctx ends.
func (s *Shipper) Run(ctx context.Context) error {
	sub, err := s.nc.Subscribe(storedSubject(s.config.Edge), s.deliver)
	if err != nil {
		return fmt.Errorf("subscribe to watermarks: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	defer s.js.CleanupPublisher()
	var running sync.WaitGroup
	defer running.Wait()
	for _, l := range s.lanes {
		running.Go(func() { l.run(ctx) })
	}
	s.greet(ctx)
	return nil
}

// deliver puts an announcement into its lane's mail.
func (s *Shipper) deliver(m *nats.Msg) {
	a, lane, in, err := decodeAnnouncement(m.Data)
	if err != nil {
		slog.Warn("announcement not understood", "subject", m.Subject, "error", err)
		return
	}
	s.lanes[laneIndex(lane)].receive(in, a)
}

// greet says hello at every tick and at every connect, until ctx ends.
func (s *Shipper) greet(ctx context.Context) {
	status := s.nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.DISCONNECTED)
	defer s.nc.RemoveStatusListener(status)
	tick := time.NewTicker(s.config.HelloEvery)
	defer tick.Stop()
	for {
		if s.nc.IsConnected() {
			if err := s.nc.Publish(helloSubject(s.config.Edge), mustMarshal(s.hello())); err != nil {
				slog.Debug("say hello", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case _, open := <-status:
			if !open {
				status = nil // the connection is closed for good; its owner ends us too
			}
			for _, l := range s.lanes {
				l.wake()
			}
		}
	}
}

func (s *Shipper) hello() hello {
	var h hello
	for _, t := range s.log.Totals() {
		if !t.Lane.Valid() {
			continue
		}
		said := laneHello{
			Lane: t.Lane.String(), Log: t.Log, Received: t.Received, Pending: min(t.Pending, t.Received),
			PendingBytes: max(t.PendingBytes, 0), OldestMS: max(t.OldestAge.Milliseconds(), 0),
		}
		s.lanes[laneIndex(t.Lane)].describe(&said)
		h.Lanes = append(h.Lanes, said)
	}
	return h
}

// LaneStatus is what operators see of one lane of the shipper.
type LaneStatus struct {
	Lane        string `json:"lane"`
	Incarnation string `json:"incarnation,omitempty"`
	Next        uint64 `json:"next"`    // number that is sent next
	Stored      uint64 `json:"stored"`  // watermark heard last
	Flying      int    `json:"flying"`  // messages that the stream has not acknowledged
	Rewinds     uint64 `json:"rewinds"` // since the start
	Fault       string `json:"fault,omitempty"`
}

// Status tells how each lane does.
func (s *Shipper) Status() []LaneStatus {
	status := make([]LaneStatus, len(s.lanes))
	for i, l := range s.lanes {
		status[i] = l.status()
	}
	return status
}

func laneIndex(l Lane) int { return int(l - LaneAlias) }
