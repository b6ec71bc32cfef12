package relay

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"skerry/edgenode/edgetest"
	"skerry/edgenode/front"
	"skerry/edgenode/gate"
)

func TestMain(m *testing.M) { edgetest.Main(m) }

// edge is a server that relays everything to the write plane, by its address.
func edge(t *testing.T, writePlane string) string {
	t.Helper()
	return patientEdge(t, writePlane, 0)
}

func patientEdge(t *testing.T, writePlane string, patience time.Duration) string {
	t.Helper()
	return relayed(t, Config{WritePlane: writePlane, Patience: patience})
}

// relayed is edge with more of a configuration.
func relayed(t *testing.T, config Config) string {
	t.Helper()
	g := gate.New(gate.Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}})
	config.ClientIP, config.Log = g.ClientIP, slog.New(slog.DiscardHandler)
	r, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- front.Serve(ctx, ln, func(ctx *fasthttp.RequestCtx) { g.Begin(ctx); r.Handle(ctx) }, front.Limits{})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := r.InFlight(); n != 0 {
			t.Errorf("%d requests are still counted", n)
		}
		r.Close()
	})
	return ln.Addr().String()
}

func writePlane(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.URL
}

// client keeps no connections, so that every test's goroutines end with it.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}

func do(t *testing.T, method, url string, body io.Reader, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(got)
}

func TestRequestAndAnswerPassUnchanged(t *testing.T) {
	t.Parallel()
	address := edge(t, writePlane(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/problem")
		w.Header().Set("ETag", `"7"`)
		w.Header().Add("Set-Cookie", "a=1")
		w.Header().Add("Set-Cookie", "b=2")
		w.WriteHeader(418)
		_, _ = fmt.Fprintf(w, "%s %s %s %s", r.Method, r.RequestURI, r.Header.Get("Authorization"), body)
	}))
	resp, got := do(t, "PATCH", "http://"+address+"/api/v1/x%2Fy/a..b?q=%20&&r", strings.NewReader("hello"), "Authorization", "Bearer t")
	if got != "PATCH /api/v1/x%2Fy/a..b?q=%20&&r Bearer t hello" || resp.StatusCode != 418 {
		t.Errorf("%d %q", resp.StatusCode, got)
	}
	if resp.Header.Get("ETag") != `"7"` || resp.Header.Get("Content-Type") != "application/problem" || len(resp.Header.Values("Set-Cookie")) != 2 {
		t.Errorf("%v", resp.Header)
	}
}

func TestHeadTellsTheLengthThatGetHas(t *testing.T) {
	t.Parallel()
	for _, length := range []int{0, 1, small, small + 1} {
		address := edge(t, writePlane(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(length))
			_, _ = w.Write(make([]byte, length)) // nothing of it leaves for HEAD
		}))
		if resp, got := do(t, "HEAD", "http://"+address+"/x", nil); resp.ContentLength != int64(length) || got != "" {
			t.Errorf("%d bytes: %d, %q", length, resp.ContentLength, got)
		}
	}
}

