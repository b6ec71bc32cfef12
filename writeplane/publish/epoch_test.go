package publish

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"skerry/replication"
	"skerry/replication/down"
)

func TestWipedStreamBeginsANewEpoch(t *testing.T) {
	b := newBench(t)
	p, _ := b.start("a", New(b.pool), nil)
	b.put(map[replication.Subject]any{flag(1): 1, flag(2): 1})
	b.settled()
	before := b.head(replication.Normal)
	if err := b.js.DeleteStream(t.Context(), replication.Normal.Stream()); err != nil {
		t.Fatal(err)
	}
	b.settled()
	after := b.head(replication.Normal)
	if after.Epoch == before.Epoch || after.Position < before.Position+down.EpochJump {
		t.Errorf("epoch %s at %d after %s at %d", after.Epoch, after.Position, before.Epoch, before.Position)
	}
	if n := p.Status().Lanes[replication.Urgent].Renewals; n != 1 {
		t.Errorf("the urgent lane began %d epochs, want its first only", n)
	}
}

func TestPurgedStreamBeginsANewEpoch(t *testing.T) {
	newBench(t).epochEndsWhen(func(s jetstream.Stream) error { return s.Purge(t.Context()) })
}

func TestStreamThatLostAMessageBeginsANewEpoch(t *testing.T) {
	newBench(t).epochEndsWhen(func(s jetstream.Stream) error { return s.DeleteMsg(t.Context(), 3) })
}

// epochEndsWhen does something to the stream of three documents between two publishers, of
// which the second must begin a new epoch.
func (b *bench) epochEndsWhen(harm func(jetstream.Stream) error) {
	b.t.Helper()
	_, stop := b.start("a", New(b.pool), nil)
	b.put(map[replication.Subject]any{flag(1): 1, flag(2): 1, flag(3): 1})
	b.settled()
	stop()
	epoch := b.head(replication.Normal).Epoch
	s, err := b.js.Stream(b.t.Context(), replication.Normal.Stream())
	if err != nil {
		b.t.Fatal(err)
	}
	if err := harm(s); err != nil {
		b.t.Fatal(err)
	}
	b.start("b", New(b.pool), nil)
	b.settled()
	if b.head(replication.Normal).Epoch == epoch {
		b.t.Error("the epoch did not end")
	}
}

func TestCopyOfAnUnfinishedEpochBeginsAnother(t *testing.T) {
	b := newBench(t)
	b.put(map[replication.Subject]any{flag(1): "kept"})
	begun, err := New(b.pool).Renew(t.Context(), replication.Normal, 0)
	if err != nil || !begun.Unpurged {
		t.Fatal(begun, err)
	}
	copied := b.copyState()
	if err := New(b.pool).Published(t.Context(), replication.Normal, begun.Epoch, begun.Published, 0); err != nil {
		t.Fatal(err)
	}
	_, stop := b.start("a", New(b.pool), nil)
	for i := range 5 {
		b.put(map[replication.Subject]any{flag(i): "lost"})
	}
	b.settled()
	stop()
	before := b.head(replication.Normal)
	if before.Epoch != begun.Epoch {
		t.Fatal("the test wants the begun epoch to be the one that is published")
	}
	b.restoreState(copied)
	b.start("b", New(b.pool), nil)
	b.settled()
	if after := b.head(replication.Normal); after.Epoch == before.Epoch || after.Position < before.Position+down.EpochJump {
		t.Errorf("epoch %s at %d after %s at %d", after.Epoch, after.Position, before.Epoch, before.Position)
	}
}

