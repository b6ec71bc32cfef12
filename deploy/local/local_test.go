package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"skerry/pkg/natsserver/natstest"
	"skerry/pkg/openapi/openapitest"
	"skerry/pkg/serve"
)

// childEnv makes the test binary be `skerry up` on the folder it names.
const childEnv = "LOCAL_TEST_DATA"

// portsEnv gives it the ports of the first edge and the write plane, "8080,8090"; any when it is absent.
const portsEnv = "LOCAL_TEST_PORTS"

func TestMain(m *testing.M) {
	if data := os.Getenv(childEnv); data != "" {
		os.Exit(child(data))
	}
	os.Exit(m.Run())
}

func child(data string) int {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg := Config{
		Data: data, Edges: 2, ListenEdge: "127.0.0.1:0", ListenWritePlane: "127.0.0.1:0",
		Out: os.Stdout, Program: "skerry",
	}
	if ports := os.Getenv(portsEnv); ports != "" {
		edge, plane, _ := strings.Cut(ports, ",")
		cfg.ListenEdge, cfg.ListenWritePlane = "127.0.0.1:"+edge, "127.0.0.1:"+plane
	}
	err := Run(ctx, cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	return 0
}

// run is one `skerry up` in a process group of its own.
type run struct {
	t     *testing.T
	cmd   *exec.Cmd
	data  string
	out   output
	errs  output
	ended chan struct{} // closed when the child is gone
	err   error         // of its end
	credentials
}

// output is what a child has said so far; the child goes on writing.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// dataFolder is removed when the test has ended. PostgreSQL outlives a killed child for a moment and writes until then,
// so removing is tried again.
func dataFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "skerry-up")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		retry := time.NewTicker(20 * time.Millisecond)
		defer retry.Stop()
		deadline := time.After(30 * time.Second)
		for {
			err := os.RemoveAll(dir)
			if err == nil {
				return
			}
			select {
			case <-retry.C:
			case <-deadline:
				t.Error(err)
				return
			}
		}
	})
	return dir
}

// launch starts a child on data, which is killed at the latest with the test.
func launch(t *testing.T, data string) *run {
	t.Helper()
	r := &run{t: t, data: data, cmd: exec.Command(os.Args[0]), ended: make(chan struct{})}
	r.cmd.Env = append(os.Environ(), childEnv+"="+data)
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.errs
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { r.err = r.cmd.Wait(); close(r.ended) }()
	t.Cleanup(r.kill)
	return r
}

// up launches a child and returns when it has written its credentials.
func up(t *testing.T, data string) *run {
	t.Helper()
	path := filepath.Join(data, "credentials.json")
	var former time.Time
	if fi, err := os.Stat(path); err == nil {
		former = fi.ModTime()
	}
	r := launch(t, data)
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); {
		if fi, err := os.Stat(path); err == nil && !fi.ModTime().Equal(former) {
			raw, err := os.ReadFile(path)
			if err == nil {
				err = json.Unmarshal(raw, &r.credentials)
			}
			if err != nil {
				t.Fatalf("credentials.json: %v\n%s", err, raw)
			}
			return r
		}
		select {
		case <-r.ended:
			t.Fatalf("up ended: %v\n%s", r.err, r.errs.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
	r.kill()
	t.Fatalf("no credentials.json in time\n%s", r.errs.String())
	return nil
}

// kill is kill -9 of the whole group.
func (r *run) kill() {
	_ = syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL)
	<-r.ended
}

// stop is Ctrl-C; it has 10 s.
func (r *run) stop() error {
	if err := r.cmd.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	select {
	case <-r.ended:
	case <-time.After(10 * time.Second):
		r.kill()
		return fmt.Errorf("not ended after 10 s\n%s", r.errs.String())
	}
	if r.err != nil {
		return fmt.Errorf("%w\n%s", r.err, r.errs.String())
	}
	return nil
}

// call returns status and body of a request; header is name, value, ….
func (r *run) call(method, url, body string, header ...string) (int, string, http.Header) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatalf("%s %s: %v\n%s", method, url, err, r.errs.String())
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	if path := req.URL.EscapedPath(); openapitest.Ours(path) {
		openapitest.Check(r.t, method, path, res.StatusCode, res.Header, raw)
	}
	return res.StatusCode, string(raw), res.Header
}