// An answer of unknown length goes out in chunks: not to a client of HTTP/1.0, and not where nothing comes.
func TestAnswerOfUnknownLengthEndsWhereItsClientSeesTheEnd(t *testing.T) {
	t.Parallel()
	address := edge(t, writePlane(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush() // so that the length is not known
		_, _ = io.WriteString(w, "hello")
	}))
	for name, c := range map[string]struct{ request, ends string }{
		"chunks":   {"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "\r\n\r\n5\r\nhello\r\n0\r\n\r\n"},
		"HTTP/1.0": {"GET / HTTP/1.0\r\nHost: x\r\n\r\n", "\r\n\r\nhello"},
		"HEAD":     {"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "\r\nConnection: close\r\n\r\n"},
	} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, c.request); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(conn)
		_ = conn.Close()
		if err != nil || !strings.HasSuffix(string(got), c.ends) || strings.HasSuffix(string(got), "\r\n\r\n\r\n") ||
			strings.Contains(string(got), "chunked") != (name == "chunks") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestWhoAsksIsSaidByTheEdgeAlone(t *testing.T) {
	t.Parallel()
	address := edge(t, writePlane(t, func(w http.ResponseWriter, r *http.Request) {
		for _, h := range []string{"X-Forwarded-For", "X-Real-Ip", "Forwarded", "X-Request-Id", "Connection", "Secret", "Te", "Upgrade", "Keep-Alive", "Proxy-Authorization"} {
			_, _ = fmt.Fprintf(w, "%s=%s;", h, strings.Join(r.Header.Values(h), "|"))
		}
	}))
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, err = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 9.9.9.9\r\nX-Real-Ip: 9.9.9.9\r\nForwarded: for=9.9.9.9\r\n"+
		"X-Request-Id: mine-1\r\nConnection: Secret, keep-alive\r\nSecret: x\r\nTe: trailers\r\nUpgrade: h2c\r\nKeep-Alive: 9\r\nProxy-Authorization: x\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	want := "X-Forwarded-For=127.0.0.1;X-Real-Ip=;Forwarded=;X-Request-Id=mine-1;Connection=;Secret=;Te=;Upgrade=;Keep-Alive=;Proxy-Authorization=;"
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if id := resp.Header.Values("X-Request-Id"); len(id) != 1 || id[0] != "mine-1" {
		t.Errorf("the answer's id: %v", id)
	}
}

func TestLargeBodiesStreamBothWays(t *testing.T) {
	t.Parallel()
	const size = 48 << 20
	address := edge(t, writePlane(t, func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		n, err := io.Copy(sum, r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("X-Sum", fmt.Sprintf("%d %x", n, sum.Sum(nil)))
		for range size / (1 << 20) {
			_, _ = w.Write(make([]byte, 1<<20))
		}
	}))
	for _, chunked := range []bool{false, true} {
		sent := bytes.Repeat([]byte("0123456789abcdef"), size/16)
		var from io.Reader = bytes.NewReader(sent)
		if chunked {
			from = io.MultiReader(from)
		}
		resp, got := do(t, "POST", "http://"+address+"/", from)
		if want := fmt.Sprintf("%d %x", size, sha256.Sum256(sent)); resp.Header.Get("X-Sum") != want || len(got) != size {
			t.Errorf("chunked %v: sent %s, want %s; got %d bytes", chunked, resp.Header.Get("X-Sum"), want, len(got))
		}
	}
}

// answersEarly is an edge before a write plane that answers without reading the body, and keeps the connection until the
// test has seen the answer.
func answersEarly(t *testing.T, status, body string) (address string, answered chan struct{}) {
	answered = make(chan struct{})
	return edge(t, writePlane(t, func(w http.ResponseWriter, r *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = fmt.Fprintf(c, "HTTP/1.1 %s\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
		<-answered
		_ = c.Close()
	})), answered
}

func TestEarlyAnswerArrivesThoughTheBodyIsNotRead(t *testing.T) {
	t.Parallel()
	address, answered := answersEarly(t, "413 Too Large", `{"error":"payload_too_large"}`)
	for range 3 {
		resp, got := do(t, "POST", "http://"+address+"/", bytes.NewReader(make([]byte, 30<<20)))
		if resp.StatusCode != 413 || got != `{"error":"payload_too_large"}` {
			t.Errorf("%d %q", resp.StatusCode, got)
		}
		answered <- struct{}{}
	}
}

// The client sends the rest only when it has its answer.
func TestEarlyAnswerArrivesThoughTheClientStopsSending(t *testing.T) {
	t.Parallel()
	address, answered := answersEarly(t, "401 Unauthorized", `{"error":"Invalid token"}`)
	for range 3 {
		rest, end := io.Pipe()
		resp, got := do(t, "POST", "http://"+address+"/", io.MultiReader(bytes.NewReader(make([]byte, 100_000)), rest))
		_ = end.Close()
		if resp.StatusCode != 401 || got != `{"error":"Invalid token"}` {
			t.Errorf("%d %q", resp.StatusCode, got)
		}
		answered <- struct{}{}
	}
}

// A server that answers before it has read the body and closes at once resets the connection under the upload. The
// answer was sent before, so it is the answer, and not that nobody knows what became of the request.
func TestEarlyAnswerArrivesThoughTheConnectionIsResetUnderTheUpload(t *testing.T) {
	t.Parallel()
	address := edge(t, writePlane(t, func(w http.ResponseWriter, r *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		const body = `{"error":"Invalid token"}`
		_, _ = fmt.Fprintf(c, "HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		_ = c.Close() // with the upload unread
	}))
	for range 20 {
		resp, got := do(t, "POST", "http://"+address+"/", bytes.NewReader(make([]byte, 4<<20)))
		if resp.StatusCode != 401 || got != `{"error":"Invalid token"}` {
			t.Fatalf("%d %q", resp.StatusCode, got)
		}
	}
}

func TestAwayIs503AndUnknownFateIs502(t *testing.T) {
	t.Parallel()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	broken := writePlane(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_ = c.Close()
	})
	for _, c := range []struct {
		name, method, writePlane string
		status                   int
		body                     string
	}{
		{"away, a write", "POST", "http://" + gone.Addr().String(), 503, `{"error":"Service temporarily unavailable"}`},
		{"away, a read", "GET", "http://" + gone.Addr().String(), 503, `{"error":"Service temporarily unavailable"}`},
		{"broke off, a write", "POST", broken, 502, `{"error":"bad_gateway","message":"the request was passed on and no answer came back: it may or may not have taken effect"}`},
		{"broke off, a read", "GET", broken, 503, `{"error":"Service temporarily unavailable"}`},
	} {
		resp, got := do(t, c.method, "http://"+edge(t, c.writePlane)+"/", strings.NewReader("x"))
		if resp.StatusCode != c.status || got != c.body || resp.Header.Get("Content-Type") != "application/json" || resp.Header.Get("X-Request-Id") == "" {
			t.Errorf("%s: %d %q %v", c.name, resp.StatusCode, got, resp.Header)
		}
	}
}

func TestEventsArriveAsTheyAreSent(t *testing.T) {
	t.Parallel()
	more := make(chan struct{})
	address := edge(t, writePlane(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 3 {
			_, _ = io.WriteString(w, "data: x\n\n")
			_ = http.NewResponseController(w).Flush()
			<-more
		}
	}))
	resp, err := client.Get("http://" + address + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	r := bufio.NewReader(resp.Body)
	for range 3 {
		if line, err := r.ReadString('\n'); err != nil || line != "data: x\n" {
			t.Fatalf("%q %v", line, err)
		}
		_, _ = r.ReadString('\n')
		more <- struct{}{}
	}
}

// TestClientThatGoesAwayEndsItsRequest: while it uploads, while it waits, while it downloads.
func TestClientThatGoesAwayEndsItsRequest(t *testing.T) {
	t.Parallel()
	began, ended := make(chan struct{}), make(chan struct{})
	address := edge(t, writePlane(t, func(w http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		switch r.URL.Path {
		case "/upload":
			_, _ = io.Copy(io.Discard, r.Body)
		case "/wait":
			<-r.Context().Done()
		case "/download":
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					break
				}
			}
		}
		ended <- struct{}{}
	}))
	for _, c := range []struct{ path, request string }{
		{"/upload", "POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("x", 50_000)},
		{"/wait", "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"},
		{"/download", "GET /download HTTP/1.1\r\nHost: x\r\n\r\n"},
	} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, c.request); err != nil {
			t.Fatal(err)
		}
		<-began
		_ = conn.Close()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s goes on without its client", c.path)
		}
	}
}

