package ingest

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/replication/up"
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
