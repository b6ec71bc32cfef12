package ingest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"skerry/pkg/event"
	"skerry/pkg/id"
	"skerry/pkg/instant"
	"skerry/pkg/problem"
	"skerry/replication/up"
	"skerry/writeplane/access"
	"skerry/writeplane/blobs"
	"skerry/writeplane/identity"
)

// letter is a dead letter: an accepted operation that cannot be stored.
type letter struct {
	id          uuid.UUID
	scope       identity.Scope
	lane        up.Lane
	reason      string
	payload     []byte
	blobKey     *string
	blobBytes   *int64
	extra       []byte
	receivedAt  time.Time
	replayedAt  *time.Time
	edge        string
	incarnation uuid.UUID
	number      int64
}

// kinds are the lanes' operations in the words of the API.
var kinds = map[up.Lane]string{up.LaneAlias: "alias", up.LanePeople: "people", up.LaneEvent: "track", up.LaneCrash: "crash"}

const letterColumns = `d.id, d.project_id, d.environment, d.lane, d.reason, d.payload, d.blob_key, d.blob_bytes, d.extra,
	d.received_at, d.replayed_at, d.edge, d.incarnation, d.number`

func scanLetter(row pgx.Row) (l letter, err error) {
	var environment, lane int16
	err = row.Scan(&l.id, &l.scope.Project, &environment, &lane, &l.reason, &l.payload, &l.blobKey, &l.blobBytes, &l.extra,
		&l.receivedAt, &l.replayedAt, &l.edge, &l.incarnation, &l.number)
	l.scope.Environment, l.lane = up.Environment(environment), up.Lane(lane)
	return l, err
}

// weight is how many bytes of payload the entry shows.
func (l *letter) weight() int64 {
	if l.blobBytes != nil {
		return *l.blobBytes
	}
	return int64(len(l.payload))
}

// letterPlace is where a page of dead letters ends: newest first by receipt.
type letterPlace struct {
	ReceivedAt int64     `json:"t"` // µs
	ID         uuid.UUID `json:"i"`
}

// DeadLetters serves GET /api/v1/ingest/dead-letters. The answer is written entry by
// entry: a payload may be hundreds of megabytes and is streamed out of the blob store.
func (m *Module) DeadLetters(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	ctx, query := r.Context(), r.URL.Query()
	scope, _, err := identity.ScopeOf(ctx, m.access, c, r)
	if err != nil {
		return err
	}
	after := letterPlace{ReceivedAt: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro(), ID: uuid.Max}
	window, err := m.cursors.Open(query, r.URL.Path+" of "+scope.Project.String(), query, &after)
	if err != nil {
		return err
	}
	letters, more, err := m.store.letters(ctx, scope, after, window.Limit)
	if err != nil {
		return err
	}
	var cursor *string
	if more {
		last := letters[len(letters)-1]
		cursor = window.Cursor(letterPlace{last.receivedAt.UnixMicro(), last.id})
	}
	next, _ := json.Marshal(cursor) // a string always marshals, and so does its absence
	writeHeader(w)
	_, _ = io.WriteString(w, `{"dead_letters":[`)
	for i := range letters {
		if i > 0 {
			_, _ = io.WriteString(w, ",")
		}
		if err := m.store.show(ctx, w, &letters[i]); err != nil {
			// Too late for another status: the client must not take the half for the whole.
			panic(http.ErrAbortHandler)
		}
	}
	_, _ = fmt.Fprintf(w, `],"next_cursor":%s,"has_more":%t}`, next, more)
	return nil
}

func (s *Store) letters(ctx context.Context, scope identity.Scope, after letterPlace, limit int) (letters []letter, more bool, err error) {
	rows, err := s.db.App.Query(ctx, `SELECT `+letterColumns+` FROM dead_letters d
		WHERE d.project_id = $1 AND d.environment = $2 AND (d.received_at, d.id) < ($3, $4)
		ORDER BY d.received_at DESC, d.id DESC LIMIT $5`,
		scope.Project, int16(scope.Environment), time.UnixMicro(after.ReceivedAt), after.ID, limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("list dead letters: %w", err)
	}
	defer rows.Close()
	weight := int64(0)
	for rows.Next() {
		if len(letters) == limit || weight > pageBytes {
			return letters, true, nil
		}
		l, err := scanLetter(rows)
		if err != nil {
			return nil, false, fmt.Errorf("list dead letters: %w", err)
		}
		weight += l.weight()
		letters = append(letters, l)
	}
	if err := rows.Err(); err != nil {
		return nil, false, fmt.Errorf("list dead letters: %w", err)
	}
	return letters, false, nil
}

