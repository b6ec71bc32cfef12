// Package downtest has a ledger in memory, so that tests of followers and edges have a
// real publisher without a database. It keeps the same contract as the tables of the
// write plane and is tested with them.
package downtest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"skerry/replication"
	"skerry/replication/down"
)

// Ledger is a down.Ledger and a down.Leases in memory.
type Ledger struct {
	// Window is how many documents Pending returns at most; 0 means all.
	Window int

	mu     sync.Mutex
	lanes  [replication.Lanes]lane
	wakes  map[int]func()
	nextID int
}

type lane struct {
	head      down.Head
	documents map[replication.Subject]replication.Document
	commits   map[replication.Position]replication.Token
	floor     replication.Position
}

// New returns an empty ledger.
func New() *Ledger {
	l := &Ledger{wakes: make(map[int]func())}
	for i := range l.lanes {
		l.lanes[i] = lane{
			documents: make(map[replication.Subject]replication.Document),
			commits:   make(map[replication.Position]replication.Token),
			head:      down.Head{Present: "00000001"},
		}
	}
	return l
}

// Commit changes documents in one transaction; a nil body deletes.
func (l *Ledger) Commit(bodies map[replication.Subject][]byte) {
	l.mu.Lock()
	token, now := newToken(), time.Now().UnixMicro()
	for i := range l.lanes {
		at := &l.lanes[i]
		var subjects []replication.Subject
		for s := range bodies {
			if s.Lane() == replication.Lane(i) {
				subjects = append(subjects, s)
			}
		}
		slices.Sort(subjects)
		first := at.head.Position + 1
		last := at.head.Position + replication.Position(len(subjects))
		for n, s := range subjects {
			at.documents[s] = replication.Document{
				Lane: replication.Lane(i), Subject: s, Position: first + replication.Position(n), TxFirst: first, TxLast: last,
				Commit: token, ChangedAt: now, Body: bodies[s],
			}
		}
		if len(subjects) > 0 {
			at.head.Position = last
			at.commits[last] = token
		}
	}
	wakes := slices.Collect(maps.Values(l.wakes))
	l.mu.Unlock()
	for _, wake := range wakes {
		wake()
	}
}

// Documents are the lane's documents as they stand, tombstones included.
func (l *Ledger) Documents(of replication.Lane) map[replication.Subject]replication.Document {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.lanes[of].documents)
}

// Floor is the lane's floor.
func (l *Ledger) Floor(of replication.Lane) replication.Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lanes[of].floor
}

// Backup is a copy of a ledger.
type Backup struct{ lanes [replication.Lanes]lane }

// Backup copies what the ledger holds.
func (l *Ledger) Backup() Backup {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Backup{copyLanes(l.lanes)}
}

// Restore puts a copy in the place of what the ledger holds.
func (l *Ledger) Restore(b Backup) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lanes = copyLanes(b.lanes)
}

func copyLanes(from [replication.Lanes]lane) (to [replication.Lanes]lane) {
	for i, at := range from {
		at.documents, at.commits = maps.Clone(at.documents), maps.Clone(at.commits)
		to[i] = at
	}
	return to
}

// Head implements down.History.
func (l *Ledger) Head(_ context.Context, of replication.Lane) (down.Head, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head(of), nil
}

func (l *Ledger) head(of replication.Lane) down.Head {
	h := l.lanes[of].head
	for _, d := range l.lanes[of].documents {
		h.Held = h.Held || d.Position <= h.Published
	}
	return h
}

// Committed implements down.History.
func (l *Ledger) Committed(_ context.Context, of replication.Lane, p replication.Position) (replication.Token, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	token, ok := l.lanes[of].commits[p]
	return token, ok, nil
}

// Count implements down.History.
func (l *Ledger) Count(_ context.Context, of replication.Lane, p replication.Position) (n uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.lanes[of].documents {
		if d.Position <= p && (!d.Tombstone() || d.Position > l.lanes[of].floor) {
			n++
		}
	}
	return n, nil
}

// Renew implements down.History.
func (l *Ledger) Renew(_ context.Context, of replication.Lane, past replication.Position) (down.Head, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := &l.lanes[of]
	marker := replication.EpochSubject(of)
	delete(at.documents, marker)
	all := slices.SortedFunc(maps.Values(at.documents), func(a, b replication.Document) int { return cmp.Compare(a.Position, b.Position) })
	base := max(at.head.Position, past) + down.EpochJump
	last := base + replication.Position(len(all)) + 1
	token := newToken()
	epoch := replication.Epoch(newToken())
	for i, d := range all {
		d.Position, d.TxFirst, d.TxLast, d.Commit = base+replication.Position(i)+1, base+1, last, token
		at.documents[d.Subject] = d
	}
	at.head.Epoch, at.head.Position, at.head.Published, at.head.Seq, at.head.Unpurged = epoch, last, base, 0, true
	at.head.Timeline, at.floor = at.head.Present, base
	l.putMarker(of, base+1, last, token)
	return l.head(of), nil
}

