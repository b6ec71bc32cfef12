package faults

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

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
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	server, err := pgserver.Start(ctx, pgserver.Config{Dir: b.TempDir()})
	must(b, err)
	defer func() { _ = server.Stop() }()
	must(b, postgres.Migrate(ctx, server.URL()))
	db, err := postgres.Open(ctx, postgres.Config{URL: server.URL()})
	must(b, err)
	defer db.Close()
	place, err := blobs.Open(ctx, blobs.Config{URL: b.TempDir()}, db.App)
	must(b, err)
	defer func() { _ = place.Close() }()
	store, err := ingest.NewStore(ingest.Config{}, db, place, nil)
	must(b, err)
	must(b, store.Maintain(ctx))
	ns := natstest.New(b)
	connect := func() *nats.Conn { return ns.Connect(b, patient...) }
	receiver, err := up.NewReceiver(up.ReceiverConfig{}, store, lease.New(db.App, "bench"), connect())
	must(b, err)
	log, err := buffer.Open(buffer.Config{Dir: filepath.Join(b.TempDir(), "buffer"), Edge: "edge-0", FS: vfs.Default})
	must(b, err)
	defer func() { _ = log.Close() }()
	shipper, err := up.NewShipper(up.ShipperConfig{Edge: "edge-0"}, log, connect())
	must(b, err)
	ended := make(chan error, 2)
	go func() { ended <- receiver.Run(ctx) }()
	go func() { ended <- shipper.Run(ctx) }()
	defer func() {
		stop()
		<-ended
		<-ended
	}()
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
