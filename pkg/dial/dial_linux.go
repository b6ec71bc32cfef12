package dial

import (
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// giveUpAfter bounds how long sent bytes may stay unconfirmed.
func giveUpAfter(c syscall.RawConn, limit time.Duration) error {
	var refused error
	err := c.Control(func(fd uintptr) {
		refused = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
	})
	return errors.Join(err, refused)
}
