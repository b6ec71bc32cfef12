package campaign

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"skerry/bench/rig"
	"skerry/pkg/pgserver"
)

// cluster is the production processes beside real servers, each of which can be
// broken by itself.
type cluster struct {
	config   Config
	dir      string
	postgres *pgserver.Server
	pgConfig pgserver.Config
	natsPort int
	natsURL  string
	nats     *rig.Process
	planeAt  string
	planeOps string
	plane    *rig.Process
	edges    []*edge

	organization, project, token, key string
}

// edge is one edge process and its links to the centre.
type edge struct {
	*rig.Process
	id, at, ops   string
	toNATS, toAPI *link
	args          []string
	// shaken is set while the edge is not alive and reachable, and for a moment after:
	// reads that fail meanwhile are no fault of its.
	shaken atomic.Bool
}

const patience = time.Minute

func startCluster(ctx context.Context, config Config) (_ *cluster, err error) {
	dir, err := os.MkdirTemp("", "skerry-campaign-")
	if err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	c := &cluster{config: config, dir: dir}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	// Durable: a killed database must come back with all that it confirmed.
	c.pgConfig = pgserver.Config{Dir: filepath.Join(dir, "postgres"), Durable: true}
	if c.postgres, err = pgserver.Start(ctx, c.pgConfig); err != nil {
		return nil, err
	}
	c.pgConfig.Port = c.postgres.Port()
	if err := c.startNATS(ctx); err != nil {
		return nil, err
	}
	if err := c.found(ctx); err != nil {
		return nil, err
	}
	if c.planeAt, c.planeOps, err = freeTwo(); err != nil {
		return nil, err
	}
	if err := c.startPlane(ctx); err != nil {
		return nil, err
	}
	for i := range config.Edges {
		if err := c.addEdge(ctx, i); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *cluster) startNATS(ctx context.Context) (err error) {
	c.nats, err = rig.Start(ctx, rig.Config{Path: c.config.Binary, Core: -1,
		Args: []string{"bench", "nats", "--dir", filepath.Join(c.dir, "nats"), "--port", strconv.Itoa(c.natsPort)}})
	if err != nil {
		return err
	}
	if c.natsURL, err = c.nats.ReadLine(); err != nil {
		return err
	}
	parsed, err := url.Parse(c.natsURL)
	if err != nil {
		return fmt.Errorf("read the address of NATS: %w", err)
	}
	c.natsPort, err = strconv.Atoi(parsed.Port())
	return err
}

// found migrates the database and makes an organization, a project and a key.
func (c *cluster) found(ctx context.Context) error {
	if _, err := c.command(ctx, "migrate", "--postgres-url", c.postgres.URL()); err != nil {
		return err
	}
	out, err := c.command(ctx, "bootstrap", "--postgres-url", c.postgres.URL(), "--organization", "Campaign", "--project", "Campaign",
		"--tier", "enterprise", "--email", "owner@example.com", "--plan", filepath.Join(c.dir, "plan.json"))
	if err != nil {
		return err
	}
	var made struct {
		Organization string `json:"organization_id"`
		Project      string `json:"project_id"`
		Token        string `json:"token"`
	}
	if err := json.Unmarshal([]byte(out), &made); err != nil {
		return fmt.Errorf("read what bootstrap made: %w", err)
	}
	c.organization, c.project, c.token = made.Organization, made.Project, made.Token
	return nil
}

// command runs one of the program's own commands to its end.
func (c *cluster) command(ctx context.Context, args ...string) (string, error) {
	p, err := rig.Start(ctx, rig.Config{Path: c.config.Binary, Core: -1, Args: args})
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for {
		line, err := p.ReadLine()
		if err != nil {
			break
		}
		out.WriteString(line + "\n")
	}
	if err := p.Wait(); err != nil {
		return "", fmt.Errorf("skerry %s: %w: %s", args[0], err, p.Stderr())
	}
	return out.String(), nil
}

func (c *cluster) startPlane(ctx context.Context) (err error) {
	c.plane, err = rig.Start(ctx, rig.Config{Path: c.config.Binary, Core: -1, Args: []string{
		"writeplane", "--listen", c.planeAt, "--listen-operator", c.planeOps, "--postgres-url", c.postgres.URL(), "--nats-url", c.natsURL,
		"--trusted-proxy", "127.0.0.0/8", "--blob-url", "file://" + filepath.Join(c.dir, "blobs"),
	}})
	if err != nil {
		return err
	}
	return until(ctx, c.plane, "the write plane to be ready", func() error { return answers("http://" + c.planeOps + "/readyz") })
}

func (c *cluster) addEdge(ctx context.Context, i int) (err error) {
	e := &edge{id: "edge-" + strconv.Itoa(i)}
	if e.at, e.ops, err = freeTwo(); err != nil {
		return err
	}
	natsURL, err := url.Parse(c.natsURL)
	if err != nil {
		return err
	}
	if e.toNATS, err = newLink(natsURL.Host); err != nil {
		return err
	}
	c.edges = append(c.edges, e)
	if e.toAPI, err = newLink(c.planeAt); err != nil {
		return err
	}
	natsURL.Host = e.toNATS.address()
	e.args = []string{"edge", "--id", e.id, "--data", filepath.Join(c.dir, e.id), "--listen", e.at, "--listen-operator", e.ops,
		"--nats-url", natsURL.String(), "--writeplane-url", "http://" + e.toAPI.address()}
	return c.startEdge(ctx, e)
}

func (c *cluster) startEdge(ctx context.Context, e *edge) (err error) {
	if e.Process, err = rig.Start(ctx, rig.Config{Path: c.config.Binary, Core: -1, Args: e.args}); err != nil {
		return err
	}
	return until(ctx, e.Process, "an edge to be ready", func() error { return answers("http://" + e.ops + "/readyz") })
}

// heal makes everything whole again, whatever state it is in.
func (c *cluster) heal(ctx context.Context) error {
	for _, e := range c.edges {
		e.toNATS.mend()
		e.toAPI.mend()
	}
	for _, p := range c.processes() {
		_ = p.Signal(syscall.SIGCONT)
	}
	if ended(c.postgres.Done()) {
		if err := c.restartPostgres(ctx); err != nil {
			return err
		}
	}
	if ended(c.nats.Done()) {
		if err := c.startNATS(ctx); err != nil {
			return err
		}
	}
	if ended(c.plane.Done()) {
		if err := c.startPlane(ctx); err != nil {
			return err
		}
	}
	for _, e := range c.edges {
		if ended(e.Done()) {
			if err := c.startEdge(ctx, e); err != nil {
				return err
			}
		}
	}
	return until(ctx, c.plane, "the write plane to be ready", func() error { return answers("http://" + c.planeOps + "/readyz") })
}

func (c *cluster) restartPostgres(ctx context.Context) (err error) {
	_ = c.postgres.Stop()
	c.postgres, err = pgserver.Start(ctx, c.pgConfig)
	return err
}

func (c *cluster) processes() []*rig.Process {
	all := []*rig.Process{c.nats, c.plane}
	for _, e := range c.edges {
		all = append(all, e.Process)
	}
	return all
}

func (c *cluster) close() {
	for _, e := range c.edges {
		if e.Process != nil {
			e.Kill()
		}
		for _, l := range []*link{e.toNATS, e.toAPI} {
			if l != nil {
				l.close()
			}
		}
	}
	for _, p := range []*rig.Process{c.plane, c.nats} {
		if p != nil {
			p.Kill()
		}
	}
	if c.postgres != nil {
		_ = c.postgres.Stop()
	}
	_ = os.RemoveAll(c.dir)
}

func ended(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// until asks every 20 ms until check succeeds or p ends.
func until(ctx context.Context, p *rig.Process, what string, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w: %s", what, err, p.Stderr())
		case <-p.Done():
			return fmt.Errorf("waited for %s, but the process ended: %s", what, p.Stderr())
		case <-tick.C:
		}
	}
}

var client = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

func answers(url string) error {
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

func freeTwo() (a, b string, err error) {
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", fmt.Errorf("find a free port: %w", err)
	}
	defer func() { _ = first.Close() }()
	second, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", fmt.Errorf("find a free port: %w", err)
	}
	defer func() { _ = second.Close() }()
	return first.Addr().String(), second.Addr().String(), nil
}
