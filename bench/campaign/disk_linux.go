package campaign

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// mountSmallDisk reports false where it is not allowed.
func mountSmallDisk(dir string) (bool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, fmt.Errorf("make a folder: %w", err)
	}
	if err := unix.Mount("skerry-campaign", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, fmt.Sprintf("size=%d,mode=0700", smallDisk)); err != nil {
		return false, nil // not root, or a container that forbids it: the campaign goes on without
	}
	return true, nil
}

// occupy makes a file that leaves so much free.
func occupy(path string, left int64) error {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(path), &disk); err != nil {
		return fmt.Errorf("look at the disk: %w", err)
	}
	size := int64(disk.Bavail)*disk.Bsize - left
	if size <= 0 {
		return nil
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("fill the disk: %w", err)
	}
	defer func() { _ = file.Close() }()
	if err := unix.Fallocate(int(file.Fd()), 0, 0, size); err != nil {
		return fmt.Errorf("fill the disk: %w", err)
	}
	return nil
}
