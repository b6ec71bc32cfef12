package buffer

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"skerry/replication/up"
)

// lockError is a folder that cannot be locked. It does not unwrap: whatever the cause, it
// is no damage.
type lockError struct{ error }

// errDamaged is damage that Pebble itself does not report.
var errDamaged = errors.New("damaged store")

var errNewerFormat = errors.New("ingest buffer was written by a newer version of the program")

// checkManifest looks at the folder before Pebble opens it. It refuses one that has data
// but no manifest, since Pebble would take it for a new store and delete the data; one
// that was found damaged while it was in use; and one that a newer version has written.
func (b *Buffer) checkManifest() error {
	if _, err := b.cfg.FS.Stat(b.damageNote()); err == nil {
		return fmt.Errorf("%w: %s was found damaged while it was in use", errDamaged, b.cfg.Dir)
	}
	desc, err := pebble.Peek(b.cfg.Dir, b.cfg.FS)
	if err != nil && strings.Contains(err.Error(), "format major version") {
		return fmt.Errorf("%w: %w", errNewerFormat, err)
	}
	if err != nil {
		return fmt.Errorf("look at ingest buffer: %w", err)
	}
	if desc.Exists {
		return nil
	}
	names, err := b.cfg.FS.List(b.cfg.Dir)
	if err != nil {
		return fmt.Errorf("look at ingest buffer: %w", err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".log") || strings.HasPrefix(name, "MANIFEST-") {
			return fmt.Errorf("%w: %s has data and no current manifest", errDamaged, b.cfg.Dir)
		}
	}
	return nil
}

// isDamage tells a damaged store from one that cannot be read just now. A disk that is
// full, forbidden or failing gives an error of the system: such a start fails, and the
// store stays where it is.
func isDamage(err error) bool {
	var lock lockError
	var errno syscall.Errno
	switch {
	case err == nil, errors.As(err, &lock), errors.Is(err, os.ErrPermission), errors.Is(err, errNewerFormat):
		return false
	case errors.Is(err, errDamaged), errors.Is(err, up.ErrCorrupt), pebble.IsCorruptionError(err), errors.Is(err, os.ErrNotExist):
		return true
	}
	return !errors.As(err, &errno)
}

func (b *Buffer) setAside(damage error) error {
	aside := fmt.Sprintf("%s.damaged-%s", b.cfg.Dir, b.cfg.Now().UTC().Format("20060102T150405.000000"))
	if err := b.cfg.FS.Rename(b.cfg.Dir, aside); err != nil {
		return fmt.Errorf("set damaged ingest buffer aside: %w (damage: %w)", err, damage)
	}
	if err := syncDir(b.cfg.FS, b.cfg.FS.PathDir(b.cfg.Dir)); err != nil {
		return fmt.Errorf("set damaged ingest buffer aside: %w", err)
	}
	b.damaged = []string{aside} // and what was found in it
	b.cfg.Log.Error("ingest buffer is damaged and was set aside; what it holds is not shipped", "folder", aside, "error", damage)
	return nil
}

// reportDamage notes damage that was found while running. What lies behind it in its lane
// cannot be shipped, but the rest can, so the store is set aside only at the next start.
func (b *Buffer) reportDamage(path string, damage error) {
	b.mu.Lock()
	known := slices.Contains(b.damaged, path)
	if !known {
		b.damaged = append(b.damaged, path)
	}
	b.mu.Unlock()
	if known {
		return
	}
	b.cfg.Log.Error("ingest buffer is damaged; it will be set aside at the next start", "file", path, "error", damage)
	f, err := b.cfg.FS.Create(b.damageNote(), vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write([]byte(path + "\n"))
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		b.cfg.Log.Error("ingest buffer: note the damage", "error", err)
	}
}

// damageNote is the file that tells the next start of damage.
func (b *Buffer) damageNote() string { return b.cfg.FS.PathJoin(b.cfg.Dir, "DAMAGED") }
