// Package atomicfile writes small files whole or not at all: whoever reads
// one, also after a crash of the machine, finds the old content or the new.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
)

// Write replaces path with data, readable by its owner only (0600), and
// returns when both the file and its name are on disk. Two writers of one
// path at the same time are not supported.
func Write(path string, data []byte) error {
	draft := path + ".new"
	f, err := os.OpenFile(draft, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o600), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(draft, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(draft))
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
