// Package tally counts across edges: requests of the present minute, and what projects
// use in a month.
//
// Rate limits. Each edge counts what it admits in fixed minutes and tells the others, who
// add it to their own. It promises: one edge alone admits exactly the limit and never
// fewer; several edges together admit at most a tenth over it when the requests come over
// ten seconds or more; memory is bounded whatever keys are tried; without a connection
// each edge counts for itself. It does not promise to share a burst of milliseconds: what
// comes at several edges before word can pass between them, each admits by its own count.
//
// Usage. Monthly counters per project live in the edge's store, only grow, and are
// reported as totals; so a report that is lost, late or doubled does no harm. How far a
// quota can be overshot: by what the other edges admit between counting and the arrival
// of the next total, a few seconds' worth.
package tally

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// # Message
//
// On subject tally.rate, at most every tenth of a second per edge, and at once when a
// counter moves fast. Little endian.
//
//	+-----+--------+---------+--------+-----------------------------------------
//	| ver | len e  | edge    | minute | one or more of
//	|  1  | u8     | e bytes | u32    |   scope 16 bytes, limit u8, admitted u32
//	+-----+--------+---------+--------+-----------------------------------------
//
// minute counts since 1970; admitted is the edge's own total of that minute, so a lost
// message costs only time.
const (
	rateSubject   = "tally.rate"
	rateVersion   = 1
	rateEntrySize = 21
	// rateEntries bounds a message to 84 KiB.
	rateEntries = 4096
)

