package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/writeplane/postgres"
)

// Ages that decide where an entry is read (specification, Audit entry).
const (
	// mirrorAge is how old an entry is when queries read it in the mirror.
	mirrorAge = 30 * 24 * time.Hour
	// mirrorKeeps is how long the mirror holds an entry; what is older is read in the
	// authoritative store again.
	mirrorKeeps = 2 * 365 * 24 * time.Hour
)

// Mirror is a second store of entries that queries over old ranges read. It is
// written behind the authoritative store and may be away.
type Mirror interface {
	// Write stores the next entries of a chain; those that it has it leaves as they
	// are. A mirror that has not all that comes before them stores nothing and says so
	// by a *Behind.
	Write(ctx context.Context, b Batch) error
	// Reached is how far the mirror has each chain, by organization.
	Reached(ctx context.Context) (map[string]Position, error)
	// Read hands the entries of a query to fn, in order.
	Read(ctx context.Context, q Query, fn func(*Entry) error) error
	// Find reads one entry; ok is false when it has none of that id.
	Find(ctx context.Context, organizationID, id string) (e Entry, ok bool, err error)
	// Keep prepares for what comes and drops what was created before the time.
	Keep(ctx context.Context, before time.Time) error
}

// Batch is the part of a chain behind one position, up to another: those of its entries
// that retention has not removed.
type Batch struct {
	OrganizationID string
	After, Reached Position
	Entries        []Entry
}

// Behind is the error of a mirror that is not as far as was thought: it is a new one, or
// was restored to an earlier time.
type Behind struct{ Reached Position }

func (b *Behind) Error() string {
	return fmt.Sprintf("the audit mirror has the chain only up to %d", b.Reached.Seq)
}

// Log reads entries, each range of time from the store that answers for it.
type Log struct {
	pool     *pgxpool.Pool
	mirror   Mirror        // nil: everything is read in the authoritative store
	patience time.Duration // with the mirror
	now      func() time.Time
}

const table = "audit_entries"

// readPatience is how long a mirror may look for the next entry. It is long, since what is
// passed over may be a mirror that looks through years for what is not there.
const readPatience = time.Minute

// NewLog returns the reader. mirror may be nil.
func NewLog(pool *pgxpool.Pool, mirror Mirror) *Log {
	return &Log{pool: pool, mirror: mirror, patience: readPatience, now: time.Now}
}

// span is a stretch of time that is read in one store.
type span struct {
	from, to time.Time // zero: open
	mirror   bool
}

// extent is where a chain's entries are: nothing lies before begun or in other classes.
type extent struct {
	begun    time.Time
	classes  []string
	mirrored time.Time // before it the mirror has every entry
}

// whole reports whether retention has left every entry since a time.
func (e extent) whole(since, now time.Time) bool {
	return !slices.ContainsFunc(e.classes, func(class string) bool { return !retention[class](since).After(now) })
}

// extent reads the chain's row; ok is false for an organization without entries.
func (l *Log) extent(ctx context.Context, organizationID string) (e extent, ok bool, err error) {
	var head, copied int64
	err = l.pool.QueryRow(ctx, `
		SELECT c.begun_at, c.classes, c.seq, coalesce(m.seq, 0), coalesce(m.at, 'epoch')
		FROM audit_chains c LEFT JOIN audit_mirrored m USING (organization_id) WHERE organization_id = $1`, organizationID).
		Scan(&e.begun, &e.classes, &head, &copied, &e.mirrored)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return extent{}, false, nil
	case err != nil:
		return extent{}, false, fmt.Errorf("read the chain's extent: %w", err)
	case head == copied:
		e.mirrored = l.now()
	}
	return e, true, nil
}

// spans cuts all time into what each store answers for, newest first.
func (l *Log) spans(e extent) []span {
	now := l.now()
	young, old := now.Add(-mirrorAge), now.Add(-mirrorKeeps)
	young = earlier(young, e.mirrored) // a mirror that lags: the authoritative store has the rest
	switch {
	case l.mirror == nil, !young.After(old), young.Before(e.begun):
		return []span{{}}
	case old.Before(e.begun):
		return []span{{from: young}, {to: young, mirror: true}}
	}
	return []span{{from: young}, {from: old, to: young, mirror: true}, {to: old}}
}

// Read hands the entries of a query to fn in order, from the stores that answer for
// its range, as one list.
func (l *Log) Read(ctx context.Context, q Query, fn func(*Entry) error) error {
	extent, ok, err := l.extent(ctx, q.OrganizationID)
	if err != nil || !ok {
		return err
	}
	q.Since = later(q.Since, extent.begun)
	spans := l.spans(extent)
	if q.Ascending {
		slices.Reverse(spans)
	}
	left := q.Limit
	for _, s := range spans {
		for _, window := range windows(q, s) {
			parts := []Query{window}
			if !s.mirror {
				if parts, err = l.narrowed(ctx, window, extent.classes); err != nil {
					return err
				}
			}
			for _, part := range parts {
				part.Limit = left
				count, err := l.readSpan(ctx, part, s.mirror, extent, fn)
				if err != nil {
					return err
				}
				if left -= count; q.Limit > 0 && left <= 0 {
					return nil
				}
			}
		}
	}
	return nil
}

