package decide

// segment is a stretch of buckets that belongs to one choice. Choice 0 is
// "none": the default.
type segment struct {
	start, end int // [start, end)
	owner      int
}

// moveLeast gives each choice its number of buckets out of an existing division, so that
// as few units as possible change their choice: what a choice loses goes directly to one
// that gains, and nothing else moves. have covers [0, Buckets) without gaps; want sums to
// Buckets over all owners, 0 included. Which buckets change hands is free, so those next
// to the gaining choice are taken first, to keep the division in few pieces.
func moveLeast(have []segment, want []int) []segment {
	surplus := make([]int, len(want))
	for o, n := range want {
		surplus[o] = -n
	}
	for _, s := range have {
		surplus[s.owner] += s.end - s.start
	}
	for owner := range want {
		for surplus[owner] < 0 {
			at, fromEnd := donor(have, surplus, owner)
			s := have[at]
			n := min(-surplus[owner], surplus[s.owner], s.end-s.start)
			surplus[owner] += n
			surplus[s.owner] -= n
			have = give(have, at, n, fromEnd, owner)
		}
	}
	return have
}

// donor picks the segment that gives next: behind one of the owner's, before one of the
// owner's, the first of "none", or the first that has too much. A choice gives from its
// end, so that the units it keeps stay in one piece.
func donor(have []segment, surplus []int, owner int) (at int, fromEnd bool) {
	for i := range have {
		if have[i].owner == owner && i+1 < len(have) && surplus[have[i+1].owner] > 0 {
			return i + 1, false
		}
	}
	for i := range have {
		if have[i].owner == owner && i > 0 && surplus[have[i-1].owner] > 0 {
			return i - 1, true
		}
	}
	if surplus[0] > 0 {
		for i := range have {
			if have[i].owner == 0 {
				return i, false
			}
		}
	}
	for i := range have {
		if surplus[have[i].owner] > 0 {
			return i, true
		}
	}
	panic("BUG: the wanted buckets do not add up to all buckets")
}

// give moves n buckets at one end of a segment to another owner and joins
// neighbours of one owner.
func give(have []segment, at, n int, fromEnd bool, owner int) []segment {
	out := make([]segment, 0, len(have)+1)
	add := func(s segment) {
		if s.start == s.end {
			return
		}
		if last := len(out) - 1; last >= 0 && out[last].owner == s.owner {
			out[last].end = s.end
			return
		}
		out = append(out, s)
	}
	for i, s := range have {
		switch {
		case i != at:
			add(s)
		case fromEnd:
			add(segment{s.start, s.end - n, s.owner})
			add(segment{s.end - n, s.end, owner})
		default:
			add(segment{s.start, s.start + n, owner})
			add(segment{s.start + n, s.end, s.owner})
		}
	}
	return out
}
