package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Verdict is what a walk along a chain found.
type Verdict struct {
	OK             bool   `json:"ok"`
	Entries        int64  `json:"entries"`          // that are there
	FirstBrokenSeq *int64 `json:"first_broken_seq"` // altered, missing or out of place
}

// anchor is a run of entries that retention took.
type anchor struct {
	last int64
	hash []byte
}

// Verify walks an organization's chain from its first entry to its head and names the
// first entry that is not what was logged. Entries that retention took are passed
// over by their anchors. It reads one snapshot, so mutations meanwhile do not matter.
func (l *Log) Verify(ctx context.Context, organizationID string) (Verdict, error) {
	var verdict Verdict
	err := pgx.BeginTxFunc(ctx, l.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		// Before the snapshot: a month that retention dropped between it and the walk
		// would be gone, and its anchors not yet to be seen.
		if _, err := tx.Exec(ctx, `LOCK TABLE audit_entries IN ACCESS SHARE MODE`); err != nil {
			return err
		}
		walk := walker{expected: 1, previous: genesis()}
		var err error
		if walk.anchors, err = readAnchors(ctx, tx, organizationID); err != nil {
			return err
		}
		var end head
		err = tx.QueryRow(ctx, `SELECT seq, hash FROM audit_chains WHERE organization_id = $1`, organizationID).Scan(&end.seq, &end.hash)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if err := walk.entries(ctx, tx, organizationID); err != nil {
			return err
		}
		verdict = walk.verdict(end)
		return nil
	})
	if err != nil {
		return Verdict{}, fmt.Errorf("verify chain: %w", err)
	}
	return verdict, nil
}

func readAnchors(ctx context.Context, tx pgx.Tx, organizationID string) (map[int64]anchor, error) {
	rows, err := tx.Query(ctx, `SELECT first_seq, last_seq, last_hash FROM audit_anchors WHERE organization_id = $1`, organizationID)
	if err != nil {
		return nil, err
	}
	anchors := map[int64]anchor{}
	var first, last int64
	var hash []byte
	_, err = pgx.ForEachRow(rows, []any{&first, &last, &hash}, func() error {
		anchors[first] = anchor{last, bytes.Clone(hash)}
		return nil
	})
	return anchors, err
}

// walker goes along a chain in order of time, in which seq must rise by one.
type walker struct {
	anchors  map[int64]anchor
	expected int64
	previous []byte // hash that the expected entry builds upon
	count    int64
	broken   int64 // 0: nothing yet
}

// entries goes through the chain as the server's indexes give it, one entry at a time:
// neither side holds more. A plan that sorts would pile the whole chain up on the
// server's disk first, so it is ruled out.
func (w *walker) entries(ctx context.Context, tx pgx.Tx, organizationID string) error {
	if _, err := tx.Exec(ctx, `SET LOCAL enable_sort = off`); err != nil {
		return err
	}
	sql, args := Query{OrganizationID: organizationID, Ascending: true}.build(table)
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		entry, err := scan(rows)
		if err != nil {
			return err
		}
		w.count++
		if w.broken == 0 {
			w.step(&entry)
		}
	}
	return rows.Err()
}

// skip passes over what retention took.
func (w *walker) skip() {
	for {
		taken, ok := w.anchors[w.expected]
		if !ok || taken.last < w.expected {
			return
		}
		w.expected, w.previous = taken.last+1, taken.hash
	}
}

func (w *walker) step(e *Entry) {
	w.skip()
	switch {
	case e.Seq > w.expected: // the expected one is gone, or stands elsewhere
		w.broken = w.expected
	case e.Seq < w.expected, !bytes.Equal(e.Hash, e.chained(w.previous)):
		w.broken = e.Seq
	default:
		w.expected, w.previous = w.expected+1, e.Hash
	}
}

func (w *walker) verdict(end head) Verdict {
	v := Verdict{Entries: w.count}
	if w.broken == 0 {
		w.skip()
		switch {
		case w.expected <= end.seq: // the tail is gone
			w.broken = w.expected
		case w.expected > end.seq+1: // entries behind the head
			w.broken = end.seq + 1
		case end.seq > 0 && !bytes.Equal(w.previous, end.hash):
			w.broken = end.seq
		}
	}
	if w.broken == 0 {
		v.OK = true
		return v
	}
	v.FirstBrokenSeq = &w.broken
	return v
}
