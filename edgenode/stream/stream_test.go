package stream_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"skerry/edgenode/edgetest"
	"skerry/edgenode/gate"
	"skerry/edgenode/handshake"
	"skerry/edgenode/stream"
	"skerry/edgenode/view"
	"skerry/pkg/apikey"
	"skerry/pkg/decide"
	"skerry/pkg/openapi/openapitest"
	"skerry/pkg/state"
	"skerry/replication"
)

func TestMain(m *testing.M) { edgetest.Main(m) }

type edge struct {
	*edgetest.World
	t    testing.TB
	m    *stream.Module
	addr string
	stop func() // ends Run, and waits for it
}

func newEdge(t testing.TB, config stream.Config) *edge {
	t.Helper()
	e := &edge{World: edgetest.New(t, view.Hooks{Decisions: handshake.Compile}), t: t}
	e.m = stream.New(e.Gate, e.Views, config)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.m.Run(ctx) }()
	e.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended <- nil
	}
	e.addr = e.Serve(func(ctx *fasthttp.RequestCtx) {
		gate.CORS(ctx)
		e.m.Serve(ctx)
	})
	t.Cleanup(e.stop)
	return e
}

// A client that asks for a stream behind another request, and is gone before the first answer leaves, has no stream: the
// server never hands its connection over.
func TestStreamOfAClientThatHasGoneIsNotCounted(t *testing.T) {
	t.Parallel()
	e := newEdge(t, stream.Config{})
	asked, gone, admitted := make(chan struct{}), make(chan struct{}), make(chan struct{})
	address := e.Serve(func(ctx *fasthttp.RequestCtx) {
		if string(ctx.Path()) == "/first" {
			close(asked)
			<-gone
			ctx.SetStatusCode(404)
			ctx.Response.Header.SetContentType("application/json")
			ctx.SetBodyString(`{"error":"not_found"}`)
			return
		}
		e.m.Serve(ctx)
		close(admitted)
	})
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(c, "GET /first HTTP/1.1\r\nHost: x\r\n\r\nGET /api/v1/stream?key=%s HTTP/1.1\r\nHost: x\r\n\r\n", e.Live); err != nil {
		t.Fatal(err)
	}
	<-asked
	if err := errors.Join(c.(*net.TCPConn).SetLinger(0), c.Close()); err != nil { // a reset
		t.Fatal(err)
	}
	close(gone)
	<-admitted
	poll, deadline := time.NewTicker(time.Millisecond), time.After(5*time.Second)
	defer poll.Stop()
	for e.m.Stats().Open > 0 {
		select {
		case <-poll.C:
		case <-deadline:
			t.Fatalf("%d streams of nobody, and the edge cannot end", e.m.Stats().Open)
		}
	}
}

// listener is one open stream, read line by line.
type listener struct {
	t        testing.TB
	response *http.Response
	lines    *bufio.Scanner
	opening  []string // the first block's lines behind the comment
}

func (e *edge) listen(header ...string) *listener {
	e.t.Helper()
	request, err := http.NewRequestWithContext(e.t.Context(), "GET", "http://"+e.addr+"/api/v1/stream?key="+e.Live, nil)
	if err != nil {
		e.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = response.Body.Close() })
	l := &listener{t: e.t, response: response, lines: bufio.NewScanner(response.Body)}
	if response.StatusCode == 200 {
		openapitest.Check(e.t, "GET", "/api/v1/stream", 200, response.Header, nil) // what it carries is each test's
		l.expect(": open")
		for l.lines.Scan() && l.lines.Text() != "" {
			l.opening = append(l.opening, l.lines.Text())
		}
	}
	return l
}

func (l *listener) expect(lines ...string) {
	l.t.Helper()
	for _, want := range lines {
		if !l.lines.Scan() {
			l.t.Fatalf("the stream ends (%v) instead of %q", l.lines.Err(), want)
		}
		if got := l.lines.Text(); got != want {
			l.t.Fatalf("the stream says %q, want %q", got, want)
		}
	}
}