// eventually calls until the answer holds what is wanted.
func (r *run) eventually(what, want, method, url string, header ...string) {
	r.t.Helper()
	var body string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		var status int
		if status, body, _ = r.call(method, url, "", header...); status == 200 && strings.Contains(body, want) {
			return
		}
	}
	r.t.Fatalf("%s: no %q in %s", what, want, body)
}

// postmaster is the process id of the private PostgreSQL.
func (r *run) postmaster() (pid int) {
	r.t.Helper()
	raw, err := os.ReadFile(filepath.Join(r.data, "postgres", "cluster", "postmaster.pid"))
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(raw), &pid); err != nil {
		r.t.Fatal(err)
	}
	return pid
}

func (r *run) key() []string     { return []string{"x-api-key", r.APIKeys["live"]} }
func (r *run) viewer() []string  { return []string{"Authorization", "Bearer " + r.Tokens["viewer"]} }
func (r *run) handshake() string { return "/api/v1/handshake?distinct_id=user-1" }
func (r *run) events(of string) string {
	return r.Edges[0] + "/api/v1/events?event_name=" + of
}

// TestEverythingSurvivesKillNine is the main promise, on a folder that
// PostgreSQL's account could not walk to.
func TestEverythingSurvivesKillNine(t *testing.T) {
	parent := filepath.Join(dataFolder(t), "locked")
	if err := os.Mkdir(parent, 0o700); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(parent, "data")
	r := up(t, data)
	checkFirstStart(t, r)

	if status, body, _ := r.call("POST", r.Edges[0]+"/api/switch/halt-webhook", `{"flag_key":"new-checkout","reason":"test"}`, r.key()...); status != 200 {
		t.Fatalf("halt: %d %s", status, body)
	}
	for _, edge := range r.Edges {
		r.eventually("halt at "+edge, `"reason":"halted"`, "GET", edge+r.handshake(), r.key()...)
	}
	if status, body, _ := r.call("POST", r.Edges[1]+"/api/v1/track", `{"event_name":"kept","distinct_id":"user-9"}`, r.key()...); status != 200 || body != `{"ok":true}` {
		t.Fatalf("track: %d %s", status, body)
	}
	r.kill()

	again := up(t, data)
	if !reflect.DeepEqual(again.APIKeys, r.APIKeys) || !reflect.DeepEqual(again.Tokens, r.Tokens) || again.ProjectID != r.ProjectID || again.OrganizationID != r.OrganizationID {
		t.Error("credentials changed over a restart")
	}
	for _, edge := range again.Edges {
		again.eventually("halt at "+edge+" after the restart", `"reason":"halted"`, "GET", edge+again.handshake(), again.key()...)
	}
	again.eventually("event sent just before the kill", `"distinct_id":"user-9"`, "GET", again.events("kept"), again.viewer()...)
	for name, want := range map[string]int{"kept": 1, "purchase": 1} {
		_, body, _ := again.call("GET", again.events(name), "", again.viewer()...)
		if n := strings.Count(body, `"event_name"`); n != want {
			t.Errorf("events %s: %d, want %d: %s", name, n, want, body)
		}
	}
	if err := again.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// checkFirstStart looks at what a newcomer is told to look at.
func checkFirstStart(t *testing.T, r *run) {
	t.Helper()
	for _, name := range []string{"credentials.json", "demo.secrets"} {
		fi, err := os.Stat(filepath.Join(r.data, name))
		if err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want mode 0600", name, fi.Mode(), err)
		}
	}
	if len(r.Edges) != 2 || len(r.EdgeOps) != 2 {
		t.Fatalf("edges %v, operators %v; want two", r.Edges, r.EdgeOps)
	}
	for _, address := range append([]string{r.WritePlaneOps}, r.EdgeOps...) {
		if status, body, _ := r.call("GET", address+"/readyz", ""); status != 200 {
			t.Errorf("%s is not ready: %s", address, body)
		}
	}
	status, body, header := r.call("GET", r.Edges[1]+"/api/pulse/surveys", "", r.key()...)
	if status != 200 || !strings.Contains(body, `"slug":"recommend"`) || header.Get("Cache-Control") != "private, max-age=300" {
		t.Errorf("surveys: %d %s", status, body)
	}
	status, body, _ = r.call("GET", r.Edges[1]+"/api/pulse/surveys", "", append(r.key(), "If-None-Match", header.Get("ETag"))...)
	if status != 304 || body != "" {
		t.Errorf("revalidation: %d %q, want 304 without a body", status, body)
	}
	// user-1 is in the beta cohort, so the flag is on.
	r.eventually("handshake", `"new-checkout":{"value":true`, "GET", r.Edges[0]+r.handshake(), r.key()...)
	r.eventually("demo events", `"purchase"`, "GET", r.events("purchase"), r.viewer()...)
	checkMetricsAreDocumented(t, r)
	// The table comes right after the file.
	for end := time.Now().Add(10 * time.Second); !strings.Contains(r.out.String(), "Ctrl-C"); <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no table: %s", r.out.String())
		}
	}
	if out := r.out.String(); !strings.Contains(out, r.Edges[0]) || !strings.Contains(out, "Try:") {
		t.Errorf("the table says: %s", out)
	}
}

