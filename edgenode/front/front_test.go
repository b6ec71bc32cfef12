package front

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

// start serves until the test ends and returns the address.
func start(t *testing.T, handler fasthttp.RequestHandler, limits Limits) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, handler, limits) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return ln.Addr().String()
}

// A server that is ended before it has begun does not go on listening.
func TestEndedBeforeItBegan(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if err := Serve(ended, ln, func(*fasthttp.RequestCtx) {}, Limits{}); err != nil {
			t.Error(err)
		}
		if err := ln.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("the listener was still open (%v)", err)
		}
	}
}

// talk sends raw bytes and returns everything that comes back until the server closes the connection.
func talk(t *testing.T, address, sent string) string {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(3 * time.Second))
	if _, err := io.WriteString(c, sent); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if err != nil {
		t.Errorf("%.80q: after %q: %v", sent, got, err)
	}
	return string(got)
}

func TestUnreadBodyIsNeverTheNextRequest(t *testing.T) {
	t.Parallel()
	var served atomic.Int64
	address := start(t, func(ctx *fasthttp.RequestCtx) {
		if string(ctx.Host()) == "x" { // not of another test that asks whether nobody listens on a port that was its own
			served.Add(1)
		}
		ctx.SetStatusCode(401)
	}, Limits{})
	const hidden = "GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
	for name, request := range map[string]string{
		"length":  fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s%s", 100_000, strings.Repeat("a", 9000), hidden),
		"chunked": fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n%s", len(hidden), hidden, hidden),
	} {
		served.Store(0)
		got := talk(t, address, request)
		if served.Load() != 1 || strings.Count(got, "HTTP/1.1") != 1 || !strings.Contains(got, "Connection: close") {
			t.Errorf("%s: %d requests were served: %q", name, served.Load(), got)
		}
	}
}

func TestAnswerArrivesThoughTheBodyIsNotRead(t *testing.T) {
	t.Parallel()
	address := start(t, func(ctx *fasthttp.RequestCtx) {
		ctx.SetStatusCode(403)
		ctx.SetBodyString("no")
	}, Limits{})
	for range 5 {
		resp, err := http.Post("http://"+address, "application/json", bytes.NewReader(make([]byte, 20<<20)))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != 403 || string(body) != "no" {
			t.Errorf("%d %q %v", resp.StatusCode, body, err)
		}
	}
}

