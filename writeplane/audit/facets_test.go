package audit

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"skerry/pkg/id"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

// scattered logs entries of many kinds over fourteen months, with kinds that only some
// months have, and returns them as they should be found.
func scattered(t *testing.T, tr *trail) []Entry {
	t.Helper()
	projects := []string{tr.project, id.New(), ""}
	actions := []string{"switch.flag.created", "switch.flag.halted", "switch.", "config.item.published", "member.invited", "switchboard"}
	types := []string{"flag", "flag", "flag", "config_item", "member", "flagship"}
	var all []Entry
	err := postgres.InPipeline(t.Context(), tr.db.App, func(tx *postgres.Pipeline) error {
		chain := &run{organizationID: tr.organization}
		if err := chain.begin(t.Context(), tx); err != nil {
			return err
		}
		chain.noteClass(tx)
		begun := days(420).UTC().Truncate(time.Millisecond)
		tx.Later("move the beginning", `UPDATE audit_chains SET begun_at = $2 WHERE organization_id = $1`, tr.organization, begun)
		for n := range 140 {
			at := begun.Add(time.Duration(n) * 3 * 24 * time.Hour)
			which := n % 4
			switch {
			case n < 10:
				which = 4 // early months only
			case n == 70:
				which = 5 // once
			}
			e, err := draft(commit.Origin{}, commit.Entry{OrganizationID: tr.organization, ProjectID: projects[n%3],
				Actor: commit.Actor{ID: fmt.Sprint("user-", n%5)}, Action: actions[which], ResourceType: types[which], ResourceID: fmt.Sprint(n)})
			if err != nil {
				return err
			}
			chain.end.take(&e, at)
			insert(tx, &e)
			all = append(all, e)
		}
		chain.move(tx)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestEveryCombinationOfFiltersFindsWhatItSays(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "enterprise")
	for n := range 16 {
		dbtest.Exec(t, tr.db.Owner, `SELECT audit_make_month($1)`, time.Now().AddDate(0, -n, 0))
	}
	all := scattered(t, tr)
	log := NewLog(tr.db.App, nil)
	for _, q := range combinations(tr, all) {
		want := []int64{}
		for _, e := range all {
			if wanted(q, e) {
				want = append(want, e.Seq)
			}
		}
		if !q.Ascending {
			slices.Reverse(want)
		}
		if got := paged(t, log, q, 9); !slices.Equal(got, want) {
			t.Fatalf("%+v:\n got %v\nwant %v", q, got, want)
		}
	}
}

// combinations are queries with every combination of filters, in both orders; every third
// is of a range of time.
func combinations(tr *trail, all []Entry) (queries []Query) {
	patterns := func(texts ...string) []Pattern {
		out := []Pattern{{}}
		for _, text := range texts {
			out = append(out, ParsePattern(text))
		}
		return out
	}
	queries = []Query{{OrganizationID: tr.organization}}
	vary := func(count int, set func(q *Query, n int)) {
		var varied []Query
		for _, q := range queries {
			for n := range count {
				set(&q, n)
				varied = append(varied, q)
			}
		}
		queries = varied
	}
	projects := [][]string{nil, {tr.project}, {tr.project, *all[1].ProjectID}, {id.New()}}
	vary(len(projects), func(q *Query, n int) { q.Projects = projects[n] })
	actors := []string{"", "user-3", "nobody"}
	vary(len(actors), func(q *Query, n int) { q.ActorID = actors[n] })
	actions := patterns("switch.flag.halted", "switch.*", "member.*", "switchb*", "none.*", "*")
	vary(len(actions), func(q *Query, n int) { q.Action = actions[n] })
	types := patterns("flag", "flag*", "member", "none")
	vary(len(types), func(q *Query, n int) { q.ResourceType = types[n] })
	vary(2, func(q *Query, n int) { q.Ascending = n == 1 })
	for n := 2; n < len(queries); n += 3 {
		queries[n].Since, queries[n].Until = all[17].CreatedAt, all[101].CreatedAt
	}
	return queries
}

// wanted tells whether a query's filters let an entry pass.
func wanted(q Query, e Entry) bool {
	matches := func(p Pattern, text string) bool {
		return p.Text == "" || p.Text == text || p.Prefix && strings.HasPrefix(text, p.Text)
	}
	return (q.Projects == nil || e.ProjectID != nil && slices.Contains(q.Projects, *e.ProjectID)) &&
		(q.ActorID == "" || e.ActorID == q.ActorID) && matches(q.Action, e.Action) && matches(q.ResourceType, e.ResourceType) &&
		(q.Since.IsZero() || !e.CreatedAt.Before(q.Since) && e.CreatedAt.Before(q.Until))
}

// paged reads a query's entries page by page.
func paged(t *testing.T, log *Log, q Query, limit int) []int64 {
	t.Helper()
	all := []int64{}
	for q.Limit = limit; ; {
		page := 0
		err := log.Read(t.Context(), q, func(e *Entry) error {
			page++
			all = append(all, e.Seq)
			q.After = &Position{e.CreatedAt, e.Seq}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if page < limit {
			return all
		}
	}
}

func TestFacetsGoWithTheirMonth(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "hobby")
	tr.logAt(t, days(400), days(399), days(1))
	other := tr.another(t, "enterprise")
	other.logAt(t, days(400))
	if err := NewKeeper(tr.db.Owner, nil).Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	var hobby, enterprise int
	err := tr.db.App.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE retention = 'hobby'), count(*) FILTER (WHERE retention = 'enterprise') FROM audit_facets`).Scan(&hobby, &enterprise)
	if err != nil || hobby != 1 || enterprise != 1 {
		t.Errorf("facets of %d hobby months and %d enterprise months, %v; want those that still have entries, 1 and 1", hobby, enterprise, err)
	}
}
