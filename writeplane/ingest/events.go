package ingest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
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
	persons      []string // identifiers of one person; nil: everybody
	name         string   // "": any
	since, until *time.Time
	after        *place
}

// Events serves GET /api/v1/events.
func (m *Module) Events(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	ctx, query := r.Context(), r.URL.Query()
	f, limit, err := m.eventFilter(r, c)
	if err != nil {
		return err
	}
	if f == nil {
		return reply.JSON(w, http.StatusOK, page.List[entry]("events", nil, "", false))
	}
	events, more, err := m.store.find(ctx, *f, limit)
	if err != nil {
		return err
	}
	next := ""
	if more {
		last := events[len(events)-1]
		next = m.cursors.Encode(r.URL.Path, query, place{last.Timestamp.UnixMicro(), last.ID})
	}
	if err := showResolved(ctx, m.store.db.App, f.scope, events); err != nil {
		return err
	}
	return reply.JSON(w, http.StatusOK, page.List("events", events, next, more))
}

// eventFilter reads the query. It is nil when nothing can match.
func (m *Module) eventFilter(r *http.Request, c *access.Call) (*filter, int, error) {
	ctx, query := r.Context(), r.URL.Query()
	scope, _, err := identity.ScopeOf(ctx, m.access, c, r)
	if err != nil {
		return nil, 0, err
	}
	f := &filter{scope: scope, name: query.Get("event_name")}
	if f.since, f.until, err = times(query); err != nil {
		return nil, 0, err
	}
	limit, err := page.Limit(query)
	if err != nil {
		return nil, 0, err
	}
	var after place
	if ok, err := m.cursors.Decode(r.URL.Path, query, &after); err != nil {
		return nil, 0, err
	} else if ok {
		f.after = &after
	}
	id := query.Get("distinct_id")
	for _, text := range []string{id, f.name} {
		if !utf8.ValidString(text) || strings.IndexByte(text, 0) >= 0 {
			return nil, 0, nil // no stored text is like that
		}
	}
	if id != "" {
		if f.persons, err = identity.Members(ctx, m.store.db.App, scope, id); err != nil {
			return nil, 0, err
		}
	}
	return f, limit, nil
}

// steps are how far back one query after another looks. There is an index by person,
// but none by time that could be read in order: a query over everybody's events looks
// at the newest minute first and reaches for more only while the page is not full.
var steps = [...]time.Duration{time.Minute, 10 * time.Minute, 2 * time.Hour, 24 * time.Hour, 10 * 24 * time.Hour}

// ahead is how far past its receipt an event's timestamp can lie, with room for clocks
// that differ.
const ahead = 25 * time.Hour

// find lists the newest events first, at most limit, or fewer when they are heavy. more
// tells whether others follow.
func (s *Store) find(ctx context.Context, f filter, limit int) (events []entry, more bool, err error) {
	if f.persons != nil {
		return s.read(ctx, f, nil, limit)
	}
	top := time.Now().Add(ahead)
	if f.until != nil && f.until.Before(top) {
		top = *f.until
	}
	if f.after != nil {
		if last := time.UnixMicro(f.after.Timestamp + 1).UTC(); last.Before(top) {
			top = last
		}
	}
	weight := 0
	for _, step := range append(steps[:], 0) {
		bottom := top.Add(-step)
		last := step == 0 || f.since != nil && !bottom.After(*f.since)
		window := f
		window.until = &top
		if !last {
			window.since = &bottom
		}
		found, more, err := s.read(ctx, window, &weight, limit-len(events))
		if err != nil {
			return nil, false, err
		}
		events = append(events, found...)
		switch {
		case more || last:
			return events, more, nil
		case len(events) == limit:
			// Full to the brim: whether more follow is for a look further back to tell.
			rest, _, err := s.read(ctx, before(f, bottom), nil, 1)
			return events, len(rest) > 0, err
		}
		top = bottom
	}
	return events, false, nil
}

func before(f filter, until time.Time) filter {
	f.until, f.after = &until, nil
	return f
}

const eventColumns = `id, event_name, distinct_id, anon_id, sent_anon_id, properties, default_properties, lib_version, timestamp, received_at, rewritten`

// read is one query. weight counts the bytes of the page so far; nil starts anew.
func (s *Store) read(ctx context.Context, f filter, weight *int, limit int) (events []entry, more bool, err error) {
	if weight == nil {
		weight = new(int)
	}
	sql, args := f.sql(limit + 1)
	rows, err := s.db.App.Query(ctx, sql, args...)
	if err != nil {
		return nil, false, fmt.Errorf("list events: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		if len(events) == limit || *weight > pageBytes {
			return events, true, nil
		}
		e, err := scanEvent(rows)
		if err != nil {
			return nil, false, fmt.Errorf("list events: %w", err)
		}
		*weight += len(e.Properties) + len(e.DefaultProperties)
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

func (f *filter) sql(limit int) (string, []any) {
	args := []any{f.scope.Project, int16(f.scope.Environment)}
	arg := func(v any) string {
		args = append(args, v)
		return fmt.Sprintf("$%d", len(args))
	}
	where := []string{"e.project_id = $1", "e.environment = $2", identity.HideErased}
	if f.persons != nil {
		where = append(where, "e.distinct_id = ANY("+arg(f.persons)+")")
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
	return `SELECT ` + eventColumns + ` FROM events e WHERE ` + strings.Join(where, " AND ") +
		` ORDER BY timestamp DESC, id DESC LIMIT ` + arg(limit), args
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
