package stream

import "skerry/edgenode/parties"

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
	return whose, whose != nil && parties.Evens(m.holdingLocked(s), m.holdingLocked(whose))
}

func (m *Module) loadLocked(s *stream) int64 { return m.holdingLocked(s).Load() }

// holdingLocked is a stream's place, beside the places that its parties have.
func (m *Module) holdingLocked(s *stream) parties.Holding {
	return parties.Holding{Of: s.of, Held: [2]int64{m.held[s.of[0]], m.held[s.of[1]]}, N: 1}
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
