package faults

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"skerry/edgenode/buffer"
	"skerry/pkg/natsserver/natstest"
	"skerry/pkg/pgserver"
	"skerry/replication/up"
	"skerry/writeplane/blobs"
	"skerry/writeplane/ingest"
	"skerry/writeplane/lease"
	"skerry/writeplane/postgres"
)

type lag = ingest.EdgeLag

// database is a PostgreSQL server that can be taken away and brought back.
type database struct {
	t      *testing.T
	config pgserver.Config
	server *pgserver.Server
	made   int
}

func startDatabase(t *testing.T) *database {
	t.Helper()
	d := &database{t: t, config: pgserver.Config{Dir: t.TempDir(), Database: "template_skerry", StopTimeout: 20 * time.Second}}
	d.start()
	t.Cleanup(d.stop)
	if err := postgres.Migrate(t.Context(), d.server.URL()); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *database) start() {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if d.server, err = pgserver.Start(ctx, d.config); err != nil {
		d.t.Fatalf("start postgres: %v", err)
	}
	d.config.Port = d.server.Port()
}

func (d *database) stop() {
	if err := d.server.Stop(); err != nil {
		d.t.Logf("stop postgres: %v", err)
	}
}

// kill ends the server as a crash would.
func (d *database) kill() {
	if err := syscall.Kill(d.server.PID(), syscall.SIGKILL); err != nil {
		d.t.Logf("kill postgres: %v", err)
	}
	<-d.server.Done()
	_ = d.server.Stop() // tidies up behind the dead
}

// fresh makes a migrated database.
func (d *database) fresh(ctx context.Context) (url string, err error) {
	conn, err := pgx.Connect(ctx, pgserver.WithDatabase(d.server.URL(), "postgres"))
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	d.made++
	name := fmt.Sprint("world_", d.made)
	if _, err := conn.Exec(ctx, `CREATE DATABASE `+name+` TEMPLATE template_skerry`); err != nil {
		return "", err
	}
	return pgserver.WithDatabase(d.server.URL(), name), nil
}

// world is everything between a client's answer and the store.
type world struct {
	t         *testing.T
	ctx       context.Context
	rng       *rand.Rand
	database  *database
	url       string
	nats      *natstest.Server
	js        jetstream.JetStream
	edges     []*edge
	receivers []*receiver
	ledger    *ledger
	did       []string
}

var patient = []nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(30 * time.Millisecond), nats.RetryOnFailedConnect(true), nats.Timeout(time.Second)}

func newWorld(t *testing.T, database *database, seed uint64) *world {
	t.Helper()
	w := &world{t: t, ctx: context.Background(), rng: rand.New(rand.NewPCG(seed, 11)), database: database, nats: natstest.New(t), ledger: newLedger()}
	var err error
	if w.url, err = database.fresh(w.ctx); err != nil {
		t.Fatal(err)
	}
	w.js = w.nats.JetStream(t, patient...)
	place := t.TempDir()
	for i := range 2 {
		r := &receiver{w: w, name: fmt.Sprint("plane-", i), place: filepath.Join(place, fmt.Sprint(i))}
		r.start()
		w.receivers = append(w.receivers, r)
	}
	for i := range 2 {
		e := &edge{w: w, id: fmt.Sprint("edge-", i), fs: vfs.NewCrashableMem(), seed: w.rng.Uint64(), lost: map[up.Lane]uint64{}}
		e.open()
		e.startShipper()
		w.edges = append(w.edges, e)
	}
	return w
}

func (w *world) anEdge() *edge { return w.edges[w.rng.IntN(len(w.edges))] }

func (w *world) aReceiver() *receiver { return w.receivers[w.rng.IntN(len(w.receivers))] }

func (w *world) end() {
	for _, e := range w.edges {
		e.stopShipper()
		if err := e.buffer.Close(); err != nil {
			w.t.Errorf("close buffer: %v", err)
		}
	}
	for _, r := range w.receivers {
		r.stop()
	}
}

