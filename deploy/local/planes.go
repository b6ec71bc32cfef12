package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"time"

	"skerry/edgenode"
	"skerry/pkg/serve"
	"skerry/writeplane"
	"skerry/writeplane/postgres"
)

// planes are the write plane and the edges of one machine.
type planes struct {
	under *servers
	write *writeplane.Plane
	edges []*edgenode.Edge
	http  *http.Client
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
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil && ip.IsUnspecified() {
		u.Host = net.JoinHostPort("127.0.0.1", u.Port())
	}
	return u.String()
}

// assemble builds all planes; their listeners are open then, so that every
// address is known.
func assemble(ctx context.Context, cfg Config, under *servers) (*planes, error) {
	if err := postgres.Migrate(ctx, under.postgresURL); err != nil {
		return nil, err
	}
	p := &planes{under: under, http: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}}
	plane := cfg.Plane
	plane.Listen, plane.ListenOperator = listeners(cfg.ListenWritePlane, 0)
	plane.Postgres = postgres.Config{URL: under.postgresURL}
	plane.NATS = under.natsURL
	plane.TrustedProxies = loopback
	plane.Blobs.URL = filepath.Join(cfg.Data, "blobs")
	var err error
	p.write, err = writeplane.New(ctx, plane)
	if err != nil {
		return nil, fmt.Errorf("write plane: %w", byOurFlag("--listen-writeplane", err))
	}
	for i := range cfg.Edges {
		node := cfg.Edge
		node.ID = "edge-" + strconv.Itoa(i)
		node.Data = filepath.Join(cfg.Data, node.ID)
		node.Listen, node.OperatorListen = listeners(cfg.ListenEdge, i)
		node.Limits.Drain = requestTime
		node.NATS, node.WritePlane = under.natsURL, dialable(p.write.URL())
		edge, err := edgenode.New(node)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", node.ID, byOurFlag("--listen-edge", err))
		}
		p.edges = append(p.edges, edge)
	}
	return p, nil
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

func (p *planes) addTo(group *serve.Group) {
	group.Add("write plane", p.write.Run)
	for i, edge := range p.edges {
		group.Add("edge-"+strconv.Itoa(i), func(ctx context.Context) error {
			defer edge.Close()
			return edge.Run(ctx)
		})
	}
}

// bringUp founds the organization, makes the demo, and announces when all
// answers.
func (p *planes) bringUp(ctx context.Context, cfg Config, kept *secrets, credentialsPath string) error {
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
	if !cfg.NoDemo && !kept.DemoMade {
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
	return announce(cfg, kept, c, credentialsPath)
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
