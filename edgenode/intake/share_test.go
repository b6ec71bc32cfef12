package intake

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// slow begins an upload that stops in the middle, and holds memory by then. end sends what is missing of it.
func (w *world) slow(answers chan<- int, path string, headers ...string) (end func()) {
	w.t.Helper()
	body, sender := io.Pipe()
	go func() {
		status, _ := w.send(path, body, headers...)
		answers <- status
		_ = body.CloseWithError(io.ErrClosedPipe) // nobody reads on
	}()
	_, err := io.WriteString(sender, `{"operations":[{"type":"track","payload":`+track+`},`+strings.Repeat(" ", 2*free))
	w.must(err)
	return func() {
		_, _ = io.WriteString(sender, `{"type":"track","payload":`+track+`}]}`) // a request that has yielded takes no more
		_ = sender.Close()
	}
}

// largeBatch is a batch of a few megabytes.
func largeBatch() string {
	one := `{"type":"track","payload":{"event_name":"a","distinct_id":"u1","properties":{"x":"` + strings.Repeat("y", 1000) + `"}}}`
	return `{"operations":[` + one + strings.Repeat(","+one, 3000) + `]}`
}

// A key that stands in web pages is everybody's: whoever fills the memory with uploads that hardly move keeps only uploads
// like these out.
func TestSlowUploadsOfOneProjectGiveWayToAnother(t *testing.T) {
	t.Parallel()
	const places = 8
	w := newWorld(t, settings{config: Config{MemoryBytes: places * streamCost, Patience: 5 * time.Second}})
	w.intake.memory.press = 100 * time.Millisecond
	answers := make(chan int, 3*places)
	var ends []func()
	for range cap(answers) {
		ends = append(ends, w.slow(answers, "/api/v1/batch"))
	}
	for w.intake.Stats().Memory < places*streamCost {
		time.Sleep(time.Millisecond)
	}
	if len(answers) > 0 {
		t.Error("a project that is alone does not have all of the memory")
	}
	for range places {
		status, answer := w.send("/api/v1/batch", strings.NewReader(largeBatch()), "x-api-key", closed, "Origin", "https://a.example")
		if status != 200 {
			t.Fatalf("another project: %d %s", status, answer)
		}
	}
	for _, end := range ends {
		end()
	}
	given := map[int]int{}
	for range ends {
		given[<-answers]++
	}
	if given[200]+given[503] != len(ends) || given[200] < places/2 {
		t.Errorf("the slow ones were answered %v", given)
	}
	if used := w.intake.Stats().Memory; used != 0 {
		t.Errorf("%d bytes of the budget are not given back", used)
	}
}

// crowd takes memory for parties of its own and remembers who had to yield.
type crowd struct {
	t       *testing.T
	m       *memory
	yielded []string
}

func (c *crowd) claim(project, address string, n int64) *claim {
	name := project + " at " + address
	return newClaim(n, project, netip.MustParseAddr(address), func() { c.yielded = append(c.yielded, name) })
}

// hold takes memory at once.
func (c *crowd) hold(project, address string, n int64) *claim {
	c.t.Helper()
	one := c.claim(project, address, n)
	if !c.m.take(one, 0, nil) {
		c.t.Fatalf("no %d bytes for %s at %s", n, project, address)
	}
	return one
}

// wait lets somebody wait for memory, and gives back for the holders what they have to yield meanwhile. ok tells whether
// the turn came; then the memory is given back.
func (c *crowd) wait(project, address string, n int64, holders *[]*claim) (waited time.Duration, ok bool) {
	c.t.Helper()
	one, got := c.claim(project, address, n), make(chan bool, 1)
	began := time.Now()
	go func() { got <- c.m.take(one, 10*time.Second, nil) }()
	for {
		synctest.Wait()
		select {
		case ok = <-got:
			if ok {
				defer c.m.give(one)
			}
			return time.Since(began).Truncate(time.Second), ok
		default:
		}
		*holders = slices.DeleteFunc(*holders, func(h *claim) bool {
			if h.yielded.Load() {
				c.m.give(h)
			}
			return h.yielded.Load()
		})
		time.Sleep(100 * time.Millisecond)
	}
}

