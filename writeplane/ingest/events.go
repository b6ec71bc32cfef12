package ingest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"skerry/pkg/instant"
	"skerry/pkg/page"
	"skerry/pkg/reply"
	"skerry/writeplane/access"
	"skerry/writeplane/identity"
	"skerry/writeplane/postgres"
)

// entry is one event of the answer (supplement §3).
type entry struct {
	ID                uuid.UUID       `json:"id"`
	EventName         string          `json:"event_name"`
	DistinctID        string          `json:"distinct_id"`
	AnonID            *string         `json:"anon_id"`
	SentAnonID        *string         `json:"sent_anon_id"`
	Properties        json.RawMessage `json:"properties"`
	DefaultProperties json.RawMessage `json:"default_properties"`
	LibVersion        *string         `json:"lib_version"`
	Timestamp         instant.Time    `json:"timestamp"`
	ReceivedAt        instant.Time    `json:"received_at"`

	rewritten bool
}

// place is where a page of events ends: events are listed by falling (timestamp, id).
type place struct {
	Timestamp int64     `json:"t"` // µs
	ID        uuid.UUID `json:"i"`
}

// filter is which events are asked for.
type filter struct {
	scope        identity.Scope
	person       string   // any identifier of one person; "": everybody
	holding      []string // identifiers of that person that hold events
	name         string   // "": any
	since, until *time.Time
	after        *place
	ids          []uuid.UUID // nil: any
}

// Events serves GET /api/v1/events.
func (m *Module) Events(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	ctx := r.Context()
	f, window, err := m.eventFilter(r, c)
	if err != nil {
		return err
	}
	if f == nil {
		return reply.JSON(w, http.StatusOK, page.List[entry]("events", nil, nil))
	}
	events, more, err := m.store.find(ctx, *f, window.Limit)
	if err != nil {
		return err
	}
	var next *string
	if more {
		last := events[len(events)-1]
		next = window.Cursor(place{last.Timestamp.UnixMicro(), last.ID})
	}
	return reply.JSON(w, http.StatusOK, page.List("events", events, next))
}

// eventFilter reads the query. It is nil when nothing can match.
func (m *Module) eventFilter(r *http.Request, c *access.Call) (_ *filter, window page.Window, err error) {
	ctx, query := r.Context(), r.URL.Query()
	scope, _, err := identity.ScopeOf(ctx, m.access, c, r)
	if err != nil {
		return nil, window, err
	}
	f := &filter{scope: scope, person: query.Get("distinct_id"), name: query.Get("event_name")}
	if f.since, f.until, err = times(query); err != nil {
		return nil, window, err
	}
	if window, err = m.cursors.Open(query, r.URL.Path+" of "+scope.Project.String(), query, &f.after); err != nil {
		return nil, window, err
	}
	for _, text := range []string{f.person, f.name} {
		if !utf8.ValidString(text) || strings.IndexByte(text, 0) >= 0 {
			return nil, window, nil // no stored text is like that
		}
	}
	return f, window, nil
}

// There is an index by person, but none by time that could be read in order: only a
// summary of which pages hold which times. So a query over everybody's events looks
// into one window of time after the other, the newest first, and makes them as long as
// they may hold some thousand events.
const (
	firstWindow = time.Minute
	windowMost  = 20_000 // events in a window; of more, a shorter one is tried
	widen       = 8
	lastWindow  = 400 * 24 * time.Hour // behind one so long, all the rest is one window
	// ahead is how far past its receipt an event's timestamp can lie, with room for
	// clocks that differ.
	ahead = 25 * time.Hour
)

// find lists the newest events first, at most limit, or fewer when they are heavy. more
// tells whether others follow. They are shown as they will be when history is rewritten.
func (s *Store) find(ctx context.Context, f filter, limit int) (events []entry, more bool, err error) {
	// One snapshot: a person's events move when the person is linked to another.
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, s.db.App, options, func(tx pgx.Tx) (err error) {
		if f.person != "" {
			if f.holding, err = identity.Holding(ctx, tx, f.scope, f.person); err != nil {
				return err
			}
		}
		if events, more, err = find(ctx, tx, f, limit); err != nil {
			return err
		}
		return showResolved(ctx, tx, f.scope, events)
	})
	return events, more, err
}

