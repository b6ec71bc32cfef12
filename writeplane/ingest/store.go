package ingest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"skerry/replication/up"
	"skerry/writeplane/blobs"
	"skerry/writeplane/identity"
)

// Store implements up.Sink: one transaction locks the cursor, skips what was taken,
// stores the rest, moves the cursor.
func (s *Store) Store(ctx context.Context, edge string, batches []up.Batch) (up.Outcome, error) {
	lane, in := batches[0].Lane, batches[0].Incarnation
	if lane == up.LaneEvent {
		s.days.ensure(ctx, daysOf(batches))
	}
	var outcome up.Outcome
	var l *load
	err := pgx.BeginFunc(ctx, s.db.App, func(tx pgx.Tx) error {
		c, err := lockCursor(ctx, tx, edge, lane, in)
		if err != nil {
			return err
		}
		l = &load{edge: edge, lane: lane, in: in, rows: make([]row, 0, sizeOf(batches))}
		if outcome.Taken, err = admit(ctx, tx, c, l, batches); err != nil {
			return err
		}
		outcome.Stored = c.watermark()
		if len(l.rows) == 0 && !c.unsaved {
			return nil
		}
		if err := s.settle(ctx, tx, l); err != nil {
			return err
		}
		return c.save(ctx, tx, l.counts())
	})
	s.strike(laneKey{edge, lane}, err)
	if err != nil {
		return up.Outcome{}, err
	}
	s.after(ctx, l)
	return outcome, nil
}

// sizeOf is how many rows to make room for: what the batches announce, unless they lie.
func sizeOf(batches []up.Batch) (n int) {
	for i := range batches {
		n += min(int(batches[i].Count), len(batches[i].Data)/4)
	}
	return n + 1
}

func daysOf(batches []up.Batch) map[time.Time]bool {
	needed := map[time.Time]bool{}
	for i := range batches {
		blocks, err := batches[i].Blocks()
		if err != nil {
			break // admit stops there too
		}
		for j := range blocks {
			needed[dayOf(time.UnixMicro(blocks[j].ReceivedAt))] = true
		}
	}
	return needed
}

// admit reads what is new in the batches and stops before a gap, or before a batch that
// cannot be decoded, which counts as missing.
func admit(ctx context.Context, tx pgx.Tx, c *cursor, l *load, batches []up.Batch) (taken int, err error) {
	for i := range batches {
		b := &batches[i]
		if b.First > c.last+1 {
			gone, err := retired(ctx, tx, c.edge)
			if err != nil || !gone {
				return i, err
			}
			slog.Warn("numbers of a retired edge passed over", "edge", c.edge, "lane", c.lane.String(), "incarnation", c.in.String(),
				"first", c.last+1, "last", b.First-1)
			c.skip(b.First - 1)
		}
		before := len(l.rows)
		if err := l.read(b, c.wants); err != nil {
			slog.Error("ingest batch cannot be decoded", "edge", c.edge, "lane", c.lane.String(), "first", b.First, "error", err)
			l.rows = l.rows[:before]
			return i, nil
		}
		c.take(b.First, b.End()-1)
	}
	return len(batches), nil
}

// settle gives every row its fate, stores those that can be, and buries the dead.
func (s *Store) settle(ctx context.Context, tx pgx.Tx, l *load) error {
	if err := s.settleRows(ctx, tx, l); err != nil {
		return err
	}
	return s.bury(ctx, tx, l)
}

func (s *Store) settleRows(ctx context.Context, tx pgx.Tx, l *load) error {
	if l.lane != up.LaneCrash {
		if err := l.lock(ctx, tx); err != nil {
			return err
		}
		if err := markErased(ctx, tx, l); err != nil {
			return err
		}
	}
	if err := s.markUnfit(ctx, l); err != nil {
		return err
	}
	switch l.lane {
	case up.LaneEvent:
		return s.settleEvents(ctx, tx, l)
	case up.LanePeople:
		return s.settlePeople(ctx, tx, l)
	case up.LaneAlias:
		return s.settleAliases(ctx, tx, l)
	case up.LaneCrash:
		return s.settleCrashes(ctx, tx, l)
	}
	return fmt.Errorf("no such lane: %s", l.lane)
}

