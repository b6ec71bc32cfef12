package front

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"skerry/pkg/serve"
)

// listener wraps every connection it accepts in a conn.
//
// It keeps connections from taking all the files that the process may open: without a
// free one the stores cannot write to the disk, and end the process. A connection past
// the bound is told so and ended.
type listener struct {
	net.Listener
	limits *Limits
	open   atomic.Int64 // connections that have not been closed
	warned time.Time    // when the log was last told of a shortage; only who accepts touches it
}

// shortagePause is how long nothing is accepted when the system has run out of something
// that others will give back.
const shortagePause = 50 * time.Millisecond

// Accept fails only when the listener is of no more use.
func (l *listener) Accept() (net.Conn, error) {
	for {
		below, err := l.Listener.Accept()
		switch {
		case err != nil && shortage(err):
			l.warn("no connections can be accepted", "error", err)
			time.Sleep(shortagePause)
		case err != nil:
			return nil, err
		case l.open.Add(1) > int64(l.limits.Connections):
			l.warn("connections are turned away", "open", l.limits.Connections)
			turnAway(below)
			l.open.Add(-1)
		default:
			return &conn{Conn: below, limits: l.limits, open: &l.open}, nil
		}
	}
}

// shortage tells whether an error says that something is lacking at present. fasthttp
// would end the server for it.
func shortage(err error) bool {
	for _, passing := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// turnAway answers a connection before it has asked. What was not read may cost the
// client the answer; nobody waits here for its sake.
func turnAway(c net.Conn) {
	const body = `{"error":"Service temporarily unavailable"}`
	_ = c.SetWriteDeadline(time.Now().Add(time.Second)) // an empty connection takes a short answer at once
	_, _ = fmt.Fprintf(c, "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: application/json\r\n"+
		"X-Request-Id: %s\r\nContent-Length: %d\r\n\r\n%s", serve.RequestID(""), len(body), body)
	_ = c.Close()
}

// warn tells the log once a minute.
func (l *listener) warn(message string, args ...any) {
	if now := time.Now(); now.Sub(l.warned) > time.Minute {
		l.warned = now
		slog.Warn(message, append(args, "address", l.Addr().String())...)
	}
}
