package natsserver_test

import (
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"skerry/pkg/natsserver"
	"skerry/pkg/natsserver/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStreamsAndURLHoldOverRestart(t *testing.T) {
	t.Parallel()
	s := natstest.New(t)
	js := s.JetStream(t)
	cfg := jetstream.StreamConfig{Name: "KEPT", Subjects: []string{"kept.>"}}
	if _, err := js.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, 1<<20)
	if _, err := js.Publish(t.Context(), "kept.one", body); err != nil {
		t.Fatalf("publish 1 MiB: %v", err)
	}
	url := s.URL
	s.Stop()
	s.Start()
	if s.URL != url {
		t.Errorf("URL after restart %q, was %q", s.URL, url)
	}
	stream, err := s.JetStream(t).Stream(t.Context(), "KEPT")
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != 1 {
		t.Errorf("messages after restart: %d, want 1", n)
	}
}

// A stream's bound is no use of the disk. Were the bounds of all held against the space that is free, a server started again
// on a disk that has filled would refuse every change of its streams, and so a write plane that takes over.
func TestBoundsOfStreamsMayPassTheDisk(t *testing.T) {
	t.Parallel()
	const hundredTB = 100 << 40
	dir := t.TempDir()
	for range 2 { // made, and found again
		s, err := natsserver.Start(natsserver.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		nc, err := nats.Connect(s.URL())
		if err != nil {
			t.Fatal(err)
		}
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		for name, bound := range map[string]int64{"BOUNDED": hundredTB, "FREE": -1} {
			if _, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: name, MaxBytes: bound}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		nc.Close()
		s.Stop()
	}
}

func TestStrangersAreRefused(t *testing.T) {
	t.Parallel()
	s := natstest.New(t)
	_, address, _ := strings.Cut(s.URL, "@")
	if nc, err := nats.Connect("nats://" + address); err == nil {
		nc.Close()
		t.Fatal("a connection without the token was admitted")
	}
}

func TestSecondServerOnTheSameFolderIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := natsserver.Start(natsserver.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	want := dir + " is in use by process " + strconv.Itoa(os.Getpid())
	if _, err := natsserver.Start(natsserver.Config{Dir: dir}); err == nil || err.Error() != want {
		t.Fatalf("second start: %v, want %q", err, want)
	}
}

func TestTakenPortIsSaid(t *testing.T) {
	t.Parallel()
	s, err := natsserver.Start(natsserver.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	_, err = natsserver.Start(natsserver.Config{Dir: t.TempDir(), Port: s.Port(), ReadyTimeout: 2e9})
	if err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Fatalf("start on a taken port: %v", err)
	}
}

func TestConfigNamesTheWrongField(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]natsserver.Config{
		"Dir":        {},
		"Port":       {Dir: "x", Port: -1},
		"MaxPayload": {Dir: "x", MaxPayload: -1},
	} {
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate: %v, want it to name %s", err, want)
		}
	}
}

func TestThreeNodesKeepAStreamWhenOneIsGone(t *testing.T) {
	t.Parallel()
	ports := make([]int, 3)
	for i := range ports {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = listener.Close() }()
		ports[i] = listener.Addr().(*net.TCPAddr).Port
		_ = listener.Close()
	}
	nodes := make([]*natsserver.Server, len(ports))
	urls := make([]string, len(ports))
	for i, port := range ports {
		node, err := natsserver.Start(natsserver.Config{Dir: t.TempDir(), Token: "shared", MaxStore: 1 << 30,
			Cluster: &natsserver.Cluster{Name: "node-" + strconv.Itoa(i), Port: port, Ports: ports}})
		if err != nil {
			t.Fatal(err)
		}
		defer node.Stop()
		nodes[i], urls[i] = node, node.URL()
	}
	conn, err := nats.Connect(strings.Join(urls, ","), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	again := func(do func() error) {
		t.Helper()
		for {
			err := do()
			if err == nil {
				return
			}
			if t.Context().Err() != nil {
				t.Fatal(err)
			}
		}
	}
	again(func() error { // the nodes elect a leader first
		_, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "KEPT", Subjects: []string{"kept.>"}, Replicas: 3})
		return err
	})
	again(func() error { _, err := js.Publish(t.Context(), "kept.one", []byte("before")); return err })
	nodes[0].Stop()
	again(func() error { _, err := js.Publish(t.Context(), "kept.two", []byte("after")); return err })
	again(func() error {
		stream, err := js.Stream(t.Context(), "KEPT")
		if err != nil {
			return err
		}
		message, err := stream.GetMsg(t.Context(), 1)
		if err == nil && string(message.Data) != "before" {
			t.Fatalf("the first message is %q", message.Data)
		}
		return err
	})
}

func TestNodeNeedsANameATokenAndItsOwnPort(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]natsserver.Config{
		"Cluster.Name": {Dir: "d", Token: "t", Cluster: &natsserver.Cluster{Port: 1, Ports: []int{1}}},
		"Token":        {Dir: "d", Cluster: &natsserver.Cluster{Name: "n", Port: 1, Ports: []int{1}}},
		"Cluster.Port": {Dir: "d", Token: "t", Cluster: &natsserver.Cluster{Name: "n", Port: 1, Ports: []int{2}}},
	} {
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