// lock keeps the identities of the load's scopes as they are; aliases keep everybody
// else out.
func (l *load) lock(ctx context.Context, tx pgx.Tx) error {
	if l.lane == up.LaneAlias {
		return identity.LockExclusive(ctx, tx, l.scopes)
	}
	return identity.LockShared(ctx, tx, l.scopes)
}

func markErased(ctx context.Context, tx pgx.Tx, l *load) error {
	list, err := identity.ErasedSince(ctx, tx, l.scopes, l.oldest, l.ids)
	if err != nil || len(list) == 0 {
		return err
	}
	for i := range l.rows {
		r := &l.rows[i]
		if list.Has(r.scope, r.DistinctID, r.received()) || l.lane == up.LaneAlias && list.Has(r.scope, r.AliasID, r.received()) {
			r.fate = erased
		}
	}
	return nil
}

// markUnfit sends to the dead letters what no row can hold.
func (s *Store) markUnfit(ctx context.Context, l *load) error {
	for i := range l.rows {
		r := &l.rows[i]
		switch {
		case r.fate != stored:
		case r.Unstorable != 0:
			r.die(r.Unstorable.String())
		case len(r.DistinctID) > identity.MaxIDBytes || len(r.AliasID) > identity.MaxIDBytes:
			r.die(up.ReasonTooLong.String())
		case r.Ref == nil:
		case l.lane == up.LanePeople:
			r.die("profile_too_large")
		case l.lane != up.LaneEvent || r.Ref.Properties.Length+r.Ref.DefaultProperties.Length > s.config.MaxRowBytes:
			r.die("too_large")
		default:
			missing, err := s.missing(ctx, r.Ref)
			if err != nil {
				return err
			}
			if missing {
				r.die("payload_missing")
			}
		}
	}
	return nil
}

func (s *Store) missing(ctx context.Context, ref *up.Reference) (bool, error) {
	blob, err := s.blobs.Open(ctx, ref.Key)
	if errors.Is(err, blobs.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for a payload: %w", err)
	}
	defer func() { _ = blob.Close() }()
	return blob.Size() != ref.Size, nil
}

