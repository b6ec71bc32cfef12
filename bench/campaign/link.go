package campaign

import (
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link is the line between an edge and one server of the centre: a TCP proxy that can
// be cut, slowed or made to lose what it carries.
type link struct {
	listener net.Listener
	targets  []string // several: each connection goes to the next one that answers
	turn     atomic.Int64
	cut      atomic.Bool
	delay    atomic.Int64 // nanoseconds before each piece is passed on
	loss     atomic.Int64 // pieces of 1000 that are lost, and their connection with them

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	out   map[string]bool // targets that get no new connections
	group sync.WaitGroup
}

func newLink(targets ...string) (*link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &link{listener: listener, targets: targets, out: map[string]bool{}, conns: map[net.Conn]struct{}{}}
	l.group.Go(l.accept)
	return l, nil
}

func (l *link) address() string { return l.listener.Addr().String() }

func (l *link) accept() {
	for {
		conn, err := l.listener.Accept()
		if err != nil {
			return
		}
		if l.cut.Load() {
			_ = conn.Close()
			continue
		}
		l.group.Go(func() { l.pass(conn) })
	}
}

func (l *link) pass(near net.Conn) {
	defer func() { _ = near.Close() }()
	far := l.dial()
	if far == nil {
		return
	}
	defer func() { _ = far.Close() }()
	if !l.hold(near, far) {
		return
	}
	defer l.release(near, far)
	var both sync.WaitGroup
	both.Go(func() { l.copy(far, near) })
	both.Go(func() { l.copy(near, far) })
	both.Wait()
}

// dial connects to the target whose turn it is, or to the next one that is there.
func (l *link) dial() net.Conn {
	first := int(l.turn.Add(1))
	for i := range l.targets {
		target := l.targets[(first+i)%len(l.targets)]
		l.mu.Lock()
		out := l.out[target]
		l.mu.Unlock()
		if out {
			continue
		}
		if far, err := net.DialTimeout("tcp", target, time.Second); err == nil {
			return far
		}
	}
	return nil
}

// drain keeps new connections from a target, as a load balancer does before a restart.
func (l *link) drain(target string, out bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out[target] = out
}

func (l *link) copy(to, from net.Conn) {
	defer func() { _, _ = to.Close(), from.Close() }()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if rand.Int64N(1000) < l.loss.Load() {
				return // TCP repairs what it can: what it cannot, ends the connection
			}
			time.Sleep(time.Duration(l.delay.Load()))
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// hold keeps connections for sever; false when the link is cut.
func (l *link) hold(conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut.Load() {
		return false
	}
	for _, c := range conns {
		l.conns[c] = struct{}{}
	}
	return true
}

func (l *link) release(conns ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conns {
		delete(l.conns, c)
	}
}

// sever cuts the link: what is open breaks, what is new is refused.
func (l *link) sever() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut.Store(true)
	for c := range l.conns {
		_ = c.Close()
	}
}

// mend makes the link whole and fast again.
func (l *link) mend() {
	l.cut.Store(false)
	l.delay.Store(0)
	l.loss.Store(0)
}

func (l *link) close() {
	_ = l.listener.Close()
	l.sever()
	l.group.Wait()
}

// links are the lines to all nodes of the streams.
type links []*link

func (all links) addresses() []string {
	at := make([]string, len(all))
	for i, l := range all {
		at[i] = l.address()
	}
	return at
}

func (all links) sever() {
	for _, l := range all {
		l.sever()
	}
}

func (all links) mend() {
	for _, l := range all {
		l.mend()
	}
}

func (all links) slow(delay time.Duration) {
	for _, l := range all {
		l.delay.Store(int64(delay))
	}
}

func (all links) lose(perMille int64) {
	for _, l := range all {
		l.loss.Store(perMille)
	}
}
