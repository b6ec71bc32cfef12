package audit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/writeplane/postgres"
)

// facet is a kind of entries that a query matches, in one month. Action and Type are
// set only where the query has a prefix: they are what it stands for.
type facet struct {
	Month  time.Time
	Action string
	Type   string
}

// kind is one exact action and type of those that a query's prefixes stand for.
type kind struct{ action, resourceType string }

// maxKinds is how many kinds are read each by its own index; a prefix that stands for
// more is matched entry by entry, which then finds some soon.
const maxKinds = 24

// composite reports whether no single index has the query's entries in order. Its entries
// can then be arbitrarily rare among those that an index offers.
func (q Query) composite() bool {
	filters := 0
	for _, given := range []bool{q.Projects != nil, q.ActorID != "", !q.Action.all(), !q.ResourceType.all()} {
		if given {
			filters++
		}
	}
	return filters > 1 || len(q.Projects) > 1 || q.Action.Prefix || q.ResourceType.Prefix
}

// facets reads which months of the query's stretch of time have entries of its kinds,
// the oldest first.
func (l *Log) facets(ctx context.Context, q Query) ([]facet, error) {
	var b strings.Builder
	args := arguments{}
	action, resourceType := "''", "''"
	if q.Action.Prefix {
		action = "action"
	}
	if q.ResourceType.Prefix {
		resourceType = "resource_type"
	}
	fmt.Fprintf(&b, "SELECT DISTINCT month::timestamptz, %s, %s FROM audit_facets", action, resourceType)
	q.where(&b, &args)
	if !q.Since.IsZero() {
		fmt.Fprintf(&b, " AND month >= %s::date", args.add(monthOf(q.Since)))
	}
	if !q.Until.IsZero() {
		fmt.Fprintf(&b, " AND month <= %s::date", args.add(monthOf(q.Until)))
	}
	b.WriteString(" ORDER BY 1, 2, 3")
	found, err := postgres.All(ctx, l.pool, "read facets", pgx.RowToStructByPos[facet], b.String(), plannedWithValues(args)...)
	if err != nil {
		return nil, err
	}
	for i := range found {
		found[i].Month = found[i].Month.UTC()
	}
	return found, nil
}

func monthOf(at time.Time) time.Time {
	at = at.UTC()
	return time.Date(at.Year(), at.Month(), 1, 0, 0, 0, 0, time.UTC)
}

// cut leaves of a query those stretches in which its facets are, in the query's order.
func cut(q Query, facets []facet) []Query {
	var out []Query
	for i := 0; i < len(facets); {
		first := facets[i].Month
		end := first
		kinds := map[kind]bool{}
		for ; i < len(facets) && !facets[i].Month.After(end); i++ { // this month, or the next one
			kinds[kind{facets[i].Action, facets[i].Type}] = true
			end = facets[i].Month.AddDate(0, 1, 0)
		}
		part := q
		part.Since, part.Until = later(q.Since, first), earlier(q.Until, end)
		if !part.Since.Before(part.Until) {
			continue
		}
		if (q.Action.Prefix || q.ResourceType.Prefix) && len(kinds) <= maxKinds {
			for each := range kinds {
				part.kinds = append(part.kinds, each)
			}
			slices.SortFunc(part.kinds, func(a, b kind) int {
				return strings.Compare(a.action+"\x00"+a.resourceType, b.action+"\x00"+b.resourceType)
			})
		}
		out = append(out, part)
	}
	if !q.Ascending {
		slices.Reverse(out)
	}
	return out
}

// of is the query for one kind of those that its prefixes stand for.
func (q Query) of(k kind) Query {
	q.kinds = nil
	if q.Action.Prefix {
		q.Action = Pattern{Text: k.action}
	}
	if q.ResourceType.Prefix {
		q.ResourceType = Pattern{Text: k.resourceType}
	}
	return q
}
