// Package local runs all of Skerry on one machine for `skerry up`: a private
// PostgreSQL and NATS (unless addresses are given), one write plane, any
// number of edges, and a demo to look at.
//
// It promises: credentials.json is written as soon as everything answers, and a
// start removes the one before first; an edge that has run on the folder before
// answers from its own disk, whatever PostgreSQL takes to recover; a stop ends
// everything within 10 s; data and credentials survive a stop and a kill -9 at
// any moment, the first start included; a second start on the same folder is
// refused and says why.
//
// It is for trying, developing and testing. Real deployments run `skerry
// writeplane` and `skerry edge` beside a database and a NATS of their own.
//
// Folder layout:
//
//	lock              held while running
//	demo.secrets      what the first start made up: ids, keys (0600)
//	credentials.json  addresses and secrets for clients (0600)
//	postgres/ nats/   the private servers
//	blobs/            the write plane's files
//	edge-0/ edge-1/…  one folder per edge
package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"skerry/edgenode"
	"skerry/pkg/dirlock"
	"skerry/pkg/natsserver"
	"skerry/pkg/serve"
	"skerry/writeplane"
)

// Config says what to run and where.
type Config struct {
	// Data is the folder that keeps everything.
	Data string
	// Edges is how many edges run; 1 to 64.
	Edges int
	// ListenEdge is the first edge's host:port; edge i listens on port + i.
	// Port 0 picks free ports.
	ListenEdge string
	// ListenWritePlane is the write plane's host:port.
	ListenWritePlane string
	// PostgresURL and NATSURL name servers to use in place of private ones.
	PostgresURL string
	NATSURL     string
	// Plane and Edge are settings of the planes; addresses, folders and whom
	// they talk to are set here.
	Plane writeplane.Config
	Edge  edgenode.Config
	// NoDemo leaves out the demo data. An organization, a project, keys and
	// tokens are made all the same.
	NoDemo bool
	// Out gets the table of addresses.
	Out io.Writer
	// Program is how the user called us, for the commands to try.
	Program string
}

const (
	// Each process's operator listener is on its port + operatorOffset, on
	// 127.0.0.1; on a free port where the port is 0.
	operatorOffset = 100
	maxEdges       = 64 // fewer than operatorOffset: the two rows of ports must not meet

	// A stop has 10 s in all: the planes drain, then the servers under them
	// end. What takes longer is cut off, which costs a recovery, not data.
	requestTime      = 4 * time.Second // of running requests; the write plane's default is the same
	drainTime        = 6 * time.Second
	postgresStopTime = 2 * time.Second

	// startTime is how long everything may take to answer once it is there.
	startTime = 2 * time.Minute
)

// Validate names the flag that is wrong.
func (c Config) Validate() error {
	if c.Data == "" {
		return errors.New("--data is empty")
	}
	if c.Edges < 1 || c.Edges > maxEdges {
		return fmt.Errorf("--edges %d is not between 1 and %d", c.Edges, maxEdges)
	}
	if _, err := portOf("--listen-edge", c.ListenEdge); err != nil {
		return err
	}
	_, err := portOf("--listen-writeplane", c.ListenWritePlane)
	return err
}

func portOf(flag, address string) (int, error) {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return 0, fmt.Errorf("%s %q is not host:port", flag, address)
	}
	port, err := strconv.Atoi(text)
	if err != nil || port < 0 || port > 65535-operatorOffset-maxEdges {
		return 0, fmt.Errorf("%s %q has no usable port", flag, address)
	}
	return port, nil
}

// listeners are the addresses of one process: its own and the operator's.
func listeners(address string, offset int) (own, operator string) {
	host, text, _ := net.SplitHostPort(address)
	port, _ := strconv.Atoi(text)
	if port == 0 {
		return net.JoinHostPort(host, "0"), "127.0.0.1:0"
	}
	return net.JoinHostPort(host, strconv.Itoa(port+offset)), net.JoinHostPort("127.0.0.1", strconv.Itoa(port+offset+operatorOffset))
}

