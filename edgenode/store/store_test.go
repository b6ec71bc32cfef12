package store

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"skerry/replication"
	"skerry/replication/down"
)

func discard(Change) {}

func quiet(c Config) Config {
	c.Log = slog.New(slog.DiscardHandler)
	return c
}

func open(t *testing.T, c Config) *Store {
	t.Helper()
	s, err := Open(quiet(c), discard)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fill takes n documents into service in each lane.
func fill(t testing.TB, s *Store, n int) {
	t.Helper()
	for lane := range replication.Lanes {
		g, err := s.Begin(lane)
		if err != nil {
			t.Fatal(err)
		}
		for from := 0; from < n; from += 1000 {
			var documents []replication.Document
			for i := from; i < min(from+1000, n); i++ {
				subject := replication.FlagSubject(project, "live", fmt.Sprint("f", i))
				if lane == replication.Urgent {
					subject = replication.HaltSubject(project, "live", fmt.Sprint("f", i))
				}
				body := fmt.Appendf(nil, `{"id":%d,"text":"%x"}`, i, bytes.Repeat([]byte{byte(i), byte(i >> 8)}, 60))
				documents = append(documents, replication.Document{Lane: lane, Subject: subject, Position: replication.Position(i + 1), Body: body})
			}
			if err := g.Add(documents); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.Serve(down.Cursor{Epoch: replication.Epoch{1}, Seq: uint64(n), Position: replication.Position(n)}); err != nil {
			t.Fatal(err)
		}
	}
}

func count(s *Store) (n int, err error) {
	err = s.Read(func(look *Snapshot) error {
		for lane := range replication.Lanes {
			err := look.Scan(lane, "", func(replication.Subject, Entry) error { n++; return nil })
			if err != nil {
				return err
			}
		}
		return nil
	})
	return n, err
}

func TestStateOutlivesARestart(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	s := open(t, Config{Dir: "d", FS: fs})
	if _, err := count(s); !errors.Is(err, ErrNoState) || s.Serving() {
		t.Errorf("a new store: %v", err)
	}
	fill(t, s, 10)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, Config{Dir: "d", FS: fs})
	defer func() { _ = s.Close() }()
	c, ok := s.Cursor(replication.Urgent)
	if n, err := count(s); n != 20 || err != nil || !ok || !s.Serving() || c.Seq != 10 || c.Position != 10 || c.Epoch != (replication.Epoch{1}) {
		t.Errorf("%d documents, %v, cursor %+v", n, err, c)
	}
}

func TestUnfinishedGenerationIsNeverServed(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	s := open(t, Config{Dir: "d", FS: fs})
	fill(t, s, 10)
	g, err := s.Begin(replication.Normal)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Add([]replication.Document{{Subject: replication.FlagSubject(project, "live", "new"), Position: 99, Body: []byte("1")}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if n, err := count(s); n != 20 || err != nil {
			t.Errorf("%d documents, %v", n, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, Config{Dir: "d", FS: fs})
	}
	defer func() { _ = s.Close() }()
	// What the unfinished one left behind is not in the next one.
	if g, err = s.Begin(replication.Normal); err != nil {
		t.Fatal(err)
	}
	if err := g.Serve(down.Cursor{}); err != nil {
		t.Fatal(err)
	}
	if n, err := count(s); n != 10 || err != nil {
		t.Errorf("%d documents, %v; want the urgent lane's only", n, err)
	}
}

func TestReaderKeepsItsGeneration(t *testing.T) {
	t.Parallel()
	s := open(t, Config{Dir: "d", FS: vfs.NewMem()})
	defer func() { _ = s.Close() }()
	fill(t, s, 10)
	err := s.Read(func(look *Snapshot) error {
		fill(t, s, 3)
		n := 0
		err := look.Scan(replication.Normal, "", func(replication.Subject, Entry) error { n++; return nil })
		if _, ok, err := look.Get(replication.FlagSubject(project, "live", "f7")); !ok || err != nil || n != 10 {
			t.Errorf("%d documents, f7 %v %v", n, ok, err)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := count(s); n != 6 {
		t.Errorf("%d documents after it", n)
	}
}

func TestSecondProcessOnAFolderIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, Config{Dir: dir})
	if _, err := Open(quiet(Config{Dir: dir}), discard); !errors.Is(err, ErrLocked) {
		t.Errorf("%v", err)
	}
	fill(t, s, 3)
	if n, err := count(s); n != 6 || err != nil {
		t.Errorf("the first one has %d documents, %v", n, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := open(t, Config{Dir: dir}).Close(); err != nil {
		t.Fatal(err)
	}
}

func TestNothingIsWrittenOnAFullDisk(t *testing.T) {
	t.Parallel()
	var free atomic.Uint64
	free.Store(1 << 40)
	s := open(t, Config{Dir: "d", FS: vfs.NewMem(), Reserve: 1000, Free: func() (uint64, error) { return free.Load(), nil }})
	defer func() { _ = s.Close() }()
	fill(t, s, 3)
	free.Store(999)
	document := []replication.Document{{Subject: replication.FlagSubject(project, "live", "x"), Position: 4, Body: []byte("1")}}
	if err := s.Apply(replication.Normal, document, down.Cursor{Position: 4}); !errors.Is(err, ErrFull) {
		t.Errorf("%v", err)
	}
	if n, err := count(s); n != 6 || err != nil {
		t.Errorf("%d documents, %v", n, err)
	}
	free.Store(1000)
	if err := s.Apply(replication.Normal, document, down.Cursor{Position: 4}); err != nil {
		t.Error(err)
	}
}

func TestGenerationOfAReplacedStoreIsRefused(t *testing.T) {
	t.Parallel()
	s := open(t, Config{Dir: "d", FS: vfs.NewMem()})
	defer func() { _ = s.Close() }()
	g, err := s.Begin(replication.Normal)
	if err != nil {
		t.Fatal(err)
	}
	s.suspect(fmt.Errorf("a test says so: %w", pebble.ErrCorruption))
	if err := s.replaceDamaged(); err != nil {
		t.Fatal(err)
	}
	if err := g.Add(nil); !errors.Is(err, ErrSetAside) {
		t.Errorf("add: %v", err)
	}
	if err := g.Serve(down.Cursor{}); !errors.Is(err, ErrSetAside) {
		t.Errorf("serve: %v", err)
	}
	if err := s.Apply(replication.Normal, nil, down.Cursor{}); !errors.Is(err, ErrSetAside) {
		t.Errorf("apply: %v", err)
	}
}

func TestSealIsReadBack(t *testing.T) {
	t.Parallel()
	want := seal{number: 7, manifest: 3, length: 1000, sum: 0xfeedbeef,
		served: [replication.Lanes]bool{true, false}, positions: [replication.Lanes]replication.Position{12, 0}}
	b := want.encode()
	if got, ok := decodeSeal(b); !ok || got != want || len(b) != sealLen {
		t.Errorf("%+v, %v, %d bytes", got, ok, len(b))
	}
	for i := range b {
		torn := bytes.Clone(b)
		torn[i] ^= 1
		if _, ok := decodeSeal(torn); ok {
			t.Errorf("a seal with another byte %d is believed", i)
		}
	}
}

func FuzzDecodeStored(f *testing.F) {
	c := cursor{generation: 7}
	p := Positions{1, 2, 3, 4, 5}
	f.Add(c.encode())
	f.Add(p.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := decodeCursor(b); err == nil && !bytes.Equal(c.encode(), b) {
			t.Errorf("cursor %x", b)
		}
		if one, ok := decodeSeal(b); ok && !bytes.Equal(one.encode(), b) {
			t.Errorf("seal %x", b)
		}
		if p, err := decodePositions(b); err == nil && !bytes.Equal(p.encode(), b) {
			t.Errorf("positions %x", b)
		}
		if e, err := decodeEntry(b); err == nil && len(e.Body) != len(b)-16 {
			t.Errorf("entry %x", b)
		}
	})
}

// BenchmarkRestart opens a store of a million documents and reads the first one.
func BenchmarkRestart(b *testing.B) {
	c := quiet(Config{Dir: b.TempDir()})
	s, err := Open(c, discard)
	if err != nil {
		b.Fatal(err)
	}
	fill(b, s, 500_000)
	for b.Loop() {
		b.StopTimer()
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if s, err = Open(c, discard); err != nil {
			b.Fatal(err)
		}
		err := s.Read(func(look *Snapshot) error {
			_, ok, err := look.Get(replication.FlagSubject(project, "live", "f77777"))
			if !ok {
				b.Error("not there")
			}
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}
