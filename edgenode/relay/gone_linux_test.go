package relay

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// A request waits at most twenty seconds for a machine that is gone: what it has sent stays unconfirmed.
func TestConnectionsToTheWritePlaneGiveUpAMachineThatIsGone(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	r, err := New(Config{WritePlane: "http://" + server.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	conn, err := r.transport.DialContext(t.Context(), "tcp", server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(*uplink).Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	ms := 0
	if fault := raw.Control(func(fd uintptr) { ms, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }); fault != nil || err != nil {
		t.Fatal(fault, err)
	}
	if ms == 0 || ms > 20_000 {
		t.Errorf("bytes may stay unconfirmed for %d ms", ms)
	}
}
