// Package dirlock keeps two processes off one folder.
//
// The lock is the kernel's (flock on a file named lock): it goes with the
// process that holds it, so nothing has to be cleaned up after kill -9. It is
// not inherited by child processes, and is of no use over network file systems
// that do not keep locks.
package dirlock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Lock is a held folder.
type Lock struct{ file *os.File }

// InUse is the error for a folder that another process holds.
type InUse struct {
	Dir string
	// PID of the holder, 0 when it cannot be told.
	PID int
}

func (e *InUse) Error() string {
	if e.PID == 0 {
		return e.Dir + " is in use by another process"
	}
	return fmt.Sprintf("%s is in use by process %d", e.Dir, e.PID)
}

// Take makes dir (0700) when it is absent and locks it for this process. A
// folder that is held already gives *InUse at once.
func Take(dir string) (*Lock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(f.Name())
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			pid, _ := strconv.Atoi(strings.TrimSpace(string(holder)))
			return nil, &InUse{Dir: dir, PID: pid}
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	// The number is for the message alone; the lock holds without it.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return &Lock{f}, nil
}

// Release unlocks the folder. The file stays: removing it would let two processes lock
// two different files of that name.
func (l *Lock) Release() error { return l.file.Close() }
