//go:build !linux

package campaign

import "errors"

// mountSmallDisk reports false: only Linux has a file system in memory to mount.
func mountSmallDisk(string) (bool, error) { return false, nil }

func occupy(string, int64) error { return errors.ErrUnsupported }