func (l *Ledger) putMarker(of replication.Lane, first, last replication.Position, token replication.Token) {
	at := &l.lanes[of]
	body, err := json.Marshal(replication.Marker{Epoch: at.head.Epoch.String(), Floor: at.floor})
	if err != nil {
		panic("BUG: a marker does not marshal: " + err.Error())
	}
	subject := replication.EpochSubject(of)
	at.documents[subject] = replication.Document{Lane: of, Subject: subject, Position: last, TxFirst: first, TxLast: last, Commit: token, Body: body}
	at.commits[last] = token
	at.head.Position = last
}

// Pending implements down.Outbox.
func (l *Ledger) Pending(_ context.Context, of replication.Lane, epoch replication.Epoch, after replication.Position) ([]replication.Document, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := &l.lanes[of]
	if at.head.Epoch != epoch || at.head.Published != after {
		return nil, nil
	}
	var pending []replication.Document
	through := replication.Position(0)
	for _, d := range at.documents {
		through = max(through, d.Position)
		if d.Position > after {
			pending = append(pending, d)
		}
	}
	slices.SortFunc(pending, func(a, b replication.Document) int { return cmp.Compare(a.Position, b.Position) })
	if l.Window > 0 && len(pending) > l.Window {
		pending = pending[:l.Window]
	}
	for i := range pending {
		pending[i].Epoch, pending[i].Through = epoch, through
	}
	return pending, nil
}

// Published implements down.Outbox.
func (l *Ledger) Published(_ context.Context, of replication.Lane, epoch replication.Epoch, p replication.Position, seq uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := &l.lanes[of].head
	if h.Epoch != epoch || h.Published > p {
		return down.ErrSuperseded
	}
	h.Published, h.Seq, h.Unpurged = p, seq, false
	return nil
}

// RaiseFloor implements down.Graves.
func (l *Ledger) RaiseFloor(_ context.Context, of replication.Lane, epoch replication.Epoch, before time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := &l.lanes[of]
	if at.head.Epoch != epoch {
		return down.ErrSuperseded
	}
	newest := at.floor
	for _, d := range at.documents {
		if d.Tombstone() && d.Position <= at.head.Published && d.ChangedAt < before.UnixMicro() {
			newest = max(newest, d.Position)
		}
	}
	if newest > at.floor {
		at.floor = newest
		l.putMarker(of, at.head.Position+1, at.head.Position+1, newToken())
	}
	return nil
}

// Buried implements down.Graves.
func (l *Ledger) Buried(_ context.Context, of replication.Lane, epoch replication.Epoch) ([]replication.Document, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := &l.lanes[of]
	if at.head.Epoch != epoch || at.documents[replication.EpochSubject(of)].Position > at.head.Published {
		return nil, nil
	}
	var buried []replication.Document
	for _, d := range at.documents {
		if d.Tombstone() && d.Position <= at.floor {
			buried = append(buried, d)
		}
	}
	return buried, nil
}

// Forget implements down.Graves.
func (l *Ledger) Forget(_ context.Context, of replication.Lane, tombstones []replication.Document) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range tombstones {
		if now, ok := l.lanes[of].documents[d.Subject]; ok && now.Position == d.Position {
			delete(l.lanes[of].documents, d.Subject)
		}
	}
	return nil
}

// Acquire implements down.Leases for tests with one publisher.
func (l *Ledger) Acquire(context.Context, string, time.Duration) (bool, error) { return true, nil }

// Release implements down.Leases.
func (l *Ledger) Release(context.Context, string) error { return nil }

// Listen wakes for every commit.
func (l *Ledger) Listen(ctx context.Context, wake func()) error {
	l.mu.Lock()
	id := l.nextID
	l.nextID++
	l.wakes[id] = wake
	l.mu.Unlock()
	wake()
	<-ctx.Done()
	l.mu.Lock()
	delete(l.wakes, id)
	l.mu.Unlock()
	return nil
}

// Publish runs a publisher of the ledger until the test ends or stop is called.
func Publish(t testing.TB, conn *nats.Conn, l *Ledger, config down.PublisherConfig) (p *down.Publisher, stop func()) {
	t.Helper()
	if config.Poll == 0 {
		config.Poll = 50 * time.Millisecond
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	p, err := down.NewPublisher(conn, l, l, l.Listen, config)
	if err != nil {
		t.Fatal(err)
	}
	return p, Run(t, p.Run)
}

// Run runs something until the test ends or stop is called.
func Run(t testing.TB, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

// Eventually waits until check returns "" and fails with what it said last otherwise.
func Eventually(t testing.TB, check func() string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		said := check()
		if said == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(said)
		}
		<-tick.C
	}
}

// Equal compares documents by what an edge keeps of them.
func Equal(a, b replication.Document) bool {
	return a.Subject == b.Subject && a.Position == b.Position && bytes.Equal(a.Body, b.Body)
}

// String describes a document in a failing test.
func String(d replication.Document) string {
	return fmt.Sprintf("%s at %d: %q", d.Subject, d.Position, d.Body)
}

func newToken() (t replication.Token) {
	_, _ = rand.Read(t[:]) // never fails, it ends the process instead
	return t
}
