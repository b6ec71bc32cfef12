package native

import (
	"math/rand/v2"
	"testing"
)

// Inlined calls lie within what they are inlined into; at each address the deepest of
// them is the answer.
func TestFlattenLeavesTheDeepestScopeOfEachAddress(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		var list []nested
		scope := uint32(0)
		var add func(low, high uint32, depth int32)
		add = func(low, high uint32, depth int32) {
			scope++
			list = append(list, nested{piece{low, high, scope}, depth})
			for at := low + uint32(random.IntN(6)); at < high && depth < 6; {
				end := min(high, at+1+uint32(random.IntN(40)))
				if random.IntN(2) == 0 {
					add(at, end, depth+1)
				}
				at = end + uint32(random.IntN(2)*random.IntN(10))
			}
		}
		add(10, 200, 0)
		add(250, 250+1+uint32(random.IntN(50)), 0) // the cold part of the same function
		var want [400]uint32
		var depth [400]int32
		for _, n := range list {
			for a := n.low; a < n.high; a++ {
				if n.depth >= depth[a] {
					want[a], depth[a] = n.scope, n.depth
				}
			}
		}
		random.Shuffle(len(list), func(i, k int) { list[i], list[k] = list[k], list[i] })
		var got [400]uint32
		for _, p := range settle(flatten(list, nil)) {
			for a := p.low; a < p.high; a++ {
				if got[a] != 0 {
					t.Fatalf("pieces overlap at %d", a)
				}
				got[a] = p.scope
			}
		}
		if got != want {
			t.Fatalf("got  %v\nwant %v", got, want)
		}
	}
}