func (l *listener) ends() {
	l.t.Helper()
	for l.lines.Scan() {
		l.t.Logf("before its end: %s", l.lines.Text())
	}
}

func (e *edge) flag(version int64) {
	e.Flag(state.Flag{Key: "f", Kind: decide.Boolean, Enabled: true, DefaultValue: "true", Version: version})
}

func TestEachChangeIsOneMessage(t *testing.T) {
	t.Parallel()
	e := newEdge(t, stream.Config{})
	l := e.listen("Origin", "https://shop.example")
	h := l.response.Header
	if h.Get("Content-Type") != "text/event-stream" || h.Get("Cache-Control") != "no-store" || h.Get("Access-Control-Allow-Origin") != "https://shop.example" {
		t.Errorf("headers %v", h)
	}
	e.flag(1)
	l.expect(`id: 4.0`, `data: {"type":"refetchEvaluation","etag":"\"4.0\"","module":"switch","revision":"4.0"}`, ``)
	e.Put(replication.HaltSubject(edgetest.Project, "live", "f"), state.Halt{Key: "f", Version: 2, DefaultValue: "false"})
	l.expect(`id: 4.1`, `data: {"type":"refetchEvaluation","etag":"\"4.1\"","module":"switch","revision":"4.1"}`, ``)
	e.Item(state.ConfigItem{Key: "i", Type: decide.Int, DefaultValue: "1", Version: 1})
	l.expect(`id: 5.1`, `data: {"type":"refetchEvaluation","etag":"\"5.0\"","module":"config","revision":"5.1"}`, ``)
	e.Put(replication.CohortSubject(edgetest.Project, "c"), state.Cohort{Name: "c"})
	l.expect(`id: 6.1`, `data: {"type":"refetchEvaluation","etag":"\"6.0\"","module":"cohorts","revision":"6.1"}`, ``)
	e.Put(replication.FlagSubject(edgetest.Project, "test", "f"), state.Flag{Key: "f"}) // another environment's
	e.flag(3)
	l.expect(`id: 8.1`)
}

func TestWhoComesBackHearsWhatWasMissed(t *testing.T) {
	t.Parallel()
	e := newEdge(t, stream.Config{})
	e.flag(1)
	missed := e.listen("Last-Event-ID", "3.0")
	missed.expect(`id: 4.0`, `data: {"type":"refetchEvaluation","etag":"\"4.0\"","module":"switch","revision":"4.0"}`, ``, `id: 4.0`)
	current := e.listen("Last-Event-ID", "4.0")
	e.flag(2)
	current.expect(`id: 5.0`)
}

// A client names the last id that it was given, which need not have come with a message.
func TestWhoHasHeardOfNothingYetMissesNothingWhenItComesBack(t *testing.T) {
	t.Parallel()
	e := newEdge(t, stream.Config{})
	e.flag(1)
	given := e.listen().opening
	if len(given) != 1 || given[0] != "id: 4.0" {
		t.Fatalf("a stream begins with %q, want the id 4.0 and no data", given)
	}
	e.flag(2) // while the client has no stream
	back := e.listen("Last-Event-ID", "4.0")
	back.expect(`id: 5.0`, `data: {"type":"refetchEvaluation","etag":"\"5.0\"","module":"switch","revision":"5.0"}`, ``)
	if len(back.opening) != 0 {
		t.Errorf("%q comes before what was missed: it would be lost if the connection broke there", back.opening)
	}
	if again := e.listen("Last-Event-ID", "5.0").opening; len(again) != 1 || again[0] != "id: 5.0" {
		t.Errorf("who missed nothing is told %q", again)
	}
}

