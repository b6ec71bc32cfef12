package ingest

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/replication/up"
	"skerry/writeplane/identity"
)

// BenchmarkStore stores transactions as the receiver gathers them; `ratio` is against a
// plain COPY of the same rows into the same table, one connection each, in turns.
func BenchmarkStore(b *testing.B) {
	for _, with := range []bool{false, true} {
		b.Run(fmt.Sprintf("insert_id=%v", with), func(b *testing.B) { benchmarkStore(b, with) })
	}
}

func benchmarkStore(b *testing.B, withInsertID bool) {
	const perTx = 40_000
	s := newBundle(b, Config{})
	requests := randomEvents(perTx, false)
	var next uint64 = 1
	var storing, copying time.Duration
	for b.Loop() {
		if withInsertID {
			b.StopTimer()
			requests = randomEvents(perTx, true)
			b.StartTimer()
		}
		whole := batch(life1, up.LaneEvent, next, requests...)
		next += perTx
		started := time.Now()
		if _, err := s.Store.Store(b.Context(), "edge-1", []up.Batch{whole}); err != nil {
			b.Fatal(err)
		}
		storing += time.Since(started)
		b.StopTimer()
		l := &load{edge: "edge-2", lane: up.LaneEvent, in: life1}
		if err := l.read(&whole, func(uint64) bool { return true }); err != nil {
			b.Fatal(err)
		}
		rows := l.pick(stored)
		started = time.Now()
		if err := pgx.BeginFunc(b.Context(), s.db.App, func(tx pgx.Tx) error { return copyEvents(b.Context(), tx, l, rows) }); err != nil {
			b.Fatal(err)
		}
		copying += time.Since(started)
		b.StartTimer()
	}
	b.ReportMetric(float64(b.N)*perTx/storing.Seconds(), "events/s")
	b.ReportMetric(float64(b.N)*perTx/copying.Seconds(), "plain-copy/s")
	b.ReportMetric(copying.Seconds()/storing.Seconds(), "ratio")
}

// BenchmarkFind lists the newest page of a project's events, and of one person's, out of a million.
func BenchmarkFind(b *testing.B) {
	s := newBundle(b, Config{})
	var next uint64 = 1
	for i := range 50 {
		requests := randomEvents(20_000, false)
		for j := range requests {
			requests[j].receivedAt = requests[j].receivedAt.Add(time.Duration(i*20_000) * time.Millisecond)
			for k := range requests[j].ops {
				requests[j].ops[k].Timestamp = requests[j].receivedAt.UnixMicro()
			}
		}
		whole := batch(life1, up.LaneEvent, next, requests...)
		next += 20_000
		if _, err := s.Store.Store(b.Context(), "edge-1", []up.Batch{whole}); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Maintain(b.Context()); err != nil {
		b.Fatal(err)
	}
	scope := identity.Scope{Project: projectA, Environment: up.Live}
	for name, f := range map[string]filter{
		"everybody": {scope: scope}, "rare": {scope: scope, name: "never sent"}, "person": {scope: scope, person: "user-00000042"},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, _, err := s.find(b.Context(), f, 50); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
