package buffer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"skerry/edgenode/waitfs"
	"skerry/replication/up"
)

// Open opens the buffer, or makes it, and begins a new incarnation. A damaged store is
// set aside under another name, reported in the log and in Status, and a new one is made.
// A folder that another process uses is refused.
func Open(cfg Config) (*Buffer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	b := &Buffer{cfg: cfg.withDefaults(), group: newGroup(), gathered: make(chan struct{}, 1)}
	b.space = waitfs.New(b.cfg.FS, b.cfg.Log.With("store", "ingest buffer"))
	b.taken = sync.NewCond(&b.mu)
	for _, lane := range up.Lanes {
		b.appended[lane] = make(chan struct{})
	}
	err := b.openStore()
	if isDamage(err) {
		if err = b.setAside(err); err == nil {
			err = b.openStore()
		}
	}
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	b.stop = stop
	b.stopped.Go(func() { b.commitLoop(ctx) })
	b.stopped.Go(func() { b.freeLoop(ctx) })
	return b, nil
}

// openStore takes the folder's lock, opens the store and reads what it holds. After an
// error nothing is left open.
func (b *Buffer) openStore() (err error) {
	fs, dir := b.cfg.FS, b.cfg.Dir
	if err := makeDir(fs, dir); err != nil {
		return fmt.Errorf("make ingest buffer folder: %w", err)
	}
	if b.lock, err = pebble.LockDirectory(dir, fs); err != nil {
		return fmt.Errorf("ingest buffer folder %s is in use by another process (or cannot be locked): %w", dir, lockError{err})
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.lock.Close())
		}
	}()
	if err := b.checkManifest(); err != nil {
		return err
	}
	if b.db, err = pebble.Open(dir, b.options()); err != nil {
		return fmt.Errorf("open ingest buffer: %w", err)
	}
	if err = b.load(); err != nil {
		err = errors.Join(fmt.Errorf("read ingest buffer: %w", err), b.db.Close())
	}
	return err
}

// makeDir makes a folder, and those above it, such that they are still there after a
// crash: the entry of a new folder in its parent has to be synced, too.
func makeDir(fs vfs.FS, dir string) error {
	if _, err := fs.Stat(dir); err == nil {
		return nil
	}
	parent := fs.PathDir(dir)
	if parent != dir {
		if err := makeDir(fs, parent); err != nil {
			return err
		}
	}
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return syncDir(fs, parent)
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (b *Buffer) options() *pebble.Options {
	o := &pebble.Options{
		FS:   b.space,
		Lock: b.lock,
		// The log is written once, read once and freed: a small cache serves the shipper,
		// which reads what was just written out of the memtables.
		CacheSize:                   8 << 20,
		MemTableSize:                32 << 20,
		MemTableStopWritesThreshold: 4,
		// Tables of level 0 hardly overlap and are freed as a whole: compacting them soon
		// would only copy them.
		L0CompactionThreshold: 16,
		L0StopWritesThreshold: 1 << 20,
		LBaseMaxBytes:         1 << 30,
		BytesPerSync:          1 << 20,
		FormatMajorVersion:    pebble.FormatNewest,
		Logger:                pebbleLog{b.cfg.Log},
	}
	for i := range o.Levels {
		o.Levels[i].Compression = func() *sstable.CompressionProfile { return sstable.NoCompression }
	}
	o.EventListener = &pebble.EventListener{
		BackgroundError: b.backgroundError(),
		// The default ends the process. Whoever reads the damaged place gets its error;
		// everything else goes on.
		DataCorruption: func(i pebble.DataCorruptionInfo) { b.reportDamage(i.Path, i.Details) },
		DiskSlow: func(i pebble.DiskSlowInfo) {
			if b.space.Waiting() {
				return // that was said
			}
			b.cfg.Log.Warn("ingest buffer: slow disk", "operation", i.OpType.String(), "path", i.Path, "duration", i.Duration)
		},
	}
	return o
}

// backgroundError logs what goes wrong in compactions. Pebble retries those at once and
// without end, so only one error a minute is logged.
func (b *Buffer) backgroundError() func(error) {
	var mu sync.Mutex
	var last time.Time
	return func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); now.Sub(last) >= time.Minute {
			last = now
			b.cfg.Log.Error("ingest buffer: background work", "error", err)
		}
	}
}

// pebbleLog passes on what matters. Fatalf is how Pebble ends the process when a commit
// fails for another reason than a full disk: what it has confirmed then is on the disk, and
// what it has not was not answered.
type pebbleLog struct{ log *slog.Logger }

func (l pebbleLog) Infof(string, ...any) {}
func (l pebbleLog) Errorf(format string, args ...any) {
	l.log.Error("ingest buffer: " + fmt.Sprintf(format, args...))
}
func (l pebbleLog) Fatalf(format string, args ...any) {
	l.log.Error("ingest buffer: the process ends: " + fmt.Sprintf(format, args...))
	os.Exit(1)
}
