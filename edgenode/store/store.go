// Package store is the edge's own copy of the state: every document of both lanes, on
// disk, in a Pebble store of its own.
//
// It promises: documents, revisions and the cursor behind them are written together or
// not at all, so that after any crash the disk is at a whole transaction; nothing is read
// or announced before it is synced, so that what was served is there after a crash; a
// lane that is taken anew lies beside the one that is served until it is whole; a store
// whose damage is found before it serves is not served, one whose damage is found later
// is read where it can be until the followers fill a new one; a damaged store is set
// aside under another name and reported, never deleted; nothing is begun once the disk is
// nearly full, and what meets a full disk all the same waits for space while reads go on.
//
// It keeps no decoded form of anything: that is the views' work.
//
// # Keys
//
//	"c" lane                          cursor: which generation is served, how far it is
//	"d" lane generation subject       document: position (8), changed at in µs (8), body
//	"r" lane generation scope         revisions of a project or of one of its environments, see revision.go
//
// lane is one byte, generation four, big-endian. Everything of one environment is
// one range.
package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"skerry/edgenode/waitfs"
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
	// Verify is how long Open may check tables before the store serves; the rest is
	// checked while it does. 0 means 300 ms.
	Verify time.Duration
	Log    *slog.Logger // nil means slog.Default()
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
	if c.Verify == 0 {
		c.Verify = 300 * time.Millisecond
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
	// ErrSetAside means that the store was found damaged and has just been replaced by an
	// empty one.
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
	space  *waitfs.FS // that databases work on
	lock   *pebble.Lock

	// observe is called after every write, in the writer's goroutine, once per write and
	// in order within a lane.
	observe func(Change)

	swap   sync.RWMutex // held for writing while db is replaced
	db     *pebble.DB   // nil once a damaged one could not be replaced, which ends Run
	opened int          // how often a database was opened; guarded by swap
	sealer *sealer      // used by whoever opens, then by Run, then by Close

	serving sync.Mutex   // one write that is to be served at a time, over both lanes
	look    sync.RWMutex // guards synced
	synced  *pebble.Snapshot

	writing [replication.Lanes]sync.Mutex // one writer a lane
	cursors [replication.Lanes]atomic.Pointer[cursor]
	changed chan struct{}          // one slot: the seal is behind
	fatal   chan error             // one slot: ends Run
	damage  atomic.Pointer[Damage] // the last one since the start
	damaged atomic.Bool            // the open database is
	unread  []table                // tables that Open had no time to check; Run's
}

// Damage is a store that was found damaged.
type Damage struct {
	At     time.Time
	Path   string // where it lies now; empty while it is still read
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
	s := &Store{config: config, log: config.Log.With("store", "state"), lock: lock, observe: observe, changed: make(chan struct{}, 1), fatal: make(chan error, 1)}
	s.space = waitfs.New(config.FS, s.log)
	if err := s.openOrSetAside(); err != nil {
		if s.sealer != nil {
			err = errors.Join(err, s.sealer.close())
		}
		return nil, errors.Join(err, lock.Close())
	}
	s.verifyFirst()
	return s, nil
}

// Run checks the tables that Open had no time for and keeps the seal up to date, until
// ctx ends.
func (s *Store) Run(ctx context.Context) error {
	s.verifyRest(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.fatal:
			return fmt.Errorf("replace the damaged state store: %w", err)
		case <-s.changed:
			pause := time.NewTimer(sealPause)
			select {
			case <-ctx.Done(): // Close seals
			case <-pause.C:
				s.seal()
			}
			pause.Stop()
		}
	}
}

// sealPause is how long a seal may lag behind: its own syncs should not be in the way of
// those that changes wait for.
const sealPause = 200 * time.Millisecond

// GiveUp makes what waits for space fail, now and later, which ends the process: for when
// it is to end anyway, and whoever stores something would wait.
func (s *Store) GiveUp() { s.space.GiveUp() }

// Close unlocks the folder. Run must have ended.
func (s *Store) Close() error {
	s.swap.Lock()
	defer s.swap.Unlock()
	var err error
	if s.db != nil {
		if !s.damaged.Load() {
			s.sealLocked()
		}
		err = s.closeDatabase()
	}
	return errors.Join(err, s.sealer.close(), s.lock.Close())
}

// Damage is the last store that was found damaged since the start; nil when none was.
func (s *Store) Damage() *Damage { return s.damage.Load() }

// Serving tells whether both lanes have state that is not known to be damaged.
func (s *Store) Serving() bool {
	if s.damaged.Load() {
		return false
	}
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
	if s.db == nil {
		return 0
	}
	return s.db.Metrics().DiskSpaceUsage()
}

func (s *Store) path() string { return s.config.FS.PathJoin(s.config.Dir, "db") }

