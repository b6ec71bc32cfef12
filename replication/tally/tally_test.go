package tally

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"skerry/pkg/natsserver/natstest"
	"skerry/pkg/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func hash(n uint64) (h [32]byte) {
	binary.BigEndian.PutUint64(h[:], n*0x9E3779B97F4A7C15)
	binary.BigEndian.PutUint64(h[8:], n)
	return h
}

func limiter(t testing.TB, edge string) *Limiter {
	l, err := NewLimiter(LimiterConfig{Edge: edge})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestOneEdgeAdmitsExactlyTheLimitOfEachFixedMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, "e1")
		time.Sleep(30 * time.Second) // in the middle of a minute
		try := func(n int) (admitted int) {
			for range n {
				if l.Allow(l.cfg.Now(), 1, hash(1), 500) {
					admitted++
				}
			}
			return admitted
		}
		if got := try(700); got != 500 {
			t.Errorf("first minute: %d, want 500", got)
		}
		time.Sleep(29*time.Second + 999*time.Millisecond)
		if got := try(10); got != 0 {
			t.Errorf("last millisecond of the minute: %d, want 0", got)
		}
		time.Sleep(time.Millisecond)
		if got := try(700); got != 500 {
			t.Errorf("next minute: %d, want 500", got)
		}
		if !l.Allow(l.cfg.Now(), 1, hash(2), 500) || !l.Allow(l.cfg.Now(), 2, hash(1), 500) {
			t.Error("another key, and another limit of the key, have counters of their own")
		}
		if l.Allow(l.cfg.Now(), 3, hash(3), 0) {
			t.Error("a limit of 0 admits nothing")
		}
	})
}

// mesh runs limiters that hear each other after a delay.
func mesh(ctx context.Context, wait *sync.WaitGroup, delay time.Duration, edges ...*Limiter) {
	for _, l := range edges {
		wait.Go(func() {
			l.share(ctx, func(m []byte) {
				for _, other := range edges {
					wait.Go(func() {
						time.Sleep(delay)
						if err := other.hear(m); err != nil {
							panic(err)
						}
					})
				}
			})
		})
	}
}

func TestSeveralEdgesAdmitAtMostATenthOver(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		edges, tries int
		over         time.Duration
		spread       func(i, edges int) int
	}{
		{"evenly over 10 s", 3, 1500, 10 * time.Second, func(i, n int) int { return i % n }},
		{"twenty times the limit over 10 s", 3, 10000, 10 * time.Second, func(i, n int) int { return i % n }},
		{"ten edges over 10 s", 10, 1500, 10 * time.Second, func(i, n int) int { return i % n }},
		{"one after the other", 3, 1500, 15 * time.Second, func(i, n int) int { return i * n / 1500 }},
		{"at random over 40 s", 5, 3000, 40 * time.Second, func(_, n int) int { return rand.IntN(n) }},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			var wait sync.WaitGroup
			edges := make([]*Limiter, c.edges)
			for i := range edges {
				edges[i] = limiter(t, fmt.Sprint("e", i))
			}
			mesh(ctx, &wait, 5*time.Millisecond, edges...)
			admitted := 0
			for i := range c.tries {
				time.Sleep(c.over / time.Duration(c.tries))
				if edges[c.spread(i, c.edges)].Allow(time.Now(), 1, hash(1), 500) {
					admitted++
				}
			}
			stop()
			wait.Wait()
			if admitted < 500 || admitted > 550 {
				t.Errorf("%s: %d admitted, want 500 to 550", c.name, admitted)
			}
		})
	}
}

