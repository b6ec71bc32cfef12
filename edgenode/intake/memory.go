package intake

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"skerry/edgenode/parties"
)

// memory is the budget of all requests together. Who finds too little left waits in line:
// a request decodes in milliseconds, and a client that is told to come again comes with
// all of its body.
//
// One that comes slowly may hold its part for hours, though, and a key that stands in web
// pages is everybody's. So the memory is shared among projects and among client
// addresses. Nobody is kept from using all of it while nobody else needs it; but of those
// in line the one whose project and address hold least is next, and when it has waited
// for a while, one that holds more gives its part up, the slowest of the heaviest. For a
// minute after that the heavy leave the last quarter to others, so that those do not wait
// each time.
type memory struct {
	limit int64
	press time.Duration // how long the next in line waits until somebody has to yield, and how long nobody has to at first

	mu       sync.Mutex
	used     int64 // taken and not given back
	yielding int64 // of that, what will be given back by those that had to yield
	shares   map[parties.Party]*share
	line     []*claim  // oldest first
	held     []*claim  // that have their part and need not yield
	pressed  time.Time // when somebody last had to; zero: never
}

const (
	// pressAfter is longer than most requests take whose sender is not slow.
	pressAfter = time.Second
	// shyFor is how long the heavy leave the last quarter of the memory to others.
	shyFor = time.Minute
)

// share is what a party has.
type share struct {
	held   int64 // bytes, without those of claims that had to yield
	claims int   // waiting ones, too; without any the share is forgotten
}

// claim is a request's part of the memory. It is made by newClaim, and used once.
type claim struct {
	n       int64
	parties [2]parties.Party
	yield   func()       // ends the reading of the request's body
	come    atomic.Int64 // bytes of the body since the memory was taken

	taken   chan struct{} // closed once the bytes are its own
	shares  [2]*share
	since   time.Time   // when they were taken
	yielded atomic.Bool // they have to be given back
}

// newClaim is a claim to n bytes for a project and a client's address. yield is called,
// under a lock, when the memory has to be given back before the request is done; it must
// not wait.
func newClaim(n int64, project string, address netip.Addr, yield func()) *claim {
	return &claim{n: n, parties: parties.Of(project, address), yield: yield, taken: make(chan struct{})}
}

// holding is what the claim has or wants, beside what its project and its address hold.
func (c *claim) holding() parties.Holding {
	return parties.Holding{Of: c.parties, Held: [2]int64{c.shares[0].held, c.shares[1].held}, N: c.n}
}

// load is what the claim's project and its address hold.
func (c *claim) load() int64 { return c.holding().Load() }

// pace is how fast the claim's body has come, in bytes per second.
func (c *claim) pace(now time.Time) float64 {
	return float64(c.come.Load()) / now.Sub(c.since).Seconds()
}

// evens tells whether c would still hold no more than v when v has yielded to it.
func (c *claim) evens(v *claim) bool { return parties.Evens(c.holding(), v.holding()) }

// take takes a claim's bytes, for which it waits at most for the patience and until stop.
func (m *memory) take(c *claim, patience time.Duration, stop <-chan struct{}) bool {
	if c.n > m.limit {
		return false
	}
	m.mu.Lock()
	m.joinLocked(c)
	m.line = append(m.line, c)
	m.serveLocked()
	m.mu.Unlock()
	select {
	case <-c.taken:
		return true
	default:
	}
	if patience <= 0 {
		return m.leave(c)
	}
	over, press := time.NewTimer(patience), time.NewTicker(m.press)
	defer over.Stop()
	defer press.Stop()
	for {
		select {
		case <-c.taken:
			return true
		case <-press.C:
			m.pressFor(c)
		case <-over.C:
			return m.leave(c)
		case <-stop:
			return m.leave(c)
		}
	}
}

// leave takes a claim out of the line; true when its turn came at that very moment.
func (m *memory) leave(c *claim) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.Index(m.line, c)
	if i < 0 {
		return true
	}
	m.line = slices.Delete(m.line, i, i+1)
	m.partLocked(c)
	m.serveLocked() // those behind may need less
	return false
}

// give gives a claim's bytes back.
func (m *memory) give(c *claim) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used -= c.n
	if c.yielded.Load() {
		m.yielding -= c.n
	} else {
		m.releaseLocked(c)
	}
	m.partLocked(c)
	m.serveLocked()
}

// pressFor makes room for the claim when it is the next one and others hold more than it
// would: the slowest of the heaviest yield.
func (m *memory) pressFor(c *claim) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.serveLocked() // the minute may be over
	if m.nextLocked() != c {
		return
	}
	now := time.Now()
	for m.used-m.yielding+c.n > m.roomLocked(c) {
		v := m.heaviestLocked(c, now)
		if v == nil {
			return
		}
		m.pressed = now
		m.releaseLocked(v)
		m.yielding += v.n
		v.yielded.Store(true)
		v.yield()
	}
}

// heaviestLocked is who should yield to a claim; nil when nobody should.
func (m *memory) heaviestLocked(c *claim, now time.Time) (found *claim) {
	for _, v := range m.held {
		if now.Sub(v.since) <= m.press || !c.evens(v) {
			continue
		}
		if found == nil || v.load() > found.load() || v.load() == found.load() && v.pace(now) < found.pace(now) {
			found = v
		}
	}
	return found
}

// serveLocked gives to those in line what there is. Nobody overtakes the next one: a
// large request would never come to its turn among small ones.
func (m *memory) serveLocked() {
	for {
		c := m.nextLocked()
		if c == nil || m.used+c.n > m.roomLocked(c) {
			return
		}
		m.line = slices.DeleteFunc(m.line, func(each *claim) bool { return each == c })
		m.used += c.n
		for _, s := range c.shares {
			s.held += c.n
		}
		c.since = time.Now()
		m.held = append(m.held, c)
		close(c.taken)
	}
}

// nextLocked is whose turn it is: of those with the least load, the oldest.
func (m *memory) nextLocked() (next *claim) {
	for _, c := range m.line {
		if next == nil || c.load() < next.load() {
			next = c
		}
	}
	return next
}

// roomLocked is how much may be in use with a claim. The last quarter is for those to whom
// somebody would have to yield.
func (m *memory) roomLocked(c *claim) int64 {
	shy := m.used > 0 && !m.pressed.IsZero() && time.Since(m.pressed) < shyFor
	if shy && !slices.ContainsFunc(m.held, c.evens) {
		return m.limit - m.limit/4
	}
	return m.limit
}

// releaseLocked takes a claim out of those that hold.
func (m *memory) releaseLocked(c *claim) {
	m.held = slices.DeleteFunc(m.held, func(each *claim) bool { return each == c })
	for _, s := range c.shares {
		s.held -= c.n
	}
}

// joinLocked finds the claim's shares, or makes them.
func (m *memory) joinLocked(c *claim) {
	if m.shares == nil {
		m.shares = map[parties.Party]*share{}
	}
	for i, p := range c.parties {
		s := m.shares[p]
		if s == nil {
			s = &share{}
			m.shares[p] = s
		}
		s.claims++
		c.shares[i] = s
	}
}

// partLocked is the end of what joinLocked began.
func (m *memory) partLocked(c *claim) {
	for i, p := range c.parties {
		if c.shares[i].claims--; c.shares[i].claims == 0 {
			delete(m.shares, p)
		}
	}
}

// inUse is how much is taken at this moment.
func (m *memory) inUse() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}
