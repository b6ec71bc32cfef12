package buffer

import (
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"skerry/replication/up"
)

func benchmarkAppend(b *testing.B, events, writers int) {
	buf, err := Open(Config{Dir: b.TempDir() + "/buffer", Edge: "edge-1", FS: vfs.Default, Log: quiet()})
	must(b, err)
	defer func() { must(b, buf.Close()) }()
	var w up.BlockWriter
	w.Reset(header(up.LaneEvent, projectA))
	for range events {
		w.Append(&up.Operation{EventName: []byte("checkout"), DistinctID: []byte("user-1234567"), Properties: make([]byte, 220)})
	}
	block := w.Bytes()
	var total atomic.Int64
	b.SetBytes(int64(len(block)))
	b.SetParallelism(writers)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		own := append([]byte(nil), block...)
		for pb.Next() {
			if err := buf.Append(own); err != nil {
				b.Error(err)
				return
			}
			total.Add(int64(events))
		}
	})
	b.ReportMetric(float64(total.Load())/b.Elapsed().Seconds(), "events/s")
}

func BenchmarkAppendSingle(b *testing.B)     { benchmarkAppend(b, 1, 128) }
func BenchmarkAppendBatchOf100(b *testing.B) { benchmarkAppend(b, 100, 32) }
