package publish

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"skerry/replication"
	"skerry/replication/down"
	"skerry/writeplane/postgres"
)

// keepCommits is how long records of published transactions are kept, for whoever looks
// for the cause of something.
const keepCommits = 7 * 24 * time.Hour

// RaiseFloor puts the marker anew with a floor at the newest published tombstone changed
// before, if there is one above the present floor.
func (l *Ledger) RaiseFloor(ctx context.Context, lane replication.Lane, epoch replication.Epoch, before time.Time) error {
	return postgres.InTx(ctx, l.pool, func(tx pgx.Tx) error {
		var position, published, floor replication.Position
		err := tx.QueryRow(ctx, `SELECT position, published, floor FROM lanes WHERE lane = $1 AND epoch = $2 FOR UPDATE`,
			int16(lane), uuid.UUID(epoch)).Scan(&position, &published, &floor)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("lane %s: %w", lane, down.ErrSuperseded)
		}
		if err != nil {
			return fmt.Errorf("lock lane %s: %w", lane, err)
		}
		var newest *replication.Position
		err = tx.QueryRow(ctx, `
			SELECT max(position) FROM documents
			WHERE lane = $1 AND body IS NULL AND position > $2 AND position <= $3 AND changed_at < $4`,
			int16(lane), floor, published, before).Scan(&newest)
		if err != nil {
			return fmt.Errorf("look for old tombstones: %w", err)
		}
		if newest == nil {
			return nil
		}
		return raiseFloor(ctx, tx, lane, position+1, replication.Marker{Epoch: epoch.String(), Floor: *newest})
	})
}

// raiseFloor puts the marker at a position, as a transaction of its own, and notes its
// floor as the lane's.
func raiseFloor(ctx context.Context, tx pgx.Tx, lane replication.Lane, at replication.Position, marker replication.Marker) error {
	if err := putMarker(ctx, tx, lane, transaction{at, at, newToken()}, marker); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `UPDATE lanes SET position = $2, floor = $3 WHERE lane = $1`, int16(lane), at, marker.Floor); err != nil {
		return fmt.Errorf("raise the floor of lane %s: %w", lane, err)
	}
	return nil
}

// Buried lists tombstones at or below the floor, once the marker that says so is published.
func (l *Ledger) Buried(ctx context.Context, lane replication.Lane, epoch replication.Epoch) ([]replication.Document, error) {
	rows, err := l.pool.Query(ctx, `
		SELECT d.subject, d.position, d.tx_first, d.tx_last, d.commit_token, d.body, d.changed_at, l.position
		FROM documents d JOIN lanes l USING (lane) JOIN documents m ON m.subject = $3
		WHERE d.lane = $1 AND l.epoch = $2 AND d.body IS NULL AND d.position <= l.floor AND m.position <= l.published
		ORDER BY d.position LIMIT 512`, int16(lane), uuid.UUID(epoch), string(replication.EpochSubject(lane)))
	if err != nil {
		return nil, fmt.Errorf("read old tombstones: %w", err)
	}
	defer rows.Close()
	var buried []replication.Document
	for rows.Next() {
		d, err := scanDocument(rows, lane, epoch)
		if err != nil {
			return nil, err
		}
		buried = append(buried, d)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read old tombstones: %w", err)
	}
	return buried, nil
}

// Forget removes tombstones, unless they have changed since, and records of transactions
// long published. The record of the stream's last transaction stays: a publisher that
// takes over asks for it.
func (l *Ledger) Forget(ctx context.Context, lane replication.Lane, tombstones []replication.Document) error {
	subjects, positions := make([]string, len(tombstones)), make([]int64, len(tombstones))
	for i, d := range tombstones {
		subjects[i], positions[i] = string(d.Subject), int64(d.Position)
	}
	if len(tombstones) > 0 {
		_, err := l.pool.Exec(ctx, `
			DELETE FROM documents d USING unnest($1::text[], $2::bigint[]) AS t (subject, position)
			WHERE d.subject = t.subject AND d.position = t.position AND d.body IS NULL`, subjects, positions)
		if err != nil {
			return fmt.Errorf("delete old tombstones: %w", err)
		}
	}
	_, err := l.pool.Exec(ctx, `
		DELETE FROM commits c USING lanes l
		WHERE c.lane = $1 AND l.lane = $1 AND c.position < l.published AND c.at < now() - $2::interval`,
		int16(lane), keepCommits)
	if err != nil {
		return fmt.Errorf("delete old records of transactions: %w", err)
	}
	return nil
}
