package stream

import "net/netip"

// party is a project or a client's address; the other member is its zero. A key that stands
// in web pages is everybody's, and one client may open as many streams as it has ports: so
// when all places are taken, who has many of them gives one up to who has few. Nobody is
// kept from having all while nobody else wants one.
type party struct {
	project string
	address netip.Addr
}

// placeLocked tells whether there is a place for a new stream, and whose that is when all
// are taken: of a few open streams the one whose parties have most, if those would still
// have no fewer than the new one's.
func (m *Module) placeLocked(s *stream) (whose *stream, ok bool) {
	if m.closing || len(m.open) < m.config.Streams {
		return nil, !m.closing
	}
	const tries = 16 // who has many is among so few, and looking costs the same however many are open
	n := 0
	for each := range m.open { // Go begins at a random place
		if whose == nil || m.loadLocked(each) > m.loadLocked(whose) {
			whose = each
		}
		if n++; n == tries {
			break
		}
	}
	return whose, whose != nil && m.evensLocked(s, whose)
}

func (m *Module) loadLocked(s *stream) int { return m.held[s.of[0]] + m.held[s.of[1]] }

// evensLocked tells whether the new stream's parties would have no more places than the
// other's, when that has given its own up. A party of both is no difference.
func (m *Module) evensLocked(s, other *stream) bool {
	differ, more := false, 0
	for i := range s.of {
		if s.of[i] != other.of[i] {
			differ = true
			more += m.held[other.of[i]] - 1 - m.held[s.of[i]] - 1
		}
	}
	return differ && more >= 0
}

// countLocked notes a stream among the open ones.
func (m *Module) countLocked(s *stream) {
	m.open[s] = struct{}{}
	for _, p := range s.of {
		m.held[p]++
	}
}

// dropLocked takes a stream out of those that are counted, once.
func (m *Module) dropLocked(s *stream) {
	if _, open := m.open[s]; !open {
		return
	}
	delete(m.open, s)
	for _, p := range s.of {
		if m.held[p]--; m.held[p] == 0 {
			delete(m.held, p)
		}
	}
}
