package ingest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"skerry/writeplane/identity"
)

// insertKey is what must be unique within the window: an insert_id in its environment. It
// is half of a SHA-256, because a row for each costs as much as its event, and short keys
// half as much as long ones; that two insert_ids ever share one is not to be expected.
type insertKey = uuid.UUID

// keyOf also stands in a migration, for the insert_ids of older versions.
func keyOf(scope identity.Scope, insertID []byte) insertKey {
	b := make([]byte, 0, 128)
	b = append(b, scope.Project[:]...)
	b = append(b, byte(scope.Environment))
	sum := sha256.Sum256(append(b, insertID...))
	return insertKey(sum[:len(insertKey{})])
}

const insertIDsSQL = `
INSERT INTO insert_ids AS i (digest, received_at)
SELECT * FROM unnest($1::uuid[], $2::timestamptz[])
ON CONFLICT (digest) DO UPDATE SET received_at = greatest(i.received_at, excluded.received_at)
WHERE i.received_at <= excluded.received_at - $3::interval OR i.received_at >= excluded.received_at + $3::interval
RETURNING digest`

// markDuplicates finds the events whose insert_id was stored within the window.
func markDuplicates(ctx context.Context, tx pgx.Tx, l *load) error {
	first := map[insertKey]*row{}
	for i := range l.rows {
		r := &l.rows[i]
		if r.fate != stored || r.InsertID == nil {
			continue
		}
		key := keyOf(r.scope, r.InsertID)
		if before, ok := first[key]; !ok {
			first[key] = r
		} else if r.received().Sub(before.received()).Abs() < insertIDWindow {
			r.fate = duplicate
		}
	}
	if len(first) == 0 {
		return nil
	}
	fresh, err := insertIDs(ctx, tx, first)
	if err != nil {
		return fmt.Errorf("store insert_ids: %w", err)
	}
	for _, key := range fresh {
		delete(first, key)
	}
	for _, r := range first {
		r.fate = duplicate
	}
	return nil
}

// insertIDs remembers the keys, and returns those that were not there.
func insertIDs(ctx context.Context, tx pgx.Tx, first map[insertKey]*row) (fresh []insertKey, err error) {
	keys := make([]insertKey, 0, len(first))
	for key := range first {
		keys = append(keys, key)
	}
	// Two lanes that insert in one order cannot wait for each other.
	slices.SortFunc(keys, func(a, b insertKey) int { return bytes.Compare(a[:], b[:]) })
	received := make([]time.Time, len(keys))
	for i, key := range keys {
		received[i] = first[key].received()
	}
	rows, err := tx.Query(ctx, insertIDsSQL, keys, received, insertIDWindow)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[insertKey])
}
