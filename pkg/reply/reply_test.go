package reply_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"skerry/pkg/reply"
)

func TestIfMatchTakesSeveralLinesForOneList(t *testing.T) {
	t.Parallel()
	tag, err := reply.Tag("resource")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		lines []string
		want  error
	}{
		{nil, nil}, {[]string{tag}, nil}, {[]string{`"x"`, tag}, nil}, {[]string{`"x"`, "*"}, nil},
		{[]string{`"x"`}, reply.ErrPrecondition}, {[]string{`"x"`, "W/" + tag}, reply.ErrPrecondition},
	} {
		r := httptest.NewRequest("PATCH", "/", nil)
		for _, line := range c.lines {
			r.Header.Add("If-Match", line)
		}
		if got := reply.IfMatch(r, "resource"); !errors.Is(got, c.want) {
			t.Errorf("%q: %v, want %v", c.lines, got, c.want)
		}
	}
}

func TestClientThatEndsItsSideIsNoFaultOfOurs(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/gone" {
			<-r.Context().Done()
		}
		reply.Error(w, r, errors.New("of any kind"))
	}))
	t.Cleanup(server.Close)
	for path, want := range map[string]string{"/gone": "HTTP/1.1 499 ", "/here": "HTTP/1.1 500 "} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if path == "/gone" {
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}
		if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), want) || strings.Contains(string(answer), "of any kind") {
			t.Errorf("%s: %s %v, want %s", path, answer, err, want)
		}
	}
}