// narrowed is a query of the authoritative store without the months in which it would
// look in vain. A query for everything is not narrowed: it is read to its end anyhow.
func (l *Log) narrowed(ctx context.Context, q Query, classes []string) ([]Query, error) {
	q.classes = classes
	if q.Limit == 0 || !q.composite() {
		return []Query{q}, nil
	}
	found, err := l.facets(ctx, q)
	return cut(q, found), err
}

// readSpan reads one stretch. A mirror that fails before its first entry is passed over:
// the authoritative store has what retention has left. Whoever wants all is not given less.
func (l *Log) readSpan(ctx context.Context, q Query, fromMirror bool, e extent, fn func(*Entry) error) (count int, err error) {
	counted := func(e *Entry) error {
		count++
		return fn(e)
	}
	if fromMirror {
		err = l.readMirror(ctx, q, counted)
		if err == nil || count > 0 || ctx.Err() != nil || q.Limit == 0 && !e.whole(q.Since, l.now()) {
			return count, err
		}
		slog.WarnContext(ctx, "audit mirror not readable, the authoritative store answers", "error", err)
	}
	return count, stream(ctx, l.pool, table, q, counted)
}

// errSilent is the error of a mirror that takes questions and does not answer.
var errSilent = fmt.Errorf("the audit mirror is silent: %w", context.DeadlineExceeded)

// readMirror reads the mirror, but waits for no entry longer than it has patience.
func (l *Log) readMirror(ctx context.Context, q Query, fn func(*Entry) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(l.patience, func() { cancel(errSilent) })
	defer silence.Stop()
	err := l.mirror.Read(ctx, q, func(e *Entry) error {
		silence.Stop()
		defer silence.Reset(l.patience)
		return fn(e)
	})
	if err != nil && errors.Is(context.Cause(ctx), errSilent) {
		return errSilent
	}
	return err
}

// windows narrows the query to the span and cuts a limited one into stretches that
// grow: most pages end in the first, which touches few partitions.
func windows(q Query, s span) []Query {
	q.Since, q.Until = later(q.Since, s.from), earlier(q.Until, s.to)
	if q.After != nil {
		// A page goes on where the one before ended: nothing beyond is looked at.
		if q.Ascending {
			q.Since = later(q.Since, q.After.At)
		} else {
			q.Until = earlier(q.Until, q.After.At.Add(time.Millisecond))
		}
	}
	if !q.Since.IsZero() && !q.Until.IsZero() && !q.Since.Before(q.Until) {
		return nil
	}
	if q.Limit == 0 {
		return []Query{q}
	}
	var out []Query
	for length := 31 * 24 * time.Hour; len(out) < 3; length *= 4 {
		part := q
		if q.Ascending {
			if q.Since.IsZero() {
				break // no beginning to grow from
			}
			part.Until = earlier(q.Until, q.Since.Add(length))
			q.Since = part.Until
		} else {
			until := q.Until
			if until.IsZero() {
				until = time.Now().Add(24 * time.Hour)
			}
			part.Since = later(q.Since, until.Add(-length))
			q.Until = part.Since
		}
		out = append(out, part)
		if !q.Since.IsZero() && !q.Until.IsZero() && !q.Since.Before(q.Until) {
			return out
		}
	}
	return append(out, q)
}

// later and earlier treat zero as open.
func later(a, b time.Time) time.Time {
	if a.IsZero() || b.After(a) {
		return b
	}
	return a
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// Find reads one entry of an organization by its id; ok is false when there is none.
func (l *Log) Find(ctx context.Context, organizationID, id string) (e Entry, ok bool, err error) {
	id = strings.ToLower(id)
	at, ok := timeOf(id)
	if !ok {
		return Entry{}, false, nil
	}
	q := Query{OrganizationID: organizationID, Since: at, Until: at.Add(time.Millisecond)}
	sql, args := q.build(table)
	found, err := postgres.All(ctx, l.pool, "find entry", scan, sql, args...)
	if err != nil {
		return Entry{}, false, err
	}
	for _, each := range found {
		if each.ID == id {
			return each, true, nil
		}
	}
	if l.mirror == nil || l.now().Sub(at) < mirrorAge {
		return Entry{}, false, nil
	}
	asked, cancel := context.WithTimeout(ctx, l.patience)
	defer cancel()
	if e, ok, err = l.mirror.Find(asked, organizationID, id); err != nil {
		slog.WarnContext(ctx, "audit mirror not readable, an entry may be missed", "error", err)
		return Entry{}, false, nil
	}
	return e, ok, nil
}

// timeOf is when the entry with the id was created: ids are UUIDv7 of that time.
func timeOf(id string) (time.Time, bool) {
	parsed, err := uuid.Parse(id)
	if err != nil || len(id) != 36 || parsed.Version() != 7 {
		return time.Time{}, false
	}
	var ms int64
	for _, b := range parsed[:6] {
		ms = ms<<8 | int64(b)
	}
	return time.UnixMilli(ms).UTC(), true
}