func TestStreamsEndWithTheirKeyTheirTimeAndTheEdge(t *testing.T) {
	t.Parallel()
	t.Run("Revoked", func(t *testing.T) {
		t.Parallel()
		e := newEdge(t, stream.Config{Check: 20 * time.Millisecond})
		l := e.listen()
		began := time.Now()
		e.Put(replication.RevokedSubject(apikey.Of(e.Live).String()), state.Revoked{At: time.Now()})
		l.ends()
		if took := time.Since(began); took > time.Second {
			t.Errorf("ends %v after the revocation", took)
		}
		if again := e.listen(); again.response.StatusCode != 401 {
			t.Errorf("%d with the revoked key", again.response.StatusCode)
		}
	})
	t.Run("Old", func(t *testing.T) {
		t.Parallel()
		e := newEdge(t, stream.Config{Life: 100 * time.Millisecond, Heartbeat: 20 * time.Millisecond})
		l := e.listen()
		l.expect(": ping", "", ": ping")
		l.ends()
	})
	t.Run("Edge", func(t *testing.T) {
		t.Parallel()
		e := newEdge(t, stream.Config{})
		l := e.listen()
		e.stop()
		l.ends()
		if l := e.listen(); l.response.StatusCode != 503 {
			t.Errorf("%d from an edge that ends", l.response.StatusCode)
		}
	})
	t.Run("Full", func(t *testing.T) {
		t.Parallel()
		e := newEdge(t, stream.Config{Streams: 1})
		e.listen()
		if l := e.listen(); l.response.StatusCode != 503 || l.response.Header.Get("Retry-After") == "" {
			t.Errorf("%d from a full edge", l.response.StatusCode)
		}
		if got := e.m.Stats(); got != (stream.Stats{Open: 1, AtMost: 1, Refused: 1}) {
			t.Errorf("%+v", got)
		}
	})
}

// A reader who takes nothing loses its stream in the end; meanwhile everybody else hears every change.
func TestASlowReaderHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	e := newEdge(t, stream.Config{Stall: 200 * time.Millisecond})
	small := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		_ = c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10) })
		return err
	}}
	slow, err := small.Dial("tcp", e.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Close() }()
	if _, err := fmt.Fprintf(slow, "GET /api/v1/stream?key=%s HTTP/1.1\r\nHost: x\r\n\r\n", e.Live); err != nil {
		t.Fatal(err)
	}
	quick := e.listen()
	changes, both := int64(0), e.m.Stats().Open == 2
	for ; e.m.Stats().Open == 2 || !both; changes++ {
		both = both || e.m.Stats().Open == 2
		e.flag(changes)
		quick.drain(4 + changes)
		if changes > 100_000 {
			t.Fatal("the slow reader still has its stream")
		}
	}
	e.flag(changes)
	quick.drain(4 + changes)
}

// drain reads until the message of a revision.
func (l *listener) drain(position int64) {
	l.t.Helper()
	want := fmt.Sprintf("id: %d.0", position)
	for l.lines.Scan() {
		if l.lines.Text() == want {
			l.lines.Scan() // data
			l.lines.Scan() // the blank line
			return
		}
	}
	l.t.Fatalf("the stream ends before %q", want)
}

// BenchmarkMemory opens streams and tells what each costs this process, client sides not counted: those are plain
// sockets without buffers of ours.
func BenchmarkMemory(b *testing.B) {
	const streams = 9_000
	e := newEdge(b, stream.Config{})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	conns := make([]net.Conn, 0, streams)
	for b.Loop() {
		for len(conns) < streams {
			c, err := net.Dial("tcp", e.addr)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := fmt.Fprintf(c, "GET /api/v1/stream?key=%s HTTP/1.1\r\nHost: x\r\n\r\n", e.Live); err != nil {
				b.Fatal(err)
			}
			conns = append(conns, c)
		}
		poll := time.NewTicker(time.Millisecond)
		for e.m.Stats().Open < streams {
			<-poll.C
		}
		poll.Stop()
	}
	b.StopTimer()
	for _, c := range conns { // once its first bytes are here, a stream has left the server
		if _, err := c.Read(make([]byte, 1)); err != nil {
			b.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.Sys)/(1<<20), "MB-process")
	b.ReportMetric(float64(after.HeapAlloc+after.StackInuse-before.HeapAlloc-before.StackInuse)/streams, "B/stream")
	for _, c := range conns {
		_ = c.Close()
	}
}
