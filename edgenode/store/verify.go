package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2/sstable"
)

// table is a file of the open database that has not been checked.
type table struct {
	path   string
	opened int // the database it belongs to
}

// verifyFirst reads tables, newest and smallest levels first, as long as there is time,
// and notes the rest for Run. A store of some hundred thousand documents is read whole
// before it serves. One that takes longer must not keep an edge from answering: what is
// damaged there is an error to whoever reads it, never an absence.
func (s *Store) verifyFirst() {
	deadline := time.Now().Add(s.config.Verify)
	levels, err := s.db.SSTables()
	if err != nil {
		s.suspect(err)
		return
	}
	seen := make(map[string]bool)
	for _, level := range levels {
		for _, info := range level {
			one := table{s.config.FS.PathJoin(s.path(), fmt.Sprintf("%06d.sst", uint64(info.BackingSSTNum))), s.opened}
			if !seen[one.path] {
				seen[one.path] = true
				s.unread = append(s.unread, one)
			}
		}
	}
	for len(s.unread) > 0 && time.Now().Before(deadline) && !s.damaged.Load() {
		s.verifyNext()
	}
}

// verifyRest reads the remaining tables, at half a core at most.
func (s *Store) verifyRest(ctx context.Context) {
	for len(s.unread) > 0 && ctx.Err() == nil && !s.damaged.Load() {
		began := time.Now()
		s.verifyNext()
		pause := time.NewTimer(time.Since(began))
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
	s.unread = nil
}

// verifyNext reads one table, checking every block. A table that has gone was compacted
// away: nobody will read it.
func (s *Store) verifyNext() {
	one := s.unread[0]
	s.unread = s.unread[1:]
	s.swap.RLock()
	defer s.swap.RUnlock()
	if one.opened != s.opened || s.db == nil {
		return
	}
	if err := s.verify(one.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.suspect(fmt.Errorf("table %s: %w", s.config.FS.PathBase(one.path), err))
	}
}

func (s *Store) verify(path string) error {
	file, err := s.config.FS.Open(path)
	if err != nil {
		return err
	}
	readable, err := sstable.NewSimpleReadable(file)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	reader, err := sstable.NewReader(context.Background(), readable, s.readOptions())
	if err != nil {
		return errors.Join(err, readable.Close())
	}
	return errors.Join(reader.ValidateBlockChecksums(), reader.Close())
}

func (s *Store) readOptions() sstable.ReaderOptions {
	o := s.options()
	o.EnsureDefaults()
	return o.MakeReaderOptions()
}