func TestNewLimiterInTheMiddleOfAMinuteLearnsAtTheNextWord(t *testing.T) {
	t.Parallel()
	a, b := limiter(t, "a"), limiter(t, "b")
	for range 300 {
		a.Allow(a.cfg.Now(), 1, hash(1), 500)
	}
	said := a.messages()
	for range 2 { // a message that comes twice changes nothing
		for _, m := range said {
			if err := b.hear(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	admitted := 0
	for range 500 {
		if b.Allow(b.cfg.Now(), 1, hash(1), 500) {
			admitted++
		}
	}
	if admitted != 200 {
		t.Errorf("%d admitted after a peer's 300, want 200", admitted)
	}
	if err := a.hear(said[0]); err != nil { // its own
		t.Fatal(err)
	}
	if !a.Allow(a.cfg.Now(), 1, hash(1), 301) {
		t.Error("an edge counted its own word")
	}
}

func TestRandomKeysAreForgottenAndNotTold(t *testing.T) {
	t.Parallel()
	l, err := NewLimiter(LimiterConfig{Edge: "e1", MaxScopes: 1600, Now: func() time.Time { return time.Unix(60, 0) }})
	if err != nil {
		t.Fatal(err)
	}
	admitted := 0
	for i := range uint64(100_000) {
		l.Allow(l.cfg.Now(), 1, hash(i+1000), 500)
		if i%100 == 0 && l.Allow(l.cfg.Now(), 1, hash(1), 500) {
			admitted++
		}
	}
	if admitted < 500 || admitted > 550 {
		t.Errorf("%d admitted of the real key, want about 500", admitted)
	}
	total := 0
	for i := range l.shards {
		total += len(l.shards[i].counts[1])
	}
	if total > 1600 {
		t.Errorf("%d counters, want at most 1,600", total)
	}
	entries := 0
	for _, m := range l.messages() {
		entries += len(m) / rateEntrySize
	}
	if entries != 1 {
		t.Errorf("%d counters told, want the real key's alone", entries)
	}
}

func TestSharedOverARealServer(t *testing.T) {
	t.Parallel()
	ns := natstest.New(t)
	ctx, stop := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	a, b := limiter(t, "a"), limiter(t, "b")
	for _, l := range []*Limiter{a, b} {
		nc := ns.Connect(t)
		wait.Go(func() {
			if err := l.Run(ctx, nc); err != nil {
				t.Error(err)
			}
		})
	}
	listener := ns.Connect(t)
	sub, err := listener.SubscribeSync(rateSubject)
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Flush(); err != nil {
		t.Fatal(err)
	}
	// b refuses once it has heard; until then a keeps counting, one by one.
	deadline := time.Now().Add(20 * time.Second)
	for !b.refused() && time.Now().Before(deadline) {
		a.Allow(a.cfg.Now(), 1, hash(1), 500)
		if _, err := sub.NextMsg(20 * time.Millisecond); err != nil {
			continue
		}
	}
	stop()
	wait.Wait()
	if !b.refused() {
		t.Error("what one edge admitted never reached the other")
	}
}

// refused tells whether a limit of 5 is used up here.
func (l *Limiter) refused() bool {
	sh := &l.shards[hash(1)[0]%shards]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	c := l.countLocked(sh, minuteOf(l.cfg.Now()), scope{hash: scopeOf(1), limit: 1})
	return c.own+c.others >= 5
}

func scopeOf(n uint64) [16]byte { h := hash(n); return [16]byte(h[:16]) }

func FuzzHear(f *testing.F) {
	l := limiter(f, "a")
	for range 20 {
		l.Allow(l.cfg.Now(), 1, hash(1), 500)
	}
	f.Add(l.messages()[0])
	f.Fuzz(func(t *testing.T, m []byte) {
		other := limiter(t, "b")
		_ = other.hear(m)
		if !other.Allow(other.cfg.Now(), 9, hash(77), 1<<31-1) {
			t.Error("a message closed a key for good")
		}
	})
}

// memory is a Counters in memory.
type memory struct {
	mu     sync.Mutex
	counts map[countKey]uint64
	fail   error
}

func (m *memory) Source() string { return "e1.disk" }

func (m *memory) Add(project [16]byte, metric Metric, now time.Time, n uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	m.counts[countKey{project, firstOf(now).Unix(), metric}] += n
	return nil
}

func (m *memory) Used(project [16]byte, metric Metric, now time.Time) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts[countKey{project, firstOf(now).Unix(), metric}]
}

func (m *memory) Counts() (list []Count) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, n := range m.counts {
		list = append(list, Count{k.project, time.Unix(k.month, 0).UTC(), k.metric, n})
	}
	return list
}

func firstOf(t time.Time) time.Time {
	t = t.UTC()
	return time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC)
}