// frozen is a write plane that takes connections, answers as far as it is told to and then nothing, like a stopped process.
func frozen(t *testing.T, says string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var open sync.WaitGroup
	over := make(chan struct{})
	open.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			open.Go(func() {
				defer func() { _ = c.Close() }()
				if line, err := bufio.NewReader(c).ReadString('\n'); err == nil && !strings.Contains(line, "jwks") {
					_, _ = io.WriteString(c, says)
				}
				<-over
			})
		}
	})
	t.Cleanup(func() { close(over); _ = ln.Close(); open.Wait() })
	return "http://" + ln.Addr().String()
}

// A client that ends in the middle of its body has not sent a whole one, however it said its length, and one that sends no
// chunks where it said so has sent none. Both are the client's fault.
func TestBodyThatIsCutOffIsNotTakenForWhole(t *testing.T) {
	t.Parallel()
	address := edge(t, writePlane(t, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			t.Error("the write plane has read a whole body")
		}
	}))
	for name, request := range map[string]string{
		"chunks":   "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"no chunk": "Transfer-Encoding: chunked\r\n\r\n",
		"length":   "Content-Length: 100000\r\n\r\n" + strings.Repeat("x", 50_000),
		"no size":  "Transfer-Encoding: chunked\r\n\r\nhello\r\n",
	} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\n"+request); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 400 ") || !strings.HasSuffix(string(got), `{"error":"bad_request"}`) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		_ = conn.Close()
	}
}

