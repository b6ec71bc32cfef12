//go:build unix

package relay

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// closedByPeer looks, without reading, whether the other side has closed the connection.
func closedByPeer(c net.Conn) bool {
	for {
		inner, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		c = inner.NetConn()
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	closed := false
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		closed = (n == 0 && err == nil) || errors.Is(err, unix.ECONNRESET)
	})
	return closed || err != nil
}
