package serve

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

func TestHandlerAnswersTheAsteriskToo(t *testing.T) {
	t.Parallel()
	ln, err := Listen("--listen", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- HTTP(ctx, ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Error(w, r.URL.Path, http.StatusTeapot) }), Limits{})
	}()
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 418 ") || !strings.HasSuffix(string(answer), "\r\n*\n") {
		t.Errorf("%q %v", answer, err)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
