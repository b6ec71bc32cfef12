package audit

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

// logAt stores entries as Append does, but at other times: one per time given.
func (tr *trail) logAt(t testing.TB, times ...time.Time) {
	t.Helper()
	for _, at := range times {
		dbtest.Exec(t, tr.db.Owner, `SELECT audit_make_month($1)`, at)
	}
	err := postgres.InPipeline(t.Context(), tr.db.App, func(tx *postgres.Pipeline) error {
		chain := &run{organizationID: tr.organization}
		if err := chain.begin(t.Context(), tx); err != nil {
			return err
		}
		chain.noteClass(tx)
		tx.Later("move the beginning", `UPDATE audit_chains SET begun_at = least(begun_at, $2) WHERE organization_id = $1`,
			tr.organization, times[0].UTC().Truncate(time.Millisecond))
		for _, at := range times {
			e, err := draft(commit.Origin{}, commit.Entry{OrganizationID: tr.organization, ProjectID: tr.project, Actor: commit.Actor{ID: "user-1"}, Action: "switch.flag.created",
				ResourceType: "flag", ResourceID: fmt.Sprint(chain.end.seq + 1)})
			if err != nil {
				return err
			}
			chain.end.take(&e, at.UTC().Truncate(time.Millisecond))
			insert(tx, &e)
		}
		chain.move(tx)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func seqs(t testing.TB, l *Log, q Query) []int64 {
	t.Helper()
	out := []int64{}
	if err := l.Read(t.Context(), q, func(e *Entry) error { out = append(out, e.Seq); return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

func days(n float64) time.Time { return time.Now().Add(-time.Duration(n * 24 * float64(time.Hour))) }

func TestRangeThatStraddlesThirtyDaysIsOneList(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "enterprise")
	tr.logAt(t, days(2000), days(1000), days(700), days(400), days(100), days(40), days(31), days(29), days(3), days(0))
	log, _, mirrorer := tr.mirrored(t)
	copyAll(t, mirrorer)
	// What each store answers for can be told apart by taking it away from the other.
	dbtest.Exec(t, tr.db.Owner, `DELETE FROM skerry_audit_mirror.entries WHERE seq IN (1, 2, 8, 9, 10)`)
	dbtest.Exec(t, tr.db.Owner, `DELETE FROM audit_entries WHERE seq IN (3, 4, 5, 6, 7)`)
	all := []int64{10, 9, 8, 7, 6, 5, 4, 3, 2, 1}
	q := Query{OrganizationID: tr.organization}
	if got := seqs(t, log, q); !slices.Equal(got, all) {
		t.Errorf("newest first: %v", got)
	}
	q.Ascending = true
	slices.Reverse(all)
	if got := seqs(t, log, q); !slices.Equal(got, all) {
		t.Errorf("oldest first: %v", got)
	}
	for _, ascending := range []bool{false, true} {
		for limit := 1; limit <= 4; limit++ {
			q := Query{OrganizationID: tr.organization, Limit: limit, Ascending: ascending}
			var paged []int64
			for {
				var last *Position
				count := 0
				err := log.Read(t.Context(), q, func(e *Entry) error {
					paged, last, count = append(paged, e.Seq), &Position{e.CreatedAt, e.Seq}, count+1
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				if count < limit {
					break
				}
				q.After = last
			}
			want := slices.Clone(all)
			if !ascending {
				slices.Reverse(want)
			}
			if !slices.Equal(paged, want) {
				t.Errorf("pages of %d, ascending %v: %v", limit, ascending, paged)
			}
		}
	}
	for _, c := range []struct {
		since, until time.Time
		want         []int64
	}{
		{days(50), days(1), []int64{9, 8, 7, 6}},
		{days(39), time.Time{}, []int64{10, 9, 8, 7}},
		{time.Time{}, days(500), []int64{3, 2, 1}},
		{days(35), days(35), []int64{}},
	} {
		for _, limit := range []int{0, 100} {
			if got := seqs(t, log, Query{OrganizationID: tr.organization, Since: c.since, Until: c.until, Limit: limit}); !slices.Equal(got, c.want) {
				t.Errorf("%v to %v, limit %d: %v, want %v", c.since, c.until, limit, got, c.want)
			}
		}
	}
}

func TestSinceIsInclusiveAndUntilExclusive(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	base := days(1).Truncate(time.Second)
	tr.logAt(t, base, base.Add(time.Millisecond), base.Add(time.Millisecond), base.Add(2*time.Millisecond))
	log := NewLog(tr.db.App, nil)
	got := seqs(t, log, Query{OrganizationID: tr.organization, Since: base.Add(time.Millisecond), Until: base.Add(2 * time.Millisecond)})
	if !slices.Equal(got, []int64{3, 2}) {
		t.Error(got)
	}
}

func TestFiltersNarrowTheList(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	tr.log(t, commit.Entry{ProjectID: tr.project, Action: "switch.flag.created", ResourceType: "flag", ResourceID: "1"},
		commit.Entry{Action: "member.invited", ResourceType: "member", ResourceID: "2"},
		commit.Entry{ProjectID: tr.project, Action: "switch.flag.halted", ResourceType: "flag", ResourceID: "3", Actor: commit.Actor{ID: "system:halt-webhook"}},
		commit.Entry{ProjectID: tr.project, Action: "switchboard.made", ResourceType: "switchboard", ResourceID: "4"})
	log := NewLog(tr.db.App, nil)
	for name, c := range map[string]struct {
		q    Query
		want []int64
	}{
		"project":       {Query{Projects: []string{tr.project}}, []int64{4, 3, 1}},
		"projects":      {Query{Projects: []string{tr.project, tr.organization}}, []int64{4, 3, 1}},
		"actor":         {Query{ActorID: "system:halt-webhook"}, []int64{3}},
		"action":        {Query{Action: ParsePattern("switch.flag.created")}, []int64{1}},
		"prefix":        {Query{Action: ParsePattern("switch.*")}, []int64{3, 1}},
		"no wildcard":   {Query{Action: ParsePattern("switch.%")}, []int64{}},
		"everything":    {Query{Action: ParsePattern("*")}, []int64{4, 3, 2, 1}},
		"type":          {Query{ResourceType: ParsePattern("flag")}, []int64{3, 1}},
		"type prefix":   {Query{ResourceType: ParsePattern("switch*")}, []int64{4}},
		"all of them":   {Query{Projects: []string{tr.project}, ActorID: "user-1", Action: ParsePattern("switch.*"), ResourceType: ParsePattern("flag")}, []int64{1}},
		"injected text": {Query{Action: ParsePattern("' OR 1=1 --")}, []int64{}},
	} {
		c.q.OrganizationID = tr.organization
		if got := seqs(t, log, c.q); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
