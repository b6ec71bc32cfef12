// Package natsserver runs a NATS server with JetStream inside the program:
// for `skerry up`, for tests and for benchmarks alike.
//
// It promises: the server listens on 127.0.0.1 only, admits only holders of the random
// token in its URL, keeps its streams in Config.Dir over restarts, and refuses a folder
// that another process uses. A full or failing disk is survived: when it takes bytes
// again, so do the streams. It installs no signal handlers and never ends the program.
//
// It is one node, or with Config.Cluster one of several on this machine, for
// rehearsals; no TLS. Real deployments run NATS themselves.
package natsserver

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"skerry/pkg/atomicfile"
	"skerry/pkg/dirlock"
)

// Config says where and how to run the server.
type Config struct {
	// Dir holds the streams, the token and the lock. It is made (0700) when
	// absent.
	Dir string
	// Port on 127.0.0.1; 0 picks a free one.
	Port int
	// SyncAlways syncs every stored message before it is acknowledged: safe
	// against a crash of the machine, and some hundred times slower.
	SyncAlways bool
	// SyncInterval is how often streams are synced otherwise. 0 means NATS'
	// own 2 minutes.
	SyncInterval time.Duration
	// MaxPayload in bytes; 0 means 4 MiB.
	MaxPayload int32
	// MaxStore bounds all streams together, in bytes; 0 leaves it to the bounds of each.
	// (NATS itself would compare the sum of those bounds with the space that is free at
	// the start, and then may refuse even an update of a stream that changes nothing.)
	MaxStore int64
	// ReadyTimeout bounds the start, recovery of the streams included.
	// 0 means 30 s.
	ReadyTimeout time.Duration
	// Token admits clients; "" makes one for the folder and keeps it.
	Token string
	// Cluster makes the server one node of several. Nil: it is alone.
	Cluster *Cluster
	// Log receives warnings and errors. Nil discards them.
	Log *slog.Logger
}

// Cluster is how nodes on this machine find each other. Clients are not told of nodes
// that they did not name themselves, so that one that goes through a proxy keeps using
// the proxy.
type Cluster struct {
	Name  string // of this node among the others
	Port  int    // on 127.0.0.1, for the other nodes
	Ports []int  // of all nodes, this one's too
}

// Validate names the field that is wrong.
func (c Config) Validate() error {
	switch {
	case c.Dir == "":
		return errors.New("natsserver: Dir is required")
	case c.Port < 0 || c.Port > 65535:
		return fmt.Errorf("natsserver: Port %d is out of range", c.Port)
	case c.MaxPayload < 0:
		return fmt.Errorf("natsserver: MaxPayload %d is negative", c.MaxPayload)
	case c.Cluster == nil:
		return nil
	case c.Cluster.Name == "":
		return errors.New("natsserver: Cluster.Name is required")
	case c.Token == "":
		return errors.New("natsserver: Token is required in a cluster: all nodes have the same")
	case !slices.Contains(c.Cluster.Ports, c.Cluster.Port):
		return fmt.Errorf("natsserver: Cluster.Port %d is not among Cluster.Ports", c.Cluster.Port)
	}
	return nil
}

// unbounded is more than any disk has, in bytes.
const unbounded = 1 << 60

// Server is a running server.
type Server struct {
	cfg  Config // with its defaults, and since the start with the port and the token
	lock *dirlock.Lock
	url  string

	ns       *server.Server // watch's until watched is closed, then Stop's
	stop     sync.Once
	stopping chan struct{} // closed by Stop
	watched  chan struct{} // closed when watch has ended
}

// Start returns when the server takes connections and its streams are
// recovered.
func Start(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.MaxPayload == 0 {
		cfg.MaxPayload = 4 << 20
	}
	if cfg.MaxStore == 0 {
		cfg.MaxStore = unbounded
	}
	if cfg.ReadyTimeout == 0 {
		cfg.ReadyTimeout = 30 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	// NATS itself would share the store and spoil it.
	lock, err := dirlock.Take(cfg.Dir)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, lock: lock, stopping: make(chan struct{}), watched: make(chan struct{})}
	if err := s.start(); err != nil {
		lock.Release()
		return nil, err
	}
	go s.watch()
	return s, nil
}

