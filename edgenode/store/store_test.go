package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"skerry/replication"
	"skerry/replication/down"
	"skerry/replication/down/downtest"
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

func TestHaltIsSavedWithoutWaitingForTheNextSync(t *testing.T) {
	t.Parallel()
	fs := vfs.NewCrashableMem()
	s := open(t, Config{Dir: "d", FS: fs})
	fill(t, s, 10)
	s.save()
	for _, dir := range []string{"/", "d"} { // the folders themselves are not the matter here
		f, err := fs.OpenDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	s.pause = time.Hour
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	ran := make(chan error, 1)
	go func() { ran <- s.Run(ctx) }()
	halt := replication.Document{Lane: replication.Urgent, Subject: replication.HaltSubject(project, "live", "late"), Position: 11, Body: []byte(`{}`)}
	if err := s.Apply(replication.Urgent, []replication.Document{halt}, down.Cursor{Epoch: replication.Epoch{1}, Seq: 11, Position: 11}); err != nil {
		t.Fatal(err)
	}
	for saved := false; !saved; {
		crashed := open(t, Config{Dir: "d", FS: fs.CrashClone(vfs.CrashCloneCfg{})})
		c, ok := crashed.Cursor(replication.Urgent)
		saved = ok && c.Position == 11
		if err := crashed.Close(); err != nil {
			t.Fatal(err)
		}
		if ctx.Err() != nil {
			t.Fatal("the halt was not saved")
		}
	}
	stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
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

// TestDamagedStoreIsSetAside damages one file at a time, in ways that disks and people do.
func TestDamagedStoreIsSetAside(t *testing.T) {
	t.Parallel()
	flip := func(b []byte) []byte {
		for i := 100; i < len(b); i += 500 {
			b[i] ^= 0xff
		}
		return b
	}
	for name, c := range map[string]struct {
		pattern string
		change  func([]byte) []byte // nil: delete the file
	}{
		"table with flipped bits":    {"*.sst", flip},
		"table missing":              {"*.sst", nil},
		"table cut short":            {"*.sst", func(b []byte) []byte { return b[:len(b)/2] }},
		"table empty":                {"*.sst", func([]byte) []byte { return nil }},
		"manifest with flipped bits": {"MANIFEST-*", func(b []byte) []byte { return bytes.Repeat([]byte{0xee}, len(b)) }},
		"manifest missing":           {"MANIFEST-*", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := open(t, Config{Dir: dir, MemTable: 64 << 10})
			fill(t, s, 3000)
			if err := s.db.Flush(); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			files, err := filepath.Glob(filepath.Join(dir, "db", c.pattern))
			if err != nil || len(files) == 0 {
				t.Fatal("no such files", err)
			}
			for _, f := range files {
				if c.change == nil {
					err = os.Remove(f)
				} else if b, readErr := os.ReadFile(f); readErr == nil {
					err = os.WriteFile(f, c.change(b), 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			s = open(t, Config{Dir: dir})
			stop := downtest.Run(t, s.Run)
			_, readErr := count(s)
			downtest.Eventually(t, func() string {
				if s.Damage() == nil {
					return fmt.Sprintf("it is not set aside; reading says %v", readErr)
				}
				return ""
			})
			if d := s.Damage(); !strings.Contains(d.Path, ".damaged-") || d.Reason == "" {
				t.Errorf("%+v", d)
			} else if _, err := os.Stat(d.Path); err != nil {
				t.Error(err)
			}
			if s.Serving() {
				t.Error("it serves")
			}
			downtest.Eventually(t, func() string {
				g, err := s.Begin(replication.Normal)
				if err != nil {
					return err.Error()
				}
				_ = g
				return ""
			})
			fill(t, s, 5)
			if n, err := count(s); n != 10 || err != nil {
				t.Errorf("filled anew it has %d documents, %v", n, err)
			}
			stop()
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
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
	if err := s.replace(); err != nil {
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

func FuzzDecodeStored(f *testing.F) {
	c := cursor{generation: 7}
	p := Positions{1, 2, 3, 4, 5}
	f.Add(c.encode())
	f.Add(p.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := decodeCursor(b); err == nil && !bytes.Equal(c.encode(), b) {
			t.Errorf("cursor %x", b)
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