func TestAWritePlaneThatAnswersNobodyHoldsNoRequest(t *testing.T) {
	t.Parallel()
	address := patientEdge(t, frozen(t, ""), 100*time.Millisecond)
	for _, c := range []struct {
		name, method string
		body         io.Reader
		status       int
	}{
		{"a read", "GET", nil, 503},
		{"a write", "POST", strings.NewReader("{}"), 502},
		{"an upload that it does not take", "POST", bytes.NewReader(make([]byte, 64<<20)), 502},
	} {
		if resp, got := do(t, c.method, "http://"+address+"/", c.body); resp.StatusCode != c.status {
			t.Errorf("%s: %d %q, want %d", c.name, resp.StatusCode, got, c.status)
		}
	}
}

func TestAnswerThatStopsInTheMiddleIsNotTakenForWhole(t *testing.T) {
	t.Parallel()
	for name, head := range map[string]string{
		"length": fmt.Sprintf("Content-Length: %d\r\n\r\n%s", 10*small, strings.Repeat("x", 2*small)),
		"chunks": "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
	} {
		resp, err := client.Get("http://" + patientEdge(t, frozen(t, "HTTP/1.1 200 OK\r\n"+head), 100*time.Millisecond) + "/")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err == nil || len(got) == 0 {
			t.Errorf("%s: %d bytes taken for the whole", name, len(got))
		}
	}
	for method, want := range map[string]int{"GET": 503, "POST": 502} { // a short one has not begun to leave
		resp, got := do(t, method, "http://"+patientEdge(t, frozen(t, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello"), 100*time.Millisecond)+"/", nil)
		if resp.StatusCode != want {
			t.Errorf("%s: %d %q, want %d", method, resp.StatusCode, got, want)
		}
	}
}

// One request that takes long is no sign that the write plane is gone, as long as it answers anything.
func TestOneSlowAnswerIsWaitedFor(t *testing.T) {
	t.Parallel()
	questions := make(chan struct{}, 100)
	address := patientEdge(t, writePlane(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "jwks") {
			questions <- struct{}{}
			return
		}
		for range 2 { // so often it was asked meanwhile
			<-questions
		}
		_, _ = io.WriteString(w, "at last")
	}), time.Second)
	if resp, got := do(t, "POST", "http://"+address+"/", strings.NewReader("x")); resp.StatusCode != 200 || got != "at last" {
		t.Errorf("%d %q", resp.StatusCode, got)
	}
}

// A connection that was idle may have been closed just when a request went out on it: net/http then sends what only reads
// once more, and what its client calls repeatable, which is not for a relay to believe.
func TestWhatWritesIsNeverSentTwice(t *testing.T) {
	t.Parallel()
	for _, header := range []string{"Idempotency-Key", "X-Idempotency-Key", "Other"} {
		var writes atomic.Int64
		address := edge(t, writePlane(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == "GET" {
				return // and the connection stays open
			}
			writes.Add(1)
			if r.Header.Get(header) != "k" {
				t.Errorf("%s was not passed on", header)
			}
			c, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_ = c.Close()
		}))
		do(t, "GET", "http://"+address+"/", nil)
		if resp, got := do(t, "POST", "http://"+address+"/", nil, header, "k"); resp.StatusCode != 502 || writes.Load() != 1 {
			t.Errorf("%s: %d %q after %d writes, want 502 after one", header, resp.StatusCode, got, writes.Load())
		}
	}
}

func TestHeaderThatCannotBePassedOnIsTheClientsFault(t *testing.T) {
	t.Parallel()
	address := edge(t, writePlane(t, func(http.ResponseWriter, *http.Request) { t.Error("passed on") }))
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nA B: c\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 400 ") {
		t.Errorf("%q, %v", got, err)
	}
}

func TestAddressOfTheWritePlaneIsChecked(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "localhost:8090", "ftp://x", "http://", "http://x/path", "http://x?y=z", "http://user:secret@%zz"} {
		err := Config{WritePlane: bad}.Validate()
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
