package store

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"skerry/pkg/natsserver/natstest"
	"skerry/replication"
	"skerry/replication/down"
	"skerry/replication/down/downtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const project = "0190a3c1-7d2e-7c3a-9f10-0a1b2c3d4e5f"

const pairs = 12

// left and right are two documents that every transaction changes together and to the same value: an edge that serves
// different ones serves half a transaction. Their subjects are far apart in order.
func left(i int) replication.Subject {
	return replication.ConfigSubject(project, "live", "pair"+strconv.Itoa(i))
}

func right(i int) replication.Subject {
	return replication.SurveySubject(project, "pair"+strconv.Itoa(i))
}

// Money moves between accounts: every transaction changes two, their sum is always the same. Unlike a pair, an account
// is changed by different transactions with different others, so half of one survives in a compacted stream.
const accounts, each = 8, 100

func account(i int) replication.Subject {
	return replication.FlagSubject(project, "live", "account"+strconv.Itoa(i))
}

// bank makes transactions that move money.
type bank [accounts]int

func (b *bank) open() map[replication.Subject][]byte {
	bodies := map[replication.Subject][]byte{}
	for i := range b {
		b[i] = each
		bodies[account(i)] = []byte(strconv.Itoa(each))
	}
	return bodies
}

func (b *bank) transfer(r *rand.Rand, into map[replication.Subject][]byte) {
	from, to, amount := r.IntN(accounts), r.IntN(accounts), 1+r.IntN(9)
	b[from] -= amount
	b[to] += amount
	for _, i := range []int{from, to} {
		into[account(i)] = []byte(strconv.Itoa(b[i]))
	}
}

// edge is a store with its two followers.
type edge struct {
	t      *testing.T
	fs     vfs.FS
	conn   *nats.Conn
	config down.FollowerConfig

	disk      *Store
	followers [replication.Lanes]*down.Follower
	stops     []func()
	changes   atomic.Int64
	also      func() // called for every state that is served; may be nil
}

func (e *edge) start() {
	e.t.Helper()
	e.config.Log = slog.New(slog.DiscardHandler)
	disk, err := Open(Config{Dir: "state", FS: e.fs, Log: e.config.Log}, e.observe)
	if err != nil {
		e.t.Fatal(err)
	}
	e.disk = disk
	e.stops = append(e.stops, downtest.Run(e.t, disk.Run))
	for lane := range replication.Lanes {
		f, err := down.NewFollower(e.conn, lane, disk, e.config)
		if err != nil {
			e.t.Fatal(err)
		}
		e.followers[lane] = f
		e.stops = append(e.stops, downtest.Run(e.t, f.Run))
	}
}

func (e *edge) stop() {
	for _, stop := range e.stops {
		stop()
	}
	e.stops = nil
	if e.disk != nil {
		if err := e.disk.Close(); err != nil {
			e.t.Error(err)
		}
		e.disk = nil
	}
}

// observe looks at every state that the edge ever serves.
func (e *edge) observe(Change) {
	e.changes.Add(1)
	if e.disk == nil {
		return
	}
	if e.also != nil {
		e.also()
	}
	_ = e.disk.Read(func(look *Snapshot) error {
		for i := range pairs {
			l, okL, _ := look.Get(left(i))
			r, okR, _ := look.Get(right(i))
			if okL != okR || string(l.Body) != string(r.Body) {
				e.t.Errorf("pair %d: half a transaction is served: %q at %d and %q at %d", i, l.Body, l.Position, r.Body, r.Position)
			}
		}
		sum, open := 0, 0
		for i := range accounts {
			if a, ok, _ := look.Get(account(i)); ok {
				n, _ := strconv.Atoi(string(a.Body))
				sum, open = sum+n, open+1
			}
		}
		if open > 0 && sum != accounts*each {
			e.t.Errorf("half a transfer is served: %d accounts hold %d", open, sum)
		}
		return nil
	})
}

// same tells how the edge differs from the ledger; "" means not at all.
func (e *edge) same(l *downtest.Ledger) string {
	said := ""
	err := e.disk.Read(func(look *Snapshot) error {
		for lane := range replication.Lanes {
			want := l.Documents(lane)
			maps.DeleteFunc(want, func(_ replication.Subject, d replication.Document) bool { return d.Tombstone() })
			err := look.Scan(lane, "", func(s replication.Subject, entry Entry) error {
				got := replication.Document{Subject: s, Position: entry.Position, Body: entry.Body}
				if !downtest.Equal(got, want[s]) {
					said = fmt.Sprintf("has %s, want %s", downtest.String(got), downtest.String(want[s]))
				}
				delete(want, s)
				return nil
			})
			if err != nil {
				return err
			}
			for _, d := range want {
				said = "lacks " + downtest.String(d)
			}
			if got, err := look.Positions(lane, project, "live"); err != nil {
				return err
			} else if want := expected(l, lane); got != want && said == "" {
				said = fmt.Sprintf("lane %s has revisions %v, want %v", lane, got, want)
			}
		}
		return nil
	})
	if err != nil {
		return err.Error()
	}
	return said
}

