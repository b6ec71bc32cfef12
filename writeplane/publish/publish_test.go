package publish

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"skerry/pkg/natsserver/natstest"
	"skerry/pkg/pgserver/pgtest"
	"skerry/replication"
	"skerry/replication/down"
	"skerry/writeplane/commit"
	"skerry/writeplane/lease"
	"skerry/writeplane/postgres/dbtest"
)

func TestMain(m *testing.M) {
	dbtest.Main(m, goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*Server).startGoRoutine.func1"))
}

const project = "0190a3c1-7d2e-7c3a-9f10-0a1b2c3d4e5f"

// bench is a database and a stream server of a test's own.
type bench struct {
	t     *testing.T
	pool  *pgxpool.Pool
	store *commit.Store
	nats  *natstest.Server
	js    jetstream.JetStream
}

func newBench(t *testing.T) *bench {
	t.Parallel()
	pool := dbtest.New(t).App
	ns := natstest.New(t)
	return &bench{t: t, pool: pool, store: commit.New(pool, commit.Sinks{}), nats: ns, js: ns.JetStream(t)}
}

func quick(age time.Duration) down.PublisherConfig {
	return down.PublisherConfig{Term: 500 * time.Millisecond, Poll: 50 * time.Millisecond, Sweep: 50 * time.Millisecond, Age: age, Log: slog.New(slog.DiscardHandler)}
}

// start runs a publisher; the function it returns ends it and waits.
func (b *bench) start(name string, ledger down.Ledger, leases down.Leases) (*down.Publisher, func()) {
	return b.startWith(name, ledger, leases, quick(0))
}

func (b *bench) startWith(name string, ledger down.Ledger, leases down.Leases, config down.PublisherConfig) (*down.Publisher, func()) {
	b.t.Helper()
	if leases == nil {
		leases = lease.New(b.pool, name)
	}
	p, err := down.NewPublisher(b.nats.Connect(b.t), ledger, leases, New(b.pool).Listen, config)
	if err != nil {
		b.t.Fatal(err)
	}
	return p, run(b.t, p)
}

