package dial

import (
	"net"
	"testing"
	"time"

	"skerry/pkg/dial/dialtest"
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
	unconfirmed, silent := dialtest.Limits(t, conn)
	if unconfirmed != 8*time.Second {
		t.Errorf("bytes may stay unconfirmed for %s", unconfirmed)
	}
	if silent != 8*time.Second {
		t.Errorf("a silent machine is noticed after %s", silent)
	}
}
