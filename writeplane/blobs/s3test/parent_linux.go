package s3test

import "syscall"

// endsWithParent makes a server end with the tests, however those end.
func endsWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
