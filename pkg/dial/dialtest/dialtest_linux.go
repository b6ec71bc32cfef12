// Package dialtest tells tests when a connection gives its other side up.
package dialtest

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Limits are how long bytes may stay unconfirmed before the connection ends, and how long
// the other side may be silent while nothing is sent.
func Limits(t testing.TB, conn net.Conn) (unconfirmed, silent time.Duration) {
	t.Helper()
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
	return time.Duration(option(unix.TCP_USER_TIMEOUT)) * time.Millisecond,
		time.Duration(option(unix.TCP_KEEPIDLE)+option(unix.TCP_KEEPCNT)*option(unix.TCP_KEEPINTVL)) * time.Second
}
