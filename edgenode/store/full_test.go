package store

import (
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"skerry/replication"
)

// refusing is a file system that refuses to open a file for reading, the nth (from 0) that
// is asked for.
func refusing(fs vfs.FS, n int64, with error) (_ vfs.FS, refused *atomic.Bool) {
	var opened atomic.Int64
	refused = new(atomic.Bool)
	return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpOpen && opened.Add(1)-1 == n {
			refused.Store(true)
			return with
		}
		return nil
	})), refused
}

// setAside reports whether a store of the folder was taken for damaged.
func setAside(t *testing.T, fs vfs.FS) bool {
	t.Helper()
	names, err := fs.List("d")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(strings.Join(names, " "), "damaged")
}

// What the system refuses a start says nothing of the store: the start fails, and what is
// stored is there for the next one.
func TestAStoreThatCannotBeOpenedJustNowIsNotSetAside(t *testing.T) {
	t.Parallel()
	for _, refusal := range []syscall.Errno{syscall.EACCES, syscall.EMFILE} {
		fs := vfs.NewMem()
		s := open(t, Config{Dir: "d", FS: fs})
		fill(t, s, 100)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for n := int64(0); ; n++ {
			poor, refused := refusing(fs, n, refusal)
			s, err := Open(quiet(Config{Dir: "d", FS: poor}), discard)
			if err == nil {
				err = s.Close()
			}
			if !refused.Load() {
				break // that is all that a start opens
			}
			if err != nil && !errors.Is(err, refusal) || setAside(t, fs) {
				t.Fatalf("%v of file %d: set aside %v, %v", refusal, n, setAside(t, fs), err)
			}
		}
		s = open(t, Config{Dir: "d", FS: fs})
		if n, err := count(s); n != 200 || err != nil || s.Damage() != nil {
			t.Errorf("%v: %d documents, %v, %v", refusal, n, err, s.Damage())
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A disk that is full to the last byte: what is stored waits and then is stored, what is
// there is read, and whoever comes meanwhile is told.
func TestChangesWaitForSpaceAndReadsGoOn(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite && full.Load() {
			return syscall.ENOSPC
		}
		return nil
	}))
	s := open(t, Config{Dir: "d", FS: fs})
	fill(t, s, 100)
	full.Store(true)
	stored := make(chan struct{})
	go func() { change(t, s, replication.Normal, 101); close(stored) }()
	for !s.space.Waiting() {
		runtime.Gosched()
	}
	if n, err := count(s); n != 200 || err != nil {
		t.Errorf("%d documents, %v", n, err)
	}
	cursor, _ := s.Cursor(replication.Urgent)
	if err := s.Apply(replication.Urgent, nil, cursor); !errors.Is(err, ErrFull) {
		t.Errorf("a change that comes meanwhile: %v", err)
	}
	full.Store(false)
	<-stored
	if n, err := count(s); n != 201 || err != nil {
		t.Errorf("%d documents when there is space, %v", n, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
