package front

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// conn ends when its client sends a request too slowly, asks nothing for too long or
// takes nothing of an answer, and can end softly.
//
// The server could set the deadlines for reading by itself. It does so two or three times
// a request, each time by the clock, where reading the clock at every answer is enough.
type conn struct {
	net.Conn
	limits *Limits
	open   *atomic.Int64 // connections of the listener; nil: not counted
	gone   atomic.Bool   // not among them any more
	asked  time.Time     // when the last answered request had come
	wrote  time.Time     // when the last answer began to leave; zero: none has since the last request
	until  time.Time     // the write deadline as it is set; only the server's goroutine writes
	linger atomic.Bool   // something of the last request was not read
	ended  bool          // the client has sent its last byte; only who reads touches it
	credit time.Duration // for which a body that is being read may still let its reader wait; only who reads touches it

	mu      sync.Mutex // guards all below: a handler's helper may end a read from outside
	expects expectation
	readBy  time.Time // the read deadline that was asked for; zero: none
	armed   time.Time // the one that the connection below has, never later than readBy; zero: none
}

// expectation is what the next read waits for.
type expectation uint8

const (
	restOfRequest expectation = iota // or the first request of a connection: it has Limits.Time from now
	nextRequest                      // it may come within Limits.Idle after the answer
	restOfBody                       // that a handler reads: it has to come at a pace
	asSet                            // what the deadline is for that was set
)

// NetConn is the connection below.
func (c *conn) NetConn() net.Conn { return c.Conn }

// SetReadDeadline sets a deadline that holds until the request is answered.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expects = asSet
	return c.readByLocked(t)
}

// SetDeadline sets both deadlines.
func (c *conn) SetDeadline(t time.Time) error {
	c.until = t
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// readByLocked notes the deadline. Nearly always it moves to a later time, and every move
// costs a lock and a timer of the runtime; so the connection below keeps the earlier
// deadline that it has, and Read sets the present one when that has passed.
func (c *conn) readByLocked(t time.Time) error {
	c.readBy = t
	if !c.armed.IsZero() && !t.IsZero() && !t.Before(c.armed) {
		return nil
	}
	return c.armLocked()
}

func (c *conn) armLocked() error {
	c.armed = c.readBy
	return c.Conn.SetReadDeadline(c.readBy)
}

// answered is called when a handler is done with the request that had come at a time:
// what is read now belongs to the next one.
func (c *conn) answered(asked time.Time) {
	c.asked, c.wrote = asked, time.Time{}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expects = nextRequest
}

// receive is called when a handler begins with a body of which more is to come. It may
// keep its reader waiting for Limits.Time, and a second more for each 32 KiB that have
// come, but for no more than twice Limits.Time at once. The announced length earns
// nothing: it costs its sender nothing either. Nor does it count how long a reader takes.
func (c *conn) receive() {
	c.credit = c.limits.Time
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expects = restOfBody
}

// expect sets the deadline of the read that begins, and tells what that waits for.
func (c *conn) expect() (expectation, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	what := c.expects
	switch what {
	case nextRequest:
		from := c.wrote
		if from.IsZero() { // a part of this request came with the last one, whose answer has not left
			from = time.Now()
		}
		c.expects = restOfRequest
		return what, c.readByLocked(from.Add(c.limits.Idle))
	case restOfRequest:
		c.expects = asSet
		return what, c.readByLocked(time.Now().Add(c.limits.Time))
	case restOfBody:
		return what, c.readByLocked(time.Now().Add(c.credit))
	}
	return what, nil
}

// quick is how long a request takes at most that waits for nothing.
const quick = 500 * time.Microsecond

// Read gives up at the deadline of what it waits for, which may be later than the one
// that woke it.
func (c *conn) Read(b []byte) (int, error) {
	what, err := c.expect()
	if err != nil {
		return 0, err
	}
	switch what {
	case restOfBody:
		begun := time.Now()
		n, err := c.read(b)
		earned := time.Duration(n) * (time.Second / slowest)
		c.credit = min(c.credit-time.Since(begun)+earned, 2*c.limits.Time)
		return n, err
	case nextRequest:
		// A read right after an answer would find nothing yet, and would be repeated when
		// the poller knows of more. On a busy core the next request is there when the
		// other connections have had their turn: 1.3 reads a request instead of 2. Not so
		// after an answer that had to wait: it is one of hundreds that waited for the
		// disk and leave together, and if all of them let others go first, whoever writes
		// to the disk would come last.
		if c.wrote.Sub(c.asked) < quick {
			runtime.Gosched()
		}
	}
	return c.read(b)
}

func (c *conn) read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		c.ended = c.ended || err == io.EOF
		if n > 0 || err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || !c.early() {
			return n, err
		}
	}
}

// early tells whether a deadline that has passed was not the one that was asked for, and
// then sets that one.
func (c *conn) early() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.readBy.IsZero() && !time.Now().Before(c.readBy) {
		return false
	}
	return c.armLocked() == nil
}

// piece is how much of an answer has Limits.Stall to leave.
const piece = 64 << 10

// Write sets the deadline anew for every piece: an answer may be as long as it wants, as
// long as it moves. A deadline that is still far enough is left alone, since setting it
// costs more than looking at the clock.
func (c *conn) Write(b []byte) (int, error) {
	c.wrote = time.Now()
	now, written := c.wrote, 0
	for {
		if c.until.Sub(now) < c.limits.Stall {
			c.until = now.Add(c.limits.Stall * 3 / 2)
			if err := c.SetWriteDeadline(c.until); err != nil {
				return written, err
			}
		}
		n, err := c.Conn.Write(b[written:min(written+piece, len(b))])
		written += n
		if err != nil || written == len(b) {
			return written, err
		}
		now = time.Now()
	}
}

const (
	lingerTime  = 3 * time.Second
	lingerBytes = 64 << 20
)

// Close ends the connection. When the client may still be sending, closing at once would
// answer its next bytes with a reset, which destroys the answer on its way; so the
// sending side is closed and what comes is thrown away for a while.
func (c *conn) Close() error {
	defer c.leave()
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

func (c *conn) leave() {
	if c.open != nil && !c.gone.Swap(true) {
		c.open.Add(-1)
	}
}