// expected are the revisions as the specification of a revision has them: the highest positions of the documents of each
// part, deletions included, none below the floor.
func expected(l *downtest.Ledger, lane replication.Lane) (p Positions) {
	for i := range p {
		p[i] = l.Floor(lane)
	}
	for s, d := range l.Documents(lane) {
		parts, _ := s.Parse()
		if parts.Env == "test" {
			continue
		}
		switch parts.Kind {
		case replication.KindFlag, replication.KindHalt:
			p[Flags] = max(p[Flags], d.Position)
		case replication.KindConfig:
			p[Items] = max(p[Items], d.Position)
		case replication.KindCohort:
			p[Cohorts] = max(p[Cohorts], d.Position)
		case replication.KindSurvey:
			p[Surveys] = max(p[Surveys], d.Position)
		case replication.KindProject:
			p[Settings] = max(p[Settings], d.Position)
		}
	}
	return p
}

// transaction makes one random transaction: some pairs, some other documents, some deletions, in both lanes.
func (w *world) transaction(r *rand.Rand, n int) map[replication.Subject][]byte {
	bodies := map[replication.Subject][]byte{}
	if w.bank == (bank{}) {
		bodies = w.bank.open()
	} else if r.IntN(3) > 0 {
		w.bank.transfer(r, bodies)
	}
	for range 1 + r.IntN(3) {
		i := r.IntN(pairs)
		var body []byte
		if r.IntN(5) > 0 {
			body = fmt.Appendf(nil, `{"n":%d,"pad":"%0*d"}`, n, r.IntN(200), 0)
		}
		bodies[left(i)], bodies[right(i)] = body, body
	}
	if r.IntN(3) == 0 {
		bodies[replication.FlagSubject(project, "test", "f"+strconv.Itoa(r.IntN(5)))] = fmt.Appendf(nil, "%d", n)
	}
	if r.IntN(3) == 0 {
		bodies[replication.ProjectSubject(project)] = fmt.Appendf(nil, "%d", n)
	}
	if r.IntN(3) == 0 { // of a kind that a newer version has
		bodies[replication.Subject("state.novelty.a.b.c."+strconv.Itoa(r.IntN(3)))] = fmt.Appendf(nil, "%d", n)
	}
	if r.IntN(2) == 0 {
		var body []byte
		if r.IntN(2) == 0 {
			body = fmt.Appendf(nil, "%d", n)
		}
		bodies[replication.HaltSubject(project, "live", "f"+strconv.Itoa(r.IntN(3)))] = body
	}
	return bodies
}

// TestOneHistoryOneAnswer plays one history to edges that differ in everything that must not matter, and looks at every
// state that they serve on the way.
func TestOneHistoryOneAnswer(t *testing.T) {
	const length = 400
	type stage func(t *testing.T, w *world, n int)
	for name, c := range map[string]struct {
		window   int // of the publisher
		follower down.FollowerConfig
		late     bool // the edge starts only when all is over
		every    int  // every so many transactions,
		do       stage
		settle   bool // wait for the edge between
	}{
		"live":                            {},
		"live, one document a batch":      {follower: down.FollowerConfig{Batch: 1}},
		"publisher reads one at a time":   {window: 1},
		"publisher reads three at a time": {window: 3},
		"no room in memory":               {window: 2, follower: down.FollowerConfig{MaxPending: 200}},
		"snapshot only":                   {late: true},
		"snapshot only, tiny batches":     {late: true, follower: down.FollowerConfig{Batch: 1}},
		"restarted often":                 {every: 40, do: restartEdge},
		"restarted often, settled":        {every: 40, do: restartEdge, settle: true},
		"away, then compacted catch-up":   {every: 100, do: awayForAWhile, settle: true},
		"streams restarted":               {every: 130, do: restartStreams},
		"streams wiped":                   {every: 150, do: wipeStreams},
		"database restored":               {every: 150, do: restoreDatabase},
		"old tombstones purged":           {every: 50, do: purgeTombstones},
		"store damaged":                   {every: 130, do: damageStore, settle: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.window, c.follower)
			if !c.late {
				w.edge.start()
			}
			r := rand.New(rand.NewPCG(1, 2))
			for n := range length {
				w.ledger.Commit(w.transaction(r, n))
				if n%7 == 0 {
					<-time.After(time.Millisecond)
				}
				if !c.late && n%100 == 99 {
					w.seen() // on a slow machine the edge would else get everything at once
				}
				if c.do != nil && n%c.every == c.every-1 {
					if c.settle {
						w.settled()
					}
					c.do(t, w, n)
				}
			}
			if c.late {
				w.published()
				w.edge.start()
			}
			w.settled()
			if !c.late && w.edge.changes.Load() < 3 {
				t.Errorf("the edge served %d states only, so nothing was looked at", w.edge.changes.Load())
			}
		})
	}
}