func find(ctx context.Context, tx pgx.Tx, f filter, limit int) (events []entry, more bool, err error) {
	if f.holding != nil {
		return read(ctx, tx, f, limit)
	}
	// The planner has no idea how well the summary of times fits a day that was never
	// analyzed.
	if _, err := tx.Exec(ctx, `SET LOCAL enable_seqscan = off`); err != nil {
		return nil, false, fmt.Errorf("find events: %w", err)
	}
	keys, err := newest(ctx, tx, f, limit+1, windowMost)
	if err != nil || len(keys) == 0 {
		return nil, false, err
	}
	shown := keys[:min(len(keys), limit)]
	for _, k := range shown {
		f.ids = append(f.ids, k.ID)
	}
	until, since := time.UnixMicro(shown[0].Timestamp+1), time.UnixMicro(shown[len(shown)-1].Timestamp)
	f.since, f.until, f.after = &since, &until, nil
	events, more, err = read(ctx, tx, f, limit)
	return events, more || len(keys) > limit, err
}

// newest finds the first n places, in windows that hold at most so many.
func newest(ctx context.Context, q identity.Querier, f filter, n, most int) (keys []place, err error) {
	now := time.Now()
	top := now.AddDate(200, 0, 0) // some clock may be far ahead; a Duration holds no more than 292 years
	if f.until != nil && f.until.Before(top) {
		top = *f.until
	}
	if f.after != nil {
		if last := time.UnixMicro(f.after.Timestamp + 1); last.Before(top) {
			top = last
		}
	}
	step, crowd := firstWindow, top // more than most lie between crowd and top
	if top.After(now) {
		step = top.Sub(now) + firstWindow // little lies in the future
	}
	for {
		window, last := f, step > lastWindow && !top.After(now)
		bottom := top.Add(-step)
		if f.since != nil && !bottom.After(*f.since) {
			bottom, last = *f.since, true
		}
		window.until = &top
		if !last || f.since != nil {
			window.since = &bottom
		}
		found, err := places(ctx, q, window, "", most+1)
		if err != nil {
			return nil, err
		}
		if len(found) > most && step <= time.Millisecond {
			// No window could be much shorter: let PostgreSQL sort.
			found, err = places(ctx, q, window, " ORDER BY e.timestamp DESC, e.id DESC", n)
			if err != nil {
				return nil, err
			}
		} else if len(found) > most {
			step = min(step, top.Sub(bottom)) / widen
			if last && f.since == nil {
				step, bottom = lastWindow/widen, top.Add(-lastWindow)
			}
			crowd = bottom
			continue
		}
		slices.SortFunc(found, func(a, b place) int {
			return cmp.Or(cmp.Compare(b.Timestamp, a.Timestamp), bytes.Compare(b.ID[:], a.ID[:]))
		})
		keys = append(keys, found[:min(len(found), n-len(keys))]...)
		if len(keys) == n || last {
			return keys, nil
		}
		if top.After(now) && !bottom.After(now) {
			step = firstWindow // out of the future
		}
		top, step = bottom, max(step*widen, time.Millisecond)
		if top.After(crowd) {
			step = min(step, max(top.Sub(crowd)/2, time.Millisecond)) // many are known to lie in there: close in on them
		}
	}
}

// places lists where up to n of the filter's events are.
func places(ctx context.Context, q identity.Querier, f filter, order string, n int) ([]place, error) {
	where, args := f.where()
	scan := func(row pgx.CollectableRow) (p place, err error) {
		var at time.Time
		err = row.Scan(&at, &p.ID)
		p.Timestamp = at.UnixMicro()
		return p, err
	}
	return postgres.All(ctx, q, "find events", scan,
		`SELECT e.timestamp, e.id FROM events e WHERE `+where+order+` LIMIT `+strconv.Itoa(n), args...)
}

