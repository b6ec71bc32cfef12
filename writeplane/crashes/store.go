package crashes

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/crash"
	"skerry/pkg/id"
	"skerry/writeplane/access"
	"skerry/writeplane/postgres"
	"skerry/writeplane/symbols"
)

// Row is one accepted report on its way into the store.
type Row struct {
	ID, ProjectID, Environment string
	ReceivedAt                 time.Time
	Record                     []byte // what crash.Decode accepted
}

// BadRow is a row that cannot be stored.
type BadRow struct {
	Index  int // into the rows given
	Reason string
}

type scope struct{ project, environment string }

// Insert stores reports inside the transaction. An id that is stored already is
// skipped; err is the database's own failure.
func Insert(ctx context.Context, tx pgx.Tx, rows []Row) (bad []BadRow, err error) {
	releases := map[scope][]string{}
	batch := &pgx.Batch{}
	for i, r := range rows {
		e, err := crash.Decode(r.Record, r.ReceivedAt)
		if err != nil {
			bad = append(bad, BadRow{i, "malformed crash report: " + err.Error()})
			continue
		}
		record, err := e.Marshal()
		if err != nil {
			bad = append(bad, BadRow{i, err.Error()})
			continue
		}
		at := r.ReceivedAt
		if !e.Timestamp.IsZero() {
			at = e.Timestamp.Time
		}
		s := scope{r.ProjectID, r.Environment}
		releases[s] = append(releases[s], e.Release)
		batch.Queue(`
			INSERT INTO crash_events (id, project_id, environment, release, platform, distinct_id, "timestamp", received_at, debug_ids, record)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT (id) DO NOTHING`,
			r.ID, r.ProjectID, r.Environment, e.Release, e.Platform, e.DistinctID, at.UTC().Truncate(time.Millisecond),
			r.ReceivedAt.UTC().Truncate(time.Millisecond), debugIDs(e), record)
	}
	if batch.Len() == 0 {
		return bad, nil
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return bad, fmt.Errorf("insert crash reports: %w", err)
	}
	// In one order for everybody, or two batches could wait for each other's releases.
	scopes := slices.SortedFunc(maps.Keys(releases), func(a, b scope) int {
		return cmp.Or(cmp.Compare(a.project, b.project), cmp.Compare(a.environment, b.environment))
	})
	for _, s := range scopes {
		if err := symbols.Touch(ctx, tx, s.project, s.environment, releases[s]); err != nil {
			return bad, err
		}
	}
	return bad, nil
}

// LookAgain asks for another look at the reports of the last 24 hours that an artifact
// may serve: those of its release, or with one of its debug ids. A report that somebody
// is looking at right now may be taken at once for the other look (`wanted` rises);
// whichever of the two finishes first, the answers of the one that knows the artifact
// stay. Reports are locked in the order of their ids, as finish does, or the two would
// wait for each other.
func LookAgain(ctx context.Context, tx pgx.Tx, a *symbols.Artifact) error {
	_, err := tx.Exec(ctx, `
		WITH locked AS (
			SELECT id FROM crash_events
			WHERE project_id = $1 AND environment = $2 AND NOT settled AND received_at > now() - $3::interval
			  AND ($4 <> '' AND release = $4 OR debug_ids && $5 OR lower($6) = ANY (debug_ids))
			ORDER BY id FOR UPDATE
		)
		UPDATE crash_events e SET pending = true, wanted = e.wanted + 1, taken_until = '-infinity' FROM locked WHERE e.id = locked.id`,
		a.ProjectID, a.Environment, Window, a.Release, a.DebugIDs, a.MatchKey)
	if err != nil {
		return fmt.Errorf("ask for another look at crash reports: %w", err)
	}
	return nil
}

const selectEvent = `
	SELECT e.id, e.project_id, p.organization_id, e.environment, e."timestamp", e.received_at, e.record, e.answers
	FROM crash_events e JOIN projects p ON p.id = e.project_id WHERE p.deleted_at IS NULL AND `

func scanEvent(row pgx.CollectableRow) (*Event, error) {
	e := &Event{}
	err := row.Scan(&e.ID, &e.ProjectID, &e.OrganizationID, &e.Environment, &e.Timestamp, &e.ReceivedAt, &e.Record, &e.Answers)
	return e, err
}

func one(ctx context.Context, q postgres.Querier, eventID string) (*Event, error) {
	if !id.Valid(eventID) {
		return nil, access.ErrNotFound
	}
	found, ok, err := postgres.One(ctx, q, "read crash report", scanEvent, selectEvent+`e.id = $1`, eventID)
	if err == nil && !ok {
		return nil, access.ErrNotFound
	}
	return found, err
}

// position is where a page of the list ended.
type position struct {
	At time.Time `json:"at"`
	ID string    `json:"id"`
}

// pageBytes of records and answers end a page before its limit.
const pageBytes = 16 << 20