type world struct {
	t         *testing.T
	nats      *natstest.Server
	ledger    *downtest.Ledger
	config    down.PublisherConfig
	publisher *down.Publisher
	stop      func()
	edge      *edge
	backup    *downtest.Backup
	bank      bank
	saved     bank // at the backup
}

func newWorld(t *testing.T, window int, follower down.FollowerConfig) *world {
	w := &world{t: t, nats: natstest.New(t), ledger: downtest.New(), config: down.PublisherConfig{Term: time.Second}}
	w.ledger.Window = window
	w.publish()
	w.edge = &edge{t: t, fs: vfs.NewMem(), conn: w.connect(), config: follower}
	t.Cleanup(w.edge.stop)
	return w
}

func (w *world) connect() *nats.Conn {
	return w.nats.Connect(w.t, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0), nats.ReconnectBufSize(-1))
}

func (w *world) publish() {
	w.publisher, w.stop = downtest.Publish(w.t, w.connect(), w.ledger, w.config)
}

// seen waits until the edge has served something new.
func (w *world) seen() {
	w.t.Helper()
	before := w.edge.changes.Load()
	downtest.Eventually(w.t, func() string {
		if w.edge.changes.Load() == before && w.edge.same(w.ledger) != "" {
			return fmt.Sprintf("nothing new is served: %+v", w.edge.followers[0].Status())
		}
		return ""
	})
}

// published waits until the streams have everything.
func (w *world) published() {
	w.t.Helper()
	downtest.Eventually(w.t, func() string {
		for lane := range replication.Lanes {
			h, _ := w.ledger.Head(w.t.Context(), lane)
			if h.Published != h.Position {
				return fmt.Sprintf("lane %s is published to %d of %d: %v", lane, h.Published, h.Position, w.publisher.Status())
			}
		}
		return ""
	})
}

// settled waits until the edge has everything.
func (w *world) settled() {
	w.t.Helper()
	w.published()
	downtest.Eventually(w.t, func() string {
		if said := w.edge.same(w.ledger); said != "" {
			return fmt.Sprintf("%s; %+v", said, w.edge.followers[0].Status())
		}
		return ""
	})
}

func restartEdge(_ *testing.T, w *world, _ int) {
	w.edge.stop()
	w.edge.start()
}

func awayForAWhile(_ *testing.T, w *world, n int) {
	w.edge.stop()
	r := rand.New(rand.NewPCG(uint64(n), 3))
	for i := range 50 {
		w.ledger.Commit(w.transaction(r, 1000*n+i))
	}
	w.edge.start()
}

func restartStreams(_ *testing.T, w *world, _ int) {
	w.nats.Stop()
	w.ledger.Commit(w.transaction(rand.New(rand.NewPCG(5, 5)), -1))
	w.nats.Start()
}

func wipeStreams(t *testing.T, w *world, _ int) {
	w.published()
	js := w.nats.JetStream(t)
	for lane := range replication.Lanes {
		if err := js.DeleteStream(t.Context(), lane.Stream()); err != nil {
			t.Fatal(err)
		}
	}
}

func restoreDatabase(_ *testing.T, w *world, n int) {
	if w.backup == nil {
		b := w.ledger.Backup()
		w.backup, w.saved = &b, w.bank
		return
	}
	w.published()
	w.stop()
	w.ledger.Restore(*w.backup)
	w.bank = w.saved
	w.publish()
}

func purgeTombstones(t *testing.T, w *world, _ int) {
	w.published()
	w.stop()
	w.config.Sweep, w.config.Age = 20*time.Millisecond, time.Microsecond
	w.publish()
	downtest.Eventually(t, func() string {
		for lane := range replication.Lanes {
			for _, d := range w.ledger.Documents(lane) {
				if d.Tombstone() {
					return "the tombstone stays: " + downtest.String(d)
				}
			}
		}
		return ""
	})
}

func damageStore(t *testing.T, w *world, _ int) {
	w.edge.disk.suspect(fmt.Errorf("a test says so: %w", pebble.ErrCorruption))
	downtest.Eventually(t, func() string {
		if w.edge.disk.Damage() == nil {
			return "the store is not set aside"
		}
		return ""
	})
}
