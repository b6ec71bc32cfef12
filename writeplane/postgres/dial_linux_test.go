package postgres_test

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

func TestConnectionsGiveUpAServerThatIsGone(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	link := dbtest.NewLink(t, db.App.Config().ConnString()) // by TCP
	through, err := postgres.Open(t.Context(), postgres.Config{URL: link.URL, MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(through.Close)
	conn, err := through.App.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	raw, err := conn.Conn().PgConn().Conn().(*net.TCPConn).SyscallConn()
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
	if ms := option(unix.TCP_USER_TIMEOUT); ms <= 0 || ms > int(time.Minute.Milliseconds()) {
		t.Errorf("bytes may stay unconfirmed for %d ms", ms)
	}
	if s := option(unix.TCP_KEEPIDLE) + option(unix.TCP_KEEPCNT)*option(unix.TCP_KEEPINTVL); s > 60 {
		t.Errorf("a silent machine is noticed after %d s", s)
	}
}
