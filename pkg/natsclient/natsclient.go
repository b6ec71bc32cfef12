// Package natsclient connects a process to NATS for as long as it lives.
//
// It promises: the connection is tried again whatever became of it, also when NATS refuses its credentials, which may be
// put right later, there or in the file that they are read from; every attempt looks names up and reads credentials anew;
// a connection on which nothing comes any more (a machine that is gone, a firewall that has forgotten it) is given up
// within 15 seconds. A fault that repeats is logged once a minute.
package natsclient

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Connect returns at once: the server need not be there yet, and may come and go. name is what the server calls the
// connection; options come on top, for credentials and TLS.
func Connect(name, url string, log *slog.Logger, options ...nats.Option) (*nats.Conn, error) {
	faults := &faults{log: log, now: time.Now}
	options = append([]nats.Option{
		nats.Name(name),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), // else the second refusal by a server ends the connection for good
		nats.ReconnectWait(200 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, time.Second),
		nats.Timeout(2 * time.Second),
		nats.PingInterval(5 * time.Second), // the third one without an answer ends the connection
		nats.MaxPingsOutstanding(2),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { faults.tell(err) }),
	}, options...)
	conn, err := nats.Connect(url, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return conn, nil
}

// faults tells the log of what goes wrong while nobody asks for anything.
type faults struct {
	log *slog.Logger
	now func() time.Time

	mu   sync.Mutex
	last string // what was told last, and when
	at   time.Time
}

func (f *faults) tell(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err.Error() == f.last && f.now().Sub(f.at) < time.Minute {
		return
	}
	f.last, f.at = err.Error(), f.now()
	f.log.Warn("NATS", "error", err)
}
