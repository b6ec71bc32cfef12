package buffer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"skerry/replication/up"
)

// Open opens the buffer, or makes it, and begins a new incarnation. A damaged store is set aside under another name,
// reported in the log and in Status, and a new one is made. A folder that another process uses is refused.
func Open(cfg Config) (*Buffer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	b := &Buffer{cfg: cfg.withDefaults(), group: newGroup(), gathered: make(chan struct{}, 1)}
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
	b.stopped.Add(2)
	go func() {
		defer b.stopped.Done()
		b.commitLoop(ctx)
	}()
	go func() {
		defer b.stopped.Done()
		b.freeLoop(ctx)
	}()
	return b, nil
}

// openStore takes the folder's lock, opens the store and reads what it holds. After an error nothing is left open.
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

// makeDir makes a folder that is still there after a crash: a new folder's entry in its parent has to be synced too.
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

// lockError hides the errno, so that a lock is not mistaken for a fault of the disk.
type lockError struct{ error }

// errDamaged is damage that Pebble does not see.
var errDamaged = errors.New("damaged store")

// checkManifest refuses a folder that has data and no manifest: Pebble would take it for a new one and clean up.
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

// isDamage tells a damaged store from a world that does not let us read it: full, forbidden, failing disks are errors of
// the system and end the start.
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

func (b *Buffer) options() *pebble.Options {
	o := &pebble.Options{
		FS:   b.cfg.FS,
		Lock: b.lock,
		// The log is written once, read once and freed: a small cache serves the shipper, which reads what was just
		// written out of the memtables.
		CacheSize:                   8 << 20,
		MemTableSize:                32 << 20,
		MemTableStopWritesThreshold: 4,
		// Tables of level 0 hardly overlap and are freed as a whole: compacting them soon would only copy them.
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
		// The default ends the process. Whoever reads the damaged place gets its error; everything else goes on.
		DataCorruption: func(i pebble.DataCorruptionInfo) { b.reportDamage(i.Path, i.Details) },
		DiskSlow: func(i pebble.DiskSlowInfo) {
			b.cfg.Log.Warn("ingest buffer: slow disk", "operation", i.OpType.String(), "path", i.Path, "duration", i.Duration)
		},
	}
	return o
}

// backgroundError logs what goes wrong in compactions, which are retried at once and without end: once a minute.
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

