package natsclient

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
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
	expect := func(what string, lines int) {
		t.Helper()
		if n := strings.Count(log.String(), "\n"); n != lines {
			t.Errorf("%s: %d lines, want %d:\n%s", what, n, lines, log.String())
		}
	}
	refused, absent := errors.New("refused"), errors.New("no such host")
	f.tell(refused)
	expect("the first", 1)
	now = now.Add(59 * time.Second)
	f.tell(refused)
	expect("repeated", 1)
	f.tell(absent)
	f.tell(refused)
	expect("two in turn", 2)
	now = now.Add(time.Second)
	f.tell(refused)
	expect("after a minute", 3)
}

func TestAShortBreakIsNotTold(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	f := faults{log: slog.New(slog.NewTextHandler(&log, nil)), now: func() time.Time { return now }}
	for range 2 {
		f.failed(errors.New("no such host"))
		now = now.Add(4 * time.Second)
		f.failed(errors.New("no such host"))
		f.back()
	}
	if log.Len() > 0 {
		t.Errorf("two breaks of four seconds are told: %s", log.String())
	}
	f.failed(errors.New("no such host"))
	now = now.Add(5 * time.Second)
	f.failed(errors.New("no such host"))
	now = now.Add(59 * time.Second)
	f.failed(errors.New("another, as it names the time"))
	if !strings.Contains(log.String(), "no such host") || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("a minute after the first five seconds the log says %q", log.String())
	}
	now = now.Add(time.Second)
	f.failed(errors.New("another"))
	if strings.Count(log.String(), "\n") != 2 {
		t.Errorf("later the log says %q", log.String())
	}
}

// told is a log of one line, whose fault it passes on.
type told struct {
	slog.Handler
	c chan string
}

func (l told) Handle(_ context.Context, line slog.Record) error {
	line.Attrs(func(a slog.Attr) bool { l.c <- a.Value.String(); return false })
	return nil
}

func (told) Enabled(context.Context, slog.Level) bool { return true }

// What an operator has misspelt is known to the one who looks it up.
func TestTheLogNamesWhyThereIsNoConnection(t *testing.T) {
	t.Parallel()
	server, err := natsserver.Start(natsserver.Config{Dir: t.TempDir(), Token: "t", MaxStore: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	for name, one := range map[string]struct{ url, says string }{
		"nobody listens": {"nats://127.0.0.1:1", "connection refused"},
		"no TLS there":   {strings.Replace(server.URL(), "nats://", "tls://", 1), "secure connection not available"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := told{c: make(chan string, 100)}
			conn, err := Connect("test", one.url, slog.New(log))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if got := <-log.c; !strings.Contains(got, one.says) {
				t.Errorf("the log says %q, want %q", got, one.says)
			}
		})
	}
}

// authority is a certificate that signs itself, for 127.0.0.1.
func authority(t *testing.T) (certificate tls.Certificate, pemText []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// NATS servers get certificates of a new authority, and the file that names the authorities is replaced.
func TestAuthoritiesAreReadAnewAtEachConnection(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca.pem")
	port := server.RANDOM_PORT
	start := func() *server.Server {
		certificate, text := authority(t)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, NoSigs: true, NoLog: true, TLS: true,
			TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}}})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		if !s.ReadyForConnections(10 * time.Second) {
			t.Fatal("the server does not start")
		}
		port = s.Addr().(*net.TCPAddr).Port
		return s
	}
	first := start()
	conn, err := Connect("test", "tls://"+first.Addr().String(), slog.New(slog.DiscardHandler), nats.RootCAs(file))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	changed := conn.StatusChanged(nats.CONNECTED, nats.CLOSED)
	first.Shutdown()
	first.WaitForShutdown()
	second := start()
	defer second.WaitForShutdown()
	defer second.Shutdown()
	if status := <-changed; status != nats.CONNECTED {
		t.Errorf("the connection is %s", status)
	}
}
