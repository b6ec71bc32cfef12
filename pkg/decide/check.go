package decide

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"skerry/pkg/predicate"
)

// The codes that a Problem may have, as the API writes them in `error`.
const (
	InvalidBody      = "invalid_body"
	InvalidValue     = "invalid_value"
	InvalidPredicate = "invalid_predicate"
	InvalidRule      = "invalid_rule"
)

// Problem is one thing that is wrong with a body. A check names all of them, not the first.
type Problem struct {
	Code   string `json:"error"`
	Path   string `json:"path"` // rule.rollout.buckets[0].percentage
	Reason string `json:"reason"`
}

// RuleContext is what the check of a rule has to know of its surroundings.
type RuleContext struct {
	Path string // where the rule stands in its body
	// Type of the values, for config items; empty for flags, whose rules name one of Variants.
	Type     Type
	Variants []Variant
	// Before is the rule in force, whose ranges move the least when percentages change; nil for none.
	Before *Rule
	// Salt is the resource's own, once it has one; empty: the given one is taken, else a new one is made.
	Salt string
	// HasCohort tells whether a cohort exists.
	HasCohort func(name string) bool
}

// NewSalt makes a salt: 15 characters, so that with the separator it fills whole words of the hash.
func NewSalt() string { return rand.Text()[:15] }

// CheckRule reads a rule as a client wrote it (decoded JSON, numbers as json.Number) and gives it as it is kept, or every
// problem it has. A rule without any part is none: nil without problems.
func CheckRule(in any, c RuleContext) (*Rule, []Problem) {
	if in == nil {
		return nil, nil
	}
	k := checker{RuleContext: c}
	members, ok := k.object(in, c.Path, "overrides", "rollout")
	if !ok {
		return nil, k.problems
	}
	r := &Rule{Overrides: k.overrides(members["overrides"])}
	if members["rollout"] != nil {
		r.Rollout = k.rollout(members["rollout"])
	}
	if len(k.problems) > 0 {
		return nil, k.problems
	}
	if len(r.Overrides) == 0 && r.Rollout == nil {
		return nil, nil
	}
	return r, nil
}

type checker struct {
	RuleContext
	problems []Problem
}

func (k *checker) fault(code, path, format string, args ...any) {
	k.problems = append(k.problems, Problem{Code: code, Path: path, Reason: fmt.Sprintf(format, args...)})
}

// object checks that in is an object with no members but the allowed ones.
func (k *checker) object(in any, path string, allowed ...string) (map[string]any, bool) {
	members, ok := in.(map[string]any)
	if !ok {
		k.fault(InvalidBody, path, "must be an object")
		return nil, false
	}
	var unknown []string
	for name := range members {
		if !slices.Contains(allowed, name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	for _, name := range unknown {
		k.fault(InvalidBody, path+"."+name, "unknown member")
	}
	return members, true
}

func (k *checker) overrides(in any) []Override {
	if in == nil {
		return nil
	}
	path := k.Path + ".overrides"
	list, ok := in.([]any)
	if !ok {
		k.fault(InvalidBody, path, "must be an array")
		return nil
	}
	if len(list) > MaxOverrides {
		k.fault(InvalidRule, path, "has more than %d entries", MaxOverrides)
		return nil
	}
	var out []Override
	for i, entry := range list {
		at := path + "[" + strconv.Itoa(i) + "]"
		members, ok := k.object(entry, at, "predicate", k.choiceMember())
		if !ok {
			continue
		}
		o := Override{}
		if text := k.predicate(members["predicate"], at+".predicate", true); text != nil {
			o.Predicate = *text
		}
		o.Value, o.Variant = k.choice(members, at)
		out = append(out, o)
	}
	return out
}

// choiceMember is the member that names what a rule gives: config items value, flags variant.
func (k *checker) choiceMember() string {
	if k.Type == "" {
		return "variant"
	}
	return "value"
}

func (k *checker) choice(members map[string]any, path string) (value, variant *string) {
	member := k.choiceMember()
	path += "." + member
	text, ok := members[member].(string)
	switch {
	case members[member] == nil:
		k.fault(InvalidBody, path, "is required")
	case !ok:
		k.fault(InvalidBody, path, "must be a string")
	case member == "value":
		normal, err := NormalizeValue(k.Type, text)
		if err != nil {
			k.fault(InvalidValue, path, "%s", err)
		}
		return &normal, nil
	default:
		if !slices.ContainsFunc(k.Variants, func(v Variant) bool { return v.Key == text }) {
			k.fault(InvalidRule, path, "names no variant of the flag")
		}
		return nil, &text
	}
	return nil, nil
}

// predicate checks a predicate that the server can evaluate. It is kept as it was written.
func (k *checker) predicate(in any, path string, required bool) *string {
	text, ok := in.(string)
	switch {
	case in == nil && !required:
		return nil
	case in == nil:
		k.fault(InvalidBody, path, "is required")
		return nil
	case !ok:
		k.fault(InvalidBody, path, "must be a string")
		return nil
	}
	for _, reason := range CheckPredicate(text, k.HasCohort) {
		k.fault(InvalidPredicate, path, "%s", reason)
	}
	return &text
}

// CheckPredicate says what is wrong with a predicate of a rule or a cohort: it must parse, be decidable by the server and
// name cohorts that exist. The reasons tell the position.
func CheckPredicate(text string, hasCohort func(string) bool) []string {
	p, err := predicate.Parse(text)
	if err == nil {
		err = p.CheckServer()
	}
	if err != nil {
		return []string{err.Error()}
	}
	var reasons []string
	for n := range p.Nodes() {
		if n.Kind == predicate.Cohort && !hasCohort(n.Name) {
			reasons = append(reasons, fmt.Sprintf("unknown cohort %q at position %d", n.Name, n.Pos))
		}
	}
	return reasons
}

func (k *checker) rollout(in any) *Rollout {
	path := k.Path + ".rollout"
	members, ok := k.object(in, path, "predicate", "bucket_by", "salt", "buckets")
	if !ok {
		return nil
	}
	return &Rollout{
		Predicate: k.predicate(members["predicate"], path+".predicate", false),
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
		return NewSalt()
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
	if len(list) > MaxBuckets {
		k.fault(InvalidRule, path, "has more than %d entries", MaxBuckets)
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

// share is one entry of buckets as it was written: a range, or a number of buckets to be placed.
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
	// Long digits and exponents are refused before the exact reading, which would expand them.
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

// place finds ranges for percentages, out of the ranges in force. Entries with one choice count together.
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

// inForce is the present division. Choices that are to vanish get owners of their own, which want nothing.
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
