package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"skerry/edgenode"
	"skerry/pkg/serve"
	"skerry/writeplane"
	"skerry/writeplane/postgres"
)

// planes are the write plane and the edges of one machine. Each is opened by
// the part that runs it, as soon as what it needs is there.
type planes struct {
	cfg   Config
	under *servers
	http  *http.Client

	write  *writeplane.Plane // set before opened is closed
	opened chan struct{}
	edges  []*edgenode.Edge // each set before its channel of begun is closed
	begun  []chan struct{}
}

func newPlanes(cfg Config, under *servers) *planes {
	p := &planes{
		cfg: cfg, under: under, opened: make(chan struct{}), edges: make([]*edgenode.Edge, cfg.Edges),
		http: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	for range cfg.Edges {
		p.begun = append(p.begun, make(chan struct{}))
	}
	return p
}

func (p *planes) addTo(group *serve.Group) {
	if p.under.postgresDir != "" {
		group.Add("postgres", p.under.runPostgres)
	}
	group.Add("write plane", p.runWritePlane)
	for i := range p.cfg.Edges {
		group.Add(edgeID(i), func(ctx context.Context) error { return p.runEdge(ctx, i) })
	}
}

func edgeID(i int) string { return "edge-" + strconv.Itoa(i) }

// await returns when the channel is closed; false means that ctx was done first.
func await(ctx context.Context, there <-chan struct{}) bool {
	select {
	case <-there:
		return true
	case <-ctx.Done():
		return false
	}
}

// loopback is where our edges call the write plane from.
var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// dialable is a base URL that can be called from this machine: a listener on
// all addresses names none.
func dialable(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return base
	}
	if ip, err := netip.ParseAddr(u.Hostname()); u.Hostname() == "" || err == nil && ip.IsUnspecified() {
		u.Host = net.JoinHostPort("127.0.0.1", u.Port())
	}
	return u.String()
}

// runWritePlane opens the write plane when PostgreSQL is there.
func (p *planes) runWritePlane(ctx context.Context) error {
	if !await(ctx, p.under.ready) {
		return nil
	}
	if err := postgres.Migrate(ctx, p.under.postgresURL); err != nil {
		return interrupted(ctx, err)
	}
	config := p.cfg.Plane
	config.Listen, config.ListenOperator = listeners(p.cfg.ListenWritePlane, 0)
	config.Postgres = postgres.Config{URL: p.under.postgresURL}
	config.NATS = p.under.natsURL
	config.TrustedProxies = loopback
	config.Blobs.URL = filepath.Join(p.cfg.Data, "blobs")
	plane, err := writeplane.New(ctx, config)
	if err != nil {
		return interrupted(ctx, byOurFlag("--listen-writeplane", err))
	}
	p.write = plane
	close(p.opened)
	return plane.Run(ctx)
}

// runEdge opens an edge: at once when it has run here before, since it has
// state to serve then, else behind the write plane.
func (p *planes) runEdge(ctx context.Context, i int) error {
	node := p.cfg.Edge
	node.ID = edgeID(i)
	node.Data = filepath.Join(p.cfg.Data, node.ID)
	node.Listen, node.OperatorListen = listeners(p.cfg.ListenEdge, i)
	node.Limits.Drain, node.Limits.Servers = requestTime, p.cfg.Edges
	node.NATS = p.under.natsURL
	address, known := p.beforehand()
	if _, err := os.Stat(node.Data); err != nil || !known {
		if !await(ctx, p.opened) {
			return nil
		}
		address = p.write.URL()
	}
	node.WritePlane = dialable(address)
	edge, err := edgenode.New(node)
	if err != nil {
		return interrupted(ctx, byOurFlag("--listen-edge", err))
	}
	defer edge.Close()
	p.edges[i] = edge
	close(p.begun[i])
	return edge.Run(ctx)
}

// beforehand is the write plane's address before there is one, unless its
// port is any.
func (p *planes) beforehand() (address string, known bool) {
	own, _ := listeners(p.cfg.ListenWritePlane, 0)
	port, err := portOf("--listen-writeplane", own)
	return "http://" + own, err == nil && port != 0
}

// byOurFlag names the flag of skerry up that decides over an address that
// cannot be listened on; a plane knows it by its own flag.
func byOurFlag(flag string, err error) error {
	var fault *serve.ListenError
	if errors.As(err, &fault) {
		if fault.Setting != "--listen" {
			flag += fmt.Sprintf(" (operators' address: its port + %d)", operatorOffset)
		}
		fault.Setting = flag
	}
	return err
}

// bringUp founds the organization, makes the demo, and announces when all
// answers.
func (p *planes) bringUp(ctx context.Context, credentialsPath string) error {
	for _, there := range append([]chan struct{}{p.opened}, p.begun...) {
		if !await(ctx, there) {
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	kept, err := openSecrets(filepath.Join(p.cfg.Data, "demo.secrets"))
	if err != nil {
		return err
	}
	tokens, err := p.write.Access.Bootstrap(ctx, p.write.Store, kept.Founding)
	if err != nil {
		return err
	}
	c := credentials{
		WritePlane: dialable(p.write.URL()), WritePlaneOps: p.write.OperatorURL(),
		OrganizationID: kept.Founding.OrganizationID, ProjectID: kept.Founding.ProjectID,
		APIKeys: map[string]string{}, Tokens: tokens,
		PostgresURL: p.under.postgresURL, NATSURL: p.under.natsURL,
	}
	for environment, key := range kept.Founding.Keys {
		c.APIKeys[environment] = key.Secret
	}
	for _, edge := range p.edges {
		c.Edges = append(c.Edges, dialable("http://"+edge.Addr().String()))
		c.EdgeOps = append(c.EdgeOps, "http://"+edge.OperatorAddr().String())
	}
	if err := p.awaitAnswers(ctx, c); err != nil {
		return err
	}
	if !p.cfg.NoDemo && !kept.DemoMade {
		d := demo{http: p.http, writePlane: c.WritePlane, edge: c.Edges[0], token: tokens["owner"], project: c.ProjectID, key: c.APIKeys["live"]}
		if err := d.make(ctx); err != nil {
			return err
		}
		kept.DemoMade = true
		if err := kept.save(); err != nil {
			return err
		}
	}
	if err := writeJSON(credentialsPath, c); err != nil {
		return err
	}
	return announce(p.cfg, kept, c, credentialsPath)
}

// awaitAnswers returns when every process is ready and every edge answers a
// client's read with the project's key.
func (p *planes) awaitAnswers(ctx context.Context, c credentials) error {
	addresses := []string{c.WritePlaneOps + "/readyz"}
	for _, ops := range c.EdgeOps {
		addresses = append(addresses, ops+"/readyz")
	}
	for _, edge := range c.Edges {
		addresses = append(addresses, edge+"/api/pulse/surveys")
	}
	for _, address := range addresses {
		if err := p.awaitAnswer(ctx, address, c.APIKeys["live"]); err != nil {
			return err
		}
	}
	return nil
}

func (p *planes) awaitAnswer(ctx context.Context, address, key string) error {
	last := errors.New("no answer yet")
	for {
		req, err := http.NewRequestWithContext(ctx, "GET", address, nil)
		if err != nil {
			return err
		}
		req.Header.Set("x-api-key", key)
		res, err := p.http.Do(req)
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
			last = errors.New(res.Status)
		} else if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w", address, last)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