func (s *Server) start() error {
	if s.cfg.Token == "" {
		var err error
		if s.cfg.Token, err = ownToken(filepath.Join(s.cfg.Dir, "token")); err != nil {
			return err
		}
	}
	cfg := s.cfg
	opts := &server.Options{
		ServerName:             "skerry",
		Host:                   "127.0.0.1",
		Port:                   cfg.Port,
		Authorization:          cfg.Token,
		JetStream:              true,
		StoreDir:               cfg.Dir,
		SyncAlways:             cfg.SyncAlways,
		SyncInterval:           cfg.SyncInterval,
		JetStreamMaxStore:      cfg.MaxStore,
		MaxPayload:             cfg.MaxPayload,
		NoSigs:                 true,
		DisableJetStreamBanner: true,
	}
	if cfg.Port == 0 {
		opts.Port = server.RANDOM_PORT
	}
	if cfg.Cluster != nil {
		cfg.Cluster.apply(opts, cfg.Token)
	}
	ns, err := server.NewServer(opts)
	if err != nil {
		return fmt.Errorf("set up nats: %w", err)
	}
	words := &logger{log: cfg.Log}
	ns.SetLogger(words, false, false)
	ns.Start()
	s.ns = ns
	if !ns.ReadyForConnections(cfg.ReadyTimeout) || !ns.JetStreamEnabled() {
		s.shutdown()
		if said := words.lastFault(); said != "" {
			return fmt.Errorf("start nats on %s: %s", cfg.Dir, said)
		}
		return fmt.Errorf("start nats on %s: not ready after %s", cfg.Dir, cfg.ReadyTimeout)
	}
	if s.url == "" { // it holds for good
		s.url = "nats://" + cfg.Token + "@" + ns.Addr().String()
		s.cfg.Port = s.Port()
	}
	return nil
}

// apply makes opts those of a node.
func (c *Cluster) apply(opts *server.Options, token string) {
	opts.ServerName = c.Name
	opts.Cluster = server.ClusterOpts{
		Name: "skerry", Host: "127.0.0.1", Port: c.Port, Username: "node", Password: token, NoAdvertise: true,
	}
	for _, port := range c.Ports {
		if port != c.Port {
			opts.Routes = append(opts.Routes, &url.URL{
				Scheme: "nats", User: url.UserPassword("node", token), Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
			})
		}
	}
}

// URL is what clients connect to, token included.
func (s *Server) URL() string { return s.url }

// Port is the port on 127.0.0.1.
func (s *Server) Port() int {
	_, port, _ := strings.Cut(s.url[strings.LastIndexByte(s.url, '@')+1:], ":")
	n, _ := strconv.Atoi(port)
	return n
}

// Stop closes every connection, syncs the streams and releases the folder.
// It may be called again.
func (s *Server) Stop() {
	s.stop.Do(func() {
		close(s.stopping)
		<-s.watched
		s.shutdown()
		s.lock.Release()
	})
}

func (s *Server) shutdown() {
	s.ns.Shutdown()
	s.ns.WaitForShutdown()
}

// ownToken keeps one token per folder, so that a URL holds over restarts.
func ownToken(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err == nil && len(strings.TrimSpace(string(raw))) > 0 {
		return strings.TrimSpace(string(raw)), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	token := rand.Text()
	return token, atomicfile.Write(path, []byte(token+"\n"))
}

// logger hands the server's warnings and errors to slog and keeps the last
// fault, which is all a failed start leaves behind.
type logger struct {
	log   *slog.Logger
	mu    sync.Mutex
	fault string
}

func (l *logger) Noticef(format string, v ...any) { l.log.Debug("nats: " + fmt.Sprintf(format, v...)) }
func (l *logger) Warnf(format string, v ...any)   { l.log.Warn("nats: " + fmt.Sprintf(format, v...)) }
func (l *logger) Errorf(format string, v ...any)  { l.keep(format, v...) }
func (l *logger) Fatalf(format string, v ...any)  { l.keep(format, v...) }
func (l *logger) Debugf(string, ...any)           {}
func (l *logger) Tracef(string, ...any)           {}

func (l *logger) keep(format string, v ...any) {
	said := fmt.Sprintf(format, v...)
	l.mu.Lock()
	l.fault = said
	l.mu.Unlock()
	l.log.Error("nats: " + said)
}

func (l *logger) lastFault() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fault
}
