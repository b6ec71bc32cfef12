package pgserver

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// sysProcAttr makes the child die with us: SIGINT is PostgreSQL's fast
// shutdown, so even after kill -9 of the parent the cluster is left clean.
func sysProcAttr(a account) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
	if a.drop {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}

// reach returns the name under which the account reaches dir, and the files
// the child must inherit for that, the first becoming descriptor 3.
//
// Root may have put dir below a folder the account cannot enter (/root, 0700).
// A descriptor that root opened needs no walk: /proc/self/fd/3 leads straight
// to the folder, whose own owner the account is. Being the working folder
// would not do: before version 16 the programs leave it and come back by name.
func (c *cluster) reach(dir string) (string, []*os.File, error) {
	if !c.account.drop {
		return dir, nil, nil
	}
	if err := os.Chown(dir, c.account.uid, c.account.gid); err != nil {
		return "", nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return "/proc/self/fd/3", []*os.File{f}, nil
}

// orphans lists the processes of a PostgreSQL server that works in dir. The
// working folder is the proof: postmaster and backends alike stand in PGDATA,
// and a number in postmaster.pid may belong to somebody else by now.
func orphans(dir string) []int {
	home, err := os.Stat(dir)
	if err != nil {
		return nil
	}
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	var pids []int
	for _, name := range names {
		comm, err := os.ReadFile(name + "/comm")
		if err != nil || !strings.HasPrefix(string(comm), "postgres") && !strings.HasPrefix(string(comm), "postmaster") {
			continue
		}
		cwd, err := os.Stat(name + "/cwd")
		if err != nil || !os.SameFile(home, cwd) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(name)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// dropPIDFile removes the file of a server that is proven gone; PostgreSQL
// itself would refuse to start when its number lives on in another process.
func dropPIDFile(dir string) error {
	err := os.Remove(filepath.Join(dir, "postmaster.pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
