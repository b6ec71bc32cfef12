package native

import (
	"math/rand/v2"
	"testing"

	"skerry/writeplane/symbolicate/flat"
)

// Every address within and around made-up functions and line sequences is looked up, and
// compared with what a walk over all of them says.
func TestFindAgreesWithAWalkOverAllRows(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		pieces := madePieces(random)
		b := flat.NewBuilder(imageMagic, imageSections)
		r := recorder{b: b}
		var sequences [][]lineRow
		var covered []span
		for at := uint32(random.IntN(20)); at < 1500; at += uint32(random.IntN(300)) {
			sequence := madeSequence(random, &at)
			r.sequence(sequence, pieces)
			covered = append(covered, span{uint64(sequence[0].addr), uint64(at)})
			sequences = append(sequences, sequence)
		}
		r.withoutLines(pieces, covered)
		r.finish()
		data, err := b.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		img, err := openImage(data)
		if err != nil {
			t.Fatal(err)
		}
		for at := range uint32(3000) {
			want := walked(at, sequences, pieces)
			got, ok := img.find(at)
			if got.addr = 0; !ok {
				got = position{}
			}
			if got != want {
				t.Fatalf("at %d: got %+v, want %+v\npieces %v\nsequences %v", at, got, want, pieces, sequences)
			}
		}
	}
}

func madePieces(random *rand.Rand) (list []piece) {
	for at, scope := uint32(random.IntN(50)), uint32(1); at < 2500; scope++ {
		high := at + 1 + uint32(random.IntN(60))
		list = append(list, piece{at, high, scope})
		at = high + uint32(random.IntN(2)*random.IntN(80))
	}
	return list
}

// madeSequence is some rows from at on; at becomes where they end.
func madeSequence(random *rand.Rand, at *uint32) (list []lineRow) {
	for range 1 + random.IntN(200) {
		list = append(list, lineRow{*at, uint32(random.IntN(4)), uint32(random.IntN(3)), uint32(random.IntN(2))})
		*at += 1 + uint32(random.IntN(9))
	}
	return append(list, lineRow{addr: *at})
}

// walked is what find should say; a function whose lines are known in part has nothing
// where they are not.
func walked(at uint32, sequences [][]lineRow, pieces []piece) (p position) {
	in := func(low, high uint32) bool { return low <= at && at < high }
	hidden := false
	for _, s := range sequences {
		for _, each := range pieces {
			hidden = hidden || in(each.low, each.high) && s[0].addr < each.high && each.low < s[len(s)-1].addr
		}
		for i := range len(s) - 1 {
			if in(s[i].addr, s[i+1].addr) {
				p = position{file: s[i].file, line: s[i].line, column: s[i].column}
				hidden = false
				for _, each := range pieces {
					if in(each.low, each.high) {
						p.scope = each.scope
					}
				}
				if p.scope == noScope && p.file == 0 {
					return position{}
				}
				return p
			}
		}
	}
	for _, each := range pieces {
		if in(each.low, each.high) && !hidden {
			return position{scope: each.scope}
		}
	}
	return position{}
}
