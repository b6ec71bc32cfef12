// Package pgserver runs a private PostgreSQL server as a child process: for
// `skerry up`, for tests and for benchmarks alike.
//
// It promises: the server listens on 127.0.0.1 only, with a random password;
// it runs as an unprivileged user when the program is started by root, even
// where that user could not walk to the data folder by name; it dies with the
// program, however the program dies; a server that outlived an earlier
// program on the same folder is ended before a new one starts; two programs
// on one folder are refused.
//
// It does not upgrade a cluster from one major version to the next, does not
// tune for large machines, and is not how a production database is run.
//
// Folder layout under Config.Dir:
//
//	lock          held (flock) as long as the server runs
//	password      the server's password, 0600
//	url           connection URL of the running server, 0600
//	postgres.log  the server's own words
//	cluster/      PGDATA, owned by the account the server runs as
package pgserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/atomicfile"
	"skerry/pkg/dirlock"
)

// superuser is the role every URL of this package logs in as; it owns the
// cluster.
const superuser = "skerry"

// Config says where and how to run the server.
type Config struct {
	// Dir holds everything the server writes. It is made (0700) when absent.
	Dir string
	// Port on 127.0.0.1; 0 picks a free one.
	Port int
	// Database is made when absent and named by URL. Empty means "skerry".
	Database string
	// Durable keeps fsync, synchronous commit and page checksums. Without it
	// a crash of the machine (not of the server) may destroy the cluster,
	// which is what tests want.
	Durable bool
	// BinDir is the folder with initdb and postgres. Empty means: search PATH
	// and the folders of the usual distributions, newest first.
	BinDir string
	// InitCache is a folder that keeps fresh clusters for reuse by other
	// processes, so that tests do not each pay for initdb. Empty: no cache.
	// All clusters of one cache have the same password. Never with Durable.
	InitCache string
	// StopTimeout is how long an orderly stop may take before the server is
	// told to quit at once. 0 means 8 s.
	StopTimeout time.Duration
	// Log receives a line for each unusual event. Nil discards them.
	Log *slog.Logger
}

// Validate names the field that is wrong.
func (c Config) Validate() error {
	switch {
	case c.Dir == "":
		return errors.New("pgserver: Dir is required")
	case c.Port < 0 || c.Port > 65535:
		return fmt.Errorf("pgserver: Port %d is out of range", c.Port)
	case c.Durable && c.InitCache != "":
		return errors.New("pgserver: InitCache is for servers that are not Durable")
	}
	return nil
}

// Server is a running server.
type Server struct {
	cfg  Config
	lock *dirlock.Lock
	url  string
	port int
	proc *process
	// stopping tells an end that Stop asked for from one that just happened.
	stopping atomic.Bool
}

// Start initializes the cluster when Dir is empty, ends a server that an
// earlier program left behind, starts a new one and returns when it answers.
// The context bounds the start, not the server's life.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Database == "" {
		cfg.Database = "skerry"
	}
	if cfg.StopTimeout == 0 {
		cfg.StopTimeout = 8 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, err
	}
	cfg.Dir = dir
	lock, err := dirlock.Take(dir)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, lock: lock}
	if err := s.start(ctx); err != nil {
		lock.Release()
		return nil, err
	}
	return s, nil
}

func (s *Server) start(ctx context.Context) error {
	c, err := openCluster(ctx, s.cfg)
	if err != nil {
		return err
	}
	if err := c.endOrphans(ctx, s.cfg.Log); err != nil {
		return err
	}
	if err := s.launch(ctx, c); err != nil {
		return err
	}
	if err := s.prepare(ctx, c); err != nil {
		s.end(syscall.SIGQUIT)
		return err
	}
	return nil
}

