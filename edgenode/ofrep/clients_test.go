package ofrep_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skerry/pkg/buildtest"
	"skerry/pkg/decide"
	"skerry/pkg/state"
)

// The client is a module of its own: the program neither needs it nor fails to build
// where the registry does not have it.
func TestTheGoClientReadsFlags(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "goclient")
	err := buildtest.Build(t.Context(), "testdata/goclient", ".", binary)
	if errors.Is(err, buildtest.ErrNotInRegistry) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	e := newEdge(t)
	e.fill()
	client := exec.CommandContext(t.Context(), binary, e.base, e.Live)
	client.Stderr = os.Stderr
	out, err := client.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := []string{
		`{"flag":"checkout","value":true,"variant":"on","reason":"SPLIT"}`,
		`{"flag":"colour","value":"blue","variant":"default","reason":"STATIC"}`,
		`{"flag":"limit","value":1.5,"variant":"default","reason":"STATIC"}`,
		`{"flag":"retries","value":10,"reason":"STATIC"}`,
		`{"flag":"layout","value":{"columns":[1,2]},"variant":"default","reason":"STATIC"}`,
		`{"flag":"halted","value":false,"variant":"off","reason":"STATIC","halted":true}`,
		`{"flag":"disabled","value":true,"variant":"off","reason":"DISABLED"}`, // the caller's own value
		`{"flag":"absent","value":true,"reason":"ERROR","error":"FLAG_NOT_FOUND"}`,
		`{"flag":"checkout","value":true,"reason":"ERROR","error":"TARGETING_KEY_MISSING"}`,
	}
	if got := strings.TrimSpace(string(out)); got != strings.Join(want, "\n") {
		t.Errorf("the client says\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

// installed gives a folder with the JavaScript clients, as the lock file pins them.
func installed(t *testing.T) string {
	t.Helper()
	for _, tool := range []string{"node", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/clients")); err != nil {
		t.Fatal(err)
	}
	install := exec.CommandContext(t.Context(), "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("the package registry cannot be reached: %v\n%s", err, out)
	}
	return dir
}

func node(ctx context.Context, dir, script string, e *edge) *exec.Cmd {
	c := exec.CommandContext(ctx, "node", filepath.Join(dir, script), e.base, e.Live)
	c.Stderr = os.Stderr
	return c
}

func TestTheServerClientReadsFlags(t *testing.T) {
	t.Parallel()
	dir := installed(t)
	e := newEdge(t)
	e.fill()
	out, err := node(t.Context(), dir, "server.mjs", e).Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := []string{
		`{"flag":"checkout","value":true,"variant":"on","reason":"TARGETING_MATCH"}`,
		`{"flag":"checkout","value":false,"variant":"off","reason":"DEFAULT"}`,
		`{"flag":"colour","value":"blue","variant":"default","reason":"STATIC"}`,
		`{"flag":"limit","value":1.5,"variant":"default","reason":"STATIC"}`,
		`{"flag":"layout","value":{"columns":[1,2]},"variant":"default","reason":"STATIC"}`,
		`{"flag":"retries","value":10,"reason":"STATIC"}`,
		`{"flag":"halted","value":false,"variant":"off","reason":"STATIC","halted":true}`,
		`{"flag":"disabled","value":false,"variant":"off","reason":"DISABLED"}`,
		`{"flag":"absent","value":true,"reason":"ERROR","errorCode":"FLAG_NOT_FOUND"}`,
		`{"flag":"limit","value":"none","reason":"ERROR","errorCode":"TYPE_MISMATCH"}`,
		`{"flag":"checkout","value":false,"reason":"ERROR","errorCode":"TARGETING_KEY_MISSING"}`,
	}
	if got := strings.TrimSpace(string(out)); got != strings.Join(want, "\n") {
		t.Errorf("the client says\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

func TestTheWebClientFollowsChanges(t *testing.T) {
	t.Parallel()
	dir := installed(t)
	e := newEdge(t)
	e.fill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := node(ctx, dir, "web.mjs", e)
	out, err := client.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	var got []string
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var line struct{ Step string }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatalf("%s: %v", lines.Bytes(), err)
		}
		if line.Step != "listening" {
			got = append(got, lines.Text())
			continue
		}
		for e.stream.Stats().Open == 0 { // the client is connecting
			select {
			case <-ctx.Done():
				t.Fatal("the client opens no stream")
			case <-time.After(5 * time.Millisecond):
			}
		}
		e.Flag(state.Flag{Key: "checkout", Kind: decide.Boolean, Enabled: true, DefaultValue: "false", DefaultVariant: "off", Version: 4})
	}
	if err := client.Wait(); err != nil {
		t.Errorf("the client ends with %v", err)
	}
	want := []string{
		`{"step":"first load","value":false,"variant":"off","reason":"DEFAULT","statuses":[200]}`,
		`{"step":"unchanged context","value":false,"variant":"off","reason":"DEFAULT","statuses":[304]}`,
		`{"step":"changed context","value":true,"variant":"on","reason":"TARGETING_MATCH","statuses":[200]}`,
		`{"step":"another user","value":true,"variant":"on","reason":"SPLIT","statuses":[200]}`,
		`{"step":"after the stream told of a change","value":false,"variant":"off","reason":"STATIC","statuses":[200]}`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the client says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
