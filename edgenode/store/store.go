// Package store is the edge's own copy of the state: every document of both lanes, on disk, in a Pebble store of its own.
//
// It promises: documents, revisions and the cursor behind them are written together or not at all, so that after any
// crash the disk is at a whole transaction; a lane that is taken anew lies beside the one that is served until it is
// whole; a damaged store is set aside under another name and reported, never deleted, and the followers fill a new one;
// nothing is written once the disk is nearly full, because Pebble ends the process when a write fails.
//
// It does not promise that the last instants survive a crash of the machine: what is missing comes again from the
// stream. It keeps no decoded form of anything: that is the views' work.
//
// # Keys
//
//	"c" lane                          cursor: which generation is served, how far it is
//	"d" lane generation subject       document: position (8), changed at in µs (8), body
//	"r" lane generation scope         revisions of a project or of one of its environments, see revision.go
//
// lane is one byte, generation four, big-endian. Everything of one environment is one range.
package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"skerry/replication"
	"skerry/replication/down"
)

// Config says where and how to store. Zero values mean the defaults.
type Config struct {
	Dir      string // of this store alone
	FS       vfs.FS // nil means the disk
	Cache    int64  // bytes of blocks kept in memory; 0 means 16 MiB
	MemTable uint64 // bytes written before they are sorted to disk; 0 means 4 MiB
	// Reserve is the free space, in bytes, below which nothing is written; 0 means 128 MiB.
	Reserve uint64
	// Free asks for the free space where Dir lies; nil means the file system's.
	Free func() (uint64, error)
	Log  *slog.Logger // nil means slog.Default()
}

func (c Config) withDefaults() Config {
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if c.Cache == 0 {
		c.Cache = 16 << 20
	}
	if c.MemTable == 0 {
		c.MemTable = 4 << 20
	}
	if c.Reserve == 0 {
		c.Reserve = 128 << 20
	}
	if c.Free == nil {
		fs, dir := c.FS, c.Dir
		c.Free = func() (uint64, error) {
			usage, err := fs.GetDiskUsage(dir)
			if errors.Is(err, vfs.ErrUnsupported) { // a file system in memory
				return ^uint64(0), nil
			}
			return usage.AvailBytes, err
		}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}

var (
	// ErrLocked means that another process works in the folder.
	ErrLocked = errors.New("another edge runs on this folder")
	// ErrFull means that the disk is so full that writing would be dangerous.
	ErrFull = errors.New("too little free disk space to store state")
	// ErrSetAside means that the store was found damaged and has just been replaced by an empty one.
	ErrSetAside = errors.New("the store was damaged and is set aside")
)

// Change is what a write did, for the views.
type Change struct {
	Lane      replication.Lane
	Documents []replication.Document // stored, in order; tombstones are gone
	Anew      bool                   // the lane is served from another generation: anything may differ
	Floor     replication.Position   // the lane's floor after the change
}

// Store is an edge's copy of the state. It is a down.Disk.
type Store struct {
	config Config
	log    *slog.Logger
	lock   *pebble.Lock

	// observe is called after every write, in the writer's goroutine, once per write and in order within a lane.
	observe func(Change)

	swap    sync.RWMutex // held for writing while db is replaced
	db      *pebble.DB
	opened  int // how often a database was opened; guarded by swap
	setback atomic.Pointer[Damage]

	writing [replication.Lanes]sync.Mutex // one writer a lane
	cursors [replication.Lanes]atomic.Pointer[cursor]
	unsaved atomic.Bool   // something was written since the last sync
	hurry   chan struct{} // one slot: what was written must not wait for the next sync
	pause   time.Duration // between syncs
	damaged chan struct{} // one slot: the database has been found damaged
	damage  atomic.Pointer[Damage]
}

// Damage is a store that was set aside.
type Damage struct {
	At     time.Time
	Path   string // where it lies now
	Reason string
}

// cursor is a lane's stored cursor.
type cursor struct {
	down.Cursor
	generation uint32
}

// Open opens the store, or a new one when it is damaged. The folder is locked until Close.
func Open(config Config, observe func(Change)) (*Store, error) {
	config = config.withDefaults()
	if err := config.FS.MkdirAll(config.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	lock, err := pebble.LockDirectory(config.Dir, config.FS)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrLocked, config.Dir, err)
	}
	s := &Store{config: config, log: config.Log.With("store", "state"), lock: lock, observe: observe, damaged: make(chan struct{}, 1), hurry: make(chan struct{}, 1), pause: 50 * time.Millisecond}
	if err := s.openOrSetAside(); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return s, nil
}

// Run saves what was written (at most 50 ms later, halts and revocations at once) and replaces the store when it is found damaged, until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	tick := time.NewTicker(s.pause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.hurry:
			s.save()
		case <-s.damaged:
			if err := s.replace(); err != nil {
				return fmt.Errorf("replace the damaged state store: %w", err)
			}
		case <-tick.C:
			s.save()
		}
	}
}

// Close saves everything and gives the folder free.
func (s *Store) Close() error {
	s.swap.Lock()
	defer s.swap.Unlock()
	err := s.db.Close()
	return errors.Join(err, s.lock.Close())
}

// Damage is the last store that was set aside since the start; nil when none was.
func (s *Store) Damage() *Damage { return s.damage.Load() }

// Serving tells whether both lanes have state.
func (s *Store) Serving() bool {
	for lane := range replication.Lanes {
		if s.cursors[lane].Load() == nil {
			return false
		}
	}
	return true
}