func TestTruncatedStreamBeginsANewEpoch(t *testing.T) {
	b := newBench(t)
	_, stop := b.start("a", New(b.pool), nil)
	for i := range 10 {
		b.put(map[replication.Subject]any{flag(i): i})
	}
	b.settled()
	stop()
	before := b.head(replication.Normal)
	// The stream as an older copy of its server would have it: its first messages, its own numbers.
	old, err := b.js.Stream(t.Context(), replication.Normal.Stream())
	if err != nil {
		t.Fatal(err)
	}
	var first []*jetstream.RawStreamMsg
	for seq := range uint64(4) {
		msg, err := old.GetMsg(t.Context(), seq+1)
		if err != nil {
			t.Fatal(err)
		}
		first = append(first, msg)
	}
	if err := b.js.DeleteStream(t.Context(), replication.Normal.Stream()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.js.CreateStream(t.Context(), down.StreamConfig(replication.Normal, 1)); err != nil {
		t.Fatal(err)
	}
	for _, msg := range first {
		if _, err := b.js.Publish(t.Context(), msg.Subject, msg.Data); err != nil {
			t.Fatal(err)
		}
	}
	b.start("b", New(b.pool), nil)
	b.settled()
	after := b.head(replication.Normal)
	if after.Epoch == before.Epoch || after.Position < before.Position+down.EpochJump {
		t.Errorf("epoch %s at %d after %s at %d", after.Epoch, after.Position, before.Epoch, before.Position)
	}
}

func TestDatabaseRestoredFromAnOlderCopyBeginsANewEpoch(t *testing.T) {
	for _, since := range []int{0, 1, 20} {
		t.Run(fmt.Sprintf("%d changes since the restore", since), func(t *testing.T) {
			b := newBench(t)
			_, stop := b.start("a", New(b.pool), nil)
			b.put(map[replication.Subject]any{flag(1): "kept"})
			b.settled()
			copied := b.copyState()
			for i := range 5 {
				b.put(map[replication.Subject]any{flag(i): "lost"})
			}
			b.settled()
			stop()
			before := b.head(replication.Normal)
			b.restoreState(copied)
			for i := range since {
				b.put(map[replication.Subject]any{flag(100 + i): "since"})
			}
			b.start("b", New(b.pool), nil)
			b.settled()
			after := b.head(replication.Normal)
			if after.Epoch == before.Epoch || after.Position < before.Position+down.EpochJump {
				t.Errorf("epoch %s at %d after %s at %d", after.Epoch, after.Position, before.Epoch, before.Position)
			}
			if got, _ := b.stream(replication.Normal); len(got) != 2+since {
				t.Errorf("the stream has %d documents, want the marker, the kept one and %d: %v", len(got), since, got)
			}
		})
	}
}

// copyState copies the lanes' tables inside the database, as a backup of it would hold them.
func (b *bench) copyState() []string {
	b.t.Helper()
	tables := []string{"lanes", "documents", "commits"}
	tx, err := b.pool.Begin(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	var copies []string
	for _, table := range tables {
		var rows []byte
		if err := tx.QueryRow(b.t.Context(), `SELECT coalesce(json_agg(t), '[]') FROM `+table+` t`).Scan(&rows); err != nil {
			b.t.Fatal(err)
		}
		copies = append(copies, string(rows))
	}
	return copies
}

func (b *bench) restoreState(copies []string) {
	b.t.Helper()
	for i, table := range []string{"lanes", "documents", "commits"} {
		columns := map[string]string{
			"lanes":     "SET position = r.position, published = r.published, published_seq = r.published_seq, epoch = r.epoch, timeline = r.timeline, floor = r.floor",
			"documents": "", "commits": "",
		}[table]
		var err error
		if columns != "" {
			_, err = b.pool.Exec(b.t.Context(), `UPDATE lanes l `+columns+` FROM json_populate_recordset(NULL::lanes, $1::json) r WHERE l.lane = r.lane`, copies[i])
		} else {
			if _, err = b.pool.Exec(b.t.Context(), `DELETE FROM `+table); err == nil {
				_, err = b.pool.Exec(b.t.Context(), `INSERT INTO `+table+` SELECT * FROM json_populate_recordset(NULL::`+table+`, $1::json)`, copies[i])
			}
		}
		if err != nil {
			b.t.Fatalf("restore %s: %v", table, err)
		}
	}
}

func TestDeclaredRestoreBeginsANewEpoch(t *testing.T) {
	b := newBench(t)
	b.start("a", New(b.pool), nil)
	b.put(map[replication.Subject]any{flag(1): 1})
	b.settled()
	before := [replication.Lanes]down.Head{b.head(replication.Normal), b.head(replication.Urgent)}
	if err := New(b.pool).DeclareRestore(t.Context()); err != nil {
		t.Fatal(err)
	}
	for lane := range replication.Lanes {
		deadline := time.Now().Add(time.Minute)
		for b.head(lane).Epoch == before[lane].Epoch {
			if time.Now().After(deadline) {
				t.Fatalf("lane %s: the epoch did not end", lane)
			}
			<-time.After(20 * time.Millisecond)
		}
	}
	b.settled()
}
