package identity

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"skerry/replication/up"
)

// ownID is the identifier under which e was received. It decides whether an erasure
// covers e: a person who begins anew may be linked to an identifier that was not erased,
// and what was received under that one stays.
const ownID = `CASE WHEN e.rewritten THEN e.anon_id ELSE e.distinct_id END`

// HideErased is the condition under which a query over `events e` may show a row: no
// unfinished erasure covers it.
const HideErased = `
NOT EXISTS (
	SELECT FROM erasures x WHERE x.done_at IS NULL AND x.project_id = e.project_id
		AND x.environment = e.environment AND x.distinct_id = ` + ownID + ` AND e.received_at <= x.erased_at)`

// erased tells whether an erasure covers e, finished or not. It is looked up by its key:
// OFFSET 0 keeps the planner from a join, and the subtraction keeps it from the index by
// time.
const erased = `EXISTS (
	SELECT FROM erasures x WHERE x.project_id = e.project_id AND x.environment = e.environment
		AND x.id_hash = sha256(convert_to(` + ownID + `, 'UTF8')) AND x.erased_at - e.received_at >= '0' OFFSET 0)`

// erase notes that the person behind id is gone and removes everything but the events,
// which are hidden from then on; those that a clock ahead of this one has dated later it
// removes, too. members are the person's identifiers; nil means that nobody of that name
// is known. The transaction is the caller's.
func erase(ctx context.Context, tx pgx.Tx, s Scope, id string) (members []string, err error) {
	if err := LockExclusive(ctx, tx, []Scope{s}); err != nil {
		return nil, err
	}
	members, err = Members(ctx, tx, s, id)
	if err != nil {
		return nil, err
	}
	known, err := exists(ctx, tx, s, members)
	if err != nil || !known {
		return nil, err
	}
	hashes := make([][]byte, len(members))
	for i, m := range members {
		sum := sha256.Sum256([]byte(m))
		hashes[i] = sum[:]
	}
	var now time.Time
	if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return nil, fmt.Errorf("read the clock: %w", err)
	}
	project, environment := s.Project, int16(s.Environment)
	if _, err := tx.Exec(ctx, `
		INSERT INTO erasures (project_id, environment, id_hash, distinct_id, erased_at)
		SELECT $1, $2, x.*, $5 FROM unnest($3::bytea[], $4::text[]) x
		ON CONFLICT (project_id, environment, id_hash) DO UPDATE SET
			distinct_id = excluded.distinct_id, erased_at = excluded.erased_at, done_at = NULL`,
		project, environment, hashes, members, now); err != nil {
		return nil, fmt.Errorf("note erasure: %w", err)
	}
	if _, err := tx.Exec(ctx, `
		DELETE FROM events WHERE project_id = $1 AND environment = $2 AND distinct_id = ANY($3) AND received_at > $4`,
		project, environment, members, now); err != nil {
		return nil, fmt.Errorf("erase events: %w", err)
	}
	for _, sql := range []string{
		`DELETE FROM aliases WHERE project_id = $1 AND environment = $2 AND (alias_id = ANY($3) OR canonical_id = ANY($3))`,
		`DELETE FROM rewrites WHERE project_id = $1 AND environment = $2 AND alias_id = ANY($3)`,
		`DELETE FROM profiles WHERE project_id = $1 AND environment = $2 AND distinct_id = ANY($3)`,
		`DELETE FROM profile_values WHERE project_id = $1 AND environment = $2 AND distinct_id = ANY($3)`,
		`DELETE FROM dead_letters WHERE project_id = $1 AND environment = $2 AND distinct_id = ANY($3)`,
		`DELETE FROM identity_conflicts WHERE project_id = $1 AND environment = $2
			AND (alias_id = ANY($3) OR refused_distinct_id = ANY($3) OR kept_distinct_id = ANY($3))`,
	} {
		if _, err := tx.Exec(ctx, sql, project, environment, members); err != nil {
			return nil, fmt.Errorf("erase a person: %w", err)
		}
	}
	return members, nil
}