// Floor is the lane's floor: no revision that is served is below it.
func (s *Store) Floor(lane replication.Lane) replication.Position {
	if c := s.cursors[lane].Load(); c != nil {
		return c.Floor
	}
	return 0
}

// Bytes is what the store takes on disk.
func (s *Store) Bytes() uint64 {
	s.swap.RLock()
	defer s.swap.RUnlock()
	return s.db.Metrics().DiskSpaceUsage()
}

func (s *Store) path() string { return s.config.FS.PathJoin(s.config.Dir, "db") }

// openOrSetAside opens the database. Whatever keeps it from opening, but for a lack of space or rights, is damage.
func (s *Store) openOrSetAside() error {
	err := s.open()
	if err == nil {
		return nil
	}
	if _, statErr := s.config.FS.Stat(s.path()); statErr != nil {
		return fmt.Errorf("open the state store: %w", err)
	}
	if err := s.setAside(err); err != nil {
		return err
	}
	if err := s.open(); err != nil {
		return fmt.Errorf("open a new state store: %w", err)
	}
	return nil
}

func (s *Store) open() error {
	db, err := pebble.Open(s.path(), s.options())
	if err != nil {
		return err
	}
	for lane := range replication.Lanes {
		c, err := readCursor(db, lane)
		if err == nil && c != nil {
			err = dropOthers(db, lane, c.generation)
		} else if err == nil {
			err = db.DeleteRange(generationKey('d', lane, 0), []byte{'d', byte(lane) + 1}, pebble.NoSync)
		}
		if err != nil {
			return errors.Join(err, db.Close())
		}
		s.cursors[lane].Store(c)
	}
	s.db = db
	s.opened++
	return nil
}

func (s *Store) options() *pebble.Options {
	o := &pebble.Options{
		FS:                         s.config.FS,
		CacheSize:                  s.config.Cache,
		MemTableSize:               s.config.MemTable,
		FormatMajorVersion:         pebble.FormatNewest,
		MaxOpenFiles:               500,
		L0CompactionThreshold:      2,
		CompactionConcurrencyRange: func() (int, int) { return 1, 1 },
		Logger:                     logger{s.log},
		EventListener: &pebble.EventListener{
			DataCorruption:  func(info pebble.DataCorruptionInfo) { s.suspect(info.Details) },
			BackgroundError: s.suspect,
		},
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	return o
}

// suspect takes note of an error. If it means damage, Run replaces the store.
func (s *Store) suspect(err error) {
	if err == nil || !pebble.IsCorruptionError(err) {
		return
	}
	s.setback.Store(&Damage{Reason: err.Error()})
	select {
	case s.damaged <- struct{}{}:
	default:
	}
}

// replace sets the open database aside and begins an empty one. What is served from memory goes on being served; the
// followers notice that the cursors are gone and fill the new one.
func (s *Store) replace() error {
	for lane := range replication.Lanes {
		s.writing[lane].Lock()
		defer s.writing[lane].Unlock()
	}
	s.swap.Lock()
	defer s.swap.Unlock()
	if err := s.db.Close(); err != nil {
		s.log.Warn("close the damaged state store", "error", err)
	}
	reason := errors.New("damaged")
	if d := s.setback.Load(); d != nil {
		reason = errors.New(d.Reason)
	}
	if err := s.setAside(reason); err != nil {
		return err
	}
	return s.open()
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

// save makes what was written survive a crash of the machine.
func (s *Store) save() {
	if !s.unsaved.Swap(false) {
		return
	}
	s.swap.RLock()
	defer s.swap.RUnlock()
	if err := s.db.LogData(nil, pebble.Sync); err != nil {
		s.log.Error("save state", "error", err)
	}
}

// roomy fails when the disk is nearly full.
func (s *Store) roomy() error {
	free, err := s.config.Free()
	if err != nil {
		return fmt.Errorf("ask for free disk space: %w", err)
	}
	if free < s.config.Reserve {
		return fmt.Errorf("%w: %d bytes are free, %d are kept", ErrFull, free, s.config.Reserve)
	}
	return nil
}

// generationKey begins every key of a generation: kind is 'd' or 'r'.
func generationKey(kind byte, lane replication.Lane, generation uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{kind, byte(lane)}, generation)
}

func documentKey(lane replication.Lane, generation uint32, subject replication.Subject) []byte {
	return append(generationKey('d', lane, generation), subject...)
}

// dropOthers deletes every generation of a lane but one.
func dropOthers(w pebble.Writer, lane replication.Lane, keep uint32) error {
	for _, kind := range []byte{'d', 'r'} {
		if keep > 0 {
			if err := w.DeleteRange(generationKey(kind, lane, 0), generationKey(kind, lane, keep), pebble.NoSync); err != nil {
				return fmt.Errorf("drop old generations: %w", err)
			}
		}
		if err := w.DeleteRange(generationKey(kind, lane, keep+1), []byte{kind, byte(lane) + 1}, pebble.NoSync); err != nil {
			return fmt.Errorf("drop unfinished generations: %w", err)
		}
	}
	return nil
}

// logger passes Pebble's words on. Its Infof is far too talkative.
type logger struct{ log *slog.Logger }

func (l logger) Infof(format string, args ...any)  {}
func (l logger) Errorf(format string, args ...any) { l.log.Error(fmt.Sprintf(format, args...)) }

// Fatalf is called where Pebble cannot go on, for example when its log cannot be written; it must not return.
func (l logger) Fatalf(format string, args ...any) {
	l.log.Error(fmt.Sprintf(format, args...))
	panic("pebble cannot go on: " + fmt.Sprintf(format, args...))
}
