package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"skerry/replication"
)

// suspect takes note of an error. If it means damage, the database is not continued:
// followers find no cursor in it and begin anew, which replaces it. Until then it is
// read. Pebble checks every block that it reads, so a read gives what was written, or
// an error.
func (s *Store) suspect(err error) {
	if err == nil || !pebble.IsCorruptionError(err) && !errors.Is(err, syscall.EIO) || s.damaged.Swap(true) {
		return
	}
	s.damage.Store(&Damage{At: time.Now().UTC(), Reason: err.Error()})
	s.log.Error("the state store is damaged; it is read where it can be until state can be fetched anew", "reason", err)
}

// passing reports whether the system has refused an operation because space, rights or
// file descriptors were lacking: that says nothing of the store. That something is
// missing or cannot be read does.
func passing(err error) bool {
	var refused syscall.Errno
	return errors.As(err, &refused) && refused != syscall.EIO && refused != syscall.ENOENT
}

// replaceDamaged sets a damaged database aside and begins an empty one. What is served
// from memory goes on being served.
func (s *Store) replaceDamaged() error {
	if !s.damaged.Load() {
		return nil
	}
	for lane := range replication.Lanes {
		s.writing[lane].Lock()
		defer s.writing[lane].Unlock()
	}
	s.swap.Lock()
	defer s.swap.Unlock()
	if !s.damaged.Load() {
		return nil // the other lane was faster
	}
	if s.db == nil {
		return ErrSetAside
	}
	if err := s.closeDatabase(); err != nil {
		s.log.Warn("close the damaged state store", "error", err)
	}
	reason := errors.New("damaged")
	if d := s.damage.Load(); d != nil {
		reason = errors.New(d.Reason)
	}
	err := s.setAside(reason)
	if err == nil {
		err = s.open(nil)
	}
	if err != nil {
		select {
		case s.fatal <- err:
		default:
		}
	}
	return err
}

func (s *Store) setAside(reason error) error {
	now := time.Now().UTC()
	aside := s.path() + ".damaged-" + now.Format("20060102T150405.000000000")
	if err := s.config.FS.Rename(s.path(), aside); err != nil {
		return fmt.Errorf("set the damaged state store aside: %w", err)
	}
	for lane := range replication.Lanes {
		s.cursors[lane].Store(nil)
	}
	s.damage.Store(&Damage{At: now, Path: aside, Reason: reason.Error()})
	s.log.Error("the state store is damaged, it is set aside and state is fetched anew", "aside", filepath.Base(aside), "reason", reason)
	return nil
}

// sealSoon makes Run seal the database.
func (s *Store) sealSoon() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *Store) seal() {
	s.swap.RLock()
	defer s.swap.RUnlock()
	s.sealLocked()
}

// sealLocked seals the open database, which must not be replaced meanwhile. A seal that
// cannot be written stays behind, which only means that less is known.
func (s *Store) sealLocked() {
	if s.db == nil || s.damaged.Load() {
		return
	}
	var cursors [replication.Lanes]*cursor
	for lane := range cursors {
		cursors[lane] = s.cursors[lane].Load() // synced before it stands here
	}
	if err := s.sealer.write(cursors); err != nil {
		s.log.Warn("seal the state store", "error", err)
	}
}
