package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
)

// TestMain is also the program under test: told so by its environment, it says when it listens, answers each line that it
// reads, waits for the first signal, then for its input to end, and ends well.
func TestMain(m *testing.M) {
	how := os.Getenv("SIGNALS_TEST")
	if how == "" {
		os.Exit(m.Run())
	}
	if how == "nohup" {
		signal.Ignore(syscall.SIGHUP)
	}
	ctx, release := untilSignalled()
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			_, _ = os.Stdout.WriteString("alive\n")
		}
	}()
	_, _ = os.Stdout.WriteString("listening\n")
	<-ctx.Done()
	_, _ = os.Stdout.WriteString("ending\n")
	<-read
	release()
}

// child is the program above, listening.
type child struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Scanner
	stdin io.WriteCloser
}

func startChild(t *testing.T, how string) *child {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "SIGNALS_TEST="+how)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{t, cmd, bufio.NewScanner(stdout), stdin}
	c.says("listening")
	return c
}

func (c *child) says(want string) {
	c.t.Helper()
	if !c.lines.Scan() || c.lines.Text() != want {
		c.t.Fatalf("the program says %q, want %q", c.lines.Text(), want)
	}
}

func (c *child) told(signals ...syscall.Signal) {
	c.t.Helper()
	for _, s := range signals {
		if err := c.cmd.Process.Signal(s); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *child) endsWell() {
	c.t.Helper()
	_ = c.stdin.Close()
	for c.lines.Scan() { // Wait may not be called before all is read
		continue
	}
	if err := c.cmd.Wait(); err != nil {
		c.t.Errorf("ended with %v", err)
	}
}

func TestTheFirstSignalAsksForAnOrderlyEnd(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		c := startChild(t, "plain")
		c.told(s)
		c.says("ending")
		c.endsWell()
	}
}

func TestAClosedTerminalMayBeToldOfTwice(t *testing.T) {
	t.Parallel()
	c := startChild(t, "plain")
	c.told(syscall.SIGHUP)
	c.says("ending")
	c.told(syscall.SIGHUP, syscall.SIGHUP)
	c.endsWell()
}

// Ctrl-C ends all programs of a pipe, and the reader may be gone before the last words are written.
func TestAReaderThatHasGoneDoesNotCutTheEndShort(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = write.Close() }()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "SIGNALS_TEST=plain")
	cmd.Stdout = write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, len("listening\n"))
	if _, err := io.ReadFull(read, said); err != nil || string(said) != "listening\n" {
		t.Fatalf("the program says %q, %v", said, err)
	}
	if err := read.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestWhatWasStartedToOutliveItsTerminalDoes(t *testing.T) {
	t.Parallel()
	c := startChild(t, "nohup")
	c.told(syscall.SIGHUP)
	for range 200 { // had the signal been taken, another word would come between
		if _, err := io.WriteString(c.stdin, "?\n"); err != nil {
			t.Fatal(err)
		}
		c.says("alive")
	}
	c.told(syscall.SIGTERM)
	c.says("ending")
	c.endsWell()
}
