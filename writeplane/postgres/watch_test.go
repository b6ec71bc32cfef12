package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"skerry/pkg/pgserver/pgtest"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

// watched is a watch, running, of a database behind a link.
func watched(t *testing.T) (*postgres.Watch, *dbtest.Link) {
	t.Helper()
	link := dbtest.NewLink(t, pgtest.NewEmpty(t).URL)
	w, err := postgres.NewWatch(link.URL, postgres.WatchConfig{Every: 5 * time.Millisecond, Patience: time.Second, Misses: 2})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return w, link
}

func TestRequestsOfASilentDatabaseEnd(t *testing.T) {
	t.Parallel()
	w, link := watched(t)
	running, release := w.Context(t.Context())
	defer release()
	link.Hold(true)
	<-running.Done()
	if cause := context.Cause(running); !errors.Is(cause, postgres.ErrSilent) {
		t.Errorf("ended for %v", cause)
	}
	later, release := w.Context(t.Context())
	defer release()
	<-later.Done()
	if cause := context.Cause(later); !errors.Is(cause, postgres.ErrSilent) {
		t.Errorf("a later one ended for %v", cause)
	}
	link.Release()
	eventually(t, "heard again", func() bool {
		again, release := w.Context(t.Context())
		defer release()
		return again.Err() == nil
	})
}

func TestDatabaseThatRefusesIsNotSilent(t *testing.T) {
	t.Parallel()
	w, link := watched(t)
	running, release := w.Context(t.Context())
	defer release()
	begun := link.Dialled.Load()
	eventually(t, "asked again and again", func() bool {
		link.Break()
		return link.Dialled.Load() >= begun+10
	})
	if running.Err() != nil {
		t.Errorf("ended for %v", context.Cause(running))
	}
}

func TestContextOfARequestEndsWithIt(t *testing.T) {
	t.Parallel()
	w, err := postgres.NewWatch("postgres://127.0.0.1:1/none", postgres.WatchConfig{})
	if err != nil {
		t.Fatal(err)
	}
	parent, leave := context.WithCancel(t.Context())
	running, release := w.Context(parent)
	defer release()
	leave()
	<-running.Done()
	if cause := context.Cause(running); !errors.Is(cause, context.Canceled) {
		t.Errorf("ended for %v", cause)
	}
}

// eventually polls until f holds.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	late := time.After(20 * time.Second)
	for !f() {
		select {
		case <-late:
			t.Fatalf("%s: not within 20 s", what)
		case <-time.After(2 * time.Millisecond):
		}
	}
}
