package buffer

import (
	"errors"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

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
	// Pebble writes a byte to its log and to a table, and may copy the table in a
	// compaction.
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
