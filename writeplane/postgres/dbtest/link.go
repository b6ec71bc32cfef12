package dbtest

import (
	"errors"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// Link stands between a test and its database. While it is held it takes connections and
// bytes and passes on only what the test lets through, as a frozen server or a cut
// network does.
type Link struct {
	URL string // of the database, through the link
	// Dialled is how many connections were begun.
	Dialled atomic.Int64

	listener net.Listener
	server   string
	group    sync.WaitGroup

	mu     sync.Mutex
	moved  *sync.Cond // the three below have changed
	held   bool       // answers wait
	dumb   bool       // requests wait, too
	closed bool
	open   map[net.Conn]bool
}

// NewLink makes a link to the database of a URL.
func NewLink(t testing.TB, rawURL string) *Link {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	l := &Link{server: u.Host, open: map[net.Conn]bool{}}
	l.moved = sync.NewCond(&l.mu)
	if l.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	u.Host = l.listener.Addr().String()
	l.URL = u.String()
	l.group.Go(l.accept)
	t.Cleanup(func() {
		_ = l.listener.Close()
		l.set(func() { l.closed = true })
		l.Break()
		l.group.Wait()
	})
	return l
}

// Hold keeps back what the database answers, and with requests set also what it is asked.
func (l *Link) Hold(requests bool) { l.set(func() { l.held, l.dumb = true, requests }) }

// Release passes everything on again, what was kept back first.
func (l *Link) Release() { l.set(func() { l.held, l.dumb = false, false }) }

// Break ends all connections.
func (l *Link) Break() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		_ = c.Close()
	}
}

func (l *Link) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	l.moved.Broadcast()
}

func (l *Link) accept() {
	for {
		client, err := l.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		l.Dialled.Add(1)
		server, err := net.Dial("tcp", l.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		l.group.Go(func() { l.pass(server, client, func() bool { return l.dumb }) })
		l.group.Go(func() { l.pass(client, server, func() bool { return l.held }) })
	}
}

// pass copies one direction until it ends, waiting while it is to wait.
func (l *Link) pass(to, from net.Conn, wait func() bool) {
	l.set(func() { l.open[from] = true })
	defer func() {
		_, _ = to.Close(), from.Close()
		l.set(func() { delete(l.open, from) })
	}()
	piece := make([]byte, 32<<10)
	for {
		n, err := from.Read(piece)
		l.mu.Lock()
		for wait() && !l.closed {
			l.moved.Wait()
		}
		l.mu.Unlock()
		if _, failed := to.Write(piece[:n]); failed != nil || err != nil {
			return
		}
	}
}
