package relay

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
)

// uplink is a connection to the write plane that hears an answer out though it can no
// longer be written to.
//
// A server may answer before it has read the request — no token, too large — and close.
// Its answer then lies in our receive buffer while the rest of the upload runs into a
// reset. net/http takes whichever of the two it sees first, so that a plain 401 would now
// and then be told as "nobody knows what became of it". Here such a reset is not told to
// the writer: what it writes is dropped, and the reader finds the answer, or, when there is
// none, the reset itself.
//
// The first write of a request fails as ever: on a connection that was idle nothing has
// been sent then, and net/http may take another.
type uplink struct {
	net.Conn
	begun atomic.Bool // something of the present request was written
}

// begin tells the connection that a request is about to be written.
func begin(conn net.Conn) {
	if secured, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secured.NetConn() // under TLS
	}
	if up, ok := conn.(*uplink); ok {
		up.begun.Store(false)
	}
}

func (u *uplink) Write(p []byte) (int, error) {
	n, err := u.Conn.Write(p)
	if err != nil && u.begun.Load() && (errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)) {
		return len(p), nil
	}
	if n > 0 {
		u.begun.Store(true)
	}
	return n, err
}

// dialing makes uplinks of what dial connects.
func dialing(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &uplink{Conn: conn}, nil
	}
}
