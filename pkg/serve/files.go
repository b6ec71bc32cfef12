package serve

import (
	"math"
	"syscall"
)

// OpenFiles is how many files, connections among them, the process may have open at once.
// A server that takes any number of connections must leave some unused: a process without
// a single one left cannot write to its disk.
func OpenFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt
	}
	return int(min(limit.Cur, math.MaxInt))
}
