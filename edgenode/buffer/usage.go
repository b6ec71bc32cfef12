package buffer

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"skerry/replication/up"
)

// UsageKind is what a monthly quota counts.
type UsageKind uint8

// The kinds. Their numbers are part of the store's format.
const (
	Events     UsageKind = 1
	Handshakes UsageKind = 2
)

// Usage is how much of one kind this edge ever counted for a project in a month (UTC). It only grows, also over
// restarts.
type Usage struct {
	Month   time.Time // its first instant
	Project [16]byte
	Kind    UsageKind
	Count   uint64
}

// usageMonths is how many months are kept: what was counted in the last minute of one must still be published.
const usageMonths = 3

type usageKey struct {
	month   uint32 // months since year 0
	project [16]byte
	kind    UsageKind
}

func monthOf(t time.Time) uint32 {
	t = t.UTC()
	return uint32(t.Year()*12 + int(t.Month()) - 1)
}

func (k usageKey) key() []byte {
	b := binary.BigEndian.AppendUint32([]byte{prefixUsage}, k.month)
	return append(append(b, k.project[:]...), byte(k.kind))
}

func (k usageKey) usage(n uint64) Usage {
	return Usage{Month: time.Date(int(k.month/12), time.Month(k.month%12+1), 1, 0, 0, 0, 0, time.UTC),
		Project: k.project, Kind: k.kind, Count: n}
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
		k := usageKey{month: binary.BigEndian.Uint32(key[1:]), kind: UsageKind(key[21])}
		copy(k.project[:], key[5:])
		n, err := parseU64(value)
		u.counts[k] = n
		return err
	})
}

// Used is how much this edge counted for the project in the month of now.
func (b *Buffer) Used(project [16]byte, kind UsageKind, now time.Time) uint64 {
	return b.usage.get(usageKey{month: monthOf(now), project: project, kind: kind})
}

// Usage lists all counters, in no order. What it shows is on the disk.
func (b *Buffer) Usage() []Usage {
	b.usage.mu.Lock()
	counts := maps.Clone(b.usage.counts)
	b.usage.mu.Unlock()
	list := make([]Usage, 0, len(counts))
	for _, k := range slices.Collect(maps.Keys(counts)) {
		list = append(list, k.usage(counts[k]))
	}
	return list
}

// Count adds to a counter and returns when that is on the disk. Accepted events are counted by Append and Commit.
func (b *Buffer) Count(project [16]byte, kind UsageKind, now time.Time, n uint64) error {
	b.mu.Lock()
	switch {
	case b.closed:
		b.mu.Unlock()
		return ErrClosed
	case b.committed != nil:
		defer b.mu.Unlock()
		return b.committed
	}
	g := b.group
	g.counts[usageKey{monthOf(now), project, kind}] += n
	b.signalLocked()
	b.mu.Unlock()
	return b.wait(g)
}
