// Package cohorts holds named sets of users: by predicate, by a list of members, or both
// (supplement §4).
//
// It promises: cohorts never name each other in a circle; a member list of up to a
// million ids reaches edges in shards that each fit a document, and one changed member
// changes one shard. A cohort may be deleted while rules still name it: a name that
// stands for no cohort has no members.
package cohorts

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/decide"
	"skerry/pkg/instant"
	"skerry/pkg/predicate"
	"skerry/pkg/state"
	"skerry/replication"
	"skerry/writeplane/commit"
	"skerry/writeplane/form"
	"skerry/writeplane/postgres"
)

// Limits of a member list.
const (
	MaxMembers = 1_000_000
	maxMember  = 200 // characters of an id, as in ingestion
)

// Cohort is one cohort as it is stored; its members are rows of their own.
type Cohort struct {
	ID             string
	ProjectID      string
	OrganizationID string
	Name           string
	Predicate      *string
	Shards         int
	MemberCount    int64
	MemberBytes    int64
	CreatedAt      time.Time
	UpdatedAt      time.Time
}

// view is the cohort as lists, tags and the audit log have it: with the number of members
// instead of the members.
type view struct {
	ID          string       `json:"id"`
	ProjectID   string       `json:"project_id"`
	Name        string       `json:"name"`
	Predicate   *string      `json:"predicate"`
	MemberCount int64        `json:"member_count"`
	CreatedAt   instant.Time `json:"created_at"`
	UpdatedAt   instant.Time `json:"updated_at"`
}

// fullView is the cohort with its members, in order.
type fullView struct {
	view
	Members []string `json:"members"`
}

func (c *Cohort) view() view {
	return view{c.ID, c.ProjectID, c.Name, c.Predicate, c.MemberCount, instant.Of(c.CreatedAt), instant.Of(c.UpdatedAt)}
}

func (c *Cohort) subject() replication.Subject {
	return replication.CohortSubject(c.ProjectID, c.Name)
}

func (c *Cohort) shardSubject(n int) replication.Subject {
	return replication.CohortShardSubject(c.ProjectID, c.Name, n)
}

func (c *Cohort) document() state.Cohort {
	d := state.Cohort{ID: c.ID, Name: c.Name, Shards: c.Shards}
	if c.Predicate != nil {
		d.Predicate = *c.Predicate
	}
	return d
}

func (c *Cohort) entry(action string, before, after any) commit.Entry {
	return commit.Entry{
		OrganizationID: c.OrganizationID, ProjectID: c.ProjectID, Action: action,
		ResourceType: "cohort", ResourceID: c.ID, Before: before, After: after,
	}
}

// Known tells which cohorts a predicate may name: those of the project, and those in
// present, which its rule names already (so that deleting a cohort does not make every
// rule that names it unchangeable). The project's cohorts are read when has is first
// asked for a name that is not in present, which for most changes never happens. Call
// failed afterwards to learn whether that reading worked.
func Known(ctx context.Context, q postgres.Querier, project string, present []string) (has func(string) bool, failed func() error) {
	var err error
	read := sync.OnceValue(func() (names []string) {
		names, err = postgres.All(ctx, q, "list names of cohorts", pgx.RowTo[string],
			`SELECT name FROM cohorts WHERE project_id = $1`, project)
		return names
	})
	has = func(name string) bool { return slices.Contains(present, name) || slices.Contains(read(), name) }
	return has, func() error { return err }
}

// named lists the cohorts that a predicate names; one that does not parse names none.
func named(text *string) []string {
	if text == nil {
		return nil
	}
	p, err := predicate.Parse(*text)
	if err != nil {
		return nil
	}
	var names []string
	for n := range p.Nodes() {
		if n.Kind == predicate.Cohort {
			names = append(names, n.Name)
		}
	}
	return names
}

// checkPredicate notes what is wrong with the cohort's predicate among all others (name
// to predicate, the cohort's own present one included).
func (c *Cohort) checkPredicate(in *form.Form, others map[string]*string) {
	present := named(others[c.Name])
	for _, reason := range decide.CheckPredicate(*c.Predicate, func(name string) bool {
		_, ok := others[name]
		return ok || name == c.Name || slices.Contains(present, name)
	}) {
		in.Fault(decide.InvalidPredicate, "predicate", "%s", reason)
	}
	if circle := findCircle(c.Name, c.Predicate, others); circle != nil {
		in.Fault(decide.InvalidPredicate, "predicate", "closes a circle: %s", strings.Join(circle, " → "))
	}
}

// findCircle follows the names from a cohort with its new predicate; the way back to it
// is a circle. The others have none among themselves.
func findCircle(name string, text *string, others map[string]*string) []string {
	visited := map[string]bool{}
	var follow func(text *string, way []string) []string
	follow = func(text *string, way []string) []string {
		for _, next := range named(text) {
			if next == name {
				return append(way, next)
			}
			if visited[next] {
				continue
			}
			visited[next] = true
			if circle := follow(others[next], append(slices.Clone(way), next)); circle != nil {
				return circle
			}
		}
		return nil
	}
	return follow(text, []string{name})
}

// checkMembers notes ids that cannot be anybody's.
func checkMembers(in *form.Form, path string, members []string) {
	faults := 0
	for i, m := range members {
		reason := ""
		switch {
		case m == "":
			reason = "is empty"
		case utf8.RuneCountInString(m) > maxMember:
			reason = fmt.Sprintf("is longer than %d characters", maxMember)
		case strings.ContainsRune(m, 0):
			reason = "contains the character NUL"
		default:
			continue
		}
		if faults++; faults > maxFaults {
			return
		}
		in.Fault(decide.InvalidBody, fmt.Sprintf("%s[%d]", path, i), "%s", reason)
	}
}

// maxFaults is how many faulty members are named.
const maxFaults = 100
