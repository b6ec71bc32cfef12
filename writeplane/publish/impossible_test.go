package publish

import (
	"context"
	"testing"
	"time"

	"skerry/replication"
	"skerry/replication/down"
)

// sweeping is a ledger that tells when a sweep of the normal lane has found the stream complete.
type sweeping struct {
	*Ledger
	complete chan struct{}
}

func (s sweeping) RaiseFloor(ctx context.Context, lane replication.Lane, epoch replication.Epoch, before time.Time) error {
	if lane == replication.Normal {
		select {
		case s.complete <- struct{}{}:
		default:
		}
	}
	return s.Ledger.RaiseFloor(ctx, lane, epoch, before)
}

// insert puts a document past everything that checks it.
func (b *bench) insert(subject string) {
	b.t.Helper()
	_, err := b.pool.Exec(b.t.Context(), `
		WITH head AS (UPDATE lanes SET position = position + 1 WHERE lane = 0 RETURNING position), recorded AS (
			INSERT INTO commits (lane, position, token, at) SELECT 0, position, '0123456789abcdef', now() FROM head)
		INSERT INTO documents (subject, lane, position, tx_first, tx_last, commit_token, body, changed_at)
		SELECT $1, 0, position, position, position, '0123456789abcdef', '{}', now() FROM head`, subject)
	if err != nil {
		b.t.Fatal(err)
	}
}

// swept waits until a new publisher has published everything and found the stream complete, twice.
func (b *bench) swept(name string) (*down.Publisher, func()) {
	b.t.Helper()
	ledger := sweeping{New(b.pool), make(chan struct{})}
	p, stop := b.start(name, ledger, nil)
	deadline := time.After(time.Minute)
	for range 2 {
		select {
		case <-ledger.complete:
		case <-deadline:
			b.t.Fatalf("%s: %+v", name, p.Status().Lanes[replication.Normal])
		}
	}
	return p, stop
}

// A process of a newer version may have put documents of a kind that this one does not know: two write planes of different
// versions, or one that was taken back.
func TestDocumentOfAnUnknownKindIsPublished(t *testing.T) {
	b := newBench(t)
	_, stop := b.swept("a")
	stop()
	b.insert("state.novelty.a.b.c.d")
	b.put(map[replication.Subject]any{flag(1): 1})
	b.insert("state.novelty.e.f.g.h")
	before := b.head(replication.Normal).Epoch
	for _, name := range []string{"b", "c"} {
		p, stop := b.swept(name)
		b.settled()
		if n := p.Status().Lanes[replication.Normal].Renewals; n != 0 || b.head(replication.Normal).Epoch != before {
			t.Errorf("%s began %d epochs", name, n)
		}
		stop()
	}
}

// A document that no stream takes must not be taken for one that the stream has lost, for that begins an epoch, and the
// next epoch's stream lacks it as well.
func TestImpossibleDocumentDoesNotBeginEpochAfterEpoch(t *testing.T) {
	b := newBench(t)
	_, stop := b.swept("a")
	stop()
	b.insert("state..empty")
	b.put(map[replication.Subject]any{flag(1): 1})
	b.insert("state.with a blank")
	for _, name := range []string{"b", "c"} {
		p, stop := b.swept(name)
		if n := p.Status().Lanes[replication.Normal].Renewals; n > 1 {
			t.Errorf("%s began %d epochs, want one at most, for what it knows nothing of", name, n)
		}
		stop()
	}
	if got, err := b.stream(replication.Normal); err != nil || len(got) != 2 {
		t.Errorf("the stream has %v, %v; want the marker and the flag", got, err)
	}
}
