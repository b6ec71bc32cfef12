package store

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"skerry/replication"
	"skerry/replication/down"
	"skerry/replication/down/downtest"
)

// lives are the documents that damaged writes: what they are after a whole history.
const lives = 200

// damagedStore is the folder of a store with a history: a generation filled and flushed, changes flushed after it, and
// changes that stand in the log alone. The process that wrote it was killed.
func damagedStore(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	s := open(t, Config{Dir: dir, MemTable: 16 << 10})
	stop := downtest.Run(t, s.Run)
	fill(t, s, lives/2)
	for i := lives / 2; i < lives; i++ {
		if i == lives*3/4 {
			if err := s.db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		for lane := range replication.Lanes {
			change(t, s, lane, i)
		}
	}
	for sealed := false; !sealed; { // an instant later, or what is lost is what no seal knows of
		s.swap.Lock() // not while Run writes one
		m := s.db.Metrics()
		sealed = s.sealer.last.positions == [replication.Lanes]replication.Position{lives, lives} &&
			len(s.changed) == 0 && m.Compact.NumInProgress == 0 && m.Flush.NumInProgress == 0
		s.swap.Unlock()
		select {
		case <-t.Context().Done():
			t.Fatal("no seal")
		case <-time.After(time.Millisecond):
		}
	}
	killed := t.TempDir()
	if err := os.CopyFS(killed, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return killed
}

// change writes document i of a lane as a transaction of its own.
func change(t testing.TB, s *Store, lane replication.Lane, i int) {
	t.Helper()
	subject := replication.FlagSubject(project, "live", fmt.Sprint("f", i))
	if lane == replication.Urgent {
		subject = replication.HaltSubject(project, "live", fmt.Sprint("f", i))
	}
	p := replication.Position(i + 1)
	body := fmt.Appendf(nil, `{"id":%d,"text":"%x"}`, i, bytes.Repeat([]byte{byte(i), byte(i >> 8)}, 60))
	document := replication.Document{Lane: lane, Subject: subject, Position: p, Body: body}
	if err := s.Apply(lane, []replication.Document{document}, down.Cursor{Epoch: replication.Epoch{1}, Seq: uint64(p), Position: p}); err != nil {
		t.Fatal(err)
	}
}

// missing tells which documents of the history a store says are absent, or has otherwise, without an error: those would
// be wrong answers. unreadable counts those that it says it cannot read.
func missing(s *Store) (wrong []string, unreadable int) {
	for lane := range replication.Lanes {
		for i := range lives {
			subject := replication.FlagSubject(project, "live", fmt.Sprint("f", i))
			if lane == replication.Urgent {
				subject = replication.HaltSubject(project, "live", fmt.Sprint("f", i))
			}
			var entry Entry
			var ok bool
			err := s.Read(func(look *Snapshot) (err error) {
				entry, ok, err = look.Get(subject)
				return err
			})
			switch {
			case err != nil:
				unreadable++
			case !ok || entry.Position != replication.Position(i+1):
				wrong = append(wrong, string(subject))
			}
		}
	}
	return wrong, unreadable
}

// TestDamageIsNeverAWrongAnswer damages one file at a time, in ways that disks and people do. Whatever is damaged: the
// store comes up whole, or it is not ready; and what it does not know it does not call absent.
func TestDamageIsNeverAWrongAnswer(t *testing.T) {
	t.Parallel()
	flip := func(part, of int) func([]byte) []byte {
		return func(b []byte) []byte {
			at := len(b) * part / of
			for i := at; i < min(at+512, len(b)); i++ {
				b[i] ^= 0xff
			}
			return b
		}
	}
	one := func(b []byte) []byte {
		b[len(b)/2] ^= 0x10
		return b
	}
	changes := map[string]func([]byte) []byte{ // nil: the file is deleted
		"flipped at the start":  flip(0, 8),
		"flipped in the first":  flip(1, 8),
		"flipped in the third":  flip(3, 8),
		"flipped in the middle": flip(4, 8),
		"flipped in the sixth":  flip(6, 8),
		"flipped at the end":    flip(15, 16),
		"one bit":               one,
		"cut in half":           func(b []byte) []byte { return b[:len(b)/2] },
		"cut by a byte":         func(b []byte) []byte { return b[:max(len(b)-1, 0)] },
		"emptied":               func([]byte) []byte { return nil },
		"zeroed":                func(b []byte) []byte { return make([]byte, len(b)) },
		"second half zeroed":    func(b []byte) []byte { clear(b[len(b)/2:]); return b },
		"deleted":               nil,
	}
	whole := damagedStore(t)
	for _, pattern := range []string{"*.sst", "MANIFEST-*", "*.log", "OPTIONS-*", "marker.manifest.*", "marker.format-version.*", "../seal"} {
		for how, change := range changes {
			t.Run(fmt.Sprint(pattern, " ", how), func(t *testing.T) {
				t.Parallel()
				files, err := filepath.Glob(filepath.Join(whole, "db", pattern))
				if err != nil || len(files) == 0 {
					t.Fatal("no such files", err)
				}
				at, err := filepath.Rel(whole, files[len(files)-1]) // the list and the log in use; of tables the newest
				if err != nil {
					t.Fatal(err)
				}
				dir := t.TempDir()
				if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
					t.Fatal(err)
				}
				scribble(t, filepath.Join(dir, at), change)
				survive(t, dir)
			})
		}
	}
}

func scribble(t *testing.T, path string, change func([]byte) []byte) {
	t.Helper()
	var err error
	if change == nil {
		err = os.Remove(path)
	} else if b, readErr := os.ReadFile(path); readErr != nil {
		err = readErr
	} else if len(b) > 0 {
		err = os.WriteFile(path, change(b), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// survive opens a damaged store and asks it for everything.
func survive(t *testing.T, dir string) {
	t.Helper()
	s := open(t, Config{Dir: dir, Verify: time.Minute})
	stop := downtest.Run(t, s.Run)
	ready := s.Serving()
	wrong, unreadable := missing(s)
	if len(wrong) > 0 {
		t.Errorf("ready %v: %d documents are called absent or are others, such as %s", ready, len(wrong), wrong[0])
	}
	if ready && unreadable > 0 {
		t.Errorf("it called itself ready and cannot read %d documents", unreadable)
	}
	if !ready && s.Damage() == nil {
		t.Error("it is not ready and says nothing of damage")
	}
	// Whatever it was, it can be filled.
	fill(t, s, 5)
	if n, err := count(s); n != 10 || err != nil || !s.Serving() {
		t.Errorf("filled anew it has %d documents, %v, ready %v", n, err, s.Serving())
	}
	if d := s.Damage(); !ready && !strings.Contains(d.Path, ".damaged-") {
		t.Errorf("%+v", d)
	} else if !ready {
		if _, err := os.Stat(d.Path); err != nil {
			t.Error(err)
		}
	}
	stop()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestDamageFoundWhileServing damages a table that Open had no time to look at: the store serves, finds it by itself, and
// goes on giving what can be read until it is filled anew.
func TestDamageFoundWhileServing(t *testing.T) {
	t.Parallel()
	dir := damagedStore(t)
	s := open(t, Config{Dir: dir})
	if err := s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false); err != nil { // now nothing moves by itself
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, Config{Dir: dir, Verify: time.Nanosecond})
	tables, err := filepath.Glob(filepath.Join(dir, "db", "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatal("no tables", err)
	}
	largest := slices.MaxFunc(tables, func(a, b string) int { return cmp.Compare(size(t, a), size(t, b)) })
	scribble(t, largest, func(b []byte) []byte { b[len(b)/2] ^= 1; return b }) // now: Pebble reads parts of tables by itself
	if !s.Serving() {
		t.Fatal("it is not ready")
	}
	stop := downtest.Run(t, s.Run)
	downtest.Eventually(t, func() string {
		if s.Serving() || s.Damage() == nil {
			return "the damage is not found"
		}
		return ""
	})
	if d := s.Damage(); d.Path != "" || d.Reason == "" {
		t.Errorf("%+v", d)
	}
	wrong, unreadable := missing(s)
	if len(wrong) > 0 || unreadable == 0 || unreadable > lives/2 {
		t.Errorf("%d wrong, %d of %d unreadable", len(wrong), unreadable, 2*lives)
	}
	if _, ok := s.Cursor(replication.Normal); ok {
		t.Error("a follower would continue it")
	}
	if err := s.Apply(replication.Normal, nil, down.Cursor{}); !errors.Is(err, ErrSetAside) {
		t.Errorf("a write to it: %v", err)
	}
	fill(t, s, 5)
	if n, err := count(s); n != 10 || err != nil || !s.Serving() || s.Damage().Path == "" {
		t.Errorf("filled anew it has %d documents, %v, %+v", n, err, s.Damage())
	}
	stop()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// TestOlderListOfTablesIsNotBelieved cuts the list of tables after a record, which Pebble takes for a crash.
func TestOlderListOfTablesIsNotBelieved(t *testing.T) {
	t.Parallel()
	whole := damagedStore(t)
	lists, err := filepath.Glob(filepath.Join(whole, "db", "MANIFEST-*"))
	if err != nil || len(lists) == 0 {
		t.Fatal("no list", err)
	}
	list, err := os.ReadFile(lists[len(lists)-1])
	if err != nil {
		t.Fatal(err)
	}
	for cut := 0; cut < len(list); cut += 53 {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
			t.Fatal(err)
		}
		scribble(t, filepath.Join(dir, "db", filepath.Base(lists[len(lists)-1])), func(b []byte) []byte { return b[:cut] })
		s := open(t, Config{Dir: dir})
		if wrong, _ := missing(s); len(wrong) > 0 || s.Serving() {
			t.Fatalf("cut to %d of %d bytes: ready %v, %d wrong", cut, len(list), s.Serving(), len(wrong))
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
