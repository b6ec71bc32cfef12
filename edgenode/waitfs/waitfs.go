// Package waitfs is a file system whose writers wait while its disk is full.
//
// Pebble ends its process when its log cannot be written, and a table that cannot be
// written it tries again at once and without end, on all of a processor. Neither helps a
// full disk: its space comes back by what others do (docs/decisions/0405).
//
// It promises: what the disk refuses for want of space (or of quota) is tried again ten
// times a second, from where it stopped, until it gets through or GiveUp is called; all
// other errors pass as they are. A sync is never tried again: after one that has failed
// nobody knows what is on the disk.
package waitfs

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// pause is between two tries.
	pause = 100 * time.Millisecond
	// quiet is how long nothing more is said of a disk that is full again and again.
	quiet = time.Minute
)

// FS is a file system of which every operation that takes space waits for it.
type FS struct {
	vfs.FS
	log *slog.Logger

	waiting atomic.Int64 // operations that wait
	giveUp  sync.Once
	given   chan struct{} // closed by GiveUp

	mu   sync.Mutex
	said time.Time // when the log was last told that operations wait
}

// New wraps a file system.
func New(fs vfs.FS, log *slog.Logger) *FS {
	return &FS{FS: fs, log: log, given: make(chan struct{})}
}

// Waiting reports whether something waits for space at this moment.
func (fs *FS) Waiting() bool { return fs.waiting.Load() > 0 }

// GiveUp ends all waiting, now and later: the disk's refusals pass. It is for the end of
// a process that is not to wait for space.
func (fs *FS) GiveUp() { fs.giveUp.Do(func() { close(fs.given) }) }

// full tells a refusal for want of space.
func full(err error) bool {
	return err != nil && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT))
}

// until does something until the disk has space for it.
func (fs *FS) until(do func() error) error {
	err := do()
	if !full(err) {
		return err
	}
	fs.waiting.Add(1)
	defer fs.waiting.Add(-1)
	fs.say(err)
	again := time.NewTicker(pause)
	defer again.Stop()
	for full(err) {
		select {
		case <-fs.given:
			return err
		case <-again.C:
			err = do()
		}
	}
	return err
}

func (fs *FS) say(err error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if now := time.Now(); now.Sub(fs.said) > quiet {
		fs.said = now
		fs.log.Error("the disk is full; what is to be written waits until there is space", "error", err)
	}
}

// Unwrap is the file system below.
func (fs *FS) Unwrap() vfs.FS { return fs.FS }

// Create makes a file.
func (fs *FS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return fs.open(func() (vfs.File, error) { return fs.FS.Create(name, category) })
}

// OpenReadWrite opens a file, and makes it when it is absent.
func (fs *FS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return fs.open(func() (vfs.File, error) { return fs.FS.OpenReadWrite(name, category, opts...) })
}

// ReuseForWrite makes a file out of an older one.
func (fs *FS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return fs.open(func() (vfs.File, error) { return fs.FS.ReuseForWrite(oldname, newname, category) })
}

func (fs *FS) open(do func() (vfs.File, error)) (f vfs.File, err error) {
	err = fs.until(func() error {
		f, err = do()
		return err
	})
	if err != nil {
		return nil, err
	}
	return &file{File: f, fs: fs}, nil
}

// Link gives a file a second name.
func (fs *FS) Link(oldname, newname string) error {
	return fs.until(func() error { return fs.FS.Link(oldname, newname) })
}

// Rename gives a file another name.
func (fs *FS) Rename(oldname, newname string) error {
	return fs.until(func() error { return fs.FS.Rename(oldname, newname) })
}

// file is a file that is written.
type file struct {
	vfs.File
	fs *FS
}

// Write appends, going on behind what a full disk has taken of it.
func (f *file) Write(p []byte) (n int, err error) {
	err = f.fs.until(func() error {
		took, err := f.File.Write(p[n:])
		n += took
		return err
	})
	return n, err
}

// WriteAt writes at a place, as Write does.
func (f *file) WriteAt(p []byte, at int64) (n int, err error) {
	err = f.fs.until(func() error {
		took, err := f.File.WriteAt(p[n:], at+int64(n))
		n += took
		return err
	})
	return n, err
}
