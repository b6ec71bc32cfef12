package ingest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"skerry/replication/up"
	"skerry/writeplane/identity"
)

// insertKey is what must be unique within the window: an insert_id in its environment.
type insertKey struct {
	scope identity.Scope
	id    string
}

func (k insertKey) compare(o insertKey) int {
	return cmp.Or(bytes.Compare(k.scope.Project[:], o.scope.Project[:]),
		cmp.Compare(k.scope.Environment, o.scope.Environment), cmp.Compare(k.id, o.id))
}

const insertIDsSQL = `
INSERT INTO insert_ids AS i (project_id, environment, insert_id, received_at)
SELECT * FROM unnest($1::uuid[], $2::smallint[], $3::text[], $4::timestamptz[])
ON CONFLICT (project_id, environment, insert_id) DO UPDATE SET received_at = greatest(i.received_at, excluded.received_at)
WHERE i.received_at <= excluded.received_at - $5::interval OR i.received_at >= excluded.received_at + $5::interval
RETURNING project_id, environment, insert_id`

// markDuplicates finds the events whose insert_id was stored within the window.
func markDuplicates(ctx context.Context, tx pgx.Tx, l *load) error {
	first := map[insertKey]*row{}
	for i := range l.rows {
		r := &l.rows[i]
		if r.fate != stored || r.InsertID == nil {
			continue
		}
		key := insertKey{r.scope, string(r.InsertID)}
		if before, ok := first[key]; !ok {
			first[key] = r
		} else if r.received().Sub(before.received()).Abs() < insertIDWindow {
			r.fate = duplicate
		}
	}
	if len(first) == 0 {
		return nil
	}
	keys := make([]insertKey, 0, len(first))
	for k := range first {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, insertKey.compare)
	fresh, err := insertIDs(ctx, tx, keys, first)
	if err != nil {
		return err
	}
	for k, r := range first {
		if !fresh[k] {
			r.fate = duplicate
		}
	}
	return nil
}

func insertIDs(ctx context.Context, tx pgx.Tx, keys []insertKey, first map[insertKey]*row) (fresh map[insertKey]bool, err error) {
	projects, environments := make([]uuid.UUID, len(keys)), make([]int16, len(keys))
	ids, received := make([]string, len(keys)), make([]time.Time, len(keys))
	for i, k := range keys {
		projects[i], environments[i], ids[i] = k.scope.Project, int16(k.scope.Environment), k.id
		received[i] = first[k].received()
	}
	rows, err := tx.Query(ctx, insertIDsSQL, projects, environments, ids, received, insertIDWindow)
	if err != nil {
		return nil, fmt.Errorf("store insert_ids: %w", err)
	}
	fresh = make(map[insertKey]bool, len(keys))
	var project uuid.UUID
	var environment int16
	var id string
	_, err = pgx.ForEachRow(rows, []any{&project, &environment, &id}, func() error {
		fresh[insertKey{identity.Scope{Project: project, Environment: up.Environment(environment)}, id}] = true
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("store insert_ids: %w", err)
	}
	return fresh, nil
}
