//go:build !linux

package rig

import (
	"errors"
	"fmt"
)

// Pin fails: only Linux ties processes to cores.
func Pin(pid, core int) error {
	return fmt.Errorf("pin process %d to core %d: %w", pid, core, errors.ErrUnsupported)
}