const eventColumns = `id, event_name, distinct_id, anon_id, sent_anon_id, properties, default_properties, lib_version, timestamp, received_at, rewritten`

// read lists the filter's events in order, fewer than limit when they are heavy.
func read(ctx context.Context, q identity.Querier, f filter, limit int) (events []entry, more bool, err error) {
	where, args := f.where()
	rows, err := q.Query(ctx, `SELECT `+eventColumns+` FROM events e WHERE `+where+
		` ORDER BY e.timestamp DESC, e.id DESC LIMIT `+strconv.Itoa(limit+1), args...)
	if err != nil {
		return nil, false, fmt.Errorf("list events: %w", err)
	}
	defer rows.Close()
	weight := 0
	for rows.Next() {
		if len(events) == limit || weight > pageBytes {
			return events, true, nil
		}
		e, err := scanEvent(rows)
		if err != nil {
			return nil, false, fmt.Errorf("list events: %w", err)
		}
		weight += len(e.Properties) + len(e.DefaultProperties)
		events = append(events, e)
	}
	if err := rows.Err(); err != nil {
		return nil, false, fmt.Errorf("list events: %w", err)
	}
	return events, false, nil
}

func scanEvent(row pgx.CollectableRow) (e entry, err error) {
	var properties, defaults []byte
	var timestamp, received time.Time
	err = row.Scan(&e.ID, &e.EventName, &e.DistinctID, &e.AnonID, &e.SentAnonID, &properties, &defaults, &e.LibVersion,
		&timestamp, &received, &e.rewritten)
	e.Properties, e.DefaultProperties = properties, defaults
	e.Timestamp, e.ReceivedAt = instant.Of(timestamp), instant.Of(received)
	return e, err
}

// where is the filter as a condition on `events e`.
func (f *filter) where() (condition string, args []any) {
	args = []any{f.scope.Project, int16(f.scope.Environment)}
	arg := func(v any) string {
		args = append(args, v)
		return fmt.Sprintf("$%d", len(args))
	}
	where := []string{"e.project_id = $1", "e.environment = $2", identity.HideErased}
	if f.holding != nil {
		where = append(where, "e.distinct_id = ANY("+arg(f.holding)+")")
	} else {
		// The index by person begins with the project, and the planner likes it for
		// that; what it would have to read there is all of the project. No index serves
		// this form of equality, so what is left is the summary of times.
		where[0], where[1] = "e.project_id IS NOT DISTINCT FROM $1", "e.environment IS NOT DISTINCT FROM $2"
	}
	if f.name != "" {
		where = append(where, "e.event_name = "+arg(f.name))
	}
	if f.since != nil {
		// The second condition leaves out whole days.
		where = append(where, "e.timestamp >= "+arg(*f.since), "e.received_at >= "+arg(f.since.Add(-ahead)))
	}
	if f.until != nil {
		where = append(where, "e.timestamp < "+arg(*f.until))
	}
	if f.after != nil {
		where = append(where, "(e.timestamp, e.id) < ("+arg(time.UnixMicro(f.after.Timestamp))+", "+arg(f.after.ID)+")")
	}
	if f.ids != nil {
		where = append(where, "e.id = ANY("+arg(f.ids)+")")
	}
	return strings.Join(where, " AND "), args
}

// showResolved shows events whose history is not rewritten yet as they will be.
func showResolved(ctx context.Context, q identity.Querier, scope identity.Scope, events []entry) error {
	var ids []identity.ID
	for _, e := range events {
		ids = append(ids, identity.ID{Scope: scope, Text: e.DistinctID})
	}
	canonical, err := identity.Resolve(ctx, q, ids)
	if err != nil || len(canonical) == 0 {
		return err
	}
	for i := range events {
		e := &events[i]
		root, ok := canonical[identity.ID{Scope: scope, Text: e.DistinctID}]
		if !ok {
			continue
		}
		if !e.rewritten {
			own := e.DistinctID
			if e.AnonID != nil && *e.AnonID != own {
				e.SentAnonID = e.AnonID
			}
			e.AnonID = &own
		}
		e.DistinctID = root
	}
	return nil
}
