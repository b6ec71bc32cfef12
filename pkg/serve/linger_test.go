package serve

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// refuses answers without a look at the body.
func refuses(t *testing.T) (address string) {
	t.Helper()
	server := httptest.NewServer(Linger(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
	})))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func TestAnEarlyAnswerWaitsForAClientThatStillSends(t *testing.T) {
	t.Parallel()
	conn, err := net.Dial("tcp", refuses(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const size = 64 << 20
	if _, err := fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", size); err != nil {
		t.Fatal(err)
	}
	piece := make([]byte, 1<<20)
	for sent := 0; sent < size; sent += len(piece) {
		if _, err := conn.Write(piece); err != nil {
			t.Fatalf("after %d bytes: %v", sent, err)
		}
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusUnauthorized || !response.Close {
		t.Errorf("status %d, close %v; want 401 and the end of the connection", response.StatusCode, response.Close)
	}
}

func TestNobodyIsAskedForABodyThatIsNotRead(t *testing.T) {
	t.Parallel()
	conn, err := net.Dial("tcp", refuses(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	status, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || status != "HTTP/1.1 401 Unauthorized\r\n" {
		t.Errorf("first line %q, %v; want the 401 at once", status, err)
	}
}
