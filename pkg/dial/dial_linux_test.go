package dial

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestConnectionsGiveUpAMachineThatIsGone(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	conn, err := GoneAfter(8*time.Second).DialContext(t.Context(), "tcp", server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	option := func(name int) (value int) {
		err := raw.Control(func(fd uintptr) { value, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, name) })
		if err != nil {
			t.Error(err)
		}
		return value
	}
	if ms := option(unix.TCP_USER_TIMEOUT); ms != 8000 {
		t.Errorf("bytes may stay unconfirmed for %d ms", ms)
	}
	if s := option(unix.TCP_KEEPIDLE) + option(unix.TCP_KEEPCNT)*option(unix.TCP_KEEPINTVL); s != 8 {
		t.Errorf("a silent machine is noticed after %d s", s)
	}
}
