// Package buffer is the edge's log of accepted operations, on its disk.
//
// It promises: what Append or Spool.Commit has confirmed is on the disk (synced), all of
// it or nothing, and comes out of Read exactly once per reading, in order, until Stored
// frees it; numbers have no gaps within an incarnation and lane, whenever the process
// dies; a damaged store is set aside and reported, never deleted; a second process on the
// same folder is refused. When the byte budget or the disk's reserve is used up it
// answers ErrFull and loses nothing.
//
// It does not compress, ship, or know what an operation means, except that it counts
// events per project for quotas, because a count is only right when it is written
// together with what it counts.
package buffer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"skerry/edgenode/waitfs"
	"skerry/replication/up"
)

// ErrFull reports that the byte budget or the disk's reserve is used up: nothing
// was stored.
var ErrFull = errors.New("ingest buffer is full")

// ErrClosed reports a call after Close.
var ErrClosed = errors.New("ingest buffer is closed")

// Uploader puts an operation's payload into the centre's blob store. Giving the same key
// twice is no fault: an upload whose answer was lost is repeated. r yields exactly size
// bytes with the SHA-256 sum.
type Uploader func(ctx context.Context, key string, size int64, sum [32]byte, r io.Reader) error

// Config says where the buffer lies and how much it may hold.
type Config struct {
	// Dir is the buffer's own folder; it is created.
	Dir string
	// Edge is the edge's id; it begins the keys of uploaded payloads.
	Edge string
	// FS is the file system; nil means the operating system's.
	FS vfs.FS
	// MaxBytes bounds what is kept until the centre has stored it; 0 means 20 GiB.
	MaxBytes int64
	// ReserveBytes is how much of the disk must stay free; 0 means 1 GiB. It has to cover
	// what Pebble writes besides: what finds no space waits for it, and so do those who
	// wait for the disk.
	ReserveBytes int64
	// Upload takes payloads over up.MaxInlineBytes; nil makes Read fail at such a payload.
	Upload Uploader
	// Log gets what happens in the background; nil means slog.Default().
	Log *slog.Logger
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Validate names the first field that is wrong.
func (c *Config) Validate() error {
	switch {
	case c.Dir == "":
		return errors.New("buffer: Dir is empty")
	case c.Edge == "":
		return errors.New("buffer: Edge is empty")
	case c.MaxBytes < 0:
		return fmt.Errorf("buffer: MaxBytes is %d", c.MaxBytes)
	case c.ReserveBytes < 0:
		return fmt.Errorf("buffer: ReserveBytes is %d", c.ReserveBytes)
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = 20 << 30
	}
	if c.ReserveBytes == 0 {
		c.ReserveBytes = 1 << 30
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Buffer is the log. It is safe for use by several goroutines.
type Buffer struct {
	cfg    Config
	db     *pebble.DB
	space  *waitfs.FS // that db works on
	lock   *pebble.Lock
	me     up.Incarnation
	source string // the edge and the store's own id, which lives as long as the disk
	life   *life  // the present one, which me names

	mu        sync.Mutex // guards all below
	lives     []*life    // oldest first; the last is life
	base      [up.LaneCrash + 1]uint64
	group     *group        // gathers what the next commit writes
	gathered  chan struct{} // one slot: group is not empty
	taken     *sync.Cond    // the committer took the group, or the buffer closed
	damaged   []string      // a folder that was set aside, files that were found damaged
	held      int64         // bytes in the log and in unfinished spools
	spools    uint64        // number of the last spool
	usage     usage
	appended  [up.LaneCrash + 1]chan struct{}
	disk      diskCheck
	growth    growth
	closed    bool
	spare     [][]byte // memory of former runs
	committed error    // the fault that stopped the committer

	freeMu  sync.Mutex // one freeing at a time
	uploads [up.LaneCrash + 1]struct {
		sync.Mutex
		last string // key of the payload that was uploaded last
	}

	stop    context.CancelFunc
	stopped sync.WaitGroup
}

// life is what one incarnation has in the log.
type life struct {
	up.Incarnation
	lanes [up.LaneCrash + 1]laneState
}

// laneState is one lane of a life. Numbers: stored ≤ durable < next.
type laneState struct {
	next    uint64 // the next operation's number
	durable uint64 // last number that is on the disk
	stored  uint64 // last number that the centre has stored
	bytes   int64  // ever written
	freed   uint64 // last number that is gone from the log
	gone    int64  // of bytes, those that are gone
	freedAt time.Time
	tried   uint64 // stored as of the last attempt to free; an entry goes only when all of it is stored
}

func (l *laneState) pending() uint64 { return l.durable - l.stored }

var _ up.Log = (*Buffer)(nil)

// Incarnation is the present life of the buffer.
func (b *Buffer) Incarnation() up.Incarnation { return b.me }

// Status is what an operator wants to know.
type Status struct {
	Incarnation string      `json:"incarnation"`
	Lanes       []up.Totals `json:"lanes"`
	Bytes       int64       `json:"bytes"`     // held until the centre has stored them
	MaxBytes    int64       `json:"max_bytes"` // past it: 503
	DiskBytes   uint64      `json:"disk_bytes"`
	FreeBytes   uint64      `json:"free_bytes"` // of the disk; 0 when unknown
	// FullIn is in how many seconds the buffer is full at the pace of the last minute;
	// nil when it does not grow.
	FullIn  *float64 `json:"full_in_seconds"`
	Damaged []string `json:"damaged"` // a folder that was set aside at the start, files found damaged since
}

// Status tells the state of the buffer.
func (b *Buffer) Status() Status {
	s := Status{Incarnation: b.me.String(), Lanes: b.Totals(), MaxBytes: b.cfg.MaxBytes}
	s.DiskBytes = b.db.Metrics().DiskSpaceUsage()
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Bytes, s.Damaged = b.held, slices.Clone(b.damaged)
	s.FreeBytes = b.disk.free
	s.FullIn = b.growth.fullIn(b.held, b.cfg.MaxBytes)
	return s
}

// growth keeps what the buffer held in each second of the last minute.
type growth struct {
	held [60]int64
	n    int // samples ever taken
}

func (g *growth) sample(held int64) {
	g.held[g.n%len(g.held)] = held
	g.n++
}

func (g *growth) fullIn(held, most int64) *float64 {
	seconds := min(g.n, len(g.held))
	if seconds == 0 {
		return nil
	}
	oldest := g.held[(g.n-seconds)%len(g.held)]
	if held <= oldest {
		return nil
	}
	in := float64(max(most-held, 0)) / (float64(held-oldest) / float64(seconds))
	return &in
}

// Totals implements up.Log.
func (b *Buffer) Totals() []up.Totals {
	totals := make([]up.Totals, 0, len(up.Lanes))
	for _, lane := range up.Lanes {
		totals = append(totals, b.laneTotals(lane))
	}
	return totals
}

func (b *Buffer) laneTotals(lane up.Lane) up.Totals {
	t := up.Totals{Lane: lane, Log: b.source}
	b.mu.Lock()
	t.Received = b.base[lane]
	var oldest *life
	var from uint64
	var gone int64
	for _, l := range b.lives {
		s := &l.lanes[lane]
		t.Received += s.durable
		t.Pending += s.pending()
		t.PendingBytes += s.bytes - s.gone
		if oldest == nil && s.pending() > 0 {
			oldest, from, gone = l, s.stored+1, s.gone
		}
	}
	b.mu.Unlock()
	if oldest == nil {
		t.PendingBytes = 0 // what is left is stored, and only not yet freed
		return t
	}
	if e, ok, err := b.entryAt(oldest.Ordinal, lane, from); err == nil && ok {
		t.OldestAge = max(0, b.cfg.Now().Sub(time.UnixMicro(e.oldest)))
		t.PendingBytes -= max(0, e.sum-e.size-gone)
	}
	return t
}

// Appended implements up.Log.
func (b *Buffer) Appended(lane up.Lane) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.appended[lane]
}

// Pending implements up.Log.
func (b *Buffer) Pending(lane up.Lane) []up.Incarnation {
	b.mu.Lock()
	defer b.mu.Unlock()
	var pending []up.Incarnation
	for _, l := range b.lives {
		if l.lanes[lane].pending() > 0 {
			pending = append(pending, l.Incarnation)
		}
	}
	return pending
}

// lifeLocked finds an incarnation; nil when the log does not know it.
func (b *Buffer) lifeLocked(in up.Incarnation) *life {
	for _, l := range b.lives {
		if l.Incarnation == in {
			return l
		}
	}
	return nil
}

// GiveUp makes what waits for space fail, now and later, which ends the process: for when
// it is to end anyway, and Close would wait.
func (b *Buffer) GiveUp() { b.space.GiveUp() }

// Close waits for what is being written and closes the store. Calls that wait are answered.
func (b *Buffer) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	b.taken.Broadcast()
	b.mu.Unlock()
	b.stop()
	b.stopped.Wait()
	b.freeAll()
	err := b.db.Close()
	if closeErr := b.lock.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("close ingest buffer: %w", err)
	}
	return nil
}