// show writes one entry (supplement §3).
func (s *Store) show(ctx context.Context, w io.Writer, l *letter) error {
	reason, err := json.Marshal(l.reason)
	if err != nil {
		return err
	}
	received, _ := instant.Of(l.receivedAt).MarshalJSON() // never fails
	replayed := []byte("null")
	if l.replayedAt != nil {
		replayed, _ = instant.Of(*l.replayedAt).MarshalJSON()
	}
	if _, err := fmt.Fprintf(w, `{"id":"%s","kind":"%s","environment":"%s","reason":%s,"received_at":%s,"replayed_at":%s,"payload":"`,
		l.id, kinds[l.lane], l.scope.Environment, reason, received, replayed); err != nil {
		return err
	}
	encoder := base64.NewEncoder(base64.StdEncoding, w)
	if l.blobKey == nil {
		_, err = encoder.Write(l.payload)
	} else {
		err = s.copyBlob(ctx, encoder, *l.blobKey)
	}
	if err == nil {
		err = encoder.Close()
	}
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, `"}`)
	return err
}

func (s *Store) copyBlob(ctx context.Context, w io.Writer, key string) error {
	blob, err := s.blobs.Open(ctx, key)
	if errors.Is(err, blobs.ErrNotFound) {
		return nil // its bytes never came; the reason says so
	}
	if err != nil {
		return err
	}
	defer func() { _ = blob.Close() }()
	_, err = io.Copy(w, blob)
	return err
}

// errNotStorable is the 422 of a replay that would end in the dead letters again.
var errNotStorable = problem.New(problem.Unprocessable, "not_storable")

func notStorable(reason string) error {
	copied := *errNotStorable
	copied.Message = "the operation still cannot be stored: " + reason
	return &copied
}

// Replay serves POST /api/v1/ingest/dead-letters/{id}/replay: the operation is stored
// as if it came now, under its own number and time of receipt. Once replayed it stays
// so; a second call changes nothing.
func (m *Module) Replay(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	ctx := r.Context()
	if !id.Valid(r.PathValue("id")) {
		return access.ErrNotFound
	}
	// The cursor is locked before the letter, as the receiver does.
	l, err := m.visibleLetter(ctx, r.PathValue("id"), c)
	if err != nil {
		return err
	}
	if l.replayedAt == nil {
		if err := m.store.replay(ctx, &l); err != nil {
			return err
		}
	}
	writeHeader(w)
	_, _ = io.WriteString(w, `{"dead_letter":`)
	if err := m.store.show(ctx, w, &l); err != nil {
		panic(http.ErrAbortHandler)
	}
	_, _ = io.WriteString(w, `}`)
	return nil
}

func (m *Module) visibleLetter(ctx context.Context, letterID string, c *access.Call) (letter, error) {
	var organization string
	l, err := scanLetter(withOrganization{m.store.db.App.QueryRow(ctx, `
		SELECT p.organization_id::text, `+letterColumns+` FROM dead_letters d JOIN projects p ON p.id = d.project_id
		WHERE d.id = $1 AND p.deleted_at IS NULL`, letterID), &organization})
	if errors.Is(err, pgx.ErrNoRows) {
		return l, access.ErrNotFound
	}
	if err != nil {
		return l, fmt.Errorf("read a dead letter: %w", err)
	}
	return l, c.See(access.Project{ID: l.scope.Project.String(), OrganizationID: organization})
}

// withOrganization scans one column more, in front.
type withOrganization struct {
	pgx.Row
	id *string
}

func (w withOrganization) Scan(dest ...any) error { return w.Row.Scan(append([]any{w.id}, dest...)...) }

// maxReplayBytes bounds what a replay reads into memory.
const maxReplayBytes = 64 << 20

// replay stores the letter's operation and moves it in the books from dead to what
// became of it.
func (s *Store) replay(ctx context.Context, l *letter) error {
	op, err := s.reread(ctx, l)
	if err != nil {
		return err
	}
	s.days.ensure(ctx, map[time.Time]bool{dayOf(l.receivedAt): true})
	in := up.Incarnation{ID: l.incarnation}
	return pgx.BeginFunc(ctx, s.db.App, func(tx pgx.Tx) error {
		if _, err := lockCursor(ctx, tx, l.edge, l.lane, in); err != nil {
			return err
		}
		load := &load{edge: l.edge, lane: l.lane, in: in, scopes: []identity.Scope{l.scope}, oldest: l.receivedAt}
		if err := load.lock(ctx, tx); err != nil { // before the letter, which an erasure takes behind this lock
			return err
		}
		var replayed *time.Time
		err := tx.QueryRow(ctx, `SELECT replayed_at FROM dead_letters WHERE id = $1 FOR UPDATE`, l.id).Scan(&replayed)
		if errors.Is(err, pgx.ErrNoRows) {
			return access.ErrNotFound // erased meanwhile
		}
		if err != nil {
			return fmt.Errorf("lock a dead letter: %w", err)
		}
		if replayed != nil {
			l.replayedAt = replayed
			return nil
		}
		load.rows = []row{{Operation: op, scope: l.scope, number: uint64(l.number), receivedAt: l.receivedAt.UnixMicro()}}
		if err := s.settleRows(ctx, tx, load); err != nil {
			return err
		}
		if load.rows[0].fate == dead {
			return notStorable(load.rows[0].reason)
		}
		return l.finish(ctx, tx, load.rows[0].fate)
	})
}

