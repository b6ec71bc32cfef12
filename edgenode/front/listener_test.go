package front

import (
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"skerry/pkg/serve"
)

// short is a listener to which the system says at first what it lacks.
type short struct {
	net.Listener
	faults atomic.Int64
	with   syscall.Errno
}

func (s *short) Accept() (net.Conn, error) {
	if s.faults.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: s.Addr(), Err: s.with}
	}
	return s.Listener.Accept()
}

func TestAShortageOfFilesDoesNotEndTheServer(t *testing.T) {
	t.Parallel()
	for _, lacking := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		poor := &short{Listener: ln, with: lacking}
		poor.faults.Store(2)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- Serve(ctx, poor, func(ctx *fasthttp.RequestCtx) { ctx.SetBodyString("here") }, Limits{})
		}()
		got := talk(t, ln.Addr().String(), "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		if !strings.HasSuffix(got, "here") {
			t.Errorf("%v: %q", lacking, got)
		}
		stop()
		if err := <-done; err != nil {
			t.Errorf("%v: %v", lacking, err)
		}
	}
}

// One connection more than may be is told so, whatever the others do, and there is room again when one of them ends.
func TestConnectionsPastTheBoundAreTurnedAway(t *testing.T) {
	t.Parallel()
	taken, over := make(chan struct{}), make(chan struct{})
	address := start(t, func(ctx *fasthttp.RequestCtx) {
		if string(ctx.Path()) == "/stream" {
			ctx.HijackSetNoResponse(true)
			ctx.Hijack(func(net.Conn) { close(taken); <-over })
		}
		ctx.SetBodyString("here")
	}, Limits{Connections: 2})
	defer close(over)
	dial := func(path string) net.Conn {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		return c
	}
	// One that waits between requests, and one that was taken out of the server's hands.
	idle := dial("/")
	if _, err := io.ReadFull(idle, make([]byte, 12)); err != nil {
		t.Fatal(err)
	}
	dial("/stream")
	<-taken
	third, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = third.Close() }()
	_ = third.SetDeadline(time.Now().Add(10 * time.Second))
	got, err := io.ReadAll(third)
	if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 503 ") || !strings.HasSuffix(string(got), `{"error":"Service temporarily unavailable"}`) || !requestID.Match(got) {
		t.Errorf("the third was told %q, %v", got, err)
	}
	_ = idle.Close()
	for deadline := time.Now().Add(10 * time.Second); ; {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(deadline)
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") // refused ones are closed already
		got, _ := io.ReadAll(c)
		_ = c.Close()
		if strings.HasSuffix(string(got), "here") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no room though one has ended: %q", got)
		}
	}
}

func TestConnectionsLeaveFilesForTheStores(t *testing.T) {
	t.Parallel()
	files := serve.OpenFiles()
	if bound := (Limits{}).withDefaults().Connections; bound != min(100_000, files/2) {
		t.Errorf("%d connections with %d files", bound, files)
	}
	// Servers of one process leave as many together as one alone.
	const servers = 64
	if bound := (Limits{Servers: servers}).withDefaults().Connections; bound*servers > files/2 || bound < 1 {
		t.Errorf("%d connections at each of %d servers with %d files", bound, servers, files)
	}
}