// run runs a publisher until the test ends or stop is called.
func run(t *testing.T, p *down.Publisher) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := p.Run(ctx); err != nil {
			t.Errorf("publish: %v", err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

// put changes documents in one transaction; a nil body deletes.
func (b *bench) put(bodies map[replication.Subject]any) {
	b.t.Helper()
	err := b.store.InTx(b.t.Context(), commit.Origin{}, func(tx *commit.Tx) error {
		for subject, body := range bodies {
			if body == nil {
				tx.Delete(subject)
				continue
			}
			if err := tx.Put(subject, body); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

func flag(i int) replication.Subject {
	return replication.FlagSubject(project, "live", fmt.Sprintf("f%d", i))
}

// table reads a lane's documents as the database has them, by subject.
func (b *bench) table(lane replication.Lane) map[string]string {
	b.t.Helper()
	rows, err := b.pool.Query(b.t.Context(),
		`SELECT subject, d.position, coalesce(convert_from(body, 'UTF8'), 'gone'), epoch::text FROM documents d JOIN lanes l USING (lane) WHERE lane = $1`, int16(lane))
	if err != nil {
		b.t.Fatal(err)
	}
	all := map[string]string{}
	var subject, body, epoch string
	var position int64
	if _, err := pgx.ForEachRow(rows, []any{&subject, &position, &body, &epoch}, func() error {
		all[subject] = fmt.Sprint(position, " ", body, " ", epoch)
		return nil
	}); err != nil {
		b.t.Fatal(err)
	}
	return all
}

// stream reads a lane's documents as the stream has them, by subject, and checks their order.
func (b *bench) stream(lane replication.Lane) (map[string]string, error) {
	s, err := b.js.Stream(b.t.Context(), lane.Stream())
	if err != nil {
		return nil, err
	}
	info, err := s.Info(b.t.Context())
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	var last replication.Position
	for seq := max(info.State.FirstSeq, 1); seq <= info.State.LastSeq; seq++ {
		msg, err := s.GetMsg(b.t.Context(), seq)
		if err != nil {
			continue // replaced by a newer one
		}
		d, err := replication.Decode(msg.Data)
		if err != nil {
			return nil, err
		}
		if d.Position <= last {
			return nil, fmt.Errorf("position %d stands behind %d", d.Position, last)
		}
		last = d.Position
		body := string(d.Body)
		if d.Tombstone() {
			body = "gone"
		}
		all[string(d.Subject)] = fmt.Sprint(d.Position, " ", body, " ", d.Epoch)
	}
	return all, nil
}

// settled waits until both streams hold exactly what the database holds.
func (b *bench) settled() {
	b.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for lane := range replication.Lanes {
		for {
			want := b.table(lane)
			got, err := b.stream(lane)
			if err == nil && len(want) > 0 && fmt.Sprint(got) == fmt.Sprint(want) {
				break
			}
			if time.Now().After(deadline) {
				b.t.Fatalf("lane %s: stream %v (%v), database %v", lane, got, err, want)
			}
			<-time.After(20 * time.Millisecond)
		}
	}
}

func (b *bench) head(lane replication.Lane) down.Head {
	b.t.Helper()
	h, err := New(b.pool).Head(b.t.Context(), lane)
	if err != nil {
		b.t.Fatal(err)
	}
	return h
}

func TestWhatIsCommittedReachesTheStreams(t *testing.T) {
	b := newBench(t)
	b.put(map[replication.Subject]any{flag(1): 1, flag(2): 1})
	b.start("a", New(b.pool), nil)
	b.settled()
	b.put(map[replication.Subject]any{flag(2): 2, replication.FlagSubject(project, "live", "v1."): 1, replication.FlagSubject(project, "live", ".v1"): 1, replication.ConfigSubject(project, "test", "a..b"): 1})
	b.put(map[replication.Subject]any{replication.HaltSubject(project, "live", "a..b"): 1})
	b.settled()
	b.put(map[replication.Subject]any{flag(1): nil, replication.HaltSubject(project, "live", "a..b"): nil})
	b.settled()
	if got, _ := b.stream(replication.Urgent); !bytes.Contains([]byte(got[string(replication.HaltSubject(project, "live", "a..b"))]), []byte("gone")) {
		t.Errorf("the halt is not gone: %v", got)
	}
}

func TestStatusTellsWhatIsCommittedAndWhatIsPublished(t *testing.T) {
	b := newBench(t)
	status := func() []LaneStatus {
		t.Helper()
		lanes, err := New(b.pool).Status(t.Context())
		if err != nil || len(lanes) != 2 || lanes[0].Lane != "normal" || lanes[1].Lane != "urgent" {
			t.Fatalf("%+v, %v", lanes, err)
		}
		return lanes
	}
	_, stop := b.start("a", New(b.pool), nil)
	b.put(map[replication.Subject]any{flag(1): 1})
	b.settled()
	for deadline := time.Now().Add(time.Minute); ; <-time.After(10 * time.Millisecond) {
		// The stream has it a moment before the database knows that.
		if s := status(); s[0].Published == s[0].Position && s[1].Published == s[1].Position {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("%+v", s)
		}
	}
	before := status()
	stop()
	b.put(map[replication.Subject]any{flag(1): 2, flag(2): 1})
	after := status()
	if after[0].Position != before[0].Position+2 || after[0].Published != before[0].Published || after[0].Epoch != before[0].Epoch {
		t.Errorf("two changes that nobody publishes: %+v, before %+v", after, before)
	}
}

func TestRestartContinuesTheEpoch(t *testing.T) {
	b := newBench(t)
	_, stop := b.start("a", New(b.pool), nil)
	b.put(map[replication.Subject]any{flag(1): 1})
	b.settled()
	before := b.head(replication.Normal)
	stop()
	b.put(map[replication.Subject]any{flag(1): 2, flag(2): 1})
	p, _ := b.start("b", New(b.pool), nil)
	b.settled()
	if after := b.head(replication.Normal); after.Epoch != before.Epoch || after.Position != before.Position+2 {
		t.Errorf("epoch %s at %d, before %s at %d", after.Epoch, after.Position, before.Epoch, before.Position)
	}
	if n := p.Status().Lanes[replication.Normal].Renewals; n != 0 {
		t.Errorf("%d new epochs", n)
	}
}

// crashing is a ledger whose process dies right after the stream has taken documents.
type crashing struct {
	*Ledger
	dead chan struct{}
}

func (c crashing) Published(ctx context.Context, lane replication.Lane, epoch replication.Epoch, p replication.Position, seq uint64) error {
	select {
	case <-c.dead:
		<-ctx.Done()
		return ctx.Err()
	default:
		return c.Ledger.Published(ctx, lane, epoch, p, seq)
	}
}

func TestPublishedButNotRecordedIsAdopted(t *testing.T) {
	b := newBench(t)
	dying := crashing{New(b.pool), make(chan struct{})}
	_, stop := b.start("a", dying, nil)
	b.put(map[replication.Subject]any{flag(1): 1})
	b.settled()
	epoch := b.head(replication.Normal).Epoch
	close(dying.dead)
	b.put(map[replication.Subject]any{flag(1): 2, flag(2): 1})
	b.settled()
	stop()
	_, _ = b.start("b", New(b.pool), nil)
	b.put(map[replication.Subject]any{flag(3): 1})
	b.settled()
	if h := b.head(replication.Normal); h.Epoch != epoch {
		t.Error("a new epoch began")
	}
	s, err := b.js.Stream(t.Context(), replication.Normal.Stream())
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// marker, f1, then f1 and f2 again, f3: nothing twice.
	if info.State.LastSeq != 5 {
		t.Errorf("the stream ends at %d, want 5", info.State.LastSeq)
	}
}

// pausable stops like a process that got SIGSTOP: after it has read documents, and in its lease's renewal too.
type pausable struct {
	*Ledger
	leases down.Leases
	mu     sync.Mutex
	paused chan struct{} // nil: running
	held   chan struct{} // closed once it stands with documents in hand
}

// gate stops whoever comes while it is paused; inHand says that they have documents in hand.
func (p *pausable) gate(inHand bool) {
	p.mu.Lock()
	paused := p.paused
	if paused != nil && inHand && p.held != nil {
		close(p.held)
		p.held = nil
	}
	p.mu.Unlock()
	if paused != nil {
		<-paused
	}
}

func (p *pausable) pause() chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused, p.held = make(chan struct{}), make(chan struct{})
	return p.held
}

func (p *pausable) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.paused)
	p.paused = nil
}

func (p *pausable) Pending(ctx context.Context, lane replication.Lane, epoch replication.Epoch, after replication.Position) ([]replication.Document, error) {
	documents, err := p.Ledger.Pending(ctx, lane, epoch, after)
	if len(documents) > 0 {
		p.gate(true)
	}
	return documents, err
}

func (p *pausable) Acquire(ctx context.Context, name string, term time.Duration) (bool, error) {
	p.gate(false)
	return p.leases.Acquire(ctx, name, term)
}

func (p *pausable) Release(ctx context.Context, name string) error {
	return p.leases.Release(ctx, name)
}

func TestPausedPublisherCannotDisturbItsSuccessor(t *testing.T) {
	b := newBench(t)
	first := &pausable{Ledger: New(b.pool), leases: lease.New(b.pool, "a")}
	b.start("a", first, first)
	b.put(map[replication.Subject]any{flag(1): 1})
	b.settled()
	epoch := b.head(replication.Normal).Epoch
	held := first.pause()
	b.put(map[replication.Subject]any{flag(1): "old", flag(2): "old"})
	<-held
	// It stands with the old versions in hand. Its lease runs out, another takes over and goes on.
	b.start("b", New(b.pool), nil)
	b.put(map[replication.Subject]any{flag(1): "new", flag(3): "new"})
	b.settled()
	first.resume()
	for i := range 20 {
		b.put(map[replication.Subject]any{flag(i % 4): i})
	}
	b.settled()
	if b.head(replication.Normal).Epoch != epoch {
		t.Error("a new epoch began")
	}
}

func TestOldTombstonesLeaveStreamAndDatabase(t *testing.T) {
	b := newBench(t)
	b.put(map[replication.Subject]any{flag(1): 1, flag(2): 1})
	b.startWith("a", New(b.pool), nil, quick(time.Millisecond))
	b.settled()
	b.put(map[replication.Subject]any{flag(1): nil})
	gone := b.head(replication.Normal).Position
	deadline := time.Now().Add(time.Minute)
	for {
		if _, there := b.table(replication.Normal)[string(flag(1))]; !there {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the tombstone stays")
		}
		<-time.After(20 * time.Millisecond)
	}
	b.settled()
	body := dbtest.One[[]byte](t, b.pool, `SELECT body FROM documents WHERE subject = 'state.epoch'`)
	var marker replication.Marker
	if err := json.Unmarshal(body, &marker); err != nil {
		t.Fatal(err)
	}
	if marker.Floor != gone {
		t.Errorf("floor %d, want the tombstone's position %d", marker.Floor, gone)
	}
	// What was gone can come back.
	b.put(map[replication.Subject]any{flag(1): "again"})
	b.settled()
}

func TestPendingIsOneSnapshotInOrder(t *testing.T) {
	b := newBench(t)
	for i := range 10 {
		b.put(map[replication.Subject]any{flag(i % 3): i, flag(10 + i): i})
	}
	h := b.head(replication.Normal)
	if err := New(b.pool).Published(t.Context(), replication.Normal, h.Epoch, 3, 1); err != nil {
		t.Fatal(err)
	}
	documents, err := New(b.pool).Pending(t.Context(), replication.Normal, h.Epoch, 3)
	if err != nil {
		t.Fatal(err)
	}
	last := replication.Position(3)
	for _, d := range documents {
		if d.Position <= last || d.Through != 20 || d.TxLast-d.TxFirst != 1 {
			t.Errorf("%s at %d of %d..%d behind %d, through %d", d.Subject, d.Position, d.TxFirst, d.TxLast, last, d.Through)
		}
		last = d.Position
	}
	if last != 20 {
		t.Errorf("ends at %d, want 20", last)
	}
	other, err := New(b.pool).Pending(t.Context(), replication.Normal, replication.Epoch(uuid.New()), 3)
	if err != nil || len(other) != 0 {
		t.Errorf("another epoch has %d pending documents, %v", len(other), err)
	}
	elsewhere, err := New(b.pool).Pending(t.Context(), replication.Normal, h.Epoch, 2)
	if err != nil || len(elsewhere) != 0 {
		t.Errorf("from where the lane is not published, %d documents are pending, %v", len(elsewhere), err)
	}
}

func TestOneHolderAtATime(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t).Pool(t)
	a, b := lease.New(pool, "a"), lease.New(pool, "b")
	take := func(l *lease.Store, term time.Duration, want bool) {
		t.Helper()
		if got, err := l.Acquire(t.Context(), "x", term); err != nil || got != want {
			t.Fatalf("got %v, %v; want %v", got, err, want)
		}
	}
	take(a, time.Minute, true)
	take(b, time.Minute, false)
	take(a, time.Millisecond, true)
	<-time.After(20 * time.Millisecond)
	take(b, time.Minute, true)
	take(a, time.Minute, false)
	if err := a.Release(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	take(a, time.Minute, false)
	if err := b.Release(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	take(a, time.Minute, true)
}
