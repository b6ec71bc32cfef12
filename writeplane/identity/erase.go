package identity

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/replication/up"
	"skerry/writeplane/postgres"
)

// hideErased leaves out the rows of e that an unfinished erasure covers.
const hideErased = `
NOT EXISTS (
	SELECT FROM erasures x WHERE x.done_at IS NULL AND x.project_id = e.project_id
		AND x.environment = e.environment AND x.distinct_id = e.distinct_id AND e.received_at <= x.erased_at)`

// HideErased is the condition under which a query over `events e` may show a row.
const HideErased = hideErased

// erase notes that the person behind id is gone and removes everything but the events,
// which are hidden from then on. members are the person's identifiers; nil means that
// nobody of that name is known. The transaction is the caller's.
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
	project, environment := s.Project, int16(s.Environment)
	if _, err := tx.Exec(ctx, `
		INSERT INTO erasures (project_id, environment, id_hash, distinct_id, erased_at)
		SELECT $1, $2, x.*, clock_timestamp() FROM unnest($3::bytea[], $4::text[]) x
		ON CONFLICT (project_id, environment, id_hash) DO UPDATE SET
			distinct_id = excluded.distinct_id, erased_at = excluded.erased_at, done_at = NULL`,
		project, environment, hashes, members); err != nil {
		return nil, fmt.Errorf("note erasure: %w", err)
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
			OR EXISTS (SELECT FROM events e WHERE project_id = $1 AND environment = $2 AND distinct_id = ANY($3) AND `+hideErased+`)`,
		s.Project, int16(s.Environment), members).Scan(&known)
	if err != nil {
		return false, fmt.Errorf("look for a person: %w", err)
	}
	return known, nil
}

const removeSQL = `
DELETE FROM %[1]s e WHERE e.ctid = ANY (ARRAY(
	SELECT e.ctid FROM %[1]s e
	WHERE e.project_id = $1 AND e.environment = $2 AND e.distinct_id = $3 AND e.received_at <= $4 LIMIT $5))`

// finishErasures removes the events that are hidden already, in bounded transactions.
func (w *Worker) finishErasures(ctx context.Context) error {
	scan := func(row pgx.CollectableRow) (o openErasure, err error) {
		var environment int16
		err = row.Scan(&o.scope.Project, &environment, &o.hash, &o.id, &o.at)
		o.scope.Environment = up.Environment(environment)
		return o, err
	}
	open, err := postgres.All(ctx, w.pool, "read open erasures", scan, `
		SELECT project_id, environment, id_hash, distinct_id, erased_at FROM erasures WHERE done_at IS NULL ORDER BY erased_at LIMIT 1000`)
	if err != nil {
		return err
	}
	for _, o := range open {
		if err := w.finishErasure(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

type openErasure struct {
	scope Scope
	hash  []byte
	id    string
	at    time.Time
}

func (w *Worker) finishErasure(ctx context.Context, o openErasure) error {
	partitions, err := Partitions(ctx, w.pool)
	if err != nil {
		return err
	}
	project, environment := o.scope.Project, int16(o.scope.Environment)
	for _, partition := range partitions {
		w.show(func(s *WorkerStatus) { s.Partition = partition })
		count := func(n int64) { w.show(func(s *WorkerStatus) { s.Erased += n }) }
		err := w.inBatches(ctx, count, func(tx pgx.Tx, limit int) (int64, error) {
			tag, err := tx.Exec(ctx, fmt.Sprintf(removeSQL, partition), project, environment, o.id, o.at, limit)
			return tag.RowsAffected(), err
		})
		if err != nil {
			return fmt.Errorf("erase from %s: %w", partition, err)
		}
	}
	if now, err := Partitions(ctx, w.pool); err != nil || !slices.Equal(now, partitions) {
		return err // as in rewriteGroup: it stays open, and comes up again
	}
	_, err = w.pool.Exec(ctx, `
		UPDATE erasures SET done_at = now(), distinct_id = NULL
		WHERE project_id = $1 AND environment = $2 AND id_hash = $3 AND erased_at = $4`, project, environment, o.hash, o.at)
	if err != nil {
		return fmt.Errorf("finish an erasure: %w", err)
	}
	return nil
}
