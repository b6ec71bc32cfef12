package intake

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestMemoryIsGivenInTheOrderOfAsking(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := memory{limit: 10}
		if !m.take(10, 0, nil) || m.take(1, 0, nil) || m.take(11, time.Hour, nil) {
			t.Fatal("more was given than there is, or less")
		}
		done := make(chan string, 10)
		ask := func(name string, n int64, patience time.Duration, stop chan struct{}) {
			go func() {
				if m.take(n, patience, stop) {
					done <- name
				} else {
					done <- "not " + name
				}
			}()
			synctest.Wait()
		}
		want := func(names ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for len(done) > 0 {
				got = append(got, <-done)
			}
			slices.Sort(got)
			if !slices.Equal(got, names) {
				t.Errorf("%q, want %q", got, names)
			}
		}
		ask("first", 6, 5*time.Second, nil)
		ask("large", 8, time.Minute, nil)
		ask("small", 2, time.Minute, nil)
		stopped := make(chan struct{})
		ask("stopped", 1, time.Minute, stopped)
		m.give(7) // enough for three of the four, but nobody overtakes
		want("first")
		close(stopped)
		want("not stopped")
		m.give(7)
		want("large")
		m.give(2)
		want("small")
		ask("late", 4, 5*time.Second, nil)
		ask("behind it", 0, time.Minute, nil) // needs nothing, and waits nevertheless
		want()
		time.Sleep(6 * time.Second)
		want("behind it", "not late")
		m.give(10)
		if m.inUse() != 0 || len(m.line) != 0 {
			t.Errorf("%d in use, %d in line", m.inUse(), len(m.line))
		}
	})
}

// A zstd decoder may need 9 MiB; with room for one, requests come one after the other, and none is sent away.
func TestRequestsWaitForMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{config: Config{MemoryBytes: costs[zstandard] + streamCost}})
	rest, holder := io.Pipe()
	held := make(chan int, 1)
	go func() {
		status, _ := w.send("/api/v1/track", rest, "Content-Encoding", "zstd")
		held <- status
	}()
	whole := []byte(encode(t, "zstd", track[:len(track)-1]+strings.Repeat(" ", 100)+"}"))
	// Skippable frames (RFC 8878): more bytes than are read before memory is taken.
	skipped := append([]byte{0x50, 0x2a, 0x4d, 0x18, 0x00, 0x00, 0x02, 0x00}, make([]byte, 2*free)...)
	_, err := holder.Write(skipped)
	w.must(err)
	for w.intake.Stats().Memory == 0 {
		time.Sleep(time.Millisecond)
	}
	answers := make(chan int, 20)
	for range cap(answers) {
		go func() {
			status, _ := w.send("/api/v1/track", bytes.NewReader(whole), "Content-Encoding", "zstd")
			answers <- status
		}()
	}
	for line := 0; line < cap(answers); time.Sleep(time.Millisecond) {
		w.intake.memory.mu.Lock()
		line = len(w.intake.memory.line)
		w.intake.memory.mu.Unlock()
	}
	w.expect("what needs no memory waits for nobody", "/api/v1/track", track, 200, `{"ok":true}`)
	_, err = holder.Write(whole)
	w.must(err)
	w.must(holder.Close())
	if status := <-held; status != 200 {
		t.Errorf("the first: %d", status)
	}
	for range cap(answers) {
		if status := <-answers; status != 200 {
			t.Errorf("one that waited: %d", status)
		}
	}
	if used := w.intake.Stats().Memory; used != 0 {
		t.Errorf("%d bytes of the budget are not given back", used)
	}
}

func TestPatienceEndsIn503(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{config: Config{MemoryBytes: costs[zstandard], Patience: 10 * time.Millisecond}})
	if !w.intake.memory.take(1, 0, nil) {
		t.Fatal("nothing is left")
	}
	w.expect("no memory", "/api/v1/track", encode(t, "zstd", track), 503, unavailable, "Content-Encoding", "zstd")
	w.intake.memory.give(1)
	w.expect("memory", "/api/v1/track", encode(t, "zstd", track), 200, `{"ok":true}`, "Content-Encoding", "zstd")
}

// Whoever opens a hundred requests and sends next to nothing keeps nobody else out.
func TestSlowToBeginHoldsNoMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{config: Config{MemoryBytes: costs[zstandard], Patience: 10 * time.Millisecond}})
	var senders []*io.PipeWriter
	answers := make(chan int)
	for range 8 {
		body, sender := io.Pipe()
		senders = append(senders, sender)
		go func() {
			status, _ := w.send("/api/v1/track", body, "Content-Encoding", "zstd")
			answers <- status
		}()
		_, err := sender.Write([]byte(encode(t, "zstd", track)[:8]))
		w.must(err)
	}
	w.expect("beside them", "/api/v1/track", encode(t, "zstd", track), 200, `{"ok":true}`, "Content-Encoding", "zstd")
	if used := w.intake.Stats().Memory; used != 0 {
		t.Errorf("they hold %d bytes", used)
	}
	for _, sender := range senders {
		_ = sender.Close()
	}
	for range senders {
		if status := <-answers; status != 400 {
			t.Errorf("cut off: %d", status)
		}
	}
}
