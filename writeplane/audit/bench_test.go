package audit

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"skerry/writeplane/commit"
	"skerry/writeplane/postgres/dbtest"
)

// BenchmarkAnyPageOfTheList reads pages at random places under every kind of filter.
// SKERRY_AUDIT_ENTRIES sets how long the log is; 5000000 is what the goal is set for.
func BenchmarkAnyPageOfTheList(b *testing.B) {
	entries := 100_000
	if text := os.Getenv("SKERRY_AUDIT_ENTRIES"); text != "" {
		var err error
		if entries, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	tr := newTrail(b, "pro")
	tr.logMany(b, 1)
	const span = 365 * 24 * time.Hour
	begun := time.Now()
	fillKinds(b, tr, entries, span)
	dbtest.Exec(b, tr.db.Owner, `VACUUM ANALYZE audit_entries, audit_facets`)
	b.Logf("%d entries filled in %v", entries, time.Since(begun).Round(time.Second))
	log := NewLog(tr.db.App, nil)
	start := time.Now().Add(-span)
	anywhere := func() *Position {
		n := rand.IntN(entries)
		return &Position{At: start.Add(time.Duration(float64(span) * float64(n) / float64(entries))).Truncate(time.Millisecond), Seq: int64(n + 1)}
	}
	exact, prefix := func(text string) Pattern { return Pattern{Text: text} }, func(text string) Pattern { return Pattern{Text: text, Prefix: true} }
	for name, q := range map[string]Query{
		"newest":              {},
		"anywhere":            {After: &Position{}},
		"oldest first":        {After: &Position{}, Ascending: true},
		"action":              {After: &Position{}, Action: exact("flag.halted")},
		"prefix":              {After: &Position{}, Action: prefix("flag.")},
		"actor":               {After: &Position{}, ActorID: "user-7"},
		"project":             {After: &Position{}, Projects: []string{tr.project}},
		"project and prefix":  {After: &Position{}, Projects: []string{tr.project}, Action: prefix("config.")},
		"actor and type":      {After: &Position{}, ActorID: "user-7", ResourceType: exact("config")},
		"since and until":     {Since: start.Add(span / 3), Until: start.Add(span/3 + 24*time.Hour)},
		"long ago":            {Action: prefix("survey.")},
		"long ago, project":   {Projects: []string{tr.project}, ResourceType: exact("survey"), Action: prefix("survey.")},
		"thrice ever":         {After: &Position{}, Action: prefix("organization.")},
		"no such actor":       {ActorID: "nobody"},
		"no such prefix":      {Action: prefix("nothing.")},
		"never together":      {ActorID: "user-7", ResourceType: exact("flag")},
		"never together, asc": {Projects: []string{tr.project}, ActorID: "user-77", Action: prefix("config."), Ascending: true},
		"contradiction":       {ResourceType: exact("flag"), Action: prefix("config.")},
	} {
		q.OrganizationID, q.Limit = tr.organization, 51
		b.Run(name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				if q.After != nil {
					q.After = anywhere()
				}
				begun := time.Now()
				if err := log.Read(b.Context(), q, func(*Entry) error { return nil }); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(begun))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}

// fillKinds adds entries of many kinds in order of time: a project with half of all,
// a hundred actors who each do always the same, surveys in the first quarter only, three
// entries of the organization at the very beginning.
func fillKinds(b *testing.B, tr *trail, n int, span time.Duration) {
	b.Helper()
	for at := time.Now().Add(-span - 32*24*time.Hour); at.Before(time.Now()); at = at.AddDate(0, 0, 27) {
		dbtest.Exec(b, tr.db.Owner, `SELECT audit_make_month($1)`, at)
	}
	_, err := tr.db.Owner.Exec(b.Context(), `UPDATE audit_chains SET begun_at = $2 WHERE organization_id = $1`, tr.organization, time.Now().Add(-span-time.Hour))
	if err != nil {
		b.Fatal(err)
	}
	_, err = tr.db.Owner.Exec(b.Context(), `
		INSERT INTO audit_entries (organization_id, seq, id, project_id, actor_id, actor_email, action, resource_type, resource_id, before, after, metadata, created_at, retention, hash)
		SELECT $1, 1 + n, gen_random_uuid(), CASE WHEN type = 'organization' THEN NULL WHEN n % 100 < 50 THEN $2 ELSE md5((n % 9)::text)::uuid END,
		       'user-' || n % 100, NULL, type || '.' || (ARRAY['created', 'updated', 'halted', 'unhalted'])[1 + n % 4], type, n::text,
		       NULL, to_json(repeat('x', 200)), '{}', date_trunc('milliseconds', now() - make_interval(secs => ($3 - n) * $4)), 'pro', '\x00'
		FROM (SELECT n, CASE WHEN n IN (5, 7, 9) THEN 'organization' WHEN n < $3 / 4 AND n % 10 = 3 THEN 'survey' WHEN n % 10 < 6 THEN 'flag'
		                     WHEN n % 10 < 9 THEN 'config' WHEN n % 2000 = 9 THEN 'member' ELSE 'cohort' END AS type
		      FROM generate_series(1, $3::int) AS n) AS s`, tr.organization, tr.project, n, span.Seconds()/float64(n))
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkMutationWithEntry changes a row with its audit entry and the row alone, by
// turns, so that a busy machine slows both: what the log costs.
func BenchmarkMutationWithEntry(b *testing.B) {
	tr := newTrail(b, "pro")
	after := map[string]any{"name": "x", "description": strings.Repeat("d", 500)}
	entry := commit.Entry{OrganizationID: tr.organization, ProjectID: tr.project, Action: "project.updated", ResourceType: "project", ResourceID: tr.project, Before: after, After: after}
	mutate := func(entries ...commit.Entry) time.Duration {
		begun := time.Now()
		err := tr.commits.InTx(b.Context(), commit.Origin{Actor: commit.Actor{ID: "u"}}, func(tx *commit.Tx) error {
			for _, e := range entries {
				tx.Audit(e)
			}
			_, err := tx.Exec(b.Context(), `UPDATE projects SET name = $2 WHERE id = $1`, tr.project, fmt.Sprint(rand.Int()))
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
		return time.Since(begun)
	}
	var alone, logged []time.Duration
	for b.Loop() {
		alone, logged = append(alone, mutate()), append(logged, mutate(entry))
	}
	slices.Sort(alone)
	slices.Sort(logged)
	middle := len(alone) / 2
	b.ReportMetric(float64(alone[middle].Microseconds()), "µs-alone")
	b.ReportMetric(float64(logged[middle].Microseconds()), "µs-with-entry")
	b.ReportMetric(float64(alone[middle])/float64(logged[middle]), "ratio")
}