// exists tells whether anything at all is known of the identifiers.
func exists(ctx context.Context, q Querier, s Scope, members []string) (known bool, err error) {
	if len(members) > 1 {
		return true, nil
	}
	err = q.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM profiles WHERE project_id = $1 AND environment = $2 AND distinct_id = ANY($3))
			OR EXISTS (SELECT FROM events e WHERE project_id = $1 AND environment = $2 AND distinct_id = ANY($3) AND `+HideErased+`)`,
		s.Project, int16(s.Environment), members).Scan(&known)
	if err != nil {
		return false, fmt.Errorf("look for a person: %w", err)
	}
	return known, nil
}

// removeSQL removes some of a partition's rows that erasures cover.
const removeSQL = `
WITH victims AS (
	SELECT e.at AS ctid
	FROM unnest($1::uuid[], $2::smallint[], $3::text[], $4::timestamptz[]) AS k (project_id, environment, distinct_id, erased_at)
	CROSS JOIN LATERAL (
		SELECT e.ctid AS at FROM %[1]s e
		WHERE e.project_id = k.project_id AND e.environment = k.environment AND e.distinct_id = k.distinct_id
			AND e.received_at <= k.erased_at AND ` + erased + `
		OFFSET 0
	) e
	LIMIT $5
), removed AS (
	DELETE FROM %[1]s e USING victims v WHERE e.ctid = v.ctid RETURNING 1
)
SELECT (SELECT count(*) FROM victims), (SELECT count(*) FROM removed)`

// eraseDoneSQL closes erasures. One that was noted again meanwhile stays open.
const eraseDoneSQL = `
UPDATE erasures SET done_at = now(), distinct_id = NULL WHERE ctid = ANY (ARRAY(
	SELECT x.at FROM unnest($1::uuid[], $2::smallint[], $3::bytea[], $4::timestamptz[]) AS d (project_id, environment, id_hash, erased_at)
	CROSS JOIN LATERAL (
		SELECT ctid AS at, erased_at FROM erasures
		WHERE project_id = d.project_id AND environment = d.environment AND id_hash = d.id_hash OFFSET 0
	) x
	WHERE x.erased_at = d.erased_at))`

// erasures are some open ones, finished together: all of a person's, for an event lies
// under the canonical identifier and is hidden by the one it was received under.
type erasures struct {
	scopes   []Scope    // each once
	projects [][16]byte // in this form pgx needs a tenth of the time
	environs []int16
	hashes   [][]byte
	ids      []string
	at       []time.Time
}

// eraseGroup removes events that are hidden already, in bounded transactions.
func (w *Worker) eraseGroup(ctx context.Context) (did bool, err error) {
	open, err := w.openErasures(ctx)
	if err != nil || len(open.ids) == 0 {
		return false, err
	}
	for from := 0; from < len(open.ids); from += eraseSize {
		if err := w.removeErased(ctx, open, from, min(from+eraseSize, len(open.ids))); err != nil {
			return false, fmt.Errorf("erase events: %w", err)
		}
	}
	err = w.finish(ctx, open.scopes, eraseDoneSQL, open.projects, open.environs, open.hashes, open.at)
	if err != nil {
		return false, fmt.Errorf("finish erasures: %w", err)
	}
	return true, nil
}

// removeErased removes the events under the identifiers [from, to).
func (w *Worker) removeErased(ctx context.Context, open erasures, from, to int) error {
	count := func(n int64) { w.show(func(s *WorkerStatus) { s.Erased += n }) }
	return w.inPartitions(ctx, count, func(tx pgx.Tx, partition string, limit int) (b batch, err error) {
		err = tx.QueryRow(ctx, fmt.Sprintf(removeSQL, partition),
			open.projects[from:to], open.environs[from:to], open.ids[from:to], open.at[from:to], limit).Scan(&b.found, &b.changed)
		return b, err
	})
}

func (w *Worker) openErasures(ctx context.Context) (open erasures, err error) {
	rows, err := w.pool.Query(ctx, `
		SELECT project_id, environment, id_hash, distinct_id, erased_at FROM erasures
		WHERE done_at IS NULL ORDER BY erased_at FETCH FIRST ($1) ROWS WITH TIES`, eraseSize)
	if err != nil {
		return open, fmt.Errorf("read open erasures: %w", err)
	}
	var project uuid.UUID
	var environment int16
	var hash []byte
	var id string
	var at time.Time
	seen := map[Scope]bool{}
	_, err = pgx.ForEachRow(rows, []any{&project, &environment, &hash, &id, &at}, func() error {
		if s := (Scope{project, up.Environment(environment)}); !seen[s] {
			seen[s] = true
			open.scopes = append(open.scopes, s)
		}
		open.projects, open.environs = append(open.projects, project), append(open.environs, environment)
		open.hashes, open.ids, open.at = append(open.hashes, slices.Clone(hash)), append(open.ids, id), append(open.at, at)
		return nil
	})
	if err != nil {
		return open, fmt.Errorf("read open erasures: %w", err)
	}
	return open, nil
}
