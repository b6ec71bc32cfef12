// Package natsclient connects a process to NATS for as long as it lives.
//
// It promises: the connection is tried again whatever became of it, also when NATS
// refuses its credentials, which may be put right later, there or in the file that they
// are read from; every attempt looks names up and reads credentials anew; a connection on
// which nothing comes any more (a machine that is gone, a firewall that has forgotten it)
// is given up within 15 seconds. The log is told why there is no connection, unless it
// comes soon, and once a minute if it repeats.
package natsclient

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// Connect returns at once: the server need not be there yet, and may come and go. name is
// what the server calls the connection; options come on top, for credentials and TLS.
func Connect(name, url string, log *slog.Logger, options ...nats.Option) (*nats.Conn, error) {
	faults := &faults{log: log, now: time.Now}
	var made atomic.Pointer[nats.Conn]
	options = append([]nats.Option{
		nats.Name(name),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), // else the second refusal by a server ends the connection for good
		nats.Timeout(2 * time.Second),
		nats.PingInterval(5 * time.Second), // the third one without an answer ends the connection
		nats.MaxPingsOutstanding(2),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { faults.tell(err) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { faults.failed(err) }),
		nats.ConnectHandler(func(*nats.Conn) { faults.back() }),
		nats.ReconnectHandler(func(*nats.Conn) { faults.back() }),
		nats.CustomReconnectDelay(func(int) time.Duration {
			// An attempt that got as far as TLS or the credentials leaves its fault
			// here alone.
			if conn := made.Load(); conn != nil && conn.LastError() != nil {
				faults.failed(conn.LastError())
			}
			return delay()
		}),
	}, options...)
	conn, err := nats.Connect(url, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	made.Store(conn)
	return conn, nil
}

// delay is the time between two attempts at all servers. It differs, so that those who
// lost a server together do not all come back at once.
func delay() time.Duration { return 200*time.Millisecond + rand.N(300*time.Millisecond) }

const (
	// short is how long a break may be that nobody is told of: a server that restarts.
	short = 5 * time.Second
	// again is when a fault that repeats is told once more.
	again = time.Minute
)

// faults tells the log of what goes wrong while nobody asks for anything.
type faults struct {
	log *slog.Logger
	now func() time.Time

	mu    sync.Mutex
	since time.Time            // when the first attempt failed; zero: there is a connection
	away  time.Time            // when it was told last that there is none
	told  map[string]time.Time // what else was told within the last minute, and when
}

// failed is called when an attempt to connect has failed. Its text may differ each time
// (it can hold the time of day).
func (f *faults) failed(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if f.since.IsZero() {
		f.since = now
	}
	if now.Sub(f.since) >= short && now.Sub(f.away) >= again {
		f.away = now
		f.log.Warn("no connection to NATS, trying on", "error", err)
	}
}

// back is called when there is a connection.
func (f *faults) back() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.since = time.Time{}
}

// tell is called for faults of a connection that stands.
func (f *faults) tell(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	for text, at := range f.told {
		if now.Sub(at) >= again {
			delete(f.told, text)
		}
	}
	if _, known := f.told[err.Error()]; known {
		return
	}
	if f.told == nil {
		f.told = map[string]time.Time{}
	}
	f.told[err.Error()] = now
	f.log.Warn("NATS", "error", err)
}
