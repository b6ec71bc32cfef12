package cluster_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// lines is a log that is read while it is written.
type lines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// guarded is a NATS server with the users of deploy/nats/rights.conf, for an edge named edge-0.
func guarded(t *testing.T) (address string) {
	t.Helper()
	raw, err := os.ReadFile("../nats/rights.conf")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("$CENTRE_PASSWORD", "c", "$FRA_1_PASSWORD", "e", "fra-1", "edge-0").Replace(string(raw))
	dir := t.TempDir()
	file := filepath.Join(dir, "nats.conf")
	text = "listen: 127.0.0.1:-1\njetstream { store_dir: " + filepath.Join(dir, "streams") + " }\n" + text
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	options, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	options.NoLog, options.NoSigs = true, true
	s, err := server.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the server does not start")
	}
	return s.Addr().String()
}

func TestDocumentedRightsAreEnoughForAnEdge(t *testing.T) {
	address := guarded(t)
	log := &lines{}
	c := newClusterOn(&cluster{t: t, edgeNATS: "nats://edge-0:e@" + address, log: slog.New(slog.NewTextHandler(log, nil))}, "nats://centre:c@"+address, 1)
	edge := "http://" + c.edges[0].Addr().String()
	key := []string{"x-api-key", c.founding.Keys["live"].Secret}
	for path, body := range map[string]string{
		"/api/v1/track":  `{"event_name":"a","distinct_id":"ada"}`,
		"/api/v1/people": `{"distinct_id":"ada","properties":{"plan":"pro"}}`,
		"/api/v1/alias":  `{"alias_id":"anon-1","distinct_id":"ada"}`,
	} {
		if status, answer, _ := c.do("POST", edge+path, body, key...); status != 200 {
			t.Fatalf("%s: %d %s", path, status, answer)
		}
	}
	// A payload of over 16 MiB is announced on a subject of its own.
	large := `{"event_name":"large","distinct_id":"ada","properties":{"x":"` + strings.Repeat("a", 17<<20) + `"}}`
	if status, answer, _ := c.do("POST", edge+"/api/v1/track", large, key...); status != 200 {
		t.Fatalf("a large event: %d %s", status, answer)
	}
	c.editor("POST", "/api/v1/switch/flags", `{"environment":"live","key":"f","kind":"boolean","default_value":"true"}`)
	c.eventually(0, func(h handshake) bool { return h.Modules.Switch.Flags["f"].Value == true })
	c.halt("f")
	c.eventually(0, func(h handshake) bool { return h.Modules.Switch.Flags["f"].Reason == "halted" })
	for _, wanted := range []struct{ path, text string }{
		{"/api/v1/events?event_name=a", `"event_name":"a"`},
		{"/api/v1/events?event_name=large", `"event_name":"large"`},
		{"/api/v1/persons/anon-1", `"plan":"pro"`},
	} {
		c.shows(wanted.path, wanted.text)
	}
	if said := log.String(); strings.Contains(strings.ToLower(said), "violation") {
		t.Errorf("the edge was refused something:\n%s", said)
	}
}

// shows waits until a viewer's query holds a text.
func (c *cluster) shows(path, text string) {
	c.t.Helper()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	deadline := time.After(5 * time.Minute)
	for {
		status, answer, _ := c.do("GET", c.plane.URL()+path, "", "Authorization", "Bearer "+c.tokens["viewer"])
		if status == 200 && strings.Contains(answer, text) {
			return
		}
		select {
		case <-deadline:
			c.t.Fatalf("%s: %d %.300s, want %s", path, status, answer, text)
		case <-poll.C:
		}
	}
}
