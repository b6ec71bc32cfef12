package campaign

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

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
	// postgresURL holds over restarts.
	postgresURL string
	replica     *replica // nil: there is none
	nodes       []*node  // of the streams
	planes      []*plane
	balancer    *link  // before the planes, when there are several
	planeAt     string // where the API is reached: the plane or the balancer
	edges       []*edge

	organization, project, token, key string
}

// edge is one edge process and its links to the centre.
type edge struct {
	*rig.Process
	id, at, ops string
	data        string
	smallDisk   bool  // data lies on a disk of its own that a fault may fill
	toNATS      links // one to each node
	toAPI       *link
	args        []string
	setAside    int // state stores set aside so far
	life        atomic.Int64
	seen        seen // by the ledger, under its lock
	// shaken is set while the edge is not alive and reachable, and for a moment after:
	// reads that fail meanwhile are no fault of its.
	shaken atomic.Bool
}

// plane is one write plane process.
type plane struct {
	*rig.Process
	at, ops string
}

const patience = time.Minute

func startCluster(ctx context.Context, config Config, nodes, planes int) (_ *cluster, err error) {
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
	c.pgConfig.Port, c.postgresURL = c.postgres.Port(), c.postgres.URL()
	if config.Replica {
		if err := c.addReplica(ctx); err != nil {
			return nil, err
		}
	}
	if err := c.addNodes(ctx, nodes); err != nil {
		return nil, err
	}
	if err := c.found(ctx); err != nil {
		return nil, err
	}
	if err := c.addPlanes(ctx, planes); err != nil {
		return nil, err
	}
	for i := range config.Edges {
		if err := c.addEdge(ctx, i); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// found migrates the database and makes an organization, a project and a key.
func (c *cluster) found(ctx context.Context) error {
	if _, err := c.command(ctx, "migrate", "--postgres-url", c.postgresURL); err != nil {
		return err
	}
	out, err := c.command(ctx, "bootstrap", "--postgres-url", c.postgresURL, "--organization", "Campaign", "--project", "Campaign",
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

// addPlanes starts write planes, the first one first: so it is the one that publishes.
func (c *cluster) addPlanes(ctx context.Context, count int) error {
	var at []string
	for range count {
		p := &plane{}
		var err error
		if p.at, p.ops, err = freeTwo(); err != nil {
			return err
		}
		c.planes, at = append(c.planes, p), append(at, p.at)
	}
	c.planeAt = at[0]
	if count > 1 {
		var err error
		if c.balancer, err = newLink(at...); err != nil {
			return err
		}
		c.planeAt = c.balancer.address()
	}
	for _, p := range c.planes {
		if err := c.startPlane(ctx, p); err != nil {
			return err
		}
		err := eventually(ctx, func() error { _, err := c.publisher(ctx); return err })
		if err != nil {
			return err
		}
	}
	return nil
}

// blobs is a folder for one write plane. Several need a store that they share: none is
// there, and nothing that the load does touches a file.
func (c *cluster) blobs() string {
	if len(c.planes) > 1 {
		return "s3://rehearsal?region=us-east-1&use_path_style=true&endpoint=http://127.0.0.1:1"
	}
	return "file://" + filepath.Join(c.dir, "blobs")
}

func (c *cluster) startPlane(ctx context.Context, p *plane) (err error) {
	p.Process, err = rig.Start(ctx, rig.Config{Path: c.config.Binary, Core: -1, Env: []string{"AWS_ACCESS_KEY_ID=none", "AWS_SECRET_ACCESS_KEY=none"}, Args: []string{
		"writeplane", "--listen", p.at, "--listen-operator", p.ops, "--postgres-url", c.postgresURL, "--nats-url", streamURLs(c.nodeAddresses()), "--stream-replicas", strconv.Itoa(len(c.nodes)),
		"--trusted-proxy", "127.0.0.0/8", "--blob-url", c.blobs(),
	}})
	if err != nil {
		return err
	}
	return until(ctx, p.Process, "a write plane to be ready", p.ready)
}

func (p *plane) ready() error { return answers("http://" + p.ops + "/readyz") }

func (c *cluster) addEdge(ctx context.Context, i int) (err error) {
	e := &edge{id: "edge-" + strconv.Itoa(i)}
	if e.at, e.ops, err = freeTwo(); err != nil {
		return err
	}
	c.edges = append(c.edges, e)
	for _, n := range c.nodes {
		l, err := newLink(n.at)
		if err != nil {
			return err
		}
		e.toNATS = append(e.toNATS, l)
	}
	if e.toAPI, err = newLink(c.planeAt); err != nil {
		return err
	}
	e.data = filepath.Join(c.dir, e.id)
	e.args = []string{"edge", "--id", e.id, "--data", e.data, "--listen", e.at, "--listen-operator", e.ops,
		"--nats-url", streamURLs(e.toNATS.addresses()), "--writeplane-url", "http://" + e.toAPI.address()}
	if i == c.config.Edges-1 {
		if e.smallDisk, err = mountSmallDisk(e.data); err != nil {
			return err
		}
		if e.smallDisk {
			e.args = append(e.args, "--reserve-bytes", strconv.Itoa(eventReserve))
		}
	}
	return c.startEdge(ctx, e)
}

func (c *cluster) startEdge(ctx context.Context, e *edge) (err error) {
	if e.Process, err = rig.Start(ctx, rig.Config{Path: c.config.Binary, Core: -1, Args: e.args}); err != nil {
		return err
	}
	e.life.Add(1)
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
	for _, n := range c.nodes {
		if ended(n.Done()) {
			if err := c.startNode(ctx, n); err != nil {
				return err
			}
		}
	}
	for _, p := range c.planes {
		if ended(p.Done()) {
			if err := c.startPlane(ctx, p); err != nil {
				return err
			}
		}
	}
	for _, e := range c.edges {
		if ended(e.Done()) {
			if err := c.startEdge(ctx, e); err != nil {
				return err
			}
		}
	}
	for _, p := range c.planes {
		if err := until(ctx, p.Process, "a write plane to be ready", p.ready); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) restartPostgres(ctx context.Context) error {
	_ = c.postgres.Stop()
	return c.launchPostgres(ctx)
}

func (c *cluster) processes() []*rig.Process {
	var all []*rig.Process
	for _, p := range c.planes {
		all = append(all, p.Process)
	}
	for _, n := range c.nodes {
		all = append(all, n.Process)
	}
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
		for _, l := range append(e.toNATS, e.toAPI) {
			if l != nil {
				l.close()
			}
		}
		if e.smallDisk {
			_ = unix.Unmount(e.data, 0)
		}
	}
	for _, p := range c.planes {
		if p.Process != nil {
			p.Kill()
		}
	}
	if c.balancer != nil {
		c.balancer.close()
	}
	for _, n := range c.nodes {
		if n.Process != nil {
			n.Kill()
		}
	}
	if c.postgres != nil {
		_ = c.postgres.Stop()
	}
	if c.replica != nil && c.replica.server != nil {
		_ = c.replica.server.Stop()
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

// until waits until check succeeds, for as long as a start may take.
func until(ctx context.Context, p *rig.Process, what string, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return p.Until(ctx, what, check)
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

// freeTwo finds two free ports below the range that the kernel takes for outgoing
// connections: a server that is killed must find its port free when it comes back.
func freeTwo() (a, b string, err error) {
	const tries = 100
	var found []string
	for range tries {
		at := net.JoinHostPort("127.0.0.1", strconv.Itoa(10_000+rand.IntN(20_000)))
		listener, err := net.Listen("tcp", at)
		if err != nil {
			continue
		}
		_ = listener.Close()
		if found = append(found, at); len(found) == 2 {
			return found[0], found[1], nil
		}
	}
	return "", "", fmt.Errorf("no free port after %d tries", tries)
}
