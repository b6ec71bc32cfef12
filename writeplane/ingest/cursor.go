package ingest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"skerry/replication/up"
	"skerry/writeplane/postgres"
)

// cursor is how far one incarnation's lane has come, locked by its transaction.
type cursor struct {
	edge string
	lane up.Lane
	in   up.Incarnation
	last uint64
	gaps []span // numbers before last that may still come, in order
	// unsaved tells that gaps were filled or noted since they were read.
	unsaved bool
}

// span is the numbers [first, last].
type span struct{ first, last uint64 }

const (
	lockCursorSQL = `
SELECT last_number, gaps FROM ingest_cursors WHERE edge = $1 AND lane = $2 AND incarnation = $3 FOR UPDATE`
	makeCursorSQL = `
INSERT INTO ingest_cursors (edge, lane, incarnation, ordinal) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`
	moveCursorSQL = `
UPDATE ingest_cursors SET last_number = $4, gaps = $5, updated_at = now(),
	stored = stored + $6, duplicate = duplicate + $7, erased = erased + $8, dead = dead + $9
WHERE edge = $1 AND lane = $2 AND incarnation = $3`
	readGapsSQL = `
SELECT first_number, last_number FROM ingest_gaps
WHERE edge = $1 AND lane = $2 AND incarnation = $3 AND may_return ORDER BY first_number`
	noteGapSQL = `
INSERT INTO ingest_gaps (edge, lane, incarnation, first_number, last_number, may_return) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT DO NOTHING`
)

func lockCursor(ctx context.Context, tx pgx.Tx, edge string, lane up.Lane, in up.Incarnation) (*cursor, error) {
	c := &cursor{edge: edge, lane: lane, in: in}
	var gaps bool
	read := func() error {
		return tx.QueryRow(ctx, lockCursorSQL, edge, int16(lane), uuid.UUID(in.ID)).Scan(&c.last, &gaps)
	}
	err := read()
	if errors.Is(err, pgx.ErrNoRows) {
		if _, err := tx.Exec(ctx, makeCursorSQL, edge, int16(lane), uuid.UUID(in.ID), int64(in.Ordinal)); err != nil {
			return nil, fmt.Errorf("make cursor: %w", err)
		}
		err = read()
	}
	if err != nil {
		return nil, fmt.Errorf("lock cursor: %w", err)
	}
	if !gaps {
		return c, nil
	}
	c.gaps, err = readGaps(ctx, tx, edge, lane, in)
	return c, err
}

func readGaps(ctx context.Context, q postgres.Querier, edge string, lane up.Lane, in up.Incarnation) ([]span, error) {
	scan := func(row pgx.CollectableRow) (s span, err error) {
		err = row.Scan(&s.first, &s.last)
		return s, err
	}
	return postgres.All(ctx, q, "read gaps", scan, readGapsSQL, edge, int16(lane), uuid.UUID(in.ID))
}

// watermark is the number up to which nothing is missing that may still come.
func (c *cursor) watermark() uint64 {
	if len(c.gaps) > 0 {
		return c.gaps[0].first - 1
	}
	return c.last
}

// wants tells whether a number has not been taken.
func (c *cursor) wants(number uint64) bool {
	if number > c.last {
		return true
	}
	for _, g := range c.gaps {
		if number >= g.first && number <= g.last {
			return true
		}
	}
	return false
}

// take marks [first, last] as taken.
func (c *cursor) take(first, last uint64) {
	c.last = max(c.last, last)
	var left []span
	for _, g := range c.gaps {
		if g.last < first || g.first > last {
			left = append(left, g)
			continue
		}
		c.unsaved = true
		if g.first < first {
			left = append(left, span{g.first, first - 1})
		}
		if g.last > last {
			left = append(left, span{last + 1, g.last})
		}
	}
	c.gaps = left
}

// skip passes over [last+1, until] because its edge has been retired.
func (c *cursor) skip(until uint64) {
	c.gaps = append(c.gaps, span{c.last + 1, until})
	c.last, c.unsaved = until, true
}

// lose gives up what is missing up to a number, and returns it.
func (c *cursor) lose(through uint64) (lost []span) {
	var left []span
	for _, g := range c.gaps {
		if g.first <= through {
			lost = append(lost, span{g.first, min(g.last, through)})
			g.first, c.unsaved = through+1, true
		}
		if g.first <= g.last {
			left = append(left, g)
		}
	}
	c.gaps = left
	if c.last < through {
		lost = append(lost, span{c.last + 1, through})
		c.last = through
	}
	return lost
}

