// Package dial opens TCP connections that notice when the other machine is gone.
//
// A machine that is gone without a word is noticed late: TCP repeats what it has not
// confirmed for a quarter of an hour. Whoever waits for its answer meanwhile does not
// get to the one that has taken its place. So a connection ends when the other side
// has confirmed nothing for so long. One that confirms and does not answer is not
// noticed here.
package dial

import (
	"net"
	"strings"
	"syscall"
	"time"
)

// GoneAfter returns a dialer whose connections end when nothing was confirmed for a time.
// Systems other than Linux notice it on connections that wait for an answer, not on those
// that are being written to.
func GoneAfter(limit time.Duration) *net.Dialer {
	return &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: limit / 4, Interval: limit / 4, Count: 3},
		Control: func(network, _ string, c syscall.RawConn) error {
			if !strings.HasPrefix(network, "tcp") {
				return nil
			}
			return giveUpAfter(c, limit)
		},
	}
}
