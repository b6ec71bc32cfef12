package natsclient

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"skerry/pkg/natsserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// refusals hears a server's log, and tells of every client that it did not admit.
type refusals struct {
	slog.Handler
	c chan struct{}
}

func (r refusals) Handle(_ context.Context, line slog.Record) error {
	if strings.Contains(line.Message, "authentication error") {
		select {
		case r.c <- struct{}{}:
		default:
		}
	}
	return nil
}

// A password that is changed first at the server and then at the clients, or an account that is switched off by mistake.
func TestRefusedCredentialsAreTriedAgain(t *testing.T) {
	t.Parallel()
	refused := refusals{slog.NewTextHandler(io.Discard, nil), make(chan struct{}, 100)}
	config := natsserver.Config{Dir: t.TempDir(), Token: "right", MaxStore: 1 << 30, Log: slog.New(refused)}
	start := func(token string) *natsserver.Server {
		config.Token = token
		server, err := natsserver.Start(config)
		if err != nil {
			t.Fatal(err)
		}
		config.Port = server.Port()
		return server
	}
	server := start("right")
	conn, err := Connect("test", server.URL(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	changed := conn.StatusChanged(nats.CONNECTED, nats.CLOSED)
	server.Stop()
	server = start("another")
	for range 4 {
		select {
		case <-refused.c:
		case status := <-changed:
			t.Fatalf("the connection is %s while it is refused", status)
		}
	}
	server.Stop()
	server = start("right")
	defer server.Stop()
	if status := <-changed; status != nats.CONNECTED {
		t.Errorf("the connection is %s", status)
	}
}

func TestAServerThatIsNotThereYetIsAwaited(t *testing.T) {
	t.Parallel()
	config := natsserver.Config{Dir: t.TempDir(), Token: "t", MaxStore: 1 << 30}
	server, err := natsserver.Start(config)
	if err != nil {
		t.Fatal(err)
	}
	url := server.URL()
	config.Port = server.Port()
	server.Stop()
	conn, err := Connect("test", url, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	changed := conn.StatusChanged(nats.CONNECTED, nats.CLOSED)
	if server, err = natsserver.Start(config); err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	if status := <-changed; status != nats.CONNECTED {
		t.Errorf("the connection is %s", status)
	}
}

func TestASilentConnectionIsGivenUpWithin15Seconds(t *testing.T) {
	t.Parallel()
	conn, err := Connect("test", "nats://127.0.0.1:1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The ping that finds as many unanswered as may be ends the connection.
	if after := conn.Opts.PingInterval * time.Duration(conn.Opts.MaxPingsOut+1); after > 15*time.Second {
		t.Errorf("given up after %s", after)
	}
}

func TestAFaultThatRepeatsIsToldOnceAMinute(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	f := faults{log: slog.New(slog.NewTextHandler(&log, nil)), now: func() time.Time { return now }}
	tell := func(text string, lines int) {
		t.Helper()
		f.tell(errors.New(text))
		if n := strings.Count(log.String(), "\n"); n != lines {
			t.Errorf("%d lines, want %d:\n%s", n, lines, log.String())
		}
	}
	tell("refused", 1)
	now = now.Add(59 * time.Second)
	tell("refused", 1)
	now = now.Add(time.Second)
	tell("refused", 2)
	tell("another", 3)
	tell("refused", 4)
}
