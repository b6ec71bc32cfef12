package faults

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"

	"skerry/edgenode/buffer"
	"skerry/pkg/natsserver/natstest"
	"skerry/pkg/pgserver"
	"skerry/replication/up"
	"skerry/writeplane/blobs"
	"skerry/writeplane/ingest"
	"skerry/writeplane/lease"
	"skerry/writeplane/postgres"
)

// BenchmarkAcceptedToStored drains events that an edge has accepted into PostgreSQL: buffer on disk, stream on disk,
// receiver, COPY. An operation is 200,000 events of some 300 bytes.
func BenchmarkAcceptedToStored(b *testing.B) {
	for _, with := range []bool{false, true} {
		b.Run(fmt.Sprintf("insert_id=%v", with), func(b *testing.B) { benchmarkPipeline(b, with) })
	}
}

func benchmarkPipeline(b *testing.B, withInsertID bool) {
	const perOp = 200_000
	db, log := pipeline(b)
	rng := rand.New(rand.NewPCG(1, 2))
	var blocks [][]byte
	make200 := func() {
		blocks = blocks[:0]
		for range perOp / 1000 {
			blocks = append(blocks, bytes.Clone(eventsBlock(rng, 1000, withInsertID)))
		}
	}
	make200()
	var plain []byte
	var storing, copying time.Duration
	for b.Loop() {
		b.StopTimer()
		if withInsertID {
			make200()
		}
		b.StartTimer()
		started := time.Now()
		for _, block := range blocks {
			must(b, log.Append(block))
		}
		for log.Totals()[2].Pending > 0 {
			<-time.After(10 * time.Millisecond)
		}
		storing += time.Since(started)
		b.StopTimer()
		copying += copyPlainly(b, db, &plain, perOp)
		b.StartTimer()
	}
	b.ReportMetric(float64(b.N)*perOp/storing.Seconds(), "events/s")
	b.ReportMetric(float64(b.N)*perOp/copying.Seconds(), "plain-copy/s")
	b.ReportMetric(copying.Seconds()/storing.Seconds(), "ratio")
}

// pipeline runs one edge's buffer and shipper, a stream and a receiver; all of it ends with the benchmark.
func pipeline(b *testing.B) (*postgres.DB, *buffer.Buffer) {
	b.Helper()
	ctx, stop := context.WithCancel(context.Background())
	server, err := pgserver.Start(ctx, pgserver.Config{Dir: b.TempDir()})
	must(b, err)
	b.Cleanup(func() { _ = server.Stop() })
	must(b, postgres.Migrate(ctx, server.URL()))
	db, err := postgres.Open(ctx, postgres.Config{URL: server.URL()})
	must(b, err)
	b.Cleanup(db.Close)
	place, err := blobs.Open(ctx, blobs.Config{URL: b.TempDir()}, db.App)
	must(b, err)
	b.Cleanup(func() { _ = place.Close() })
	store, err := ingest.NewStore(ingest.Config{}, db, place, nil)
	must(b, err)
	must(b, store.Maintain(ctx))
	ns := natstest.New(b)
	receiver, err := up.NewReceiver(up.ReceiverConfig{}, store, lease.New(db.App, "bench"), ns.Connect(b, patient...))
	must(b, err)
	log, err := buffer.Open(buffer.Config{Dir: filepath.Join(b.TempDir(), "buffer"), Edge: "edge-0", FS: vfs.Default})
	must(b, err)
	b.Cleanup(func() { _ = log.Close() })
	shipper, err := up.NewShipper(up.ShipperConfig{Edge: "edge-0"}, log, ns.Connect(b, patient...))
	must(b, err)
	ended := make(chan error, 2)
	go func() { ended <- receiver.Run(ctx) }()
	go func() { ended <- shipper.Run(ctx) }()
	b.Cleanup(func() {
		stop()
		<-ended
		<-ended
	})
	return db, log
}

// BenchmarkAliasBehindEvents measures from the acceptance of an alias until everybody can see it, while a backlog of
// 400,000 events drains.
func BenchmarkAliasBehindEvents(b *testing.B) {
	db, log := pipeline(b)
	rng := rand.New(rand.NewPCG(1, 2))
	var took []time.Duration
	n := 0
	for b.Loop() {
		for range 400 {
			must(b, log.Append(eventsBlock(rng, 1000, false)))
		}
		for log.Totals()[2].Pending > 20_000 {
			n++
			took = append(took, visible(b, db, log, fmt.Sprint("anon-", n)))
		}
	}
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2].Seconds(), "p50-s")
	b.ReportMetric(took[len(took)-1].Seconds(), "max-s")
	b.ReportMetric(float64(len(took)), "aliases")
}

func visible(b *testing.B, db *postgres.DB, log *buffer.Buffer, id string) time.Duration {
	var w up.BlockWriter
	w.Reset(up.Header{Lane: up.LaneAlias, Environment: up.Live, ReceivedAt: time.Now().UnixMicro(), Project: project})
	w.Append(&up.Operation{AliasID: []byte(id), DistinctID: []byte("user-" + id), Timestamp: 1})
	started := time.Now()
	must(b, log.Append(w.Bytes()))
	for {
		var there bool
		must(b, db.App.QueryRow(b.Context(), `SELECT EXISTS (SELECT FROM aliases WHERE alias_id = $1)`, id).Scan(&there))
		if there {
			return time.Since(started)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// copyPlainly stores the same rows once more, by nothing but one COPY into the same table.
func copyPlainly(b *testing.B, db *postgres.DB, rows *[]byte, n int) time.Duration {
	conn, err := db.Owner.Acquire(b.Context())
	must(b, err)
	defer conn.Release()
	pg := conn.Conn().PgConn()
	if *rows == nil {
		var out bytes.Buffer
		_, err := pg.CopyTo(b.Context(), &out, fmt.Sprintf(`COPY (SELECT * FROM events LIMIT %d) TO STDOUT (FORMAT binary)`, n))
		must(b, err)
		*rows = out.Bytes()
	}
	started := time.Now()
	_, err = pg.CopyFrom(b.Context(), bytes.NewReader(*rows), `COPY events FROM STDIN (FORMAT binary)`)
	must(b, err)
	return time.Since(started)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventsBlock is what a large batch of one client brings.
func eventsBlock(rng *rand.Rand, n int, withInsertID bool) []byte {
	var w up.BlockWriter
	now := time.Now().UnixMicro()
	w.Reset(up.Header{Lane: up.LaneEvent, Environment: up.Live, ReceivedAt: now, Project: project})
	for range n {
		op := up.Operation{
			EventName: []byte("page_viewed"), DistinctID: fmt.Appendf(nil, "user-%08d", rng.IntN(200_000)), Timestamp: now, LibVersion: []byte("swift 3.2.1"),
			Properties: fmt.Appendf(nil, `{"$session_id":"s-%016x","path":"/products/%d","referrer":"https://example.com/search?q=%x","price":%d.%02d,"currency":"EUR","plan":"pro"}`,
				rng.Uint64(), rng.IntN(10_000), rng.Uint64(), rng.IntN(500), rng.IntN(100)),
			DefaultProperties: []byte(`{"$os":"iOS 19.1","$device_model":"iPhone17,2"}`),
		}
		if withInsertID {
			op.InsertID = []byte(uuid.NewString())
		}
		w.Append(&op)
	}
	return w.Bytes()
}
