package ingest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/writeplane/identity"
)

// insertKey is what must be unique within the window: an insert_id in its environment. It
// is half of a SHA-256, because a row for each costs as much as its event, and short keys
// half as much as long ones; that two insert_ids ever share one is not to be expected.
// (It is no uuid.UUID: pgx needs ten times as long to send an array of these.)
type insertKey = [16]byte

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
	var asked []*row
	for _, r := range l.pick(stored) {
		if r.InsertID != nil {
			asked = append(asked, r)
		}
	}
	// Once, but for a transaction that spans more than the window.
	for len(asked) > 0 {
		first := map[insertKey]*row{}
		var later []*row
		for _, r := range asked {
			key := keyOf(r.scope, r.InsertID)
			if before, ok := first[key]; !ok {
				first[key] = r
			} else if r.received().Sub(before.received()).Abs() < insertIDWindow {
				r.fate = duplicate
			} else {
				later = append(later, r)
			}
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
		asked = later
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

// forgetRefused forgets the insert_ids of events that PostgreSQL then refused: a replay
// would take such an event for its own duplicate, and never store it.
func forgetRefused(ctx context.Context, tx pgx.Tx, rows []*row) error {
	var keys []insertKey
	var received []time.Time
	for _, r := range rows {
		if r.fate == dead && r.InsertID != nil {
			keys, received = append(keys, keyOf(r.scope, r.InsertID)), append(received, r.received())
		}
	}
	if len(keys) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, `DELETE FROM insert_ids i USING unnest($1::uuid[], $2::timestamptz[]) AS x (digest, received_at)
		WHERE i.digest = x.digest AND i.received_at = x.received_at`, keys, received)
	if err != nil {
		return fmt.Errorf("forget insert_ids of refused events: %w", err)
	}
	return nil
}
