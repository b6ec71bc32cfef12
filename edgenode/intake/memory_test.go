package intake

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/valyala/fasthttp"
)

// takers ask a memory for parts of it, all for one project, in a bubble of synctest.
type takers struct {
	t      *testing.T
	memory memory
	done   chan string // what became of ask

	mu   sync.Mutex
	held []*claim
}

func (k *takers) take(n int64, patience time.Duration, stop <-chan struct{}) bool {
	c := newClaim(n, "one project", netip.Addr{}, func() { k.t.Error("nobody holds more than anybody") })
	taken := k.memory.take(c, patience, stop)
	if taken {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.held = append(k.held, c)
	}
	return taken
}

// give gives a part of n bytes back.
func (k *takers) give(n int64) {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.held, func(c *claim) bool { return c.n == n })
	k.memory.give(k.held[i])
	k.held = slices.Delete(k.held, i, i+1)
}

// ask takes beside the test, and says its name when it has, or not.
func (k *takers) ask(name string, n int64, patience time.Duration, stop chan struct{}) {
	go func() {
		if k.take(n, patience, stop) {
			k.done <- name
		} else {
			k.done <- "not " + name
		}
	}()
	synctest.Wait()
}

// want checks who has said something since it was asked last.
func (k *takers) want(names ...string) {
	k.t.Helper()
	synctest.Wait()
	var got []string
	for len(k.done) > 0 {
		got = append(got, <-k.done)
	}
	slices.Sort(got)
	if !slices.Equal(got, names) {
		k.t.Errorf("%q, want %q", got, names)
	}
}

func TestMemoryIsGivenInTheOrderOfAsking(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := &takers{t: t, memory: memory{limit: 10, press: pressAfter}, done: make(chan string, 10)}
		if !k.take(7, 0, nil) || !k.take(2, 0, nil) || !k.take(1, 0, nil) || k.take(1, 0, nil) || k.take(11, time.Hour, nil) {
			t.Fatal("more was given than there is, or less")
		}
		k.ask("first", 6, 5*time.Second, nil)
		k.ask("large", 8, time.Minute, nil)
		k.ask("small", 2, time.Minute, nil)
		stopped := make(chan struct{})
		k.ask("stopped", 1, time.Minute, stopped)
		k.give(7) // enough for three of the four, but nobody overtakes
		k.want("first")
		close(stopped)
		k.want("not stopped")
		k.give(6)
		k.want()
		k.give(1)
		k.want("large")
		k.give(2)
		k.want("small")
		k.ask("late", 4, 5*time.Second, nil)
		k.ask("behind it", 0, time.Minute, nil) // needs nothing, and waits nevertheless
		k.want()
		time.Sleep(6 * time.Second)
		k.want("behind it", "not late")
		k.give(8)
		k.give(2)
		k.give(0)
		if m := &k.memory; m.inUse() != 0 || len(m.line)+len(m.held)+len(m.shares) != 0 {
			t.Errorf("%d in use, %d in line, %d hold, %d shares", m.inUse(), len(m.line), len(m.held), len(m.shares))
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
	w := newWorld(t, settings{config: Config{MemoryBytes: costs[zstandard] + streamCost, Patience: 10 * time.Millisecond}})
	held := newClaim(1, projectID, netip.Addr{}, func() {})
	if !w.intake.memory.take(held, 0, nil) {
		t.Fatal("nothing is left")
	}
	w.expect("no memory", "/api/v1/track", encode(t, "zstd", track), 503, unavailable, "Content-Encoding", "zstd")
	w.intake.memory.give(held)
	w.expect("memory", "/api/v1/track", encode(t, "zstd", track), 200, `{"ok":true}`, "Content-Encoding", "zstd")
}

// Whoever opens a hundred requests and sends next to nothing keeps nobody else out.
func TestSlowToBeginHoldsNoMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{config: Config{MemoryBytes: costs[zstandard] + streamCost, Patience: 10 * time.Millisecond}})
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

// A thousandth of what it becomes is enough to send.
func TestASmallCompressedBodyTakesWhatItCanBecome(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{})
	for name, coding := range map[string]coding{"gzip": gzipped, "zstd": zstandard, "br": brotlied} {
		text := encode(t, name, `{"operations":[`+strings.Repeat(" ", 8<<20)+`]}`)
		if len(text) > free {
			t.Fatalf("%s: %d bytes are not few", name, len(text))
		}
		var req fasthttp.Request
		req.Header.Set("Content-Encoding", name)
		req.SetBodyString(text)
		var ctx fasthttp.RequestCtx
		ctx.Init(&req, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, nil)
		var b body
		w.must(b.begin(w.intake, &ctx, scope{project: projectID}))
		if taken := w.intake.Stats().Memory; taken != costs[coding]+streamCost {
			t.Errorf("%s: %d bytes are taken for a decoder and %d bytes of text", name, taken, 8<<20)
		}
		b.end()
	}
}

// A crash report of a known length takes all that it needs at once, so it can wait for that.
func TestALargeCrashReportWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{config: Config{MemoryBytes: 12 << 20}})
	held := newClaim(8<<20, projectID, netip.Addr{}, func() {})
	if !w.intake.memory.take(held, 0, nil) {
		t.Fatal("nothing is left")
	}
	answered := make(chan int)
	go func() {
		status, _ := w.send("/api/catch/events", strings.NewReader(`{"release":"1","platform":"ndk","exception":{"type":"E","value":"`+
			strings.Repeat("x", 2<<20)+`"},"frames":[]}`))
		answered <- status
	}()
	for line := 0; line == 0; time.Sleep(time.Millisecond) {
		w.intake.memory.mu.Lock()
		line = len(w.intake.memory.line)
		w.intake.memory.mu.Unlock()
		select {
		case status := <-answered:
			t.Fatalf("not waited for: %d", status)
		default:
		}
	}
	w.intake.memory.give(held)
	if status := <-answered; status != 202 {
		t.Error(status)
	}
}