// page reads the reports behind a place, newest first; the zero position is before all of
// them. more tells whether others follow.
func page(ctx context.Context, q postgres.Querier, f filter, after position, limit int) (found []*Event, more bool, err error) {
	if after.ID == "" {
		// Also behind what came from an edge whose clock was ahead.
		after = position{time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC), "ffffffff-ffff-ffff-ffff-ffffffffffff"}
	}
	until := f.until
	if until.IsZero() {
		until = after.At.Add(time.Second)
	}
	rows, err := q.Query(ctx, selectEvent+`
		e.project_id = $1 AND e.environment = $2 AND (e."timestamp", e.id) < ($3, $4) AND e."timestamp" >= $5 AND e."timestamp" < $6
		AND ($7 = '' OR e.release = $7) AND ($8 = '' OR e.platform = $8) AND ($9 = '' OR e.distinct_id = $9)
		ORDER BY e."timestamp" DESC, e.id DESC LIMIT $10`,
		f.Get("project"), f.Get("environment"), after.At, after.ID, f.since, until,
		f.Get("release"), f.Get("platform"), f.Get("distinct_id"), limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("list crash reports: %w", err)
	}
	defer rows.Close()
	for weight := 0; rows.Next(); {
		if len(found) == limit || weight > pageBytes {
			return found, true, nil
		}
		e, err := scanEvent(rows)
		if err != nil {
			return nil, false, fmt.Errorf("list crash reports: %w", err)
		}
		found, weight = append(found, e), weight+len(e.Record)+len(e.Answers)
	}
	if err := rows.Err(); err != nil {
		return nil, false, fmt.Errorf("list crash reports: %w", err)
	}
	return found, false, nil
}

// claim is a report taken by a worker.
type claim struct {
	ID, ProjectID, Environment, Release string
	DebugIDs                            []string
	Record, Answers                     []byte
	Wanted                              int
}

// take claims pending reports for a while; whoever dies gives them up by time. They are
// as many as weigh roundBytes, and one more: a report may have 16 MiB.
func take(ctx context.Context, q postgres.Querier, limit int, term time.Duration) ([]claim, error) {
	return postgres.All(ctx, q, "take crash reports", scanClaim, `
		WITH free AS (
			SELECT id, received_at, octet_length(record) + coalesce(octet_length(answers), 0) AS weight
			FROM crash_events WHERE pending AND taken_until < now() ORDER BY received_at LIMIT $1 FOR UPDATE SKIP LOCKED
		), weighed AS (
			SELECT id, sum(weight) OVER (ORDER BY received_at, id) - weight AS before FROM free
		)
		UPDATE crash_events SET taken_until = now() + $2 WHERE id IN (SELECT id FROM weighed WHERE before < $3)
		RETURNING id, project_id, environment, release, debug_ids, record, answers, wanted`, limit, term, roundBytes)
}

// renew keeps reports taken for at least another term. It leaves out those for which
// another look was asked meanwhile: they are free to be taken for it.
func renew(ctx context.Context, q postgres.Querier, ids []string, term time.Duration) error {
	return exec(ctx, q, "keep crash reports taken", `
		WITH locked AS (
			SELECT id FROM crash_events WHERE id = ANY ($1::uuid[]) AND taken_until > now() ORDER BY id FOR UPDATE SKIP LOCKED
		)
		UPDATE crash_events e SET taken_until = greatest(e.taken_until, now() + $2) FROM locked WHERE e.id = locked.id`, ids, term)
}

// exec runs a statement that returns no rows.
func exec(ctx context.Context, q postgres.Querier, doing, sql string, args ...any) error {
	rows, err := q.Query(ctx, sql, args...)
	if err == nil {
		rows.Close()
		err = rows.Err()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

func scanClaim(row pgx.CollectableRow) (c claim, err error) {
	err = row.Scan(&c.ID, &c.ProjectID, &c.Environment, &c.Release, &c.DebugIDs, &c.Record, &c.Answers, &c.Wanted)
	return c, err
}

// done is a report with its answers.
type done struct {
	claim
	answers []byte
	settled bool
	awaits  bool // an artifact that is not indexed yet
}

// finish stores answers in one statement. A report that was asked for meanwhile stays
// pending, and free to be taken; one that awaits an artifact is taken again after a
// while even if nobody asks. Who was overtaken, having been slower than its claim lasts,
// stores nothing: it would take back what became readable.
func finish(ctx context.Context, q postgres.Querier, list []done) error {
	var ids []string
	var wanted []int
	var before, answers [][]byte
	var settled, awaits []bool
	for _, d := range list {
		ids, wanted = append(ids, d.ID), append(wanted, d.Wanted)
		before, answers = append(before, d.Answers), append(answers, d.answers)
		settled, awaits = append(settled, d.settled), append(awaits, d.awaits)
	}
	return exec(ctx, q, "store answers of crash reports", `
		WITH locked AS (SELECT id FROM crash_events WHERE id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE)
		UPDATE crash_events e SET answers = d.answers, settled = d.settled, pending = d.awaits OR e.wanted <> d.wanted,
			taken_until = CASE WHEN d.awaits AND e.wanted = d.wanted THEN now() + $6 ELSE '-infinity' END
		FROM unnest($1::uuid[], $2::int[], $3::bytea[], $4::boolean[], $5::boolean[], $7::bytea[]) AS d (id, wanted, answers, settled, awaits, before)
			JOIN locked ON locked.id = d.id
		WHERE e.id = d.id AND e.answers IS NOT DISTINCT FROM d.before`,
		ids, wanted, answers, settled, awaits, awaitFor, before)
}
