package native

import (
	"cmp"
	"slices"
)

func addSpan(list []span, low, size uint64) []span {
	if size == 0 || low+size < low {
		return list
	}
	return append(list, span{low, low + size})
}

func sortSpans(list []span) {
	slices.SortFunc(list, func(a, b span) int { return cmp.Compare(a.low, b.low) })
}

// inside reports whether an address lies in one of the sorted spans. Linkers leave
// the debug information of discarded functions at 0, 1 or -1.
func inside(list []span, address uint64) bool {
	i, _ := slices.BinarySearchFunc(list, address, func(s span, a uint64) int {
		if s.low > a {
			return 1
		}
		return -1
	})
	for ; i > 0; i-- {
		if s := list[i-1]; address < s.high {
			return true
		} else if i > 1 && list[i-2].high <= s.low {
			return false
		}
	}
	return false
}

// piece is a part of a function: the addresses, relative to the image's lowest, that
// belong to one scope (the function or something inlined into it).
type piece struct{ low, high, scope uint32 }

// nested is a scope's range before the deeper ones are cut out of it.
type nested struct {
	piece
	depth int32
}

// flatten cuts the ranges of one function into pieces that do not overlap; at each
// address the deepest scope remains. Ranges that stick out of their parent are kept:
// they are the compiler's word too.
func flatten(list []nested, out []piece) []piece {
	slices.SortStableFunc(list, func(a, b nested) int {
		if c := cmp.Compare(a.low, b.low); c != 0 {
			return c
		}
		return cmp.Compare(a.depth, b.depth)
	})
	var open []nested
	at := uint32(0)
	put := func(to uint32, scope uint32) {
		if to > at {
			out = append(out, piece{at, to, scope})
		}
		at = max(at, to)
	}
	closeUntil := func(limit uint32) {
		for len(open) > 0 {
			top := open[len(open)-1]
			if top.high > limit {
				put(limit, top.scope)
				return
			}
			put(top.high, top.scope)
			open = open[:len(open)-1]
		}
	}
	for _, n := range list {
		closeUntil(n.low)
		if len(open) == 0 {
			at = n.low
		}
		if n.high > at {
			open = append(open, n)
		}
	}
	closeUntil(1<<32 - 1)
	return out
}

// settle sorts the pieces of all functions and removes overlaps between functions:
// the one that begins later (the smaller one, as a rule) has its addresses, and of
// functions folded into one by the linker the first keeps them.
func settle(list []piece) []piece {
	slices.SortStableFunc(list, func(a, b piece) int { return cmp.Compare(a.low, b.low) })
	out := list[:0]
	for _, p := range list {
		if len(out) > 0 {
			last := &out[len(out)-1]
			if p.low == last.low {
				p.low = last.high
			} else if p.low < last.high {
				last.high = p.low
			}
		}
		if p.low < p.high {
			out = append(out, p)
		}
	}
	return out
}