// checkMetricsAreDocumented reads what the processes show, since names are put
// together in more than one way.
func checkMetricsAreDocumented(t *testing.T, r *run) {
	t.Helper()
	doc, err := os.ReadFile("../../docs/operations/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, address := range []string{r.WritePlaneOps, r.EdgeOps[0]} {
		_, body, _ := r.call("GET", address+"/metrics", "")
		for line := range strings.Lines(body) {
			name, ok := strings.CutPrefix(line, "# TYPE skerry_")
			if !ok {
				continue
			}
			found++
			name = "`skerry_" + strings.Fields(name)[0] + "`"
			if !bytes.Contains(doc, []byte(name)) {
				t.Errorf("docs/operations/metrics.md does not name %s", name)
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d families of our own are shown", found)
	}
}

func TestSecondUpOnTheSameFolderIsRefused(t *testing.T) {
	data := dataFolder(t)
	r := up(t, data)
	err := Run(t.Context(), Config{Data: data, Edges: 1, ListenEdge: "127.0.0.1:0", ListenWritePlane: "127.0.0.1:0", Out: io.Discard, Program: "skerry"})
	want := fmt.Sprintf("another skerry up (process %d) runs on %s: stop it, or give another --data", r.cmd.Process.Pid, data)
	if err == nil || err.Error() != want {
		t.Errorf("second up: %v, want %q", err, want)
	}
	if _, err := os.Stat(filepath.Join(data, "credentials.json")); err != nil {
		t.Errorf("the refused start took the running one's credentials away: %v", err)
	}
	if err := r.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

func TestPostgresThatDiesIsStartedAgain(t *testing.T) {
	data := dataFolder(t)
	r := up(t, data)
	if err := syscall.Kill(r.postmaster(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if status, body, _ := r.call("POST", r.Edges[0]+"/api/v1/track", `{"event_name":"meanwhile","distinct_id":"user-9"}`, r.key()...); status != 200 {
		t.Errorf("track without PostgreSQL: %d %s", status, body)
	}
	if status, body, _ := r.call("GET", r.Edges[0]+r.handshake(), "", r.key()...); status != 200 {
		t.Errorf("handshake without PostgreSQL: %d %s", status, body)
	}
	r.eventually("event sent meanwhile", `"meanwhile"`, "GET", r.events("meanwhile"), r.viewer()...)
	if err := r.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// A PostgreSQL that does not end, left by a killed run, holds a start up for many seconds. The edges need it for nothing.
func TestEdgesAnswerWhilePostgresIsStillToCome(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only here a program knows what an earlier one has left")
	}
	// Below the ports that systems give out by themselves.
	edge := 12000 + 300*rand.IntN(60)
	t.Setenv(portsEnv, fmt.Sprintf("%d,%d", edge, edge+10))
	data := dataFolder(t)
	r := up(t, data)
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", r.postmaster()))
	if err != nil {
		t.Skip(err)
	}
	// The server waits for each of them, so one frozen child is enough to keep it.
	var frozen int
	if _, err := fmt.Sscan(string(children), &frozen); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(frozen, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(frozen, syscall.SIGKILL) })
	r.kill()

	again := launch(t, data)
	again.credentials = r.credentials
	var last error
	for end := time.Now().Add(60 * time.Second); ; <-time.After(10 * time.Millisecond) {
		req, err := http.NewRequestWithContext(t.Context(), "GET", r.Edges[1]+r.handshake(), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("x-api-key", r.APIKeys["live"])
		res, err := http.DefaultClient.Do(req)
		if last = err; err == nil {
			res.Body.Close()
			if res.StatusCode == 200 {
				break
			}
		}
		if time.Now().After(end) {
			t.Fatalf("no answer: %v\n%s", last, again.errs.String())
		}
	}
	if state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", frozen)); err != nil || !strings.Contains(string(state), ") T ") {
		t.Errorf("the edges waited for PostgreSQL: its process is gone (%v, %s)", err, state)
	}
	if status, body, _ := again.call("POST", r.Edges[0]+"/api/v1/track", `{"event_name":"early","distinct_id":"user-9"}`, r.key()...); status != 200 {
		t.Errorf("track before the write plane is there: %d %s", status, body)
	}
	if status, body, _ := again.call("GET", r.events("early"), "", r.viewer()...); status != 503 {
		t.Errorf("a query before the write plane is there: %d %s, want 503", status, body)
	}
	if err := syscall.Kill(frozen, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(60 * time.Second); ; <-time.After(50 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(data, "credentials.json")); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no credentials.json in time\n%s", again.errs.String())
		}
	}
	again.eventually("event sent early", `"early"`, "GET", r.events("early"), r.viewer()...)
	if err := again.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

func TestKilledWhileStartingIsTakenUp(t *testing.T) {
	data := dataFolder(t)
	killed := launch(t, data)
	// As soon as the plan is on disk the making begins.
	for {
		if _, err := os.Stat(filepath.Join(data, "demo.secrets")); err == nil {
			break
		}
		select {
		case <-killed.ended:
			t.Fatalf("up ended: %v\n%s", killed.err, killed.errs.String())
		case <-time.After(time.Millisecond):
		}
	}
	killed.kill()
	r := up(t, data)
	checkFirstStart(t, r)
}

func TestServersThatCannotBeReachedAreNamed(t *testing.T) {
	t.Parallel()
	base := Config{Data: t.TempDir(), Edges: 1, ListenEdge: "127.0.0.1:0", ListenWritePlane: "127.0.0.1:0", Out: io.Discard, Program: "skerry"}
	// The other server is given too, so that the test starts none.
	base.NATSURL, base.PostgresURL = "nats://secret@127.0.0.1:1", "postgres://u:secret@127.0.0.1:1/d"
	err := Run(t.Context(), base)
	if want := "reach NATS at 127.0.0.1:1: nats: no servers available for connection"; err == nil || err.Error() != want {
		t.Errorf("Run: %v, want %q", err, want)
	}
	base.NATSURL = natstest.New(t).URL
	err = Run(t.Context(), base)
	if err == nil || !strings.HasPrefix(err.Error(), "write plane: reach postgres at 127.0.0.1:1: ") || strings.Contains(err.Error(), "secret") {
		t.Errorf("Run: %v, want one that names the address and no secret", err)
	}
}

func TestTakenPortIsNamedByTheFlagOfUp(t *testing.T) {
	t.Parallel()
	for own, want := range map[string]string{
		"--listen":          "edge-0: --listen-edge: listen on 127.0.0.1:1: taken",
		"--listen-operator": "edge-0: --listen-edge (operators' address: its port + 100): listen on 127.0.0.1:1: taken",
	} {
		fault := &serve.ListenError{Setting: own, Address: "127.0.0.1:1", Err: errors.New("taken")}
		if got := fmt.Errorf("edge-0: %w", byOurFlag("--listen-edge", fault)); got.Error() != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestConfigNamesTheFlag(t *testing.T) {
	t.Parallel()
	good := Config{Data: "x", Edges: 1, ListenEdge: "127.0.0.1:8080", ListenWritePlane: "127.0.0.1:8090"}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*Config){
		"--data is empty":                             func(c *Config) { c.Data = "" },
		"--edges 0 is not between 1 and 64":           func(c *Config) { c.Edges = 0 },
		`--listen-edge "8080" is not host:port`:       func(c *Config) { c.ListenEdge = "8080" },
		`--listen-writeplane ":x" has no usable port`: func(c *Config) { c.ListenWritePlane = ":x" },
	} {
		c := good
		spoil(&c)
		if err := c.Validate(); err == nil || err.Error() != want {
			t.Errorf("Validate: %v, want %q", err, want)
		}
	}
}

func TestEdgesListenInARow(t *testing.T) {
	t.Parallel()
	own, operator := listeners("0.0.0.0:8080", 2)
	if own != "0.0.0.0:8082" || operator != "127.0.0.1:8182" {
		t.Errorf("third edge listens on %s and %s", own, operator)
	}
	own, operator = listeners("127.0.0.1:0", 2)
	if own != "127.0.0.1:0" || operator != "127.0.0.1:0" {
		t.Errorf("on free ports: %s and %s", own, operator)
	}
}