// openOrSetAside opens the database. Whatever keeps it from opening, but for a lack of
// space or rights, is damage.
func (s *Store) openOrSetAside() error {
	var found bool
	var err error
	if s.sealer, found, err = openSealer(s.config.FS, s.config.Dir, s.path()); err != nil {
		return err
	}
	var sealed *seal
	if found {
		last := s.sealer.last
		sealed = &last
	}
	if err = s.open(sealed); err == nil {
		return nil
	}
	if _, statErr := s.config.FS.Stat(s.path()); statErr != nil || passing(err) {
		return fmt.Errorf("open the state store: %w", err)
	}
	if err := s.setAside(err); err != nil {
		return err
	}
	if err := s.open(nil); err != nil {
		return fmt.Errorf("open a new state store: %w", err)
	}
	return nil
}

// open opens the database and takes it into use, unless it is not what the seal says.
func (s *Store) open(sealed *seal) error {
	if sealed == nil {
		s.sealer.last = seal{number: s.sealer.last.number} // what it says of the files is of others
	}
	if err := judgeFiles(s.config.FS, s.path(), sealed); err != nil {
		return err
	}
	s.damaged.Store(false)
	db, err := s.openDatabase()
	if err != nil {
		return err
	}
	var cursors [replication.Lanes]*cursor
	for lane := range replication.Lanes {
		if cursors[lane], err = readCursor(db, lane); err != nil {
			return errors.Join(err, db.Close())
		}
	}
	if err := judgeCursors(cursors, sealed); err != nil {
		return errors.Join(err, db.Close())
	}
	for lane, c := range cursors {
		if c != nil {
			err = dropOthers(db, replication.Lane(lane), c.generation)
		} else {
			err = db.DeleteRange(generationKey('d', replication.Lane(lane), 0), []byte{'d', byte(lane) + 1}, pebble.NoSync)
		}
		if err != nil {
			return errors.Join(err, db.Close())
		}
		s.cursors[lane].Store(c)
	}
	s.db = db
	s.opened++
	s.show()
	s.sealLocked()
	return nil
}

// openDatabase opens Pebble. Its file of options says nothing that options does not, so a
// damaged one is put away.
func (s *Store) openDatabase() (*pebble.DB, error) {
	db, err := pebble.Open(s.path(), s.options())
	if err == nil || passing(err) {
		return db, err
	}
	desc, peekErr := pebble.Peek(s.path(), s.config.FS)
	if peekErr != nil || !desc.Exists || desc.OptionsFilename == "" {
		return nil, err
	}
	if s.config.FS.Rename(desc.OptionsFilename, desc.OptionsFilename+".damaged") != nil {
		return nil, err
	}
	if db, again := pebble.Open(s.path(), s.options()); again == nil {
		s.log.Warn("the state store opens without its file of options only", "reason", err)
		return db, nil
	}
	return nil, err
}

// closeDatabase ends the use of the open database. The caller holds swap for writing.
func (s *Store) closeDatabase() error {
	s.look.Lock()
	defer s.look.Unlock()
	err := s.synced.Close()
	s.synced = nil
	err = errors.Join(err, s.db.Close())
	s.db = nil
	return err
}

// show makes what has been written visible. Everything of it that is served must be synced.
func (s *Store) show() {
	next := s.db.NewSnapshot()
	s.look.Lock()
	last := s.synced
	s.synced = next
	s.look.Unlock()
	if last != nil {
		_ = last.Close() // it only leaves a list
	}
}

func (s *Store) options() *pebble.Options {
	o := &pebble.Options{
		FS:                         s.space,
		CacheSize:                  s.config.Cache,
		MemTableSize:               s.config.MemTable,
		FormatMajorVersion:         pebble.FormatNewest,
		MaxOpenFiles:               500,
		MaxManifestFileSize:        1 << 20, // it is read whole at the start
		L0CompactionThreshold:      2,
		CompactionConcurrencyRange: func() (int, int) { return 1, 1 },
		Logger:                     logger{s.log},
		EventListener: &pebble.EventListener{
			DataCorruption:  func(info pebble.DataCorruptionInfo) { s.suspect(info.Details) },
			BackgroundError: s.suspect,
			FlushEnd:        func(pebble.FlushInfo) { s.sealSoon() },
			CompactionEnd:   func(pebble.CompactionInfo) { s.sealSoon() },
			ManifestCreated: func(pebble.ManifestCreateInfo) { s.sealSoon() },
		},
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	return o
}

// roomy fails when the disk is nearly full.
func (s *Store) roomy() error {
	if s.space.Waiting() {
		return ErrFull
	}
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

// Fatalf is called where Pebble cannot go on, for example when its log cannot be written;
// it must not return.
func (l logger) Fatalf(format string, args ...any) {
	l.log.Error(fmt.Sprintf(format, args...))
	panic("pebble cannot go on: " + fmt.Sprintf(format, args...))
}
