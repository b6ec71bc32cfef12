package edgenode

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// openBytes is what the stores write at most when they are opened, as a rule.
const openBytes = 16 << 20

// roomToOpen refuses to open stores on a disk that is full: they would wait for space,
// and nobody would be told.
func roomToOpen(dir string) error {
	usage, err := vfs.Default.GetDiskUsage(dir)
	if err != nil && !errors.Is(err, vfs.ErrUnsupported) {
		return fmt.Errorf("data folder: %w", err)
	}
	if err == nil && usage.AvailBytes < openBytes {
		return fmt.Errorf("data folder: the disk of %s is full: %d bytes are free, a start takes %d", dir, usage.AvailBytes, openBytes)
	}
	return nil
}

// fullTime is how long an edge that ends may wait for space on its disk.
const fullTime = 5 * time.Second

// endWaiting lets an edge end whose disk is full: what waits for space then fails, and
// the process with it.
func (e *Edge) endWaiting(ctx context.Context) error {
	<-ctx.Done()
	e.giveUp = time.AfterFunc(fullTime, func() {
		e.disk.GiveUp()
		e.ingest.buffer.GiveUp()
	})
	return nil
}