// save writes the cursor with what its transaction took.
func (c *cursor) save(ctx context.Context, tx pgx.Tx, counts [4]int64) error {
	key := []any{c.edge, int16(c.lane), uuid.UUID(c.in.ID)}
	if c.unsaved {
		if _, err := tx.Exec(ctx, `DELETE FROM ingest_gaps WHERE edge = $1 AND lane = $2 AND incarnation = $3 AND may_return`, key...); err != nil {
			return fmt.Errorf("fill gaps: %w", err)
		}
		for _, g := range c.gaps {
			if _, err := tx.Exec(ctx, noteGapSQL, append(key, int64(g.first), int64(g.last), true)...); err != nil {
				return fmt.Errorf("note gap: %w", err)
			}
		}
	}
	_, err := tx.Exec(ctx, moveCursorSQL, append(key, int64(c.last), len(c.gaps) > 0,
		counts[stored], counts[duplicate], counts[erased], counts[dead])...)
	if err != nil {
		return fmt.Errorf("move cursor: %w", err)
	}
	return nil
}

// Stored implements up.Sink.
func (s *Store) Stored(ctx context.Context, edge string, lane up.Lane, in up.Incarnation) (uint64, error) {
	c := cursor{}
	var gaps bool
	err := s.db.App.QueryRow(ctx, `SELECT last_number, gaps FROM ingest_cursors WHERE edge = $1 AND lane = $2 AND incarnation = $3`,
		edge, int16(lane), uuid.UUID(in.ID)).Scan(&c.last, &gaps)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read cursor: %w", err)
	}
	if gaps {
		if c.gaps, err = readGaps(ctx, s.db.App, edge, lane, in); err != nil {
			return 0, err
		}
	}
	return c.watermark(), nil
}

// Lost implements up.Sink: what is missing up to the number will never come, because its
// edge has freed it. It did so when it was stored, so a database that does not know it
// has been restored from before. Gaps of a retired edge that came back end there, too.
func (s *Store) Lost(ctx context.Context, edge string, lane up.Lane, in up.Incarnation, through uint64) error {
	return pgx.BeginFunc(ctx, s.db.App, func(tx pgx.Tx) error {
		c, err := lockCursor(ctx, tx, edge, lane, in)
		if err != nil {
			return err
		}
		lost := c.lose(through)
		if len(lost) == 0 {
			return nil
		}
		if err := c.save(ctx, tx, [4]int64{}); err != nil { // takes what is lost off the list of what may come
			return err
		}
		for _, g := range lost {
			if _, err := tx.Exec(ctx, noteGapSQL, edge, int16(lane), uuid.UUID(in.ID), int64(g.first), int64(g.last), false); err != nil {
				return fmt.Errorf("note gap: %w", err)
			}
		}
		return nil
	})
}

func retired(ctx context.Context, tx pgx.Tx, edge string) (yes bool, err error) {
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM ingest_retired WHERE edge = $1)`, edge).Scan(&yes)
	if err != nil {
		return false, fmt.Errorf("look for a retired edge: %w", err)
	}
	return yes, nil
}

const reportSQL = `
INSERT INTO ingest_reports AS r (edge, lane, log, received, pending, pending_bytes, oldest_at, reported_at)
SELECT $1, t.lane, nullif(t.log, ''), t.received, t.pending, t.bytes, t.oldest, now()
FROM unnest($2::smallint[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::timestamptz[]) AS t (lane, log, received, pending, bytes, oldest)
ORDER BY t.lane
ON CONFLICT (edge, lane) DO UPDATE SET
	base = CASE WHEN excluded.received >= r.received AND coalesce(excluded.log = r.log, true) THEN r.base ELSE (
		SELECT coalesce(sum(c.stored + c.duplicate + c.erased + c.dead), 0) - (excluded.received - excluded.pending)
		FROM ingest_cursors c WHERE c.edge = r.edge AND c.lane = r.lane) END,
	log = excluded.log, received = excluded.received, pending = excluded.pending, pending_bytes = excluded.pending_bytes,
	oldest_at = excluded.oldest_at, reported_at = excluded.reported_at`

// Report implements up.Sink. An edge that reports is not retired (any more); what was
// passed over of it may come now.
func (s *Store) Report(ctx context.Context, edge string, totals []up.Totals) error {
	var lanes []int16
	var logs []string
	var received, pending, size []int64
	var oldest []*time.Time
	now := time.Now()
	for _, t := range totals {
		lanes, logs = append(lanes, int16(t.Lane)), append(logs, t.Log)
		received, pending, size = append(received, int64(t.Received)), append(pending, int64(t.Pending)), append(size, t.PendingBytes)
		var at *time.Time
		if t.Pending > 0 {
			since := now.Add(-t.OldestAge)
			at = &since
		}
		oldest = append(oldest, at)
	}
	return pgx.BeginFunc(ctx, s.db.App, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, reportSQL, edge, lanes, logs, received, pending, size, oldest); err != nil {
			return fmt.Errorf("keep an edge's report: %w", err)
		}
		if _, err := tx.Exec(ctx, `DELETE FROM ingest_retired WHERE edge = $1`, edge); err != nil {
			return fmt.Errorf("take an edge back: %w", err)
		}
		return nil
	})
}
