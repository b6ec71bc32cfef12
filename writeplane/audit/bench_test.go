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
	fillOver(b, tr, entries, span, "x")
	if _, err := tr.db.Owner.Exec(b.Context(), `ANALYZE audit_entries`); err != nil {
		b.Fatal(err)
	}
	b.Logf("%d entries filled in %v", entries, time.Since(begun).Round(time.Second))
	log := NewLog(tr.db.App, nil)
	start := time.Now().Add(-span)
	anywhere := func() *Position {
		n := rand.IntN(entries)
		return &Position{At: start.Add(time.Duration(float64(span) * float64(n) / float64(entries))).Truncate(time.Millisecond), Seq: int64(n + 1)}
	}
	for name, q := range map[string]Query{
		"newest":          {},
		"anywhere":        {After: &Position{}},
		"oldest first":    {After: &Position{}, Ascending: true},
		"action":          {After: &Position{}, Action: Pattern{Text: "switch.flag.halted"}},
		"prefix":          {After: &Position{}, Action: Pattern{Text: "switch.", Prefix: true}},
		"rare actor":      {After: &Position{}, ActorID: "user-7"},
		"project":         {After: &Position{}, Projects: []string{tr.project}},
		"actor and type":  {After: &Position{}, ActorID: "user-7", ResourceType: Pattern{Text: "flag"}},
		"since and until": {Since: start.Add(span / 3), Until: start.Add(span/3 + 24*time.Hour)},
		"nothing there":   {ActorID: "nobody"},
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
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
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