// killSessions ends every session of the world's database.
func (w *world) killSessions() {
	conn, err := pgx.Connect(w.ctx, pgserver.WithDatabase(w.database.server.URL(), "postgres"))
	if err == nil {
		defer func() { _ = conn.Close(w.ctx) }()
		_, err = conn.Exec(w.ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE 'world_%'`)
	}
	w.may(err)
}

// receiver is one process of the write plane.
type receiver struct {
	w        *world
	name     string
	place    string
	db       *postgres.DB
	blobs    *blobs.Store
	store    *ingest.Store
	receiver *up.Receiver
	nc       *nats.Conn
	cancel   context.CancelFunc
	done     chan struct{}
}

// start runs the process, if it does not run already.
func (r *receiver) start() {
	if r.cancel != nil {
		return
	}
	t := r.w.t
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("start %s: %v", r.name, err)
		}
	}
	var err error
	r.db, err = postgres.Open(r.w.ctx, postgres.Config{URL: r.w.url, MaxConns: 10})
	must(err)
	r.blobs, err = blobs.Open(r.w.ctx, blobs.Config{URL: filepath.Dir(r.place)}, r.db.App)
	if err != nil {
		r.blobs = nil // the other process has the folder; no payload here is that large
	}
	r.store, err = ingest.NewStore(ingest.Config{}, r.db, r.blobs, nil)
	must(err)
	r.nc, err = nats.Connect(r.w.nats.URL, patient...)
	must(err)
	r.receiver, err = up.NewReceiver(up.ReceiverConfig{Term: 600 * time.Millisecond}, r.store, lease.New(r.db.App, r.name), r.nc)
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.done = cancel, make(chan struct{})
	go func() {
		defer close(r.done)
		if err := r.receiver.Run(ctx); err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
	}()
}

func (r *receiver) stop() {
	if r.cancel == nil {
		return
	}
	r.cancel()
	<-r.done
	r.cancel = nil
	r.nc.Close()
	if r.blobs != nil {
		_ = r.blobs.Close()
	}
	r.db.Close()
}

// edge is one edge's buffer and shipper. Its disk loses what was not synced.
type edge struct {
	w       *world
	id      string
	seed    uint64
	shipper *up.Shipper
	nc      *nats.Conn
	cancel  context.CancelFunc
	done    chan struct{}
	lost    map[up.Lane]uint64 // at most so many operations did crashes take back

	mu     sync.Mutex // guards what follows, against the writer
	fs     *vfs.MemFS
	buffer *buffer.Buffer
	life   int
}

func (e *edge) open() {
	b, err := buffer.Open(buffer.Config{Dir: "buffer", Edge: e.id, FS: e.fs, ReserveBytes: 1})
	if err != nil {
		e.w.t.Fatalf("open buffer: %v", err)
	}
	e.buffer = b
}

func (e *edge) startShipper() {
	t := e.w.t
	var err error
	if e.nc, err = nats.Connect(e.w.nats.URL, patient...); err != nil {
		t.Fatal(err)
	}
	e.shipper, err = up.NewShipper(up.ShipperConfig{Edge: e.id, HelloEvery: 200 * time.Millisecond}, e.buffer, e.nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel, e.done = cancel, make(chan struct{})
	go func() {
		defer close(e.done)
		if err := e.shipper.Run(ctx); err != nil {
			t.Errorf("shipper of %s: %v", e.id, err)
		}
	}()
}

func (e *edge) stopShipper() {
	e.cancel()
	<-e.done
	e.nc.Close()
}

// crash cuts the edge's power: a random part of what was not synced is lost.
func (e *edge) crash(rng *rand.Rand) {
	percent, source := rng.IntN(101), rng.Uint64()
	e.mu.Lock() // to the end: nobody is answered by what is dead already
	defer e.mu.Unlock()
	old := e.buffer
	e.fs = e.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(source, 3))})
	e.life++
	e.stopShipper()
	before := map[up.Lane]uint64{}
	for _, total := range old.Totals() {
		before[total.Lane] = total.Received
	}
	if err := old.Close(); err != nil {
		e.w.t.Errorf("close the crashed buffer: %v", err)
	}
	e.open()
	for _, total := range e.buffer.Totals() {
		e.lost[total.Lane] += before[total.Lane] - min(total.Received, before[total.Lane])
	}
	e.startShipper()
}

// write appends requests until ctx ends, and notes what was answered.
func (e *edge) write(ctx context.Context, l *ledger) {
	rng := rand.New(rand.NewPCG(e.seed, 5))
	for n := 0; ctx.Err() == nil; n++ {
		blocks, names := e.request(rng, n)
		e.mu.Lock()
		b, life := e.buffer, e.life
		e.mu.Unlock()
		l.ask(names)
		err := b.Append(blocks...)
		e.mu.Lock()
		if err == nil && e.life == life {
			l.answer(names)
		}
		e.mu.Unlock()
		timer := time.NewTimer(time.Duration(rng.IntN(3000)) * time.Microsecond)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
}

var project = uuid.MustParse("018f0000-0000-7000-8000-000000000001")

// request is what one batch of a client brings: blocks, and the names under which they
// will be found.
func (e *edge) request(rng *rand.Rand, n int) (blocks [][]byte, names []name) {
	prefix := fmt.Sprintf("%s-%d", e.id, n)
	block := func(lane up.Lane, ops ...up.Operation) {
		var w up.BlockWriter
		w.Reset(up.Header{Lane: lane, Environment: up.Live, ReceivedAt: time.Now().UnixMicro(), Project: project})
		for i := range ops {
			w.Append(&ops[i])
		}
		blocks = append(blocks, w.Bytes())
	}
	if rng.IntN(4) == 0 {
		block(up.LaneAlias, up.Operation{AliasID: []byte("anon-" + prefix), DistinctID: []byte("user-" + prefix), Timestamp: 1})
		names = append(names, name{"alias", "anon-" + prefix})
	}
	if rng.IntN(4) == 0 {
		block(up.LanePeople, up.Operation{DistinctID: []byte("user"), Properties: fmt.Appendf(nil, `{"trait-%s":1}`, prefix)})
		names = append(names, name{"trait", "trait-" + prefix})
	}
	var events []up.Operation
	for i := range 1 + rng.IntN(30) {
		text := fmt.Sprintf("%s-%d", prefix, i)
		op := up.Operation{EventName: []byte(text), DistinctID: []byte("anon-" + prefix), Timestamp: 1, Properties: fmt.Appendf(nil, `{"pad":"%0*d"}`, rng.IntN(600), i)}
		switch rng.IntN(12) {
		case 0: // the two edges share these
			shared := fmt.Sprint("shared-", n%50)
			op.EventName, op.InsertID = []byte(shared), []byte(shared)
			names = append(names, name{"event", shared}, name{"insert_id", shared})
		case 1:
			op = up.Operation{Unstorable: up.ReasonNUL, DistinctID: []byte("user"), Raw: fmt.Appendf(nil, `{"name":"%s"}`, text)}
			names = append(names, name{"letter", string(op.Raw)})
		default:
			names = append(names, name{"event", text})
		}
		events = append(events, op)
	}
	block(up.LaneEvent, events...)
	return blocks, names
}

// name is how something that was sent is found in the store.
type name struct{ kind, text string }

// ledger is what clients know: what they sent, and what was answered.
type ledger struct {
	mu    sync.Mutex
	asked map[name]bool // true: answered
}

func newLedger() *ledger { return &ledger{asked: map[name]bool{}} }

func (l *ledger) ask(names []name) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range names {
		if _, known := l.asked[n]; !known {
			l.asked[n] = false
		}
	}
}

func (l *ledger) answer(names []name) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range names {
		l.asked[n] = true
	}
}

// check holds what was found of a kind against the ledger: answered once, in doubt at
// most once, nothing else.
func (l *ledger) check(t *testing.T, kind string, found map[string]int) {
	t.Helper()
	found = maps.Clone(found)
	wrong := 0
	report := func(format string, args ...any) {
		if wrong++; wrong <= 10 {
			t.Errorf(format, args...)
		}
	}
	for n, answered := range l.asked {
		if n.kind != kind {
			continue
		}
		count := found[n.text]
		delete(found, n.text)
		if answered && count != 1 || count > 1 {
			report("%s %s is stored %d times (answered: %v)", kind, n.text, count, answered)
		}
	}
	for text, count := range found {
		report("%s %s was never sent and is stored %d times", kind, text, count)
	}
	if wrong > 10 {
		t.Errorf("%d wrong of kind %s", wrong, kind)
	}
}

func (l *ledger) answered() (n int) {
	for _, answered := range l.asked {
		if answered {
			n++
		}
	}
	return n
}

func (l *ledger) doubtful() int { return len(l.asked) - l.answered() }
