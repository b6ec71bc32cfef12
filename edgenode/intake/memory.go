package intake

import (
	"slices"
	"sync"
	"time"
)

// memory is the budget of all requests together. Who finds too little left waits in line: a request decodes in
// milliseconds, and a client that is told to come again comes with all of its body.
type memory struct {
	limit int64

	mu   sync.Mutex
	used int64
	line []*claim // oldest first
}

// claim is a request that waits for n bytes.
type claim struct {
	n     int64
	taken chan struct{} // closed once they are its own
}

// take takes n bytes, for which it waits at most for the patience and until stop. Nobody overtakes: a large request
// would never come to its turn among small ones.
func (m *memory) take(n int64, patience time.Duration, stop <-chan struct{}) bool {
	if n > m.limit {
		return false
	}
	m.mu.Lock()
	if len(m.line) == 0 && m.used+n <= m.limit {
		m.used += n
		m.mu.Unlock()
		return true
	}
	if patience <= 0 {
		m.mu.Unlock()
		return false
	}
	c := &claim{n: n, taken: make(chan struct{})}
	m.line = append(m.line, c)
	m.mu.Unlock()

	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c.taken:
		return true
	case <-timer.C:
	case <-stop:
	}
	return m.leave(c)
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
	m.serveLocked() // those behind may need less
	return false
}

// give gives n bytes back.
func (m *memory) give(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used -= n
	m.serveLocked()
}

func (m *memory) serveLocked() {
	for len(m.line) > 0 && m.used+m.line[0].n <= m.limit {
		m.used += m.line[0].n
		close(m.line[0].taken)
		m.line = slices.Delete(m.line, 0, 1)
	}
}

// inUse is how much is taken at this moment.
func (m *memory) inUse() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}