// Run starts everything, writes credentials.json, prints the table, and
// returns after ctx is done and everything has ended, or when a part fails.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	data, err := filepath.Abs(cfg.Data)
	if err != nil {
		return err
	}
	cfg.Data = data
	lock, err := dirlock.Take(data)
	var inUse *dirlock.InUse
	switch {
	case errors.As(err, &inUse):
		return fmt.Errorf("another skerry up (process %d) runs on %s: stop it, or give another --data", inUse.PID, data)
	case err != nil:
		return fmt.Errorf("--data: %w", err)
	}
	defer lock.Release()
	credentialsPath := filepath.Join(data, "credentials.json")
	if err := os.Remove(credentialsPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	under, err := startServers(cfg)
	if err != nil {
		return interrupted(ctx, err)
	}
	defer under.stop()
	return interrupted(ctx, runPlanes(ctx, cfg, under, credentialsPath))
}

// interrupted turns the errors of a start that the user broke off into none.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil && err != nil {
		slog.Debug("stopped while starting", "error", err)
		return nil
	}
	return err
}

// runPlanes runs the planes, and PostgreSQL under them.
func runPlanes(ctx context.Context, cfg Config, under *servers, credentialsPath string) error {
	p := newPlanes(cfg, under)
	var group serve.Group
	p.addTo(&group)
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- group.Run(running) }()

	starting, giveUp := context.WithCancel(ctx)
	defer giveUp()
	up := make(chan error, 1)
	go func() { up <- p.bringUp(starting, credentialsPath) }()

	var err error
	select {
	case err = <-up:
		if err != nil {
			break // something does not answer: stop the rest and say what
		}
		select {
		case <-ctx.Done():
		case err := <-ended:
			return err
		}
	case err := <-ended:
		giveUp()
		<-up
		return err
	}
	stop()
	select {
	case endErr := <-ended:
		return errors.Join(err, endErr)
	case <-time.After(drainTime):
		slog.Warn("some parts did not end in time and are cut off", "after", drainTime)
		return err
	}
}

// servers are PostgreSQL and NATS, private or given.
type servers struct {
	natsURL string
	nats    *natsserver.Server // nil when given

	postgresDir string                 // "" when it is given
	ready       chan struct{}          // closed when PostgreSQL is there
	postgresURL string                 // set before ready is closed
	pg          atomic.Pointer[keeper] // nil when given, and until it is there
}

// startServers starts what the edges need to begin. PostgreSQL, which may have
// to recover, is a part that runs beside them: see runPostgres.
func startServers(cfg Config) (*servers, error) {
	s := &servers{natsURL: cfg.NATSURL, postgresURL: cfg.PostgresURL, ready: make(chan struct{})}
	if s.postgresURL != "" {
		close(s.ready)
	} else {
		s.postgresDir = filepath.Join(cfg.Data, "postgres")
	}
	if s.natsURL != "" {
		return s, reachNATS(s.natsURL)
	}
	var err error
	s.nats, err = natsserver.Start(natsserver.Config{Dir: filepath.Join(cfg.Data, "nats"), Log: slog.Default()})
	if err != nil {
		return nil, err
	}
	s.natsURL = s.nats.URL()
	return s, nil
}

// runPostgres starts the private PostgreSQL and keeps it running until ctx is
// done; stop ends it.
func (s *servers) runPostgres(ctx context.Context) error {
	k, err := startPostgres(ctx, s.postgresDir)
	if err != nil {
		return interrupted(ctx, err)
	}
	s.pg.Store(k)
	s.postgresURL = k.url()
	close(s.ready)
	return k.keep(ctx)
}

// reachNATS tells at once of a wrong address. The planes would wait for a
// server that is away, which is right for them and unhelpful here.
func reachNATS(address string) error {
	conn, err := nats.Connect(address, nats.Timeout(3*time.Second))
	if err != nil {
		return fmt.Errorf("reach NATS at %s: %w", hostOf(address), err)
	}
	conn.Close()
	return nil
}

func (s *servers) stop() {
	if s.nats != nil {
		s.nats.Stop()
	}
	if k := s.pg.Load(); k != nil {
		if err := k.stop(); err != nil {
			slog.Error("stop PostgreSQL", "error", err)
		}
	}
}