func (l *letter) finish(ctx context.Context, tx pgx.Tx, f fate) error {
	counts := [4]int64{dead: -1}
	counts[f]++
	if _, err := tx.Exec(ctx, `
		UPDATE ingest_cursors SET stored = stored + $4, duplicate = duplicate + $5, erased = erased + $6, dead = dead + $7
		WHERE edge = $1 AND lane = $2 AND incarnation = $3`,
		l.edge, int16(l.lane), l.incarnation, counts[stored], counts[duplicate], counts[erased], counts[dead]); err != nil {
		return fmt.Errorf("move in the books: %w", err)
	}
	if err := tx.QueryRow(ctx, `UPDATE dead_letters SET replayed_at = now() WHERE id = $1 RETURNING replayed_at`, l.id).Scan(&l.replayedAt); err != nil {
		return fmt.Errorf("mark a dead letter: %w", err)
	}
	return nil
}

// reread makes the operation of the payload again.
func (s *Store) reread(ctx context.Context, l *letter) (up.Operation, error) {
	payload := l.payload
	if l.blobKey != nil {
		if *l.blobBytes > maxReplayBytes {
			return up.Operation{}, notStorable("too_large")
		}
		blob, err := s.blobs.Open(ctx, *l.blobKey)
		if errors.Is(err, blobs.ErrNotFound) {
			return up.Operation{}, notStorable("payload_missing")
		}
		if err != nil {
			return up.Operation{}, fmt.Errorf("open payload: %w", err)
		}
		defer func() { _ = blob.Close() }()
		if payload, err = io.ReadAll(io.LimitReader(blob, maxReplayBytes)); err != nil {
			return up.Operation{}, fmt.Errorf("read payload: %w", err)
		}
	}
	if l.lane == up.LaneCrash {
		op := up.Operation{Raw: payload}
		copy(op.ID[:], l.extra)
		return op, nil
	}
	return parsePayload(payload, l.lane, l.receivedAt)
}

var eventKinds = map[up.Lane]event.Kind{up.LaneAlias: event.Alias, up.LanePeople: event.People, up.LaneEvent: event.Track}

// parsePayload reads a payload as an edge does.
func parsePayload(payload []byte, lane up.Lane, receivedAt time.Time) (up.Operation, error) {
	var taken one
	if _, err := event.NewParser().Single(payload, eventKinds[lane], receivedAt, &taken); err != nil {
		return up.Operation{}, notStorable(err.Error())
	}
	if !taken.ok {
		return up.Operation{}, notStorable("garbage")
	}
	return taken.op, nil
}

// one is an event.Sink that keeps the one operation of a payload.
type one struct {
	op up.Operation
	ok bool
}

// Operation implements event.Sink. Its slices die with the call.
func (o *one) Operation(op *event.Operation) error {
	o.ok = true
	keep := func(b []byte) []byte {
		if b == nil {
			return nil
		}
		return append([]byte{}, b...)
	}
	o.op = up.Operation{
		Unstorable: up.Reason(op.Unstorable), EventName: keep(op.EventName), DistinctID: keep(op.DistinctID), AnonID: keep(op.AnonID),
		InsertID: keep(op.InsertID), LibVersion: keep(op.LibVersion), AliasID: keep(op.AliasID), Timestamp: op.Timestamp,
		Properties: keep(op.Properties), DefaultProperties: keep(op.DefaultProperties),
	}
	if op.Unstorable != 0 {
		o.op.Raw = keep(op.Payload)
	}
	return nil
}

// Large implements event.Sink; a payload in memory is never handed on in pieces.
func (o *one) Large([]byte) error { return errors.New("BUG: a payload in memory came in pieces") }

// DropLarge implements event.Sink.
func (o *one) DropLarge() error { return nil }

// Restart implements event.Sink.
func (o *one) Restart() error { return nil }
