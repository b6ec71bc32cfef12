package decide

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"

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
	// Type of the values, for config items; empty for flags, whose rules name
	// one of Variants.
	Type     Type
	Variants []Variant
	// Before is the rule in force, whose ranges move the least when percentages
	// change; nil for none.
	Before *Rule
	// Salt is the resource's own, once it has one; empty: the given one is taken, else a
	// new one is made.
	Salt string
	// HasCohort tells whether a cohort exists.
	HasCohort func(name string) bool
}

// newSalt makes a salt: 15 characters, so that with the separator it fills whole
// words of the hash.
func newSalt() string { return rand.Text()[:15] }

// CheckRule reads a rule as a client wrote it (decoded JSON, numbers as json.Number) and
// gives it as it is kept, or every problem it has. A rule without any part is none: nil
// without problems.
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
	if len(list) > maxOverrides {
		k.fault(InvalidRule, path, "has more than %d entries", maxOverrides)
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
		if text := k.predicate(members["predicate"], at+".predicate"); text != nil {
			o.Predicate = *text
		}
		o.Value, o.Variant = k.choice(members, at)
		out = append(out, o)
	}
	return out
}

// choiceMember is the member that names what a rule gives: config items
// value, flags variant.
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
func (k *checker) predicate(in any, path string) *string {
	text, ok := in.(string)
	switch {
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

// CheckPredicate says what is wrong with a predicate of a rule or a cohort: it
// must parse, be decidable by the server and name cohorts that exist. The reasons
// tell the position.
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
