package waitfs

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// disk is a file system in memory of which writes take no more than room bytes.
type disk struct {
	vfs.FS
	room *atomic.Int64
	with error // what it says when it is full
}

func (d disk) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if d.room.Load() == 0 {
		return nil, d.with
	}
	f, err := d.FS.Create(name, category)
	return &bounded{f, d}, err
}

type bounded struct {
	vfs.File
	disk disk
}

func (f *bounded) Write(p []byte) (int, error) {
	fits := min(int64(len(p)), f.disk.room.Load())
	f.disk.room.Add(-fits)
	n, err := f.File.Write(p[:fits])
	if err == nil && n < len(p) {
		err = f.disk.with
	}
	return n, err
}

func silent() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestAWriteGoesOnWhereTheDiskWasFull(t *testing.T) {
	t.Parallel()
	for _, refusal := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		below := disk{vfs.NewMem(), new(atomic.Int64), refusal}
		fs := New(below, silent())
		written := make(chan error)
		want := bytes.Repeat([]byte("0123456789"), 10)
		go func() {
			f, err := fs.Create("f", vfs.WriteCategoryUnspecified)
			if err == nil {
				_, err = f.Write(bytes.Clone(want)) // a file system in memory spoils what it was given, under the race detector
				err = errors.Join(err, f.Close())
			}
			written <- err
		}()
		for _, room := range []int64{3, 0, 60, 100} {
			for !fs.Waiting() {
				runtime.Gosched()
			}
			below.room.Store(room)
		}
		if err := <-written; err != nil {
			t.Fatal(err)
		}
		if fs.Waiting() {
			t.Error("nothing waits, and it is said that something does")
		}
		f, err := fs.Open("f")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(f)
		if err = errors.Join(err, f.Close()); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%v: %q, %v", refusal, got, err)
		}
	}
}

func TestOtherFaultsPassAtOnce(t *testing.T) {
	t.Parallel()
	fs := New(disk{vfs.NewMem(), new(atomic.Int64), syscall.EIO}, silent())
	if _, err := fs.Create("f", vfs.WriteCategoryUnspecified); !errors.Is(err, syscall.EIO) {
		t.Errorf("%v", err)
	}
}

func TestGivenUpWritesFail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := New(disk{vfs.NewMem(), new(atomic.Int64), syscall.ENOSPC}, silent())
		failed := make(chan error)
		go func() {
			_, err := fs.Create("f", vfs.WriteCategoryUnspecified)
			failed <- err
		}()
		synctest.Wait()
		if !fs.Waiting() {
			t.Fatal("it does not wait")
		}
		fs.GiveUp()
		fs.GiveUp()
		if err := <-failed; !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%v", err)
		}
		if _, err := fs.Create("f", vfs.WriteCategoryUnspecified); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("later: %v", err)
		}
	})
}