// launch starts the server, again where the reason for a failure passes: a
// free port that somebody else took first, or backends of a killed server
// that still hold its shared memory.
func (s *Server) launch(ctx context.Context, c *cluster) error {
	const tries = 20
	for try := 1; ; try++ {
		port := s.cfg.Port
		if port == 0 {
			var err error
			if port, err = freePort(); err != nil {
				return err
			}
		}
		p, err := c.launch(port, s.cfg)
		if err != nil {
			return fmt.Errorf("start postgres: %w", err)
		}
		s.port, s.proc = port, p
		err = s.awaitReady(ctx, c)
		if err == nil {
			return nil
		}
		s.end(syscall.SIGQUIT)
		says := err.Error()
		passing := strings.Contains(says, "pre-existing shared memory") ||
			s.cfg.Port == 0 && strings.Contains(says, "could not bind")
		if !passing || try == tries {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// awaitReady returns when our server, and not another one on the same port,
// takes connections: the pid file is written by the server that owns the
// folder, its eighth line says "ready" as soon as recovery is over.
func (s *Server) awaitReady(ctx context.Context, c *cluster) error {
	for {
		if raw, err := os.ReadFile(filepath.Join(c.dir, "postmaster.pid")); err == nil {
			lines := strings.Split(string(raw), "\n")
			if len(lines) >= 8 && lines[0] == strconv.Itoa(s.proc.pid) && strings.TrimSpace(lines[7]) == "ready" {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for postgres: %w", ctx.Err())
		case <-s.proc.done:
			return fmt.Errorf("postgres ended while starting: %s", s.proc.lastWords())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// prepare makes the database and writes the url file.
func (s *Server) prepare(ctx context.Context, c *cluster) error {
	conn, err := pgx.Connect(ctx, c.url(s.port, "postgres"))
	if err != nil {
		return fmt.Errorf("connect with the password in %s: %w", filepath.Join(s.cfg.Dir, "password"), err)
	}
	defer conn.Close(ctx)
	var exists bool
	if err := conn.QueryRow(ctx, `select exists (select from pg_database where datname = $1)`, s.cfg.Database).Scan(&exists); err != nil {
		return fmt.Errorf("look for database: %w", err)
	}
	if !exists {
		if _, err := conn.Exec(ctx, `create database `+pgx.Identifier{s.cfg.Database}.Sanitize()); err != nil {
			return fmt.Errorf("create database: %w", err)
		}
	}
	s.url = c.url(s.port, s.cfg.Database)
	return atomicfile.Write(filepath.Join(s.cfg.Dir, "url"), []byte(s.url+"\n"))
}

// URL is the connection URL of Config.Database, password included.
func (s *Server) URL() string { return s.url }

// Port is the port on 127.0.0.1.
func (s *Server) Port() int { return s.port }

// PID is the process id of the postmaster, for tests that break it.
func (s *Server) PID() int { return s.proc.pid }

// Done is closed when the server has ended, by Stop or by itself.
func (s *Server) Done() <-chan struct{} { return s.proc.done }

// Err says, after Done, why the server ended by itself; nil after Stop.
func (s *Server) Err() error {
	select {
	case <-s.proc.done:
	default:
		return nil
	}
	if s.stopping.Load() {
		return nil
	}
	return fmt.Errorf("postgres ended: %s", s.proc.lastWords())
}

// Stop ends the server and every session, durably when Config.Durable, and
// releases the folder. It may be called again and after the server's own end.
func (s *Server) Stop() error {
	if s.stopping.Swap(true) {
		<-s.proc.done
		return nil
	}
	defer s.lock.Release()
	// A cluster that nobody will read again needs no checkpoint.
	first := syscall.SIGINT
	if !s.cfg.Durable {
		first = syscall.SIGQUIT
	}
	err := s.end(first)
	os.Remove(filepath.Join(s.cfg.Dir, "url"))
	return err
}

// end sends ever harder signals until the server is gone: SIGINT is
// PostgreSQL's "fast" shutdown, SIGQUIT its "immediate" one (recovery at the
// next start), SIGKILL the last resort.
func (s *Server) end(first syscall.Signal) error {
	steps := []struct {
		sig  syscall.Signal
		wait time.Duration
	}{{syscall.SIGINT, s.cfg.StopTimeout}, {syscall.SIGQUIT, 6 * time.Second}, {syscall.SIGKILL, 5 * time.Second}}
	for _, step := range steps {
		if first == syscall.SIGQUIT && step.sig == syscall.SIGINT {
			continue
		}
		select {
		case <-s.proc.done:
			return nil
		default:
		}
		s.proc.signal(step.sig)
		select {
		case <-s.proc.done:
			return nil
		case <-time.After(step.wait):
			s.cfg.Log.Warn("postgres is slow to stop", "signal", step.sig.String(), "waited", step.wait)
		}
	}
	return fmt.Errorf("postgres (process %d) does not end", s.proc.pid)
}

// process is one postmaster and the goroutine that waits for it.
type process struct {
	cmd  *exec.Cmd
	pid  int
	log  string // path of the log
	from int64  // where this process's words begin in the log
	done chan struct{}
	err  error // of Wait; set before done is closed
}

// run starts cmd from a thread of its own and keeps that thread until the
// process ends: Linux sends the parent-death signal when the *thread* that
// forked dies, and Go ends threads at its own pleasure.
func run(cmd *exec.Cmd, log string, from int64) (*process, error) {
	p := &process{cmd: cmd, log: log, from: from, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	p.pid = cmd.Process.Pid
	return p, nil
}

// signal goes through os.Process, which never hits a process that has been
// waited for and whose number was given to another.
func (p *process) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

// lastWords is the exit state with the log's most telling line, on one line.
func (p *process) lastWords() string {
	state := "unknown end"
	if p.err != nil {
		state = p.err.Error()
	} else if p.cmd.ProcessState != nil {
		state = p.cmd.ProcessState.String()
	}
	raw, err := os.ReadFile(p.log)
	if err != nil || int64(len(raw)) < p.from {
		return state
	}
	if line := telling(string(raw[p.from:])); line != "" {
		return line + " (" + state + "; more in " + p.log + ")"
	}
	return state
}

// telling picks the first line of a PostgreSQL program's output that says what
// went wrong, else the last one.
func telling(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	for _, mark := range []string{"could not bind", "FATAL:", "PANIC:", "error:", "could not"} {
		for _, l := range lines {
			if strings.Contains(l, mark) {
				return strings.TrimSpace(l)
			}
		}
	}
	return strings.TrimSpace(lines[len(lines)-1])
}

func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("pick a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func connURL(password string, port int, database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// WithDatabase is the connection URL for another database of the same server.
func WithDatabase(connURL, database string) string {
	u, err := url.Parse(connURL)
	if err != nil {
		return connURL
	}
	u.Path = "/" + database
	return u.String()
}