// LimiterConfig says who counts and how much memory it may take.
type LimiterConfig struct {
	// Edge is the edge's id, different from all others.
	Edge string
	// MaxScopes bounds how many keys and addresses are counted at once; 0 means 131,072
	// (about 16 MB).
	MaxScopes int
	// ShareEvery is how often counts are told to the others; 0 means 100 ms.
	ShareEvery time.Duration
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Validate names the first field that is wrong.
func (c LimiterConfig) Validate() error {
	switch {
	case c.Edge == "" || len(c.Edge) > 255:
		return fmt.Errorf("tally: Edge %q is not 1 to 255 bytes", c.Edge)
	case c.MaxScopes < 0:
		return fmt.Errorf("tally: MaxScopes %d is negative", c.MaxScopes)
	case c.ShareEvery < 0:
		return fmt.Errorf("tally: ShareEvery %s is negative", c.ShareEvery)
	}
	return nil
}

const shards = 16

// Limiter counts requests in fixed minutes. It is safe for use by several goroutines.
type Limiter struct {
	cfg    LimiterConfig
	shards [shards]shard
	urgent chan struct{} // one slot: a counter moves fast
	evicts atomic.Uint64
}

// shard is a part of the counters. The minute's and the next one's: another edge's clock
// may be ahead.
type shard struct {
	mu     sync.Mutex
	minute [2]uint32
	counts [2]map[scope]*count
	dirty  [2][]scope // to be told
	_      [16]byte
}

type scope struct {
	hash  [16]byte
	limit uint8
}

type count struct {
	own, told uint32
	others    uint32 // sum of peers
	queued    bool   // in dirty
	peers     []peerCount
}

type peerCount struct {
	edge  string
	count uint32
}

// NewLimiter returns a Limiter that counts for itself until Run connects it with
// the others.
func NewLimiter(cfg LimiterConfig) (*Limiter, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.MaxScopes == 0 {
		cfg.MaxScopes = 128 << 10
	}
	if cfg.ShareEvery == 0 {
		cfg.ShareEvery = 100 * time.Millisecond
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Limiter{cfg: cfg, urgent: make(chan struct{}, 1)}, nil
}

func minuteOf(t time.Time) uint32 { return uint32(t.Unix() / 60) }

// Allow counts one request that came at a time, under a limit's number and a scope (the
// hash of a key or an address), if it is within perMinute, and tells whether it is.
// Requests that are refused do not count.
func (l *Limiter) Allow(at time.Time, limit uint8, hash [32]byte, perMinute int) bool {
	s := scope{hash: [16]byte(hash[:16]), limit: limit}
	sh := &l.shards[hash[0]%shards]
	minute := minuteOf(at)
	sh.mu.Lock()
	c := l.countLocked(sh, minute, s)
	if int64(c.own)+int64(c.others) >= int64(perMinute) {
		sh.mu.Unlock()
		return false
	}
	c.own++
	// A hundredth of the limit is not worth telling: with random keys, which stay below
	// it, no edge bothers another.
	fresh := int64(c.own - c.told)
	if !c.queued && int64(c.own)*100 >= int64(perMinute) {
		c.queued = true
		sh.dirty[minute&1] = append(sh.dirty[minute&1], s)
	}
	sh.mu.Unlock()
	if fresh*50 >= int64(perMinute) && fresh > 1 {
		select {
		case l.urgent <- struct{}{}:
		default:
		}
	}
	return true
}

// countLocked is the scope's counter of a minute. An older minute's counters are dropped.
func (l *Limiter) countLocked(sh *shard, minute uint32, s scope) *count {
	i := minute & 1
	if sh.minute[i] != minute || sh.counts[i] == nil {
		sh.minute[i], sh.counts[i] = minute, make(map[scope]*count)
		sh.dirty[i] = nil
	}
	counts := sh.counts[i]
	c := counts[s]
	if c == nil {
		if len(counts) >= max(l.cfg.MaxScopes/shards, 1) {
			l.evictLocked(counts)
		}
		c = &count{}
		counts[s] = c
	}
	return c
}

// evictLocked makes room by forgetting the lowest of a few random counters: random keys
// are counted once or twice, so it hardly ever meets a real one, and a real one that is
// forgotten only starts anew.
func (l *Limiter) evictLocked(counts map[scope]*count) {
	const tries = 8
	var lowest scope
	least, n := uint32(1<<31), 0
	for s, c := range counts { // Go begins at a random place
		if v := c.own + c.others; v < least {
			lowest, least = s, v
		}
		if n++; n == tries {
			break
		}
	}
	delete(counts, lowest)
	l.evicts.Add(1)
}

// Evictions is how many counters were forgotten for lack of room since the start.
func (l *Limiter) Evictions() uint64 { return l.evicts.Load() }

// messages takes what is new and encodes it.
func (l *Limiter) messages() [][]byte {
	now := minuteOf(l.cfg.Now())
	var out [][]byte
	var m []byte
	entries := 0
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		counts, dirty := sh.counts[now&1], sh.dirty[now&1]
		if sh.minute[now&1] != now {
			dirty = nil
		}
		for _, s := range dirty {
			c := counts[s]
			if c == nil {
				continue
			}
			c.queued = false
			if c.told == c.own {
				continue
			}
			c.told = c.own
			if m == nil || entries == rateEntries {
				if m != nil {
					out = append(out, m)
				}
				m, entries = l.head(now), 0
			}
			m = append(append(m, s.hash[:]...), s.limit)
			m = binary.LittleEndian.AppendUint32(m, c.own)
			entries++
		}
		sh.dirty[now&1] = dirty[:0]
		sh.mu.Unlock()
	}
	if m != nil {
		out = append(out, m)
	}
	return out
}

func (l *Limiter) head(minute uint32) []byte {
	m := append([]byte{rateVersion, byte(len(l.cfg.Edge))}, l.cfg.Edge...)
	return binary.LittleEndian.AppendUint32(m, minute)
}

// hear takes another edge's message. Its own, and those of other minutes, change nothing.
func (l *Limiter) hear(m []byte) error {
	if len(m) < 2 || m[0] != rateVersion {
		return errors.New("rate message of another version")
	}
	n := int(m[1])
	if len(m) < 2+n+4 || (len(m)-2-n-4)%rateEntrySize != 0 {
		return fmt.Errorf("rate message of %d bytes", len(m))
	}
	edge, m := string(m[2:2+n]), m[2+n:]
	minute := binary.LittleEndian.Uint32(m)
	now := minuteOf(l.cfg.Now())
	if edge == l.cfg.Edge || (minute != now && minute != now+1) {
		return nil
	}
	for m = m[4:]; len(m) > 0; m = m[rateEntrySize:] {
		s := scope{hash: [16]byte(m[:16]), limit: m[16]}
		sh := &l.shards[s.hash[0]%shards]
		sh.mu.Lock()
		l.countLocked(sh, minute, s).heard(edge, binary.LittleEndian.Uint32(m[17:]))
		sh.mu.Unlock()
	}
	return nil
}

// heard notes a peer's total; totals only grow.
func (c *count) heard(edge string, total uint32) {
	const most = 1 << 30 // a total that nobody can reach; sums stay within 32 bits
	total = min(total, most)
	for i := range c.peers {
		if p := &c.peers[i]; p.edge == edge {
			if total > p.count {
				c.others = min(c.others+total-p.count, most)
				p.count = total
			}
			return
		}
	}
	c.peers = append(c.peers, peerCount{edge, total})
	c.others = min(c.others+total, most)
}

// Run shares counts over the connection until ctx ends. The connection stays the
// caller's; while it is down, the edge counts for itself.
func (l *Limiter) Run(ctx context.Context, nc *nats.Conn) error {
	sub, err := nc.Subscribe(rateSubject, func(m *nats.Msg) {
		if err := l.hear(m.Data); err != nil {
			slog.Debug("rate counts not understood", "error", err)
		}
	})
	if err != nil {
		return fmt.Errorf("subscribe to rate counts: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	l.share(ctx, func(m []byte) {
		if !nc.IsConnected() {
			return // what the client would keep for later is of no use later
		}
		if err := nc.Publish(rateSubject, m); err != nil {
			slog.Debug("share rate counts", "error", err)
		}
	})
	return nil
}

// share tells the others what is new, every ShareEvery and at once when a counter
// moves fast.
func (l *Limiter) share(ctx context.Context, publish func([]byte)) {
	tick := time.NewTicker(l.cfg.ShareEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-l.urgent:
		}
		for _, m := range l.messages() {
			publish(m)
		}
	}
}
