package campaign

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"skerry/bench/rig"
)

// node is one NATS server, alone or one of three.
type node struct {
	*rig.Process
	name string
	at   string // host:port for clients
	args []string
}

// token admits to the campaign's streams, which listen on the loopback interface only.
const token = "campaign"

// addNodes starts the servers of the streams. Their ports are fixed beforehand: a node
// that comes back must be found where it was.
func (c *cluster) addNodes(ctx context.Context, count int) error {
	among := make([]string, count)
	for i := range count {
		client, other, err := freeTwo()
		if err != nil {
			return err
		}
		_, port, _ := net.SplitHostPort(client)
		_, among[i], _ = net.SplitHostPort(other)
		n := &node{name: "NATS", at: client, args: []string{"bench", "nats", "--port", port, "--token", token, "--dir", filepath.Join(c.dir, "nats-"+strconv.Itoa(i))}}
		if count > 1 {
			n.name = "NATS node of " + strconv.Itoa(count) + "-" + strconv.Itoa(i)
		}
		c.nodes = append(c.nodes, n)
	}
	for i, n := range c.nodes {
		if count > 1 {
			n.args = append(n.args, "--name", "node-"+strconv.Itoa(i), "--among", strings.Join(among, ","), "--own", among[i])
		}
		if err := c.startNode(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// startNode returns when the server takes connections; in a cluster that may be before
// the nodes have found each other, and everybody must bear that.
func (c *cluster) startNode(ctx context.Context, n *node) (err error) {
	if n.Process, err = rig.Start(ctx, rig.Config{Path: c.config.Binary, Core: -1, Args: n.args}); err != nil {
		return err
	}
	if _, err = n.ReadLine(); err != nil {
		return fmt.Errorf("start %s: %w", n.name, err)
	}
	return nil
}

// streamURLs names all nodes, as they are or behind links.
func streamURLs(addresses []string) string {
	urls := make([]string, len(addresses))
	for i, at := range addresses {
		urls[i] = (&url.URL{Scheme: "nats", User: url.User(token), Host: at}).String()
	}
	return strings.Join(urls, ",")
}

func (c *cluster) nodeAddresses() []string {
	at := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		at[i] = n.at
	}
	return at
}
