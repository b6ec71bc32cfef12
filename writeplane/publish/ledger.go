// Package publish is the database's side of the publisher of state: the tables lanes,
// documents and commits, as replication/down needs them.
//
// It promises: a batch of pending documents is one snapshot of the database; a new epoch
// is one transaction, so a crash leaves the old epoch or the new one; what is stored as
// published never falls within an epoch.
//
// It does not allot positions to changes: package commit does, in the transaction that
// makes the change.
package publish

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/replication"
	"skerry/replication/down"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

// Ledger is the lanes' tables. It is a down.Ledger.
type Ledger struct{ pool *pgxpool.Pool }

// New returns a Ledger on the application's pool.
func New(pool *pgxpool.Pool) *Ledger { return &Ledger{pool: pool} }

// unpurged is stored as published_seq from the beginning of an epoch until its stream has
// been purged.
const unpurged = -1

// headSQL: the timeline changes with every promotion of a replica and every recovery to a
// point in time.
const headSQL = `
SELECT epoch, position, published, published_seq, timeline, left(pg_walfile_name(pg_current_wal_lsn()), 8),
       EXISTS (SELECT FROM documents d WHERE d.lane = l.lane AND d.position <= l.published)
FROM lanes l WHERE lane = $1`

// Head reads a lane.
func (l *Ledger) Head(ctx context.Context, lane replication.Lane) (down.Head, error) {
	return head(ctx, l.pool, lane)
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func head(ctx context.Context, q querier, lane replication.Lane) (down.Head, error) {
	var h down.Head
	var seq int64
	err := q.QueryRow(ctx, headSQL, int16(lane)).
		Scan((*uuid.UUID)(&h.Epoch), &h.Position, &h.Published, &seq, &h.Timeline, &h.Present, &h.Held)
	if err != nil {
		return down.Head{}, fmt.Errorf("read lane %s: %w", lane, err)
	}
	if seq == unpurged {
		h.Unpurged = true
	} else {
		h.Seq = uint64(seq)
	}
	return h, nil
}

// Committed finds the token of the transaction whose last position in the lane is p.
func (l *Ledger) Committed(ctx context.Context, lane replication.Lane, p replication.Position) (replication.Token, bool, error) {
	var token []byte
	err := l.pool.QueryRow(ctx, `SELECT token FROM commits WHERE lane = $1 AND position = $2`, int16(lane), p).Scan(&token)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return replication.Token{}, false, nil
	case err != nil:
		return replication.Token{}, false, fmt.Errorf("read commit %d of lane %s: %w", p, lane, err)
	case len(token) != replication.TokenLen:
		return replication.Token{}, false, nil
	}
	return replication.Token(token), true, nil
}

// Count counts the documents at or below p that must be in the stream.
func (l *Ledger) Count(ctx context.Context, lane replication.Lane, p replication.Position) (n uint64, err error) {
	err = l.pool.QueryRow(ctx, `
		SELECT count(*) FROM documents d JOIN lanes l USING (lane)
		WHERE d.lane = $1 AND d.position <= $2 AND (d.body IS NOT NULL OR d.position > l.floor)`, int16(lane), p).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count the documents of lane %s: %w", lane, err)
	}
	return n, nil
}

// pendingSQL reads in one statement, hence in one snapshot, documents and how far the
// lane is: a document that is missing from it has been replaced at or below `through`. It
// finds none when the database does not say itself that the lane is published so far:
// then it is not the database that it was a moment ago.
const pendingSQL = `
SELECT subject, position, tx_first, tx_last, commit_token, body, changed_at,
       (SELECT max(position) FROM documents WHERE lane = $1)
FROM documents
WHERE lane = $1 AND position > $2 AND EXISTS (SELECT FROM lanes WHERE lane = $1 AND epoch = $3 AND published = $2)
ORDER BY position LIMIT 512`

// maxPendingBytes bounds the bodies of one batch in memory.
const maxPendingBytes = 16 << 20

// Pending reads the documents after a position.
func (l *Ledger) Pending(ctx context.Context, lane replication.Lane, epoch replication.Epoch, after replication.Position) ([]replication.Document, error) {
	rows, err := l.pool.Query(ctx, pendingSQL, int16(lane), after, uuid.UUID(epoch))
	if err != nil {
		return nil, fmt.Errorf("read documents of lane %s: %w", lane, err)
	}
	defer rows.Close()
	var documents []replication.Document
	size := 0
	for size < maxPendingBytes && rows.Next() {
		d, err := scanDocument(rows, lane, epoch)
		if err != nil {
			return nil, err
		}
		size += len(d.Body)
		documents = append(documents, d)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read documents of lane %s: %w", lane, err)
	}
	return documents, nil
}

func scanDocument(rows pgx.Rows, lane replication.Lane, epoch replication.Epoch) (replication.Document, error) {
	d := replication.Document{Lane: lane, Epoch: epoch}
	var token []byte
	var changed time.Time
	if err := rows.Scan(&d.Subject, &d.Position, &d.TxFirst, &d.TxLast, &token, &d.Body, &changed, &d.Through); err != nil {
		return d, fmt.Errorf("read a document of lane %s: %w", lane, err)
	}
	if copy(d.Commit[:], token) != replication.TokenLen {
		return d, fmt.Errorf("document %s has a commit token of %d bytes", d.Subject, len(token))
	}
	d.ChangedAt = changed.UnixMicro()
	return d, nil
}

