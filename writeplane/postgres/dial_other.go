//go:build !linux

package postgres

import (
	"syscall"
	"time"
)

// giveUpAfter is left to the system's own bound.
func giveUpAfter(syscall.RawConn, time.Duration) error { return nil }
