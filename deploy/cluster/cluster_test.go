// Package cluster_test runs both planes in one process, over a real database and real streams, and checks what only the
// two together can promise.
package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"skerry/edgenode"
	"skerry/pkg/natsserver/natstest"
	"skerry/pkg/openapi/openapitest"
	"skerry/pkg/pgserver/pgtest"
	"skerry/pkg/state"
	"skerry/replication"
	"skerry/writeplane"
	"skerry/writeplane/access"
	"skerry/writeplane/blobs"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

func TestMain(m *testing.M) {
	pgtest.Main(m, postgres.Migrate,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

// part is something that runs until it is stopped.
type part struct {
	stop  context.CancelFunc
	ended chan error
}

func start(run func(context.Context) error) *part {
	ctx, stop := context.WithCancel(context.Background())
	p := &part{stop, make(chan error, 1)}
	go func() { p.ended <- run(ctx) }()
	return p
}

func (p *part) end(t testing.TB) {
	t.Helper()
	p.stop()
	if err := <-p.ended; err != nil {
		t.Error(err)
	}
	p.ended <- nil
}

// cluster is a write plane and edges.
type cluster struct {
	t        testing.TB
	dir      string
	nats     *natstest.Server // nil where the test has a server of another kind
	edgeNATS string
	log      *slog.Logger
	plane    *writeplane.Plane
	centre   *part
	edges    []*edgenode.Edge
	running  []*part
	founding access.Founding
	tokens   map[string]string
	client   *http.Client
}

func newCluster(t testing.TB, edges int) *cluster {
	t.Helper()
	server := natstest.New(t)
	return newClusterOn(&cluster{t: t, nats: server, edgeNATS: server.URL}, server.URL, edges)
}

// newClusterOn completes and starts a cluster whose NATS and log are set.
func newClusterOn(c *cluster, centreNATS string, edges int) *cluster {
	t := c.t
	t.Helper()
	c.dir, c.client = t.TempDir(), &http.Client{Transport: &http.Transport{}}
	t.Cleanup(c.client.CloseIdleConnections)
	var err error
	c.plane, err = writeplane.New(t.Context(), writeplane.Config{
		Listen: "127.0.0.1:0", ListenOperator: "127.0.0.1:0",
		Postgres: postgres.Config{URL: pgtest.New(t).URL, MaxConns: 8}, NATS: centreNATS,
		Blobs: blobs.Config{URL: filepath.Join(c.dir, "blobs")},
	})
	if err != nil {
		t.Fatal(err)
	}
	c.centre = start(c.plane.Run)
	t.Cleanup(func() { c.centre.end(t) })
	c.founding = access.NewFounding("Example", "Demo", access.Enterprise)
	if c.tokens, err = c.plane.Access.Bootstrap(t.Context(), c.plane.Store, c.founding); err != nil {
		t.Fatal(err)
	}
	// The tests poll; the usual 500 handshakes a minute are not what they are about.
	status, answer, _ := c.do("PATCH", c.plane.URL()+"/api/v1/projects/"+c.founding.ProjectID, `{"rate_limits":{"handshake_per_minute":100000000}}`,
		"Authorization", "Bearer "+c.tokens["admin"])
	if status != 200 {
		t.Fatalf("raise the rate limit: %d %s", status, answer)
	}
	c.edges, c.running = make([]*edgenode.Edge, edges), make([]*part, edges)
	for i := range edges {
		c.startEdge(i)
		t.Cleanup(func() { c.stopEdge(i) })
	}
	for i := range edges {
		c.eventually(i, func(h handshake) bool { return h.Project == c.founding.ProjectID })
	}
	return c
}

func (c *cluster) startEdge(i int) {
	c.t.Helper()
	id := fmt.Sprintf("edge-%d", i)
	edge, err := edgenode.New(edgenode.Config{
		ID: id, Data: filepath.Join(c.dir, id), Listen: "127.0.0.1:0", OperatorListen: "127.0.0.1:0",
		NATS: c.edgeNATS, WritePlane: c.plane.URL(), Log: c.log,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.edges[i], c.running[i] = edge, start(edge.Run)
}

func (c *cluster) stopEdge(i int) {
	if c.edges[i] != nil {
		c.running[i].end(c.t)
		c.edges[i].Close()
		c.edges[i] = nil
	}
}

type handshake struct {
	Project  string `json:"project_id"`
	Revision string
	Modules  struct {
		Switch struct {
			Flags map[string]decision
		}
		Config struct {
			Items map[string]decision
		}
	}
	tag string
}

type decision struct {
	Value   any
	Reason  string
	Version int
}

// do sends one request; the answer is its status and body.
func (c *cluster) do(method, url, body string, header ...string) (int, string, http.Header) {
	c.t.Helper()
	request, err := http.NewRequestWithContext(context.Background(), method, url, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := c.client.Do(request)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error(), nil
	}
	if path := request.URL.EscapedPath(); openapitest.Ours(path) {
		openapitest.Check(c.t, method, path, response.StatusCode, response.Header, answer)
	}
	return response.StatusCode, string(answer), response.Header
}

// editor calls the write plane through an edge, as everybody does.
func (c *cluster) editor(method, path, body string) map[string]any {
	c.t.Helper()
	status, answer, _ := c.do(method, "http://"+c.edges[0].Addr().String()+path, body, "Authorization", "Bearer "+c.tokens["editor"])
	if status < 200 || status > 299 {
		c.t.Fatalf("%s %s: %d %s", method, path, status, answer)
	}
	var members map[string]any
	if err := json.Unmarshal([]byte(answer), &members); err != nil {
		c.t.Fatal(err)
	}
	return members
}

func (c *cluster) halt(key string) {
	c.t.Helper()
	status, answer, _ := c.do("POST", c.plane.URL()+"/api/switch/halt-webhook", `{"flag_key":"`+key+`","reason":"test"}`,
		"x-api-key", c.founding.Keys["live"].Secret)
	if status != 200 {
		c.t.Fatalf("halt: %d %s", status, answer)
	}
}

func (c *cluster) handshake(edge int) (h handshake, ok bool) {
	status, answer, header := c.do("GET", "http://"+c.edges[edge].Addr().String()+"/api/v1/handshake?distinct_id=ada", "",
		"x-api-key", c.founding.Keys["live"].Secret)
	if status != 200 {
		return h, false
	}
	if err := json.Unmarshal([]byte(answer), &h); err != nil {
		c.t.Fatalf("%v: %s", err, answer)
	}
	h.tag = header.Get("ETag")
	return h, true
}

// eventually asks an edge until its handshake is as wanted.
func (c *cluster) eventually(edge int, wanted func(handshake) bool) handshake {
	c.t.Helper()
	deadline := time.After(5 * time.Minute) // for what never comes: a busy machine is no failure
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		h, ok := c.handshake(edge)
		if ok && wanted(h) {
			return h
		}
		select {
		case <-deadline:
			c.t.Fatalf("edge %d still says %+v", edge, h)
		case <-poll.C:
		}
	}
}

const flag = `{"environment":"live","key":"%s","kind":"boolean","default_variant":"off","variants":[{"key":"on","value":"true"},{"key":"off","value":"false"}],
	"rule":{"rollout":{"buckets":[{"variant":"on","percentage":100}]}}}`

func TestHaltAndRollbackHoldAtEveryEdgeWithoutTheCentre(t *testing.T) {
	c := newCluster(t, 3)
	c.editor("POST", "/api/v1/switch/flags", fmt.Sprintf(flag, "checkout"))
	made := c.editor("POST", "/api/v1/config/items", `{"environment":"live","key":"retries","type":"int","default_value":"10"}`)
	item := made["item"].(map[string]any)["id"].(string)
	first := made["version"].(map[string]any)["id"].(string)
	c.editor("PATCH", "/api/v1/config/items/"+item, `{"default_value":"99"}`)
	for i := range c.edges {
		c.eventually(i, func(h handshake) bool {
			return h.Modules.Switch.Flags["checkout"] == decision{true, "rollout", 1} && h.Modules.Config.Items["retries"] == decision{99.0, "default", 2}
		})
	}
	c.halt("checkout")
	c.editor("POST", "/api/v1/config/items/"+item+"/rollback", `{"version_id":"`+first+`"}`)
	done := func(h handshake) bool {
		return h.Modules.Switch.Flags["checkout"] == decision{false, "halted", 2} && h.Modules.Config.Items["retries"] == decision{10.0, "default", 3}
	}
	before := c.eventually(0, done)
	for i := range c.edges {
		if h := c.eventually(i, done); h.tag != before.tag || h.Revision != before.Revision {
			t.Errorf("edge %d has tag %s at %s, edge 0 %s at %s", i, h.tag, h.Revision, before.tag, before.Revision)
		}
	}
	if _, answer, _ := c.do("GET", c.plane.OperatorURL()+"/status", ""); !strings.Contains(answer, `"leading": true`) {
		t.Errorf("the only plane does not say that it publishes: %s", answer)
	}

	c.centre.end(t)
	c.nats.Stop()
	for i := range c.edges {
		c.stopEdge(i)
		c.startEdge(i)
	}
	for i := range c.edges {
		if h := c.eventually(i, done); h.tag != before.tag || h.Revision != before.Revision {
			t.Errorf("alone and restarted, edge %d has tag %s at %s, before %s at %s", i, h.tag, h.Revision, before.tag, before.Revision)
		}
	}
	if status, answer, _ := c.do("PATCH", "http://"+c.edges[0].Addr().String()+"/api/v1/config/items/"+item, `{}`); status != 503 {
		t.Errorf("administration without the centre: %d %s", status, answer)
	}
}

// While the streams are away, 100,000 changes wait, then one more, then a halt. The halt is seen first.
func TestHaltOvertakesABacklogOfOtherChanges(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 100,000 documents")
	}
	c := newCluster(t, 1)
	c.editor("POST", "/api/v1/switch/flags", fmt.Sprintf(flag, "checkout"))
	c.eventually(0, func(h handshake) bool { return h.Modules.Switch.Flags["checkout"].Reason == "rollout" })
	c.nats.Stop()
	for n := range 100 {
		err := c.plane.Store.InTx(t.Context(), commit.Origin{}, func(tx *commit.Tx) error {
			for i := range 1000 {
				key := fmt.Sprintf("f%d", n*1000+i)
				if err := tx.Put(replication.FlagSubject(c.founding.ProjectID, "test", key), state.Flag{Key: key, DefaultValue: "1", Version: 1}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	c.editor("POST", "/api/v1/switch/flags", fmt.Sprintf(flag, "last"))
	c.halt("checkout")
	c.nats.Start()
	h := c.eventually(0, func(h handshake) bool { return h.Modules.Switch.Flags["checkout"].Reason == "halted" })
	if _, there := h.Modules.Switch.Flags["last"]; there {
		t.Error("the halt is seen only after the backlog")
	}
	if v := h.Modules.Switch.Flags["checkout"]; v != (decision{false, "halted", 2}) {
		t.Errorf("%+v", v)
	}
	c.eventually(0, func(h handshake) bool { return h.Modules.Switch.Flags["last"].Reason == "rollout" })
}
