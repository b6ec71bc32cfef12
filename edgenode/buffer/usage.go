package buffer

import (
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"skerry/replication/tally"
	"skerry/replication/up"
)

// usageMonths is how many months are kept: what was counted in the last minute of one
// must still be published.
const usageMonths = 3

var _ tally.Counters = (*Buffer)(nil)

type usageKey struct {
	month   uint32 // months since year 0
	project [16]byte
	metric  tally.Metric
}

func monthOf(t time.Time) uint32 {
	year, month, _ := t.UTC().Date()
	return uint32(year*12 + int(month) - 1)
}

func (k usageKey) key() []byte {
	b := binary.BigEndian.AppendUint32([]byte{prefixUsage}, k.month)
	return append(append(b, k.project[:]...), byte(k.metric))
}

func (k usageKey) count(n uint64) tally.Count {
	return tally.Count{Month: time.Date(int(k.month/12), time.Month(k.month%12+1), 1, 0, 0, 0, 0, time.UTC),
		Project: k.project, Metric: k.metric, Value: n}
}

// usage is the counters that are on the disk. Only the committer changes them.
type usage struct {
	mu     sync.Mutex
	counts map[usageKey]uint64
}

func (u *usage) get(k usageKey) uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.counts[k]
}

func (u *usage) add(k usageKey, n uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.counts[k] += n
}

func (u *usage) load(db *pebble.DB, now time.Time) error {
	u.counts = make(map[usageKey]uint64)
	oldest := usageKey{month: monthOf(now) - usageMonths}.key()[:5]
	if err := db.DeleteRange([]byte{prefixUsage}, oldest, pebble.NoSync); err != nil {
		return fmt.Errorf("forget old usage: %w", err)
	}
	return scan(db, oldest, after([]byte{prefixUsage}), func(key, value []byte) error {
		if len(key) != 22 {
			return fmt.Errorf("%w: usage key of %d bytes", up.ErrCorrupt, len(key))
		}
		k := usageKey{month: binary.BigEndian.Uint32(key[1:]), metric: tally.Metric(key[21])}
		copy(k.project[:], key[5:])
		n, err := parseU64(value)
		u.counts[k] = n
		return err
	})
}

// Source implements tally.Counters: the edge and its store.
func (b *Buffer) Source() string { return b.source }

// Used implements tally.Counters.
func (b *Buffer) Used(project [16]byte, metric tally.Metric, now time.Time) uint64 {
	return b.usage.get(usageKey{month: monthOf(now), project: project, metric: metric})
}

// Counts implements tally.Counters: the last months, of which there may still be
// something to tell. What it shows is on the disk. Older ones are forgotten at the next
// start, not by this clock, which may be wrong just now.
func (b *Buffer) Counts() []tally.Count {
	oldest := monthOf(b.cfg.Now()) - usageMonths
	b.usage.mu.Lock()
	defer b.usage.mu.Unlock()
	list := make([]tally.Count, 0, len(b.usage.counts))
	for k, n := range b.usage.counts {
		if k.month >= oldest {
			list = append(list, k.count(n))
		}
	}
	return list
}

// Add implements tally.Counters. Accepted events are counted by Append and Commit.
func (b *Buffer) Add(project [16]byte, metric tally.Metric, now time.Time, n uint64) error {
	b.mu.Lock()
	switch {
	case b.closed:
		b.mu.Unlock()
		return ErrClosed
	case b.committed != nil:
		defer b.mu.Unlock()
		return b.committed
	case b.fullLocked():
		defer b.mu.Unlock()
		return ErrFull
	}
	g := b.group
	g.counts[usageKey{monthOf(now), project, metric}] += n
	b.signalLocked()
	b.mu.Unlock()
	<-g.done // however late: who counts again what was counted counts it twice
	return g.err
}