func (s *Store) settleEvents(ctx context.Context, tx pgx.Tx, l *load) error {
	if err := markDuplicates(ctx, tx, l); err != nil {
		return err
	}
	if err := resolve(ctx, tx, l); err != nil {
		return err
	}
	var plain, referred []*row
	rows := l.pick(stored)
	for _, r := range rows {
		if r.Ref != nil {
			referred = append(referred, r)
		} else {
			plain = append(plain, r)
		}
	}
	err := s.isolate(ctx, tx, l, plain, func(ctx context.Context, tx pgx.Tx, from, to int) error {
		return copyEvents(ctx, tx, l, plain[from:to])
	})
	if err != nil {
		return err
	}
	err = s.isolate(ctx, tx, l, referred, func(ctx context.Context, tx pgx.Tx, from, to int) error {
		for _, r := range referred[from:to] {
			if err := s.copyReferred(ctx, tx, l, r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return forgetRefused(ctx, tx, rows)
}

// resolve finds the canonical identifiers of the rows that will be stored.
func resolve(ctx context.Context, tx pgx.Tx, l *load) error {
	seen := make(map[identity.ID]struct{}, len(l.rows)/4)
	var ids []identity.ID
	for i := range l.rows {
		r := &l.rows[i]
		text := nameable(r.DistinctID)
		if r.fate != stored || text == nil { // what is no text is nobody's alias, and refused with its row
			continue
		}
		id := identity.ID{Scope: r.scope, Text: *text}
		if _, ok := seen[id]; !ok {
			seen[id] = struct{}{}
			ids = append(ids, id)
		}
	}
	canonical, err := identity.Resolve(ctx, tx, ids)
	if err != nil || len(canonical) == 0 {
		return err
	}
	for i := range l.rows {
		r := &l.rows[i]
		r.canonical = canonical[identity.ID{Scope: r.scope, Text: string(r.DistinctID)}]
	}
	return nil
}

func (s *Store) settlePeople(ctx context.Context, tx pgx.Tx, l *load) error {
	if err := resolve(ctx, tx, l); err != nil {
		return err
	}
	var rows []*row
	var changes []identity.Change
	for _, r := range l.pick(stored) {
		change := identity.Change{
			Scope: r.scope, DistinctID: cmp.Or(r.canonical, string(r.DistinctID)), ReceivedAt: r.received(),
			Stamp: identity.NewStamp(r.received(), l.edge, r.number), Properties: r.Properties,
		}
		if err := change.Read(); err != nil {
			r.die("malformed_properties")
			continue
		}
		if change.Overlong() {
			r.die("property_name_too_long")
			continue
		}
		rows, changes = append(rows, r), append(changes, change)
	}
	return s.isolate(ctx, tx, l, rows, func(ctx context.Context, tx pgx.Tx, from, to int) error {
		return identity.Merge(ctx, tx, changes[from:to])
	})
}

func (s *Store) settleAliases(ctx context.Context, tx pgx.Tx, l *load) error {
	rows := l.pick(stored)
	claims := make([]identity.Claim, len(rows))
	for i, r := range rows {
		claims[i] = identity.Claim{
			Scope: r.scope, AliasID: string(r.AliasID), DistinctID: string(r.DistinctID),
			AliasedAt: time.UnixMicro(r.Timestamp).UTC(), ReceivedAt: r.received(),
		}
	}
	return s.isolate(ctx, tx, l, rows, func(ctx context.Context, tx pgx.Tx, from, to int) error {
		return identity.Apply(ctx, tx, claims[from:to])
	})
}

func (s *Store) settleCrashes(ctx context.Context, tx pgx.Tx, l *load) error {
	if s.crashes == nil {
		return errors.New("nobody takes crash reports here")
	}
	rows := l.pick(stored)
	reports := make([]CrashRow, len(rows))
	for i, r := range rows {
		reports[i] = CrashRow{
			ID: uuid.UUID(r.ID).String(), ProjectID: r.scope.Project.String(), Environment: r.scope.Environment.String(),
			ReceivedAt: r.received(), Record: r.Raw,
		}
	}
	return s.isolate(ctx, tx, l, rows, func(ctx context.Context, tx pgx.Tx, from, to int) error {
		bad, err := s.crashes(ctx, tx, reports[from:to])
		for _, b := range bad {
			rows[from+b.Index].die(b.Reason)
		}
		return err
	})
}

// bury writes the dead letters.
func (s *Store) bury(ctx context.Context, tx pgx.Tx, l *load) error {
	rows := l.pick(dead)
	if len(rows) == 0 {
		return nil
	}
	slog.Warn("operations went to the dead letters", "edge", l.edge, "lane", l.lane.String(), "count", len(rows), "first_reason", rows[0].reason)
	columns := []string{"id", "project_id", "environment", "lane", "edge", "incarnation", "number", "reason", "distinct_id",
		"payload", "blob_key", "blob_bytes", "extra", "received_at"}
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"dead_letters"}, columns, pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) {
		r := rows[i]
		var payload, extra []byte
		var key *string
		var size *int64
		if r.Ref != nil {
			key, size = &r.Ref.Key, &r.Ref.Size
		} else if payload = r.payload(l.lane); payload == nil {
			payload = []byte{}
		}
		if l.lane == up.LaneCrash {
			extra = r.ID[:]
		}
		return []any{eventID(l.edge, l.in, l.lane, r.number, r.receivedAt), r.scope.Project, int16(r.scope.Environment), int16(l.lane),
			l.edge, uuid.UUID(l.in.ID), int64(r.number), r.reason, nameable(r.DistinctID), payload, key, size, extra, r.received()}, nil
	}))
	if err != nil {
		return fmt.Errorf("write dead letters: %w", err)
	}
	return nil
}

// nameable is an identifier as text, nil when it cannot be stored.
func nameable(id []byte) *string {
	if len(id) == 0 || len(id) > identity.MaxIDBytes || !utf8.Valid(id) || bytes.IndexByte(id, 0) >= 0 {
		return nil
	}
	text := string(id)
	return &text
}

// afterMost is how long a lane may be kept by what is not needed any more.
const afterMost = 10 * time.Second

// after removes uploaded payloads that now lie in rows. What a crash leaves behind costs
// room until it is swept.
func (s *Store) after(ctx context.Context, l *load) {
	ctx, cancel := context.WithTimeout(ctx, afterMost)
	defer cancel()
	for i := range l.rows {
		r := &l.rows[i]
		if r.Ref == nil || r.fate == dead {
			continue
		}
		if err := s.blobs.Delete(ctx, r.Ref.Key); err != nil {
			slog.Warn("remove a stored payload", "key", r.Ref.Key, "error", err)
		}
	}
}
