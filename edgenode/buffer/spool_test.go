package buffer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"skerry/replication/up"
)

// payload is one with properties of n bytes and a few, and where those lie in it.
func payload(n int) (string, up.Span) {
	properties := `{"x":"` + strings.Repeat("y", n) + `"}`
	return `{"properties":` + properties + `}`, up.Span{Offset: 14, Length: int64(len(properties))}
}

func TestSpooledPayloadsArriveWhole(t *testing.T) {
	t.Parallel()
	uploads := map[string][]byte{}
	fail := errors.New("write plane is away")
	b := open(t, vfs.NewMem(), func(c *Config) {
		c.Upload = func(_ context.Context, key string, size int64, sum [32]byte, r io.Reader) error {
			if fail != nil {
				return fail
			}
			data, err := io.ReadAll(r)
			if int64(len(data)) != size || sha256.Sum256(data) != sum {
				t.Errorf("uploaded %d bytes, announced %d, or another sum", len(data), size)
			}
			uploads[key] = data
			return err
		}
	})
	s := b.NewSpool()
	write := func(text string) {
		for rest := text; len(rest) > 0; {
			n := min(len(rest), 500_000)
			must(t, s.Piece([]byte(rest[:n])))
			rest = rest[n:]
		}
	}
	must(t, s.Block(block(up.LaneEvent, "e1")))
	write("dropped")
	must(t, s.DropPieces())
	inlined, at := payload(2 << 20)
	write(inlined)
	must(t, s.Large(header(up.LaneEvent, projectA), up.Operation{DistinctID: []byte("e2"), EventName: []byte("n")}, at, up.Span{}))
	must(t, s.Block(block(up.LaneEvent, "e3")))
	huge, hugeAt := payload(17 << 20)
	write(huge)
	must(t, s.Large(header(up.LaneEvent, projectA), up.Operation{DistinctID: []byte("e4"), EventName: []byte("n")}, hugeAt, up.Span{}))
	write(inlined)
	must(t, s.Large(header(up.LanePeople, projectA), up.Operation{DistinctID: []byte("p1"), Unstorable: up.ReasonNUL}, at, up.Span{}))
	must(t, s.Block(block(up.LaneEvent, "e5")))
	must(t, s.Commit())

	in := b.Incarnation()
	equal(t, "up to the failing upload", ids(t, b, in, 1, 3), []string{"e1", "e2", "e3"})
	if _, _, err := b.Read(context.Background(), in, up.LaneEvent, 4, 1); !errors.Is(err, fail) {
		t.Errorf("the upload's fault: %v", err)
	}
	fail = nil
	equal(t, "all", drain(t, b, in, up.LaneEvent, 1, up.PackBudget), []string{"e1", "e2", "e3", "e4", "e5"})
	if op := one(t, b, in, up.LaneEvent, 2); string(op.Properties) != inlined[14:len(inlined)-1] {
		t.Error("payload under 16 MiB is not as sent")
	}
	op := one(t, b, in, up.LaneEvent, 4)
	key := fmt.Sprintf("ingest/edge-1/%x/event/4", in.ID)
	if op.Ref == nil || op.Ref.Key != key || string(uploads[key]) != huge || op.Ref.Properties != hugeAt || len(uploads) != 1 {
		t.Errorf("reference %+v of %d uploads", op.Ref, len(uploads))
	}
	if op := one(t, b, in, up.LanePeople, 1); op.Unstorable != up.ReasonNUL || string(op.Raw) != inlined {
		t.Error("unstorable payload is not as sent")
	}
	must(t, b.Stored(in, up.LaneEvent, 5))
	b.freeAll()
	if n := keys(t, b, prefixPiece); n != 5 { // those of the people lane
		t.Errorf("%d pieces left, want 5", n)
	}
	must(t, b.Stored(in, up.LanePeople, 1))
	b.freeAll()
	if n := keys(t, b, prefixPiece) + keys(t, b, prefixChunk) + keys(t, b, prefixSpooled); n != 0 || b.Status().Bytes != 0 {
		t.Errorf("%d keys and %d bytes left", n, b.Status().Bytes)
	}
}

// The centre removes an uploaded payload when it has stored it. A database that is taken back in time wants it again.
func TestPayloadOfWhatWasStoredIsUploadedAgain(t *testing.T) {
	t.Parallel()
	uploads := 0
	b := open(t, vfs.NewMem(), func(c *Config) {
		c.Upload = func(_ context.Context, _ string, _ int64, _ [32]byte, r io.Reader) error {
			uploads++
			_, err := io.Copy(io.Discard, r)
			return err
		}
	})
	s := b.NewSpool()
	for range 2 { // in one entry, of which nothing is freed before all is stored
		for range 17 {
			must(t, s.Piece(make([]byte, 1<<20)))
		}
		must(t, s.Large(header(up.LaneEvent, projectA), up.Operation{DistinctID: []byte("u1"), EventName: []byte("n")}, up.Span{}, up.Span{}))
	}
	must(t, s.Commit())
	in := b.Incarnation()
	for _, want := range []int{1, 1} { // once, however often it is read because the stream did not take it
		if one(t, b, in, up.LaneEvent, 1); uploads != want {
			t.Errorf("%d uploads, want %d", uploads, want)
		}
	}
	must(t, b.Stored(in, up.LaneEvent, 1))
	if one(t, b, in, up.LaneEvent, 1); uploads != 2 {
		t.Errorf("%d uploads after it was stored and is wanted again, want 2", uploads)
	}
}

func ids(t *testing.T, b *Buffer, in up.Incarnation, from, to uint64) (out []string) {
	for n := from; n <= to; n++ {
		op := one(t, b, in, up.LaneEvent, n)
		out = append(out, string(op.DistinctID))
	}
	return out
}

// one reads a single operation.
func one(t *testing.T, b *Buffer, in up.Incarnation, lane up.Lane, n uint64) (op up.Operation) {
	t.Helper()
	batch, ok, err := b.Read(context.Background(), in, lane, n, 1)
	must(t, err)
	blocks, err := batch.Blocks()
	must(t, err)
	if !ok || len(blocks) == 0 {
		t.Fatalf("nothing at %d", n)
	}
	ops := blocks[0].Operations()
	for ops.Next(&op) {
		if ops.Number() == n {
			return op
		}
	}
	t.Fatalf("no number %d: %v", n, ops.Err())
	return op
}

func TestUnfinishedSpoolIsGoneAfterAStart(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	b := open(t, fs)
	kept, lost := b.NewSpool(), b.NewSpool()
	must(t, kept.Block(block(up.LaneEvent, "kept")))
	must(t, lost.Block(block(up.LaneEvent, "lost")))
	must(t, lost.Piece([]byte("lost")))
	must(t, kept.Commit())
	must(t, b.Close())
	b = open(t, fs)
	equal(t, "events", everything(t, b, up.LaneEvent), []string{"kept"})
	if c, p := keys(t, b, prefixChunk), keys(t, b, prefixPiece); c != 1 || p != 0 {
		t.Errorf("%d chunks and %d pieces, want 1 and 0", c, p)
	}
}
