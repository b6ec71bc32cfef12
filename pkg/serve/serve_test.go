package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func untilDone(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

func TestFirstEndStopsAllAndGivesTheReason(t *testing.T) {
	t.Parallel()
	var g Group
	boom := errors.New("boom")
	ended := false
	g.Add("steady", func(ctx context.Context) error { <-ctx.Done(); ended = true; return nil })
	g.Add("fails", func(context.Context) error { return boom })
	err := g.Run(t.Context())
	if !errors.Is(err, boom) || err.Error() != "fails: boom" {
		t.Errorf("Run: %v, want fails: boom", err)
	}
	if !ended {
		t.Error("Run returned before the other part had ended")
	}
}

func TestEndWithoutReasonIsAnError(t *testing.T) {
	t.Parallel()
	var g Group
	g.Add("quits", func(context.Context) error { return nil })
	g.Add("steady", untilDone)
	if err := g.Run(t.Context()); err == nil || err.Error() != "quits: ended by itself" {
		t.Errorf("Run: %v", err)
	}
}

func TestStopByTheCallerIsNoError(t *testing.T) {
	t.Parallel()
	var g Group
	ctx, cancel := context.WithCancel(t.Context())
	g.Add("one", untilDone)
	g.Add("stops the group", func(ctx context.Context) error { cancel(); <-ctx.Done(); return nil })
	if err := g.Run(ctx); err != nil {
		t.Errorf("Run: %v", err)
	}
}

// A group within another is stopped by the other's fault, which is not its own.
func TestStopForAReasonOfTheCallersIsNoError(t *testing.T) {
	t.Parallel()
	var g Group
	ctx, cancel := context.WithCancelCause(t.Context())
	g.Add("one", untilDone)
	g.Add("stops the group", func(ctx context.Context) error { cancel(errors.New("elsewhere")); <-ctx.Done(); return nil })
	if err := g.Run(ctx); err != nil {
		t.Errorf("Run: %v", err)
	}
}

// serving serves until stop is called, which waits for the server's end. The handler is
// given a context that ends when stop is called.
func serving(t *testing.T, limits Limits, handle func(stopping context.Context, w http.ResponseWriter, r *http.Request)) (address string, stop func()) {
	t.Helper()
	ln, err := Listen("--listen", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handle(ctx, w, r) })
	go func() { served <- HTTP(ctx, ln, handler, limits) }()
	return ln.Addr().String(), func() {
		t.Helper()
		cancel()
		if err := <-served; err != nil {
			t.Errorf("HTTP: %v", err)
		}
	}
}

