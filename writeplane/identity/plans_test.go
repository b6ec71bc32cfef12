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

// The worker's statements are given thousands of ids: whatever the planner thinks of the tables, it looks for one after the
// other by the whole key, in the order in which they are written.
func TestTheWorkerLooksForOneIDAfterTheOther(t *testing.T) {
	t.Parallel()
	const (
		aliases  = `INSERT INTO aliases SELECT '018f0000-0000-7000-8000-00000000000a', 1, 'anon-' || i, 'p-' || i %% 100, now(), now() FROM generate_series(%d, %d) i`
		rewrites = `INSERT INTO rewrites SELECT '018f0000-0000-7000-8000-00000000000a', 1, 'anon-' || i, now() FROM generate_series(%d, %d) i`
		erasures = `INSERT INTO erasures SELECT '018f0000-0000-7000-8000-00000000000a', 1, sha256(convert_to('anon-' || i, 'UTF8')), now(), NULL, 'anon-' || i FROM generate_series(%d, %d) i`
		events   = `INSERT INTO events (received_at, timestamp, id, project_id, number, environment, rewritten, edge, event_name, distinct_id)
			SELECT now(), now(), gen_random_uuid(), '018f0000-0000-7000-8000-00000000000a', i, 1, false, 'edge-1', 'e', 'anon-' || i FROM generate_series(%d, %d) i`
	)
	fill := func(first, last int) (sql []string) {
		for _, each := range []string{aliases, rewrites, erasures, events} {
			sql = append(sql, fmt.Sprintf(each, first, last))
		}
		return sql
	}
	for name, history := range map[string][]string{
		"nothing is known":    fill(1, 20_000),
		"little is known":     append(append(fill(1, 1), `ANALYZE`), fill(2, 20_000)...),
		"everything is known": append(fill(1, 20_000), `ANALYZE`),
	} {
		db := dbtest.New(t)
		for _, table := range []string{"aliases", "rewrites", "erasures", "events_default"} {
			history = append([]string{`ALTER TABLE ` + table + ` SET (autovacuum_enabled = off)`}, history...)
		}
		for _, sql := range history {
			if _, err := db.Owner.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range []int{1, 200, maxGroup} {
			projects, environs, ids := slices.Repeat([]uuid.UUID{scope.Project}, n), slices.Repeat([]int16{1}, n), slices.Repeat([]string{"anon-1"}, n)
			at := slices.Repeat([]time.Time{was}, n)
			for what, c := range map[string]struct {
				sql  string
				args []any
			}{
				"rewrite": {fmt.Sprintf(rewriteSQL, "events_default"), []any{projects, environs, ids, 2000}},
				"remove":  {fmt.Sprintf(removeSQL, "events_default"), []any{projects, environs, ids, at, 2000}},
				"finish":  {finishSQL, []any{projects, environs, ids, at}},
				"erased":  {eraseDoneSQL, []any{projects, environs, slices.Repeat([][]byte{{1}}, n), at}},
			} {
				plan := workersPlan(t, db, c.sql, c.args...)
				if strings.Contains(plan, "Seq Scan") || strings.Contains(plan, "Join Filter") || strings.Count(plan, "Scan using") != strings.Count(plan, "Index Cond: ((") {
					t.Errorf("%s, %s of %d reads more than it is asked for:\n%s", name, what, n, plan)
				}
			}
		}
	}
}

// workersPlan is how a statement is carried out in a transaction of the worker's.
func workersPlan(t *testing.T, db *postgres.DB, sql string, args ...any) (plan string) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), db.App, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), plannerSQL); err != nil {
			return err
		}
		lines, err := postgres.All(t.Context(), tx, "explain", pgx.RowTo[string], "EXPLAIN (COSTS OFF) "+sql, args...)
		plan = strings.Join(lines, "\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return plan
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
		if plan := workersPlan(t, db, fmt.Sprintf(c.sql, "events_default"), c.args...); strings.Contains(plan, "Index Cond: (erased_at") {
			t.Errorf("%s does not look erasures up by their key:\n%s", what, plan)
		}
	}
}