// Published stores how far the stream is.
func (l *Ledger) Published(ctx context.Context, lane replication.Lane, epoch replication.Epoch, p replication.Position, seq uint64) error {
	tag, err := l.pool.Exec(ctx, `
		UPDATE lanes SET published = $3, published_seq = $4 WHERE lane = $1 AND epoch = $2 AND published <= $3`,
		int16(lane), uuid.UUID(epoch), p, int64(seq))
	if err != nil {
		return fmt.Errorf("store what lane %s has published: %w", lane, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("lane %s: %w", lane, down.ErrSuperseded)
	}
	return nil
}

// Renew begins a new epoch of a lane.
func (l *Ledger) Renew(ctx context.Context, lane replication.Lane, past replication.Position) (h down.Head, err error) {
	err = postgres.InTx(ctx, l.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = 0`); err != nil {
			return fmt.Errorf("wait for lane %s: %w", lane, err)
		}
		// The lane's row is locked first, as every mutation does.
		var highest replication.Position
		if err := tx.QueryRow(ctx, `SELECT position FROM lanes WHERE lane = $1 FOR UPDATE`, int16(lane)).Scan(&highest); err != nil {
			return fmt.Errorf("lock lane %s: %w", lane, err)
		}
		base := max(highest, past) + down.EpochJump
		if err := renumber(ctx, tx, lane, base); err != nil {
			return fmt.Errorf("number lane %s anew: %w", lane, err)
		}
		h, err = head(ctx, tx, lane)
		return err
	})
	return h, err
}

// renumber gives every document of a lane a position past base, in their old order, as
// one transaction whose last document is the marker. Revisions begin at base, wherever
// nothing has a document.
func renumber(ctx context.Context, tx pgx.Tx, lane replication.Lane, base replication.Position) error {
	epoch, token := uuid.New(), newToken()
	var count int64
	err := tx.QueryRow(ctx, `
		WITH numbered AS (
			SELECT subject, row_number() OVER (ORDER BY position) AS n, count(*) OVER () AS total
			FROM documents WHERE lane = $1 AND subject <> $2
		), moved AS (
			UPDATE documents d SET position = $3 + n, tx_first = $3 + 1, tx_last = $3 + n.total + 1, commit_token = $4
			FROM numbered n WHERE d.subject = n.subject RETURNING 1
		)
		SELECT count(*) FROM moved`, int16(lane), string(replication.EpochSubject(lane)), base, token).Scan(&count)
	if err != nil {
		return err
	}
	last := base + replication.Position(count) + 1
	marker := replication.Marker{Epoch: epoch.String(), Floor: base}
	if err := putMarker(ctx, tx, lane, transaction{base + 1, last, token}, marker); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		UPDATE lanes SET position = $2, published = $3, published_seq = $4, epoch = $5, floor = $3,
		                 timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)
		WHERE lane = $1`, int16(lane), last, base, int64(unpurged), epoch)
	return err
}

// transaction is one of a lane: the positions that it takes, and what it is known by.
type transaction struct {
	first, last replication.Position
	token       []byte
}

// putMarker writes the lane's marker and the record of the transaction that it ends.
func putMarker(ctx context.Context, tx pgx.Tx, lane replication.Lane, ends transaction, marker replication.Marker) error {
	body, err := json.Marshal(marker)
	if err != nil {
		panic("BUG: a marker does not marshal: " + err.Error())
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO documents (subject, lane, position, tx_first, tx_last, commit_token, body, changed_at)
		VALUES ($1, $2, $3, $4, $3, $5, $6, now())
		ON CONFLICT (subject) DO UPDATE SET position = excluded.position, tx_first = excluded.tx_first,
			tx_last = excluded.tx_last, commit_token = excluded.commit_token, body = excluded.body, changed_at = excluded.changed_at`,
		string(replication.EpochSubject(lane)), int16(lane), ends.last, ends.first, ends.token, body)
	if err != nil {
		return fmt.Errorf("write the marker: %w", err)
	}
	if _, err := tx.Exec(ctx, `INSERT INTO commits (lane, position, token, at) VALUES ($1, $2, $3, now())`, int16(lane), ends.last, ends.token); err != nil {
		return fmt.Errorf("record the transaction: %w", err)
	}
	return nil
}

func newToken() []byte {
	token := make([]byte, replication.TokenLen)
	_, _ = rand.Read(token) // never fails, it ends the process instead
	return token
}

// DeclareRestore makes every lane begin a new epoch: for operators who have restored the
// database in a way that nothing else shows.
func (l *Ledger) DeclareRestore(ctx context.Context) error {
	if _, err := l.pool.Exec(ctx, `UPDATE lanes SET timeline = ''`); err != nil {
		return fmt.Errorf("declare a restore: %w", err)
	}
	return nil
}

// Listen calls wake for every commit that may have put documents, and once when it begins
// to listen.
func (l *Ledger) Listen(ctx context.Context, wake func()) error {
	return postgres.Listen(ctx, l.pool, commit.Channel, wake)
}
