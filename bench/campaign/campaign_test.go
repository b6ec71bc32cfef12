package campaign

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"skerry/replication"
)

func TestMain(m *testing.M) {
	code := m.Run()
	client.CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// The short form of the campaign: one seed, the real processes, nothing lost.
func TestEverythingAnsweredSurvivesASeededScheduleOfFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program and breaks it for some seconds")
	}
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "skerry")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "skerry/deploy/skerry")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	var out bytes.Buffer
	err := Run(t.Context(), Config{Binary: binary, Version: "test", Seed: 1, Length: 8 * time.Second, Nodes: 1, Out: &out})
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
}

func echo(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn); _ = conn.Close() }()
		}
	}()
	return listener.Addr().String()
}

// said sends a word through a link and tells whether it came back.
func said(t *testing.T, l *link) bool {
	t.Helper()
	conn, err := net.Dial("tcp", l.address())
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(conn, "word"); err != nil {
		return false
	}
	back := make([]byte, 4)
	_, err = io.ReadFull(conn, back)
	return err == nil && string(back) == "word"
}

func TestLinkPassesIsCutLosesAndMends(t *testing.T) {
	t.Parallel()
	l, err := newLink(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	if !said(t, l) {
		t.Error("a whole link does not pass anything")
	}
	l.sever()
	if said(t, l) {
		t.Error("a cut link passes")
	}
	l.mend()
	l.loss.Store(1000)
	if said(t, l) {
		t.Error("a link that loses everything passes")
	}
	l.mend()
	if !said(t, l) {
		t.Error("a mended link does not pass anything")
	}
}

func TestBalancerPassesOverWhoIsGoneOrDrained(t *testing.T) {
	t.Parallel()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	living := echo(t)
	l, err := newLink(gone.Addr().String(), living)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	for range 4 {
		if !said(t, l) {
			t.Fatal("a connection went to the target that is gone")
		}
	}
	l.drain(living, true)
	if said(t, l) {
		t.Error("a drained target got a connection")
	}
}

func TestRevisionNeverFallsInEitherPart(t *testing.T) {
	t.Parallel()
	var s seen
	for i, c := range []struct {
		normal, urgent replication.Position
		falls          bool
	}{
		{5, 1, false}, {6, 1, false}, {6, 2, false}, {5, 2, true}, {7, 1, true}, {7, 2, false},
	} {
		if fell := s.next(replication.Revision{Normal: c.normal, Urgent: c.urgent}); (fell != "") != c.falls {
			t.Errorf("step %d: %q, falls: %t", i, fell, c.falls)
		}
	}
}

func TestDamageChangesExactlyOneFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"000004.sst", "000005.sst", "MANIFEST-000001", "000006.log"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 2000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := scribble(dir, 0.99, 0.5); err != nil {
		t.Fatal(err)
	}
	changed := 0
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		body, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(body, make([]byte, 2000)) {
			changed++
			if e.Name() == "000006.log" {
				t.Error("the log is not to be damaged: its end may be torn without harm")
			}
		}
	}
	if changed != 1 {
		t.Errorf("%d files are changed", changed)
	}
	if err := scribble(t.TempDir(), 0, 0); err == nil {
		t.Error("nothing to damage, and no word of it")
	}
}

func TestConfigNamesTheFlagThatIsWrong(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{{Runs: -1}, {Length: -1}, {Edges: 9}, {Nodes: 2}} {
		if c.Validate() == nil {
			t.Errorf("%+v passes", c)
		}
	}
	if err := Run(context.Background(), Config{Nodes: 2}); err == nil {
		t.Error("a wrong configuration was run")
	}
}

func TestSummaryAddsUpAndNamesWhatBroke(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "faults.jsonl")
	for _, r := range []Result{
		{Seed: 1, Version: "a", Faults: []Fault{{Kind: "kill -9", Target: "edge", Requests: 10, Errors: 2, Recovery: 0.5}}, Books: Books{EventsAnswered: 100}},
		{Seed: 2, Version: "a", Faults: []Fault{{Kind: "kill -9", Target: "edge", Requests: 5, Errors: 1, Recovery: 1.5}}, Books: Books{EventsAnswered: 50, EventsLost: 3}, Broken: []string{"3 answered events are lost"}},
	} {
		if err := record(log, &r); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := Summarize(log, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| a | 2 | 1 | 150 | 3 | 0 | 0 | 0 | 0 | 0 |",
		"| kill -9 | edge | 2 | 15 | 3 | 1.5 s | 1.5 s |",
		"| 2 | a | 3 answered events are lost |",
	} {
		if !bytes.Contains(out.Bytes(), []byte(want)) {
			t.Errorf("the summary lacks %q:\n%s", want, out.String())
		}
	}
}
