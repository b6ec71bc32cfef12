// Package stage sets up what a benchmark plays on: a private centre and edges, each a
// process of its own started with the production commands, and a project with raised
// limits.
//
// It promises that everything it started is ended by Close, and that nothing outside
// its own temporary folder and the loopback interface is touched.
package stage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"skerry/bench/rig"
)

// Config says what to set up.
type Config struct {
	Binary string // skerry itself
	Dir    string // where to make the temporary folder; "" is the system's
	// CentreCore and EdgeCore are the cores to pin the centre and the edges to;
	// negative: any.
	CentreCore, EdgeCore int
	// EdgeProcs is the edges' GOMAXPROCS; 0 leaves it alone.
	EdgeProcs int
	Log       func(format string, args ...any) // what is being done; may be nil
}

// Stage is a running system.
type Stage struct {
	Credentials Credentials
	config      Config
	dir         string
	centre      *rig.Process
	edges       []*Edge
}

// Credentials are what `skerry up` writes for its users.
type Credentials struct {
	Edges        []string          `json:"edges"`
	EdgeOps      []string          `json:"edge_ops"`
	WritePlane   string            `json:"writeplane"`
	WritePlaneOp string            `json:"writeplane_ops"`
	Organization string            `json:"organization_id"`
	Project      string            `json:"project_id"`
	Keys         map[string]string `json:"api_keys"`
	Tokens       map[string]string `json:"tokens"`
	PostgresURL  string            `json:"postgres_url"`
	NATSURL      string            `json:"nats_url"`
}

// Edge is an edge process.
type Edge struct {
	*rig.Process
	ID              string
	Address         string // host:port for everybody
	OperatorAddress string
	args            []string
}

const (
	startTime = 2 * time.Minute
	stopTime  = 15 * time.Second
)

// Start starts the centre (one write plane, PostgreSQL, NATS and one edge of its own,
// which is not measured).
func Start(ctx context.Context, config Config) (_ *Stage, err error) {
	dir, err := os.MkdirTemp(config.Dir, "skerry-bench-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the benchmark: %w", err)
	}
	s := &Stage{config: config, dir: dir}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	s.log("starting the centre in %s", dir)
	if err := s.StartCentre(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// StartCentre starts the centre, for the first time or after KillCentre.
func (s *Stage) StartCentre(ctx context.Context) (err error) {
	listenEdge, listenPlane := "127.0.0.1:0", "127.0.0.1:0"
	if s.Credentials.WritePlane != "" { // edges know the centre by its address: it keeps it
		listenEdge, listenPlane = hostPort(s.Credentials.Edges[0]), hostPort(s.Credentials.WritePlane)
	}
	data := filepath.Join(s.dir, "centre")
	path := filepath.Join(data, "credentials.json")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove what a killed centre left: %w", err)
	}
	s.centre, err = rig.Start(ctx, rig.Config{
		Path: s.config.Binary, Core: s.config.CentreCore,
		Args: []string{"up", "--data", data, "--edges", "1", "--listen-edge", listenEdge, "--listen-writeplane", listenPlane, "--no-demo",
			"--webhook-allow-cidr", "127.0.0.0/8"},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	err = s.centre.Until(ctx, "the centre to answer", func() error {
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return json.Unmarshal(body, &s.Credentials)
	})
	return err
}

// PlaneReady waits until the write plane is ready: after a database that was stopped it
// takes a moment to hear it again.
func (s *Stage) PlaneReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	return s.centre.Until(ctx, "the write plane to be ready", func() error { return getOK(ctx, s.Credentials.WritePlaneOp+"/readyz") })
}

// Centre is the process of the centre, which changes at each StartCentre.
func (s *Stage) Centre() *rig.Process { return s.centre }

// KillCentre ends write plane, PostgreSQL, NATS and the centre's own edge at once.
func (s *Stage) KillCentre() { s.centre.Kill() }

// AddEdge starts another edge, an own process with its own folder.
func (s *Stage) AddEdge(ctx context.Context) (*Edge, error) {
	name := "bench-" + strconv.Itoa(len(s.edges))
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	operator, err := freeAddress()
	if err != nil {
		return nil, err
	}
	e := &Edge{ID: name, Address: address, OperatorAddress: operator, args: []string{
		"edge", "--id", name, "--data", filepath.Join(s.dir, name), "--listen", address, "--listen-operator", operator,
		"--nats-url", s.Credentials.NATSURL, "--writeplane-url", s.Credentials.WritePlane,
	}}
	s.edges = append(s.edges, e)
	s.log("starting edge %s on %s", name, address)
	return e, s.StartEdge(ctx, e)
}

// StartEdge starts an edge again after it was killed; it returns once it is ready.
func (s *Stage) StartEdge(ctx context.Context, e *Edge) error {
	p, err := rig.Start(ctx, rig.Config{Path: s.config.Binary, Args: e.args, Core: s.config.EdgeCore, Procs: s.config.EdgeProcs})
	if err != nil {
		return err
	}
	e.Process = p
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	return p.Until(ctx, "an edge to be ready", func() error { return getOK(ctx, "http://"+e.OperatorAddress+"/readyz") })
}

// Close ends everything and removes the folder.
func (s *Stage) Close() {
	for _, e := range s.edges {
		if e.Process != nil {
			_ = e.Stop(stopTime)
		}
	}
	if s.centre != nil {
		_ = s.centre.Stop(stopTime)
	}
	_ = os.RemoveAll(s.dir)
}

func (s *Stage) log(format string, args ...any) {
	if s.config.Log != nil {
		s.config.Log(format, args...)
	}
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String(), nil
}

func hostPort(url string) string { return strings.TrimPrefix(url, "http://") }

var client = &http.Client{Timeout: 30 * time.Second}

func getOK(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, response.Body)
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}
