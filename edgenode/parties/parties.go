// Package parties tells who of an edge's clients should yield to whom, where all share what
// there is not enough of: the memory for bodies, the places for streams.
//
// A request belongs to two parties: its project, because a key that stands in web pages is
// everybody's, and its client's address, because one client may hold as much as it has
// ports. Nobody is kept from having all while nobody else wants any (docs/decisions/0404).
package parties

import "net/netip"

// Party is a project or a client's address; the other member is its zero.
type Party struct {
	project string
	address netip.Addr
}

// Of are the parties of a project's request from an address.
func Of(project string, address netip.Addr) [2]Party {
	return [2]Party{{project: project}, {address: address}}
}

// Holding is what a request has or wants, and what its parties hold in all.
type Holding struct {
	Of   [2]Party
	Held [2]int64 // by each of the parties
	N    int64    // the request's own: of Held when it has it
}

// Load is what the parties hold together.
func (h Holding) Load() int64 { return h.Held[0] + h.Held[1] }

// Evens tells whether the parties of the one who asks, with what it wants, would hold no
// more than those of the one who has, without what that has. A party of both is no
// difference.
func Evens(asks, has Holding) bool {
	differ, more := false, int64(0)
	for i := range asks.Of {
		if asks.Of[i] != has.Of[i] {
			differ = true
			more += has.Held[i] - has.N - asks.Held[i] - asks.N
		}
	}
	return differ && more >= 0
}