func TestRequestsThatCannotBeTrustedAreRefused(t *testing.T) {
	t.Parallel()
	var served atomic.Int64
	address := start(t, func(ctx *fasthttp.RequestCtx) { served.Add(1) }, Limits{})
	for name, c := range map[string]struct {
		request string
		status  string
	}{
		"with an id of its own":          {"POST / HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		"length said two ways":           {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		"and the other way":              {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n", "400"},
		"chunks to a server of old":      {"POST / HTTP/1.0\r\nConnection: keep-alive\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		"a header's end of another kind": {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nA: a\n\nab\r\n\r\n", "400"},
		"a header within a header":       {"POST / HTTP/1.1\r\nHost: x\r\nA: a\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		"two lengths":                    {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", "400"},
		"length with a sign":             {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\nabcde", "400"},
		"strange coding":                 {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "400"},
		"coding twice":                   {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		"two hosts":                      {"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "400"},
		"no request at all":              {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "400"},
		"header too large":               {"GET / HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("a", 20_000) + "\r\n\r\n", "431"},
	} {
		served.Store(0)
		got := talk(t, address, c.request)
		if strings.Contains(c.request, "mine") && !strings.Contains(got, "\r\nX-Request-Id: mine\r\n") {
			t.Errorf("%s: another id than the caller's: %q", name, got)
		}
		if !strings.HasPrefix(got, "HTTP/1.1 "+c.status+" ") || !strings.Contains(got, `{"error":"`) || !requestID.MatchString(got) || served.Load() != 0 {
			t.Errorf("%s: %d served, answer %q", name, served.Load(), got)
		}
	}
}

// requestID is in every answer, also to what is no request: the caller's own or a UUID.
var requestID = regexp.MustCompile(`\r\nX-Request-Id: (mine|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})\r\n`)

func TestBodyReadsWhatItMay(t *testing.T) {
	t.Parallel()
	const limit = 100_000
	address := start(t, func(ctx *fasthttp.RequestCtx) {
		body, err := Body(ctx, nil, limit)
		switch {
		case errors.Is(err, ErrTooLarge):
			ctx.SetStatusCode(413)
		case err != nil:
			ctx.SetStatusCode(400)
		default:
			ctx.SetBody(body)
		}
	}, Limits{})
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for _, size := range []int{0, 1, 8191, 8192, 8193, 70_000, limit, limit + 1, 3 * limit} {
		for _, chunked := range []bool{false, true} {
			want := bytes.Repeat([]byte("x"), size)
			var from io.Reader = bytes.NewReader(want)
			if chunked {
				from = io.MultiReader(from) // of unknown length
			}
			resp, err := client.Post("http://"+address, "text/plain", from)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			switch {
			case err != nil:
				t.Fatal(err)
			case size > limit && resp.StatusCode != 413, size <= limit && (resp.StatusCode != 200 || !bytes.Equal(got, want)):
				t.Errorf("%d bytes, chunked %v: %d with %d bytes", size, chunked, resp.StatusCode, len(got))
			}
		}
	}
}

func TestBodyThatIsCutOffIsAnError(t *testing.T) {
	t.Parallel()
	faults := make(chan error, 1)
	address := start(t, func(ctx *fasthttp.RequestCtx) {
		_, err := Body(ctx, nil, 1<<20)
		faults <- err
	}, Limits{})
	for _, c := range []struct {
		name, request string
		whole         bool
	}{
		{"between chunks", "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", false},
		{"in a chunk", "Transfer-Encoding: chunked\r\n\r\n5\r\n{}", false},
		{"in a length", "Content-Length: 100000\r\n\r\n" + strings.Repeat("1", 50_000), false},
		{"behind the last chunk", "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", true},
	} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\n"+c.request); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if err := <-faults; (err == nil) != c.whole {
			t.Errorf("%s: %v", c.name, err)
		}
		_ = conn.Close()
	}
}

func TestConnectionIsKeptWhenTheBodyWasRead(t *testing.T) {
	t.Parallel()
	address := start(t, func(ctx *fasthttp.RequestCtx) {
		if _, err := Body(ctx, nil, 100); err != nil {
			ctx.SetStatusCode(400)
		}
	}, Limits{})
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	r := bufio.NewReader(c)
	for i, body := range []string{"Content-Length: 3\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "Content-Length: 0\r\n\r\n", "Content-Length: 3\r\n\r\nabc"} {
		if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\n"+body); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != 200 || resp.Close {
			t.Fatalf("request %d: %v %v", i, resp, err)
		}
	}
}

func TestConnectionEndsWhenItsClientSaysSo(t *testing.T) {
	t.Parallel()
	address := start(t, func(ctx *fasthttp.RequestCtx) { ctx.SetBodyString("here") }, Limits{})
	for _, words := range []string{"close", "Close", "TE, close", "close, TE", "x\r\nConnection: close"} {
		got := talk(t, address, "GET / HTTP/1.1\r\nHost: x\r\nConnection: "+words+"\r\n\r\n")
		if !strings.Contains(got, "\r\nConnection: close\r\n") || !strings.HasSuffix(got, "here") {
			t.Errorf("Connection: %s: %q", words, got)
		}
	}
}

func TestOnlyWhoKnowsOfItIsToldToGoOn(t *testing.T) {
	t.Parallel()
	address := start(t, func(ctx *fasthttp.RequestCtx) {
		body, err := Body(ctx, nil, 100)
		if err != nil {
			ctx.SetStatusCode(400)
		}
		ctx.SetBody(body)
	}, Limits{})
	const goOn = "HTTP/1.1 100 Continue\r\n\r\n"
	for name, c := range map[string]struct {
		version, expect string
		told            bool
	}{
		"asks":                    {"1.1", "100-continue", true},
		"asks in capitals":        {"1.1", "100-Continue", true},
		"asks for something else": {"1.1", "more", false},
		"cannot know":             {"1.0", "100-continue", false},
	} {
		got := talk(t, address, "POST / HTTP/"+c.version+"\r\nHost: x\r\nConnection: close\r\nExpect: "+c.expect+"\r\nContent-Length: 4\r\n\r\nbody")
		if strings.HasPrefix(got, goOn) != c.told || !strings.HasSuffix(got, "\r\n\r\nbody") || strings.Count(got, "HTTP/1.1 200") != 1 {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestSlowHeaderIsGivenUp(t *testing.T) {
	t.Parallel()
	address := start(t, func(ctx *fasthttp.RequestCtx) { t.Error("served") }, Limits{Time: 100 * time.Millisecond})
	if got := talk(t, address, "GET / HTTP/1.1\r\nHost: x\r\nA: "); got != "" && !strings.Contains(got, "408") {
		t.Errorf("%q", got)
	}
}

func TestClientThatTakesNothingIsGivenUp(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	address := start(t, func(ctx *fasthttp.RequestCtx) {
		ctx.SetBodyStreamWriter(func(w *bufio.Writer) {
			defer close(over)
			for {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		})
	}, Limits{Stall: 200 * time.Millisecond})
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-over
}

func TestBodyThatDoesNotComeIsGivenUp(t *testing.T) {
	t.Parallel()
	faults := make(chan error, 1)
	address := start(t, func(ctx *fasthttp.RequestCtx) {
		_, err := Body(ctx, nil, 1<<30)
		faults <- err
		ctx.SetStatusCode(400)
	}, Limits{Time: 100 * time.Millisecond})
	for name, head := range map[string]string{
		"length":  fmt.Sprintf("Content-Length: %d\r\n\r\n%s", 400<<20, strings.Repeat("a", 20_000)),
		"chunked": "Transfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n",
	} {
		got := talk(t, address, "POST / HTTP/1.1\r\nHost: x\r\n"+head)
		if err := <-faults; err == nil || !strings.HasPrefix(got, "HTTP/1.1 400 ") {
			t.Errorf("%s: %v, answer %q", name, err, got)
		}
	}
}