const projectText = "018f0000-0000-7000-8000-000000000001"

var project = [16]byte{0x01, 0x8f, 0, 0, 0, 0, 0x70, 0, 0x80, 0, 0, 0, 0, 0, 0, 1}

func TestUsedPutsTheEdgesOwnCountInThePlaceOfItsReportedOne(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 31, 23, 59, 0, 0, time.UTC)
	store := &memory{counts: map[countKey]uint64{}}
	m := NewMeter("e1", store, func() time.Time { return now })
	_ = store.Add(project, Events, now, 100)
	for _, c := range []struct {
		name    string
		central state.Usage
		want    int64
	}{
		{"no total yet", state.Usage{}, 100},
		{"a total of another month", state.Usage{Month: "2025-12", Events: 5000}, 100},
		{"nothing of ours in it", state.Usage{Month: "2026-01", Events: 40, EventsBy: map[string]int64{"e2.x": 40}}, 140},
		{"a part of ours in it", state.Usage{Month: "2026-01", Events: 100, EventsBy: map[string]int64{"e2.x": 40, "e1.disk": 60}}, 140},
		{"ours from before a lost disk", state.Usage{Month: "2026-01", Events: 900, EventsBy: map[string]int64{"e1.old": 900}}, 1000},
		{"more of ours than we know", state.Usage{Month: "2026-01", Events: 500, EventsBy: map[string]int64{"e1.disk": 500}}, 500},
		{"a total without its parts, higher", state.Usage{Month: "2026-01", Events: 130}, 130},
		{"a total without its parts, lower", state.Usage{Month: "2026-01", Events: 30}, 100},
	} {
		if got := m.Used(m.now(), projectText, Events, &c.central); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	now = now.Add(time.Minute)
	if got := m.Used(m.now(), projectText, Events, &state.Usage{Month: "2026-01", Events: 500}); got != 0 {
		t.Errorf("in the next month: %d, want 0", got)
	}
}

