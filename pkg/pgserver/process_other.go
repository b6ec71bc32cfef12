//go:build unix && !linux

package pgserver

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// sysProcAttr: there is no parent-death signal here; a server that outlives
// us is ended by the next start on its folder.
func sysProcAttr(a account) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if a.drop {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}

func (c *cluster) reach(dir string) (string, []*os.File, error) {
	if c.account.drop {
		return dir, nil, os.Chown(dir, c.account.uid, c.account.gid)
	}
	return dir, nil, nil
}

// orphans trusts postmaster.pid where its number is a PostgreSQL process.
func orphans(dir string) []int {
	raw, err := os.ReadFile(filepath.Join(dir, "postmaster.pid"))
	if err != nil {
		return nil
	}
	first, _, _ := strings.Cut(string(raw), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid <= 1 {
		return nil
	}
	out, err := exec.Command("ps", "-o", "comm=", "-p", strconv.Itoa(pid)).Output()
	if err != nil || !bytes.Contains(out, []byte("postgres")) {
		return nil
	}
	return []int{pid}
}

// dropPIDFile leaves the decision to PostgreSQL: without a list of all its
// processes a living backend cannot be ruled out.
func dropPIDFile(string) error { return nil }
