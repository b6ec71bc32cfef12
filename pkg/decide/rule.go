package decide

import (
	"encoding/json"
	"slices"
	"strings"

	"skerry/pkg/predicate"
)

// Limits of a rule.
const (
	maxOverrides = 1000
	maxBuckets   = 1000 // ranges of a rollout
	maxSalt      = 64   // visible ASCII characters
	maxUnitKey   = 200  // characters of <key> in props.<key>
)

// Rule decides between values (config items) or variants (flags). See supplement §4;
// rule_snapshot is this, serialized.
type Rule struct {
	Overrides []Override `json:"overrides,omitempty"`
	Rollout   *Rollout   `json:"rollout,omitempty"`
}

// Override gives its value to whom its predicate matches. Exactly one of Value
// and Variant is set.
type Override struct {
	Predicate string  `json:"predicate"`
	Value     *string `json:"value,omitempty"` // serialized
	Variant   *string `json:"variant,omitempty"`
}

// Rollout divides units over buckets.
type Rollout struct {
	Predicate *string `json:"predicate"` // nil: everybody
	BucketBy  string  `json:"bucket_by"` // distinct_id, anon_id or props.<key>
	Salt      string  `json:"salt"`
	Buckets   []Range `json:"buckets"`
}

// Range gives its value to the buckets from Start up to End, End excluded. Ranges are in
// order and do not overlap; an empty one (0 to 0) keeps a choice of 0% visible.
type Range struct {
	Value   *string `json:"value,omitempty"` // serialized
	Variant *string `json:"variant,omitempty"`
	Start   int     `json:"start"`
	End     int     `json:"end"`
}

// Serialize is the rule as rule_snapshot keeps it; nil for no rule.
func (r *Rule) Serialize() *string {
	if r == nil {
		return nil
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // predicates hold ">="
	if err := enc.Encode(r); err != nil {
		panic("BUG: a rule does not marshal: " + err.Error())
	}
	s := strings.TrimSuffix(b.String(), "\n")
	return &s
}

// Cohorts lists the cohorts that the rule's predicates name, each once, in order. A
// predicate that does not parse names none.
func (r *Rule) Cohorts() []string {
	if r == nil {
		return nil
	}
	texts := make([]string, 0, len(r.Overrides)+1)
	for _, o := range r.Overrides {
		texts = append(texts, o.Predicate)
	}
	if r.Rollout != nil && r.Rollout.Predicate != nil {
		texts = append(texts, *r.Rollout.Predicate)
	}
	var names []string
	for _, text := range texts {
		p, err := predicate.Parse(text)
		if err != nil {
			continue
		}
		for n := range p.Nodes() {
			if n.Kind == predicate.Cohort {
				names = append(names, n.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Equal reports whether two rules are the same; nil is no rule.
func (r *Rule) Equal(o *Rule) bool {
	a, b := r.Serialize(), o.Serialize()
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

// choice identifies what a range gives.
func (r *Range) choice() string {
	if r.Variant != nil {
		return *r.Variant
	}
	if r.Value != nil {
		return *r.Value
	}
	return ""
}