// reportDamage notes damage that was found while running. What lies behind it in its lane cannot be shipped, but the
// rest can, so the store is set aside only at the next start.
func (b *Buffer) reportDamage(path string, damage error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.damaged {
		if d == path {
			return
		}
	}
	b.damaged = append(b.damaged, path)
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

// pebbleLog passes on what matters. Fatalf is how Pebble ends the process when a commit fails: what it has confirmed
// then is on the disk, and what it has not was not answered.
type pebbleLog struct{ log *slog.Logger }

func (l pebbleLog) Infof(string, ...any) {}
func (l pebbleLog) Errorf(format string, args ...any) {
	l.log.Error("ingest buffer: " + fmt.Sprintf(format, args...))
}
func (l pebbleLog) Fatalf(format string, args ...any) {
	l.log.Error("ingest buffer: the process ends: " + fmt.Sprintf(format, args...))
	os.Exit(1)
}

var errNewerFormat = errors.New("ingest buffer was written by a newer version of the program")

// load reads what earlier incarnations left, begins a new one and drops the spools that were never committed.
func (b *Buffer) load() error {
	if err := b.checkFormat(); err != nil {
		return err
	}
	if err := b.usage.load(b.db, b.cfg.Now()); err != nil {
		return err
	}
	for _, lane := range up.Lanes {
		v, err := b.number(baseKey(lane))
		if err != nil {
			return err
		}
		b.base[lane] = v
	}
	b.lives, b.held = nil, 0
	err := scan(b.db, []byte{prefixIncarnation}, after([]byte{prefixIncarnation}), func(key, value []byte) error {
		ordinal, err := parseU64(key[1:])
		if err != nil || len(value) != 16 {
			return fmt.Errorf("%w: incarnation", up.ErrCorrupt)
		}
		l := &life{Incarnation: up.Incarnation{ID: [16]byte(value), Ordinal: ordinal}}
		b.lives = append(b.lives, l)
		return nil
	})
	if err != nil {
		return err
	}
	for _, l := range b.lives {
		for _, lane := range up.Lanes {
			if err := b.loadLane(l, lane); err != nil {
				return err
			}
			b.held += l.lanes[lane].bytes - l.lanes[lane].gone
		}
	}
	if err := b.dropOrphans(); err != nil {
		return err
	}
	return b.begin()
}

func (b *Buffer) checkFormat() error {
	v, err := b.number([]byte{prefixFormat})
	switch {
	case err != nil:
		return err
	case v > format:
		return fmt.Errorf("%w: format %d, this one reads %d", errNewerFormat, v, format)
	}
	return nil
}

// number reads a u64; an absent one is 0.
func (b *Buffer) number(key []byte) (uint64, error) {
	value, closer, err := b.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	v, err := parseU64(value)
	return v, errors.Join(err, closer.Close())
}

func (b *Buffer) loadLane(l *life, lane up.Lane) error {
	s := &l.lanes[lane]
	watermark, err := b.number(watermarkKey(lane, l.Ordinal))
	if err != nil {
		return err
	}
	s.freedAt = b.cfg.Now()
	first, ok, err := b.edgeEntry(l.Ordinal, lane, (*pebble.Iterator).First)
	if err != nil {
		return err
	}
	if !ok {
		s.next, s.durable, s.stored, s.freed = watermark+1, watermark, watermark, watermark
		return nil
	}
	last, _, err := b.edgeEntry(l.Ordinal, lane, (*pebble.Iterator).Last)
	if err != nil {
		return err
	}
	s.freed, s.gone = first.first-1, first.sum-first.size
	s.next, s.durable, s.bytes = last.end(), last.end()-1, last.sum
	s.stored = min(max(watermark, s.freed), s.durable)
	return nil
}

// begin starts the new incarnation. It is on the disk before its first number is given out.
func (b *Buffer) begin() error {
	b.me = up.Incarnation{Ordinal: 1}
	if n := len(b.lives); n > 0 {
		b.me.Ordinal = b.lives[n-1].Ordinal + 1
	}
	_, _ = rand.Read(b.me.ID[:]) // never fails, it ends the process instead
	b.life = &life{Incarnation: b.me}
	for i := range b.life.lanes {
		b.life.lanes[i].next = 1
		b.life.lanes[i].freedAt = b.cfg.Now()
	}
	b.lives = append(b.lives, b.life)
	id, err := b.number([]byte{prefixStore})
	if err != nil {
		return err
	}
	for id == 0 {
		id = mathrand.Uint64()
	}
	store := u64(id)
	b.source = fmt.Sprintf("%s.%x", b.cfg.Edge, store)
	batch := b.db.NewBatch()
	if err := errors.Join(batch.Set([]byte{prefixFormat}, u64(format), nil), batch.Set([]byte{prefixStore}, store, nil),
		batch.Set(incarnationKey(b.me.Ordinal), b.me.ID[:], nil)); err != nil {
		return errors.Join(err, batch.Close())
	}
	if err := batch.Commit(pebble.Sync); err != nil {
		return fmt.Errorf("begin incarnation: %w", err)
	}
	return batch.Close()
}

// dropOrphans deletes the chunks of spools that no log entry names: their requests were never answered.
func (b *Buffer) dropOrphans() error {
	named := map[[2]uint64]bool{}
	err := scan(b.db, []byte{prefixSpooled}, after([]byte{prefixSpooled}), func(key, value []byte) error {
		if len(key) != 18 || len(value) < 8 {
			return fmt.Errorf("%w: spool index", up.ErrCorrupt)
		}
		ordinal, _ := parseU64(key[2:10])
		spool, _ := parseU64(value[:8])
		named[[2]uint64{ordinal, spool}] = true
		return nil
	})
	if err != nil {
		return err
	}
	for _, prefix := range []byte{prefixChunk, prefixPiece} {
		if err := b.dropOrphansOf(prefix, named); err != nil {
			return fmt.Errorf("drop unfinished spools: %w", err)
		}
	}
	return nil
}

func (b *Buffer) dropOrphansOf(prefix byte, named map[[2]uint64]bool) (err error) {
	it, err := b.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefix}, UpperBound: after([]byte{prefix})})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; {
		key := it.Key()
		if len(key) < 17 {
			return fmt.Errorf("%w: spool key", up.ErrCorrupt)
		}
		ordinal, _ := parseU64(key[1:9])
		spool, _ := parseU64(key[9:17])
		own := spoolKey(prefix, ordinal, spool)
		if !named[[2]uint64{ordinal, spool}] {
			if err := b.db.DeleteRange(own, after(own), pebble.NoSync); err != nil {
				return err
			}
		}
		ok = it.SeekGE(after(own))
	}
	return it.Error()
}

// scan calls f for every pair in [from, to). The slices are valid until f returns.
func scan(db *pebble.DB, from, to []byte, f func(key, value []byte) error) (err error) {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if err := f(it.Key(), value); err != nil {
			return err
		}
	}
	return it.Error()
}

// diskCheck keeps the disk's free space, which is asked for now and then.
type diskCheck struct {
	free    uint64 // as of the last look
	known   bool
	at      time.Time
	written int64 // bytes admitted since
}

const (
	diskLookEvery = 200 * time.Millisecond
	diskLookBytes = 16 << 20
	// Pebble writes a byte to its log and to a table, and may copy the table in a compaction.
	writeAmplification = 3
)

// roomLocked reports whether size more bytes leave the reserve alone.
func (d *diskCheck) roomLocked(b *Buffer, size int64) bool {
	now := b.cfg.Now()
	if d.at.IsZero() || now.Sub(d.at) >= diskLookEvery || d.written >= diskLookBytes {
		du, err := b.cfg.FS.GetDiskUsage(b.cfg.Dir)
		d.known = err == nil
		if err != nil && !errors.Is(err, vfs.ErrUnsupported) {
			b.cfg.Log.Warn("ingest buffer: free space is unknown", "error", err)
		}
		d.free, d.at, d.written = du.AvailBytes, now, 0
	}
	d.written += size
	return !d.known || int64(d.free)-writeAmplification*d.written >= b.cfg.ReserveBytes
}
