package natsserver_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"skerry/pkg/natsserver"
)

// publish returns when the stream has the message, however long it did not take any.
func publish(t *testing.T, js jetstream.JetStream, subject string) {
	t.Helper()
	for began := time.Now(); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		_, err := js.Publish(ctx, subject, make([]byte, 1000), jetstream.WithRetryAttempts(0))
		cancel()
		if err == nil {
			return
		}
		if time.Since(began) > 30*time.Second {
			t.Fatal(err)
		}
	}
}

// running is a server on dir with the stream S, and a client of it.
func running(t *testing.T, dir string) (*natsserver.Server, jetstream.JetStream) {
	t.Helper()
	s, err := natsserver.Start(natsserver.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	nc, err := nats.Connect(s.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}}); err != nil {
		t.Fatal(err)
	}
	return s, js
}

func TestStreamsThatWereTurnedOffComeBack(t *testing.T) {
	t.Parallel()
	s, js := running(t, t.TempDir())
	publish(t, js, "s.before")
	if err := s.GiveUp(); err != nil {
		t.Fatal(err)
	}
	publish(t, js, "s.after")
	for _, subject := range []string{"s.before", "s.after"} {
		if _, err := message(t, js, subject); err != nil {
			t.Errorf("%s: %v", subject, err)
		}
	}
}

func message(t *testing.T, js jetstream.JetStream, subject string) (*jetstream.RawStreamMsg, error) {
	t.Helper()
	stream, err := js.Stream(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	return stream.GetLastMsgForSubject(t.Context(), subject)
}

// A disk that is full, truly and to the last byte.
func TestStreamsComeBackWhenTheDiskHasSpaceAgain(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	if err := unix.Mount("natsserver-test", disk, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64m,mode=0700"); err != nil {
		t.Skip("no file system can be mounted here: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	_, js := running(t, filepath.Join(disk, "nats"))
	publish(t, js, "s.before")
	ballast := filepath.Join(disk, "ballast")
	if err := fill(ballast); err != nil {
		t.Fatal(err)
	}
	// The first message that it could not store is not answered, and no later one either.
	for n := 0; ; n++ {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := js.Publish(ctx, fmt.Sprintf("s.full.%d", n), make([]byte, 100<<10), jetstream.WithRetryAttempts(0))
		cancel()
		if err != nil {
			break
		}
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	publish(t, js, "s.after")
	for _, subject := range []string{"s.before", "s.after"} {
		if _, err := message(t, js, subject); err != nil {
			t.Errorf("%s: %v", subject, err)
		}
	}
	if _, err := os.Stat(filepath.Join(disk, "nats", "probe")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what the disk was tried with is still there: %v", err)
	}
}

// fill makes a file of all the space that is free.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	for err == nil {
		_, err = f.Write(make([]byte, 64<<10))
	}
	if !errors.Is(err, unix.ENOSPC) {
		return err
	}
	return f.Close()
}