func TestMonthsAreComparedAsTheCentreWritesThem(t *testing.T) {
	t.Parallel()
	// In Auckland it is already February.
	at := time.Date(2026, 2, 1, 9, 0, 0, 0, time.FixedZone("NZDT", 13*60*60))
	for text, want := range map[string]bool{
		"2026-01": true, "2026-02": false, "2025-01": false, "2026-1": false, "2026-011": false, "2026/01": false,
		"": false, "2026-0x": false, "+026-01": false,
	} {
		if got := isMonth(text, at); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func TestMeteringAllocatesNothing(t *testing.T) {
	m := NewMeter("e1", &memory{counts: map[countKey]uint64{}}, nil)
	central := state.Usage{Month: time.Now().UTC().Format(monthForm), Handshakes: 7, HandshakesBy: map[string]int64{"e1.disk": 4, "e2.x": 3}}
	m.AddHandshakes(projectText, 1)
	if n := testing.AllocsPerRun(1000, func() {
		m.AddHandshakes(projectText, 1)
		if m.Used(m.now(), projectText, Handshakes, &central) < 7 {
			t.Fatal("not counted")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkMetering is what a decision call of a project with a quota costs here.
func BenchmarkMetering(b *testing.B) {
	m := NewMeter("e1", &memory{counts: map[countKey]uint64{}}, nil)
	central := state.Usage{Month: time.Now().UTC().Format(monthForm), Handshakes: 7, HandshakesBy: map[string]int64{"e1.disk": 4, "e2.x": 3}}
	b.ReportAllocs()
	for b.Loop() {
		_ = m.Used(m.now(), projectText, Handshakes, &central)
		m.AddHandshakes(projectText, 1)
	}
}

func TestHandshakesCountAtOnceAndAreStoredOnce(t *testing.T) {
	t.Parallel()
	store := &memory{counts: map[countKey]uint64{}}
	m := NewMeter("e1", store, nil)
	used := func() int64 { return m.Used(m.now(), projectText, Handshakes, &state.Usage{}) }
	m.AddHandshakes(projectText, 3)
	m.AddHandshakes("no project", 3)
	if used() != 3 {
		t.Errorf("%d before it is stored, want 3", used())
	}
	store.fail = context.DeadlineExceeded
	if m.store() == nil || used() != 3 {
		t.Errorf("%d after a failed store, want 3", used())
	}
	store.fail = nil
	for range 2 {
		if err := m.store(); err != nil || used() != 3 {
			t.Errorf("%d after storing, want 3 (%v)", used(), err)
		}
	}
}

func TestReportsReachTheCentre(t *testing.T) {
	t.Parallel()
	ns := natstest.New(t)
	store := &memory{counts: map[countKey]uint64{}}
	m := NewMeter("e1", store, nil)
	centre := ns.Connect(t)
	sub, err := centre.SubscribeSync(ReportSubjects)
	if err != nil {
		t.Fatal(err)
	}
	if err := centre.Flush(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	nc := ns.Connect(t)
	wait.Go(func() {
		if err := m.Run(ctx, nc); err != nil {
			t.Error(err)
		}
	})
	m.AddHandshakes(projectText, 5)
	msg, err := sub.NextMsg(20 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	r, err := DecodeReport(msg.Data)
	if err != nil || r.Edge != "e1" || r.Source != "e1.disk" || len(r.Counts) != 1 || r.Counts[0].Value != 5 ||
		r.Counts[0].Project != project || r.Counts[0].Metric != Handshakes {
		t.Errorf("report %+v, %v", r, err)
	}
	m.AddHandshakes(projectText, 2)
	stop()
	wait.Wait()
	if got := store.Used(project, Handshakes, time.Now()); got != 7 {
		t.Errorf("%d stored at the end, want 7", got)
	}
}

func TestReportsAreReadBack(t *testing.T) {
	t.Parallel()
	r := Report{Edge: "e1", Source: "e1.9f", Counts: []Count{
		{project, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Events, 7},
		{project, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Handshakes, 1 << 40},
	}}
	const golden = `{"edge":"e1","source":"e1.9f","counts":[{"project":"018f0000-0000-7000-8000-000000000001","month":"2026-01","metric":"events","value":7},` +
		`{"project":"018f0000-0000-7000-8000-000000000001","month":"2026-01","metric":"handshakes","value":1099511627776}]}`
	if got := string(r.Encode()); got != golden {
		t.Errorf("report is %s", got)
	}
	back, err := DecodeReport([]byte(golden))
	if err != nil || back.Edge != r.Edge || !slices.Equal(back.Counts, r.Counts) {
		t.Errorf("read back %+v, %v", back, err)
	}
	for _, bad := range []string{``, `{}`, `{"edge":"e1","source":"e2.x"}`, `{"edge":"e1","source":"e1","counts":[{"project":"x","month":"2026-01","metric":"events"}]}`,
		`{"edge":"e1","source":"e1","counts":[{"project":"` + projectText + `","month":"2026","metric":"events"}]}`} {
		if _, err := DecodeReport([]byte(bad)); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

func FuzzDecodeReport(f *testing.F) {
	f.Add([]byte(`{"edge":"e1","source":"e1","counts":[{"project":"` + projectText + `","month":"2026-01","metric":"events","value":1}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := DecodeReport(data)
		if err != nil {
			return
		}
		if again, err := DecodeReport(r.Encode()); err != nil || !slices.Equal(again.Counts, r.Counts) {
			t.Fatalf("%+v became %+v, %v", r, again, err)
		}
	})
}

func BenchmarkAllow(b *testing.B) {
	l := limiter(b, "e1")
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		h := hash(rand.Uint64N(100))
		for pb.Next() {
			l.Allow(l.cfg.Now(), 1, h, 1<<31-1)
		}
	})
}
