package tally

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"skerry/pkg/state"
)

// Counters is the edge's store of usage. Counts only grow, over restarts too.
type Counters interface {
	// Source names the store; see Report.
	Source() string
	// Add adds to a counter and returns when that is on the disk.
	Add(project [16]byte, metric Metric, now time.Time, n uint64) error
	// Used is the count in the month of now.
	Used(project [16]byte, metric Metric, now time.Time) uint64
	// Counts lists all counters.
	Counts() []Count
}

// Meter knows what projects have used of their monthly quotas: the centre's total, with
// this edge's own part in it replaced by what this edge has counted by now. It is safe
// for use by several goroutines.
type Meter struct {
	edge     string
	counters Counters
	now      func() time.Time

	mu    sync.RWMutex
	calls map[string]*calls // by project id: counted and not yet stored; not a sync.Map, which allocates at every look
}

// calls are a project's handshakes since they were last written to the store.
type calls struct {
	project [16]byte
	n       atomic.Int64
}

const (
	// storeEvery bounds the handshakes that a crash makes uncounted. Events are counted
	// as they are stored.
	storeEvery = time.Second
	// reportAllEvery repeats reports that were lost.
	reportAllEvery = 30 * time.Second
)

// NewMeter returns a Meter over the edge's counters. now is the clock; nil means time.Now.
func NewMeter(edge string, counters Counters, now func() time.Time) *Meter {
	if now == nil {
		now = time.Now
	}
	return &Meter{edge: edge, counters: counters, now: now, calls: map[string]*calls{}}
}

// Used is how much a project has used in the month of now (UTC), as far as this edge
// knows. A project that is no UUID has used nothing.
func (m *Meter) Used(now time.Time, project string, metric Metric, central *state.Usage) int64 {
	c := m.callsOf(project)
	if c == nil {
		return 0
	}
	own := int64(m.counters.Used(c.project, metric, now))
	if metric == Handshakes {
		own += c.n.Load()
	}
	if !isMonth(central.Month, now) {
		return own
	}
	total, by := central.Events, central.EventsBy
	if metric == Handshakes {
		total, by = central.Handshakes, central.HandshakesBy
	}
	if by == nil {
		return max(total, own)
	}
	included := by[m.counters.Source()]
	return total - included + max(own, included)
}

// AddHandshakes counts n decision calls.
func (m *Meter) AddHandshakes(project string, n int64) {
	if c := m.callsOf(project); c != nil {
		c.n.Add(n)
	}
}

// callsOf is nil for a project that is no UUID.
func (m *Meter) callsOf(project string) *calls {
	m.mu.RLock()
	c := m.calls[project]
	m.mu.RUnlock()
	if c != nil {
		return c
	}
	id, err := uuid.Parse(project)
	if err != nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if c = m.calls[project]; c == nil {
		c = &calls{project: id}
		m.calls[project] = c
	}
	return c
}

// isMonth tells whether a text in monthForm names the month of t (UTC). It is asked at
// every request, and formatting t for it took more time than everything else that a
// request costs in this package.
func isMonth(text string, t time.Time) bool {
	if len(text) != len(monthForm) || text[4] != '-' {
		return false
	}
	year, month, _ := t.UTC().Date()
	return number(text[:4]) == year && number(text[5:]) == int(month)
}

// number reads digits; -1 when there is anything else.
func number(text string) int {
	n := 0
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return -1
		}
		n = n*10 + int(text[i]-'0')
	}
	return n
}

// Run stores what was counted and reports it over the connection until ctx ends; at the
// end it stores once more.
func (m *Meter) Run(ctx context.Context, nc *nats.Conn) error {
	told := map[countKey]uint64{}
	tick := time.NewTicker(storeEvery)
	defer tick.Stop()
	lastAll := m.now()
	var failure error
	for {
		select {
		case <-ctx.Done():
			return m.store()
		case <-tick.C:
		}
		before := failure
		if failure = m.store(); failure != nil {
			if before == nil {
				slog.Error("store usage", "error", failure)
			}
			continue
		}
		if !nc.IsConnected() {
			continue
		}
		if now := m.now(); now.Sub(lastAll) >= reportAllEvery {
			lastAll = now
			clear(told)
		}
		if r := m.report(told); len(r.Counts) > 0 {
			if err := publishReport(nc, r); err != nil {
				slog.Debug("report usage", "error", err)
				clear(told)
			}
		}
	}
}

type countKey struct {
	project [16]byte
	month   int64
	metric  Metric
}

// report has what grew since it was told last.
func (m *Meter) report(told map[countKey]uint64) Report {
	r := Report{Edge: m.edge, Source: m.counters.Source()}
	for _, c := range m.counters.Counts() {
		k := countKey{c.Project, c.Month.Unix(), c.Metric}
		if told[k] != c.Value {
			told[k] = c.Value
			r.Counts = append(r.Counts, c)
		}
	}
	return r
}

// publishReport splits a report into messages that any server takes.
func publishReport(nc *nats.Conn, r Report) error {
	const most = 4000
	for counts := r.Counts; len(counts) > 0; {
		n := min(len(counts), most)
		part := Report{Edge: r.Edge, Source: r.Source, Counts: counts[:n]}
		if err := nc.Publish(ReportSubject(r.Edge), part.Encode()); err != nil {
			return fmt.Errorf("publish usage: %w", err)
		}
		counts = counts[n:]
	}
	return nil
}

// store writes the counted handshakes to the edge's store.
func (m *Meter) store() error {
	m.mu.RLock()
	all := slices.Collect(maps.Values(m.calls)) // storing waits for the disk, and the lock is not to
	m.mu.RUnlock()
	for _, c := range all {
		n := c.n.Load()
		if n == 0 {
			continue
		}
		if err := m.counters.Add(c.project, Handshakes, m.now(), uint64(n)); err != nil {
			return err
		}
		// Only now, so that Used never falls: for a moment it has them twice.
		c.n.Add(-n)
	}
	return nil
}
