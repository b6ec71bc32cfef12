package decide

import (
	"slices"
	"strings"

	"github.com/twmb/murmur3"

	"skerry/pkg/predicate"
)

// MemberList is a list of distinct ids that may be too long to hold in memory. Has must
// not keep the id. known is false when the list cannot tell: see Context.Unsure.
type MemberList interface {
	Has(distinctID string) (in, known bool)
}

// Cohort is a set of users: those its predicate matches and those its list names.
type Cohort struct {
	Name      string
	Predicate *predicate.Predicate // nil: by list alone
	Members   MemberList           // nil: by predicate alone
}

// Shard is the part of a member list, divided in so many shards, in which an
// id is looked for.
func Shard(distinctID string, shards int) int {
	return int(uint64(murmur3.StringSum32(distinctID)) * uint64(shards) >> 32)
}

// CohortSet is all cohorts of a project. It is immutable.
type CohortSet struct {
	list []Cohort // in order of name
}

// NewCohortSet takes over the list.
func NewCohortSet(list []Cohort) *CohortSet {
	slices.SortFunc(list, func(a, b Cohort) int { return strings.Compare(a.Name, b.Name) })
	return &CohortSet{list: list}
}

// membership is what is known of a user and a cohort.
type membership uint8

const (
	unasked membership = iota
	asked              // being found out: seen again, it is a circle
	outside
	inside
)

// UseCohorts sets the cohorts that predicates may name.
func (c *Context) UseCohorts(set *CohortSet) {
	c.cohorts = set
	n := len(set.list)
	if cap(c.facts) < n {
		c.facts = make([]membership, n)
	}
	c.facts = c.facts[:n]
	clear(c.facts)
	c.unsure = false
}

// Unsure tells whether, since UseCohorts, a list could not tell that the user is in it.
// What was answered since may be wrong and must not be given.
func (c *Context) Unsure() bool { return c.unsure }

// InCohort reports whether the user is in the cohort. Each cohort is looked into once
// per context, when first asked for. An unknown cohort holds nobody; of cohorts that
// name each other in a circle, which the write plane refuses, the one that is met
// again holds nobody.
func (c *Context) InCohort(name string) bool {
	if c.cohorts == nil {
		return false
	}
	list := c.cohorts.list
	lo, hi := 0, len(list)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if list[mid].Name < name {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo < len(list) && list[lo].Name == name && c.isIn(lo)
}

func (c *Context) isIn(i int) bool {
	if c.facts[i] == unasked {
		c.facts[i] = asked
		cohort := &c.cohorts.list[i]
		in := cohort.Predicate != nil && cohort.Predicate.Eval(c)
		if !in && cohort.Members != nil {
			var known bool
			in, known = cohort.Members.Has(text(c.distinctID))
			c.unsure = c.unsure || !known
		}
		c.facts[i] = outside
		if in {
			c.facts[i] = inside
		}
	}
	return c.facts[i] == inside
}

// AppendCohorts appends the names of the cohorts that the user is in, as a
// JSON array in order.
func (c *Context) AppendCohorts(dst []byte) []byte {
	dst = append(dst, '[')
	first := true
	for i := range c.facts {
		if !c.isIn(i) {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = appendString(dst, c.cohorts.list[i].Name)
	}
	return append(dst, ']')
}