func TestRequestsUnderWayEndBeforeTheServerDoes(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	address, stop := serving(t, Limits{}, func(stopping context.Context, w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-stopping.Done()
		_, _ = io.WriteString(w, "whole")
	})
	answered := make(chan string, 1)
	go func() {
		res, err := http.Get("http://" + address)
		if err != nil {
			answered <- err.Error()
			return
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		answered <- string(body)
	}()
	<-arrived
	stop()
	if got := <-answered; got != "whole" {
		t.Errorf("answer %q, want whole", got)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestRequestsThatNeverEndAreCutOff(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	address, stop := serving(t, Limits{Drain: time.Millisecond}, func(_ context.Context, _ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	})
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-arrived
	stop()
}

func TestOversizedHeaderIsRefused(t *testing.T) {
	t.Parallel()
	address, stop := serving(t, Limits{Header: 1024}, func(_ context.Context, w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) })
	req, _ := http.NewRequestWithContext(t.Context(), "GET", "http://"+address, nil)
	req.Header.Set("X-Long", strings.Repeat("x", 64<<10))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err == nil {
		res.Body.Close()
		if res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("status %d, want 431", res.StatusCode)
		}
	}
	stop()
}

func TestTakenAddressNamesTheSetting(t *testing.T) {
	t.Parallel()
	ln, err := Listen("--listen", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	address := ln.Addr().String()
	_, err = Listen("--listen-edge", address)
	want := "--listen-edge: listen on " + address + ": bind: address already in use"
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
}

func TestOperatorTellsHealthReadinessStatusAndMetrics(t *testing.T) {
	t.Parallel()
	ready := errors.New("no state yet")
	op := Operator{
		Ready:   func(context.Context) error { return ready },
		Status:  func(context.Context) any { return map[string]int{"position": 7} },
		Metrics: NewRegistry(),
	}
	srv := httptest.NewServer(op.Handler())
	defer srv.Close()
	get := func(path string) (int, string) {
		res, err := srv.Client().Get(srv.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(body)
	}
	for _, c := range []struct {
		path   string
		status int
		body   string
	}{
		{"/healthz", 200, `"status": "ok"`},
		{"/readyz", 503, `"reason": "no state yet"`},
		{"/status", 200, `"position": 7`},
		{"/metrics", 200, "go_goroutines"},
		{"/debug/pprof/", 200, "goroutine"},
		{"/debug/pprof/heap?debug=1", 200, "heap profile"},
		{"/elsewhere", 404, `"error": "not_found"`},
	} {
		if status, body := get(c.path); status != c.status || !strings.Contains(body, c.body) {
			t.Errorf("%s: %d %.80q, want %d with %q", c.path, status, body, c.status, c.body)
		}
	}
	ready = nil
	if status, body := get("/readyz"); status != 200 || !strings.Contains(body, `"ready"`) {
		t.Errorf("/readyz when ready: %d %q", status, body)
	}
}

func TestSecretsInLogLinesAreMasked(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"key sk_live_0123456789abcdef is bad":                "key sk_live_0123… is bad",
		"GET /api/v1/stream?key=sk_test_abcdefgh&x=1":        "GET /api/v1/stream?key=…&x=1",
		"postgres://skerry:topsecret@127.0.0.1:5432/skerry":  "postgres://skerry:…@127.0.0.1:5432/skerry",
		"nats://TOKEN@127.0.0.1:4222":                        "nats://…@127.0.0.1:4222",
		"secret whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw==":    "secret whsec_…",
		"Bearer eyJhbGciOi.eyJzdWIiOi.SflKxwRJ_SMeKKF2QT4fw": "Bearer eyJ…",
		"mail to someone@example.org at http://example.org/": "mail to someone@example.org at http://example.org/",
	} {
		var out bytes.Buffer
		log, err := NewLogger(&out, Logging{Format: "json", Level: "info"})
		if err != nil {
			t.Fatal(err)
		}
		log.Info("x", "value", in, "error", errors.New(in))
		var line struct{ Value, Error string }
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		if line.Value != want || line.Error != want {
			t.Errorf("logged %q and %q, want %q", line.Value, line.Error, want)
		}
	}
}

func TestLogLineCarriesTheRequestID(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := NewLogger(&out, Logging{Format: "text", Level: "info"})
	if err != nil {
		t.Fatal(err)
	}
	log.With("a", 1).LogAttrs(WithRequestID(t.Context(), "r-1"), slog.LevelInfo, "hello")
	if !strings.Contains(out.String(), "request_id=r-1") {
		t.Errorf("line %q lacks the request id", out.String())
	}
}

func TestRequestIDIsKeptOnlyWhenVisible(t *testing.T) {
	t.Parallel()
	if got := RequestID("abc-123"); got != "abc-123" {
		t.Errorf("RequestID: %q, want the caller's", got)
	}
	for _, bad := range []string{"", "with blank", "tab\t", "ümlaut", "line\nbreak", strings.Repeat("x", 129)} {
		if got := RequestID(bad); got == bad || len(got) != 36 {
			t.Errorf("RequestID(%q) = %q, want a fresh UUID", bad, got)
		}
	}
}

func TestWrongLoggingNamesTheWord(t *testing.T) {
	t.Parallel()
	if _, err := NewLogger(io.Discard, Logging{Format: "xml", Level: "info"}); err == nil || !strings.Contains(err.Error(), "xml") {
		t.Errorf("format: %v", err)
	}
	if _, err := NewLogger(io.Discard, Logging{Format: "text", Level: "loud"}); err == nil || !strings.Contains(err.Error(), "loud") {
		t.Errorf("level: %v", err)
	}
}
