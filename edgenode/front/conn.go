package front

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// listener wraps every connection it accepts in a conn.
type listener struct {
	net.Listener
	stall time.Duration
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, stall: l.stall}, nil
}

// conn ends when its client takes nothing of an answer for too long, and can end softly.
type conn struct {
	net.Conn
	stall  time.Duration
	until  time.Time   // the write deadline as it is set; only the server's goroutine writes
	linger atomic.Bool // something of the last request was not read

	mu     sync.Mutex // guards the two below: a handler's helper may end a read from outside
	readBy time.Time  // the read deadline that was asked for; zero: none
	armed  time.Time  // the one that the connection below has, never later than readBy; zero: none
}

// NetConn is the connection below.
func (c *conn) NetConn() net.Conn { return c.Conn }

// SetReadDeadline notes the deadline. The server moves it three times a request, nearly always to a later time, and every
// move costs a lock and a timer of the runtime; so the connection below keeps the earlier deadline that it has, and Read
// sets the present one when that has passed.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readBy = t
	if !c.armed.IsZero() && !t.IsZero() && !t.Before(c.armed) {
		return nil
	}
	return c.armLocked()
}

// SetDeadline sets both deadlines.
func (c *conn) SetDeadline(t time.Time) error {
	c.until = t
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) armLocked() error {
	c.armed = c.readBy
	return c.Conn.SetReadDeadline(c.readBy)
}

// Read gives up at the deadline that was asked for, which may be later than the one that woke it.
func (c *conn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if n > 0 || err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || !c.early() {
			return n, err
		}
	}
}

// early tells whether a deadline that has passed was not the one that was asked for, and then sets that one.
func (c *conn) early() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.readBy.IsZero() && !time.Now().Before(c.readBy) {
		return false
	}
	return c.armLocked() == nil
}

// Write sets the deadline anew for every write: an answer may be as long as it wants, as long as it moves. A deadline
// that is still far enough is left alone, since setting it costs more than looking at the clock.
func (c *conn) Write(b []byte) (int, error) {
	if now := time.Now(); c.until.Sub(now) < c.stall/2 {
		c.until = now.Add(c.stall)
		if err := c.SetWriteDeadline(c.until); err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(b)
}

const (
	lingerTime  = 3 * time.Second
	lingerBytes = 64 << 20
)

// Close ends the connection. When the client may still be sending, closing at once would answer its next bytes with a
// reset, which destroys the answer on its way; so the sending side is closed and what comes is thrown away for a while.
func (c *conn) Close() error {
	tcp, ok := c.Conn.(*net.TCPConn)
	if !ok || !c.linger.Swap(false) {
		return c.Conn.Close()
	}
	if err := tcp.CloseWrite(); err != nil {
		return c.Conn.Close()
	}
	_ = tcp.SetReadDeadline(time.Now().Add(lingerTime)) // on failure the copy below ends at once
	_, _ = io.CopyN(io.Discard, tcp, lingerBytes)       // its end is all we wait for
	return tcp.Close()
}
