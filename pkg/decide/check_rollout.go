package decide

import (
	"encoding/json"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

func (k *checker) rollout(in any) *Rollout {
	path := k.Path + ".rollout"
	members, ok := k.object(in, path, "predicate", "bucket_by", "salt", "buckets")
	if !ok {
		return nil
	}
	var audience *string
	if members["predicate"] != nil {
		audience = k.predicate(members["predicate"], path+".predicate")
	}
	return &Rollout{
		Predicate: audience,
		BucketBy:  k.bucketBy(members["bucket_by"], path+".bucket_by"),
		Salt:      k.salt(members["salt"], path+".salt"),
		Buckets:   k.buckets(members["buckets"], path+".buckets"),
	}
}

func (k *checker) bucketBy(in any, path string) string {
	if in == nil {
		return "distinct_id"
	}
	text, ok := in.(string)
	if !ok {
		k.fault(InvalidBody, path, "must be a string")
		return ""
	}
	key, isProp := strings.CutPrefix(text, "props.")
	if text != "distinct_id" && text != "anon_id" && (!isProp || key == "" || len([]rune(key)) > maxUnitKey) {
		k.fault(InvalidRule, path, "must be distinct_id, anon_id or props.<key>")
	}
	return text
}

// salt keeps the one that the resource has: it is what holds users where they are.
func (k *checker) salt(in any, path string) string {
	text, ok := in.(string)
	switch {
	case in != nil && !ok:
		k.fault(InvalidBody, path, "must be a string")
	case text == "" && k.Salt != "":
		return k.Salt
	case text == "":
		return newSalt()
	case !validSalt(text):
		k.fault(InvalidRule, path, "must be 1 to %d visible ASCII characters", maxSalt)
	case k.Salt != "" && text != k.Salt:
		k.fault(InvalidRule, path, "cannot change once it is set")
	}
	return text
}

func validSalt(s string) bool {
	if s == "" || len(s) > maxSalt {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

func (k *checker) buckets(in any, path string) []Range {
	list, ok := in.([]any)
	if !ok {
		if in == nil {
			k.fault(InvalidBody, path, "is required")
		} else {
			k.fault(InvalidBody, path, "must be an array")
		}
		return nil
	}
	if len(list) > maxBuckets {
		k.fault(InvalidRule, path, "has more than %d entries", maxBuckets)
		return nil
	}
	shares := make([]share, 0, len(list))
	before := len(k.problems)
	for i, entry := range list {
		at := path + "[" + strconv.Itoa(i) + "]"
		if members, ok := k.object(entry, at, k.choiceMember(), "percentage", "start", "end"); ok {
			shares = append(shares, k.share(members, at))
		}
	}
	if len(k.problems) > before {
		return nil
	}
	return k.divide(shares, path)
}

// share is one entry of buckets as it was written: a range, or a number of
// buckets to be placed.
type share struct {
	Range
	placed bool
	count  int
	path   string
}

func (k *checker) share(members map[string]any, path string) share {
	s := share{path: path}
	s.Value, s.Variant = k.choice(members, path)
	if members["percentage"] != nil {
		if members["start"] != nil || members["end"] != nil {
			k.fault(InvalidRule, path, "has both a percentage and a range")
		}
		s.count = k.percentage(members["percentage"], path+".percentage")
		return s
	}
	if members["start"] == nil && members["end"] == nil {
		k.fault(InvalidBody, path+".percentage", "is required, or start and end")
		return s
	}
	s.placed = true
	s.Start = k.edge(members["start"], path+".start")
	s.End = k.edge(members["end"], path+".end")
	if s.Start > s.End {
		k.fault(InvalidRule, path, "starts behind its end")
	}
	return s
}

// percentage turns a JSON number into buckets, exactly.
func (k *checker) percentage(in any, path string) int {
	number, ok := in.(json.Number)
	if !ok {
		k.fault(InvalidBody, path, "must be a number")
		return 0
	}
	f, err := number.Float64()
	if err != nil || f < 0 || f > 100 {
		k.fault(InvalidRule, path, "must be from 0 to 100")
		return 0
	}
	// Long digits and exponents are refused before the exact reading, which
	// would expand them.
	text := number.String()
	if i := strings.IndexAny(text, "eE"); len(text) > 24 || i >= 0 && len(text)-i > 4 {
		k.fault(InvalidRule, path, "has more than three decimals")
		return 0
	}
	exact, ok := new(big.Rat).SetString(text)
	if !ok {
		k.fault(InvalidBody, path, "must be a number")
		return 0
	}
	exact.Mul(exact, big.NewRat(Buckets/100, 1))
	if !exact.IsInt() {
		k.fault(InvalidRule, path, "has more than three decimals")
		return 0
	}
	return int(exact.Num().Int64())
}

func (k *checker) edge(in any, path string) int {
	if in == nil {
		k.fault(InvalidBody, path, "is required")
		return 0
	}
	number, ok := in.(json.Number)
	if !ok {
		k.fault(InvalidBody, path, "must be a whole number")
		return 0
	}
	n, err := strconv.Atoi(number.String())
	if err != nil || n < 0 || n > Buckets {
		k.fault(InvalidRule, path, "must be a whole number from 0 to %d", Buckets)
		return 0
	}
	return n
}

// divide turns checked shares into the ranges that are kept.
func (k *checker) divide(shares []share, path string) []Range {
	placed, total := 0, 0
	for _, s := range shares {
		if s.placed {
			placed++
			total += s.End - s.Start
		}
		total += s.count
	}
	switch {
	case placed > 0 && placed < len(shares):
		k.fault(InvalidRule, path, "mixes percentages and ranges")
		return nil
	case total > Buckets:
		k.fault(InvalidRule, path, "adds up to %s%%, more than 100%%", percent(total))
		return nil
	case placed == 0:
		return k.place(shares)
	}
	return k.ordered(shares)
}

func percent(buckets int) string {
	return strconv.FormatFloat(float64(buckets)/(Buckets/100), 'f', -1, 64)
}

// ordered keeps ranges as they were given, in order; overlapping ones are named in pairs.
func (k *checker) ordered(shares []share) []Range {
	slices.SortStableFunc(shares, func(a, b share) int { return a.Start - b.Start })
	out := make([]Range, 0, len(shares))
	last := -1 // the latest one that is not empty
	for i, s := range shares {
		if s.Start < s.End {
			if last >= 0 && s.Start < shares[last].End {
				k.fault(InvalidRule, s.path, "overlaps %s", strings.TrimPrefix(shares[last].path, k.Path+".rollout."))
			}
			last = i
		} else {
			s.Start, s.End = 0, 0
		}
		out = append(out, s.Range)
	}
	slices.SortStableFunc(out, func(a, b Range) int { return a.Start - b.Start })
	return out
}

// place finds ranges for percentages, out of the ranges in force. Entries with one
// choice count together.
func (k *checker) place(shares []share) []Range {
	owners := []Range{{}} // by owner; 0 is none
	index := map[string]int{}
	want := []int{Buckets}
	for _, s := range shares {
		o, ok := index[s.choice()]
		if !ok {
			o = len(owners)
			index[s.choice()] = o
			owners = append(owners, s.Range)
			want = append(want, 0)
		}
		want[o] += s.count
		want[0] -= s.count
	}
	out := make([]Range, 0, len(shares))
	for o, n := range want[1:] {
		if n == 0 {
			out = append(out, owners[o+1])
		}
	}
	var have []segment
	have, want = k.inForce(index, want)
	for _, s := range moveLeast(have, want) {
		if s.owner > 0 {
			r := owners[s.owner]
			r.Start, r.End = s.start, s.end
			out = append(out, r)
		}
	}
	return out
}

// inForce is the present division. Choices that are to vanish get owners of their own,
// which want nothing.
func (k *checker) inForce(index map[string]int, want []int) ([]segment, []int) {
	var have []segment
	at := 0
	if k.Before != nil && k.Before.Rollout != nil {
		for _, r := range k.Before.Rollout.Buckets {
			if r.Start >= r.End || r.Start < at || r.End > Buckets {
				continue
			}
			o, ok := index[r.choice()]
			if !ok {
				o = len(want)
				index[r.choice()] = o
				want = append(want, 0)
			}
			if r.Start > at {
				have = append(have, segment{at, r.Start, 0})
			}
			have = append(have, segment{r.Start, r.End, o})
			at = r.End
		}
	}
	if at < Buckets {
		have = append(have, segment{at, Buckets, 0})
	}
	return have, want
}