func TestTheHeaviestYieldToWhoWaits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name             string
		holders          func(i int) (project, address string)
		project, address string // who waits
		yield            bool   // somebody does
	}{
		{"one key, one address; another project", func(int) (string, string) { return "a", "1.1.1.1" }, "b", "2.2.2.2", true},
		{"one key, one address; another project there", func(int) (string, string) { return "a", "1.1.1.1" }, "b", "1.1.1.1", true},
		{"one key, one address; another client of the project", func(int) (string, string) { return "a", "1.1.1.1" }, "a", "2.2.2.2", true},
		{"one key, many addresses; another project", func(i int) (string, string) { return "a", fmt.Sprintf("1.1.1.%d", i) }, "b", "2.2.2.2", true},
		{"many keys, one address; another client", func(i int) (string, string) { return fmt.Sprint("a", i), "1.1.1.1" }, "b", "2.2.2.2", true},
		{"many keys, many addresses: all are equal", func(i int) (string, string) { return fmt.Sprint("a", i), fmt.Sprintf("1.1.1.%d", i) }, "b", "2.2.2.2", false},
		{"itself", func(int) (string, string) { return "a", "1.1.1.1" }, "a", "1.1.1.1", false},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := &memory{limit: 16, press: pressAfter}
			all := &crowd{t: t, m: m}
			var holders []*claim
			for i := range 16 {
				project, address := c.holders(i)
				holders = append(holders, all.hold(project, address, 1))
			}
			time.Sleep(2 * pressAfter)
			holders[7].come.Store(1) // all others are slower
			if waited, ok := all.wait(c.project, c.address, 1, &holders); ok != c.yield || ok && waited > pressAfter || ok != (len(all.yielded) > 0) {
				t.Errorf("%s: its turn: %v, after %s; %q had to yield", c.name, ok, waited, all.yielded)
			}
			for _, h := range holders {
				m.give(h)
			}
			if m.used != 0 || m.yielding != 0 || len(m.held)+len(m.line)+len(m.shares) > 0 {
				t.Errorf("%s: what is left: %+v", c.name, m)
			}
		})
	}
}

// The slowest of the heaviest yields, and nobody who has only just begun.
func TestWhoIsFastOrNewKeepsItsMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := &crowd{t: t, m: &memory{limit: 8, press: pressAfter}}
		fast, slow, light := all.hold("a", "1.1.1.1", 2), all.hold("a", "1.1.1.1", 2), all.hold("b", "2.2.2.2", 2)
		time.Sleep(2 * pressAfter)
		fast.come.Store(1 << 20)
		slow.come.Store(1 << 10)
		fresh := all.hold("a", "1.1.1.1", 2)
		holders := []*claim{fast, slow, light, fresh}
		if waited, ok := all.wait("c", "3.3.3.3", 2, &holders); !ok || waited != pressAfter {
			t.Fatalf("%v after %s", ok, waited)
		}
		if !slow.yielded.Load() || fast.yielded.Load() || light.yielded.Load() || fresh.yielded.Load() {
			t.Errorf("yielded: slow %v, fast %v, light %v, fresh %v", slow.yielded.Load(), fast.yielded.Load(), light.yielded.Load(), fresh.yielded.Load())
		}
	})
}

// Whoever has had to wait once finds room from then on; the heavy have all of the memory again when nobody needed it for a
// while.
func TestTheHeavyLeaveTheLastQuarterForAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := &crowd{t: t, m: &memory{limit: 16, press: pressAfter}}
		var holders []*claim
		fill := func() int {
			for {
				one := all.claim("a", "1.1.1.1", 1)
				if !all.m.take(one, 0, nil) {
					return len(holders)
				}
				holders = append(holders, one)
			}
		}
		if n := fill(); n != 16 {
			t.Fatalf("alone it has %d", n)
		}
		time.Sleep(2 * pressAfter)
		for i, other := range [...]struct{ project, address string }{
			{"b", "2.2.2.2"}, {"b", "2.2.2.2"}, {"c", "3.3.3.3"}, {"b", "1.1.1.1"}, {"a", "2.2.2.2"},
		} {
			waited, ok := all.wait(other.project, other.address, 1, &holders)
			if !ok || (waited > 0) != (i == 0) {
				t.Errorf("request %d: %v after %s", i, ok, waited)
			}
			fill()
		}
		if n := fill(); n != 15 {
			t.Errorf("the heavy has %d after it had to yield one: nobody else may take its place but itself", n)
		}
		for range 4 {
			all.m.give(holders[0])
			holders = holders[1:]
		}
		if n := fill(); n != 12 {
			t.Errorf("it takes the last quarter: %d", n)
		}
		time.Sleep(shyFor)
		if n := fill(); n != 16 {
			t.Errorf("a minute later it has %d", n)
		}
	})
}

// Those of one project in line do not keep another waiting longer than its own.
func TestTheLightestIsNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := &crowd{t: t, m: &memory{limit: 4, press: time.Hour}}
		first, rest := all.hold("a", "1.1.1.1", 2), all.hold("a", "1.1.1.1", 2)
		var order []string
		turn := make(chan struct{})
		for _, project := range []string{"a", "a", "b", "a", "c"} {
			go func() {
				one := all.claim(project, "2.2.2.2", 2)
				if all.m.take(one, time.Minute, nil) {
					order = append(order, project)
					<-turn
					all.m.give(one)
				}
			}()
			synctest.Wait()
		}
		all.m.give(first)
		synctest.Wait()
		for range 5 {
			turn <- struct{}{}
			synctest.Wait()
		}
		if got := strings.Join(order, " "); got != "b c a a a" {
			t.Errorf("in the order %s", got)
		}
		all.m.give(rest)
	})
}
