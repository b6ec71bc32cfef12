package postgres

import (
	"net"
	"strings"
	"syscall"
	"time"
)

// A machine that is gone without a word is noticed late: TCP repeats what it has not
// confirmed for a quarter of an hour. Whoever waits for its answer meanwhile does not
// get to the one that has taken its place. So a connection ends when the other side
// has confirmed nothing for so long. (One that confirms and does not answer is the
// Watch's matter.)
const goneAfter = time.Minute

func dialer() *net.Dialer {
	return &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: goneAfter / 4, Interval: goneAfter / 4, Count: 3},
		Control: func(network, _ string, c syscall.RawConn) error {
			if !strings.HasPrefix(network, "tcp") {
				return nil
			}
			return giveUpAfter(c, goneAfter)
		},
	}
}
