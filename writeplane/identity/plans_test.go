package identity

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

// Statistics are always of an earlier state: a project that has just become large is unknown to them, or looks like the
// many small ones. Whatever they say, a lookup reads what was asked for and not all that the project has.
func TestLookupsReadOnlyWhatTheyAreAskedFor(t *testing.T) {
	t.Parallel()
	const (
		others = `INSERT INTO aliases SELECT gen_random_uuid(), 1, 'anon-' || i, 'p-' || i % 100, now(), now() FROM generate_series(1, 2000) i`
		other  = `INSERT INTO aliases SELECT '018f0000-0000-7000-8000-00000000000b', 1, 'anon-' || i, 'p-' || i % 100, now(), now() FROM generate_series(1, 10000) i`
		own    = `INSERT INTO aliases SELECT '018f0000-0000-7000-8000-00000000000a', 1, 'anon-' || i, 'p-' || i % 100, now(), now() FROM generate_series(1, 10000) i`
	)
	for name, history := range map[string][]string{
		"nothing is known":               {own},
		"another is known":               {other, `ANALYZE aliases`, own},
		"many small ones are known":      {others, `ANALYZE aliases`, own},
		"it is known, beside one other":  {other, own, `ANALYZE aliases`},
		"it is known, beside many small": {others, own, `ANALYZE aliases`},
	} {
		db := dbtest.New(t)
		for _, sql := range append([]string{`ALTER TABLE aliases SET (autovacuum_enabled = off)`}, history...) {
			dbtest.Exec(t, db.Owner, sql)
		}
		const n = 2000
		texts := make([]string, n)
		for i := range texts {
			texts[i] = fmt.Sprintf("anon-%d", i)
		}
		project, environment := scope.Project, int16(scope.Environment)
		for _, c := range []struct {
			what, sql, by string
			args          []any
		}{
			{"resolve", resolveSQL, "alias_id", []any{slices.Repeat([]uuid.UUID{project}, n), slices.Repeat([]int16{environment}, n), texts}},
			{"load", loadLinksSQL, "alias_id", []any{project, environment, texts}},
			{"children", childrenSQL, "canonical_id", []any{project, environment, texts, texts}},
		} {
			plan, err := postgres.All(t.Context(), db.App, "explain", pgx.RowTo[string], "EXPLAIN (COSTS OFF) "+c.sql, c.args...)
			if err != nil {
				t.Fatal(err)
			}
			if text := strings.Join(plan, "\n"); strings.Count(text, "Scan") > 3 || !strings.Contains(text, "Index Cond: (("+c.by) || strings.Contains(text, "Filter") {
				t.Errorf("%s, %s reads more than it is asked for:\n%.1500s", name, c.what, text)
			}
		}
	}
}

// A plan is made when there is no erasure, and may be used when there are many.
func TestErasuresAreLookedUpByTheirKeyFromTheBeginning(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	dbtest.Exec(t, db.Owner, `ANALYZE`)
	for what, c := range map[string]struct {
		sql  string
		args []any
	}{
		"rewrite": {rewriteSQL, []any{[]uuid.UUID{scope.Project}, []int16{1}, []string{"a"}, 10}},
		"remove":  {removeSQL, []any{[]uuid.UUID{scope.Project}, []int16{1}, []string{"a"}, []time.Time{was}, 10}},
	} {
		err := pgx.BeginFunc(t.Context(), db.App, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), plannerSQL); err != nil {
				return err
			}
			plan, err := postgres.All(t.Context(), tx, "explain", pgx.RowTo[string], "EXPLAIN (COSTS OFF) "+fmt.Sprintf(c.sql, "events_default"), c.args...)
			if text := strings.Join(plan, "\n"); strings.Contains(text, "Index Cond: (erased_at") {
				t.Errorf("%s does not look erasures up by their key:\n%s", what, text)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
