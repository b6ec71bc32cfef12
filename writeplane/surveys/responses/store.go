package responses

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

// The lifetimes of what is kept for a while only.
const (
	idempotencyFor = 24 * time.Hour
	partialFor     = 7 * 24 * time.Hour
)

// Locks are taken in one order by every process: idempotency keys sorted, then usage
// rows sorted, then partial responses sorted. So two groups never wait for each other.
const (
	// The survey is looked at, not locked: a save that commits behind this look is
	// simply later than the submission.
	currentSQL = `SELECT id, updated_at FROM surveys WHERE id = ANY ($1)`

	// An expired key is taken over. A key that another transaction has just written
	// is waited for.
	claimSQL = `
INSERT INTO survey_idempotency AS i (project_id, environment, key, body_sha256, answer, created_at)
SELECT *, $6::timestamptz FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[], $5::bytea[])
ON CONFLICT (project_id, environment, key) DO UPDATE
	SET body_sha256 = excluded.body_sha256, answer = excluded.answer, created_at = excluded.created_at
	WHERE i.created_at <= $7
RETURNING project_id, environment, key`

	openUsageSQL = `
INSERT INTO survey_usage (project_id, month, responses)
SELECT p, $2, 0 FROM unnest($1::uuid[]) p ON CONFLICT DO NOTHING`

	lockUsageSQL = `
SELECT project_id, responses FROM survey_usage
WHERE project_id = ANY ($1) AND month = $2 ORDER BY project_id FOR UPDATE`

	priorSQL = `
SELECT i.project_id, i.environment, i.key, i.body_sha256, i.answer
FROM survey_idempotency i
JOIN unnest($1::uuid[], $2::text[], $3::text[]) AS k (project_id, environment, key) USING (project_id, environment, key)`

	unclaimSQL = `
DELETE FROM survey_idempotency i USING unnest($1::uuid[], $2::text[], $3::text[]) AS k (project_id, environment, key)
WHERE i.project_id = k.project_id AND i.environment = k.environment AND i.key = k.key`

	raiseUsageSQL = `
UPDATE survey_usage u SET responses = u.responses + n.stored
FROM unnest($1::uuid[], $2::bigint[]) AS n (project_id, stored)
WHERE u.project_id = n.project_id AND u.month = $3`

	responsesSQL = `
INSERT INTO survey_responses (survey_id, id, project_id, environment, user_id, external_id, email,
	release_version, device_model, os_version, distribution_id, score, submitted_at, received_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[],
	$8::text[], $9::text[], $10::text[], $11::text[], $12::integer[], $13::timestamptz[], $14::timestamptz[])`

	answersSQL = `
INSERT INTO survey_answers (survey_id, response_id, question_id, order_index, kind, digest, value)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::integer[], $5::text[], $6::bytea[], $7::json[])`

	finishPartialsSQL = `
WITH ended AS (
	SELECT p.project_id, p.environment, p.survey_id, p.external_id FROM survey_partials p
	JOIN unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) AS s (project_id, environment, survey_id, external_id)
		USING (project_id, environment, survey_id, external_id)
	ORDER BY 1, 2, 3, 4 FOR UPDATE OF p
)
DELETE FROM survey_partials p USING ended e
WHERE p.project_id = e.project_id AND p.environment = e.environment AND p.survey_id = e.survey_id AND p.external_id = e.external_id`
)

// idempotencyScope is within what an Idempotency-Key is one.
type idempotencyScope struct{ project, environment, key string }

func (s *submission) scope() idempotencyScope {
	return idempotencyScope{s.key.ProjectID, s.key.Environment, s.idempotencyKey}
}

// standing is what the database says about a group before any of it is stored.
type standing struct {
	savedAt map[string]time.Time       // of each survey
	claimed map[idempotencyScope]bool  // keys that are ours now
	used    map[string]int64           // of each project's quota; the rows are locked
	prior   map[idempotencyScope]prior // what the other keys were used for
}

type prior struct{ bodyHash, answer []byte }

// storeGroup decides about each submission of a group and stores what is accepted. No
// two of the group have one Idempotency-Key.
func storeGroup(ctx context.Context, tx *commit.Tx, group []*submission) ([]outcome, error) {
	now := group[len(group)-1].receivedAt
	month := time.Date(now.UTC().Year(), now.UTC().Month(), 1, 0, 0, 0, 0, time.UTC)
	at, err := stand(ctx, tx, group, month, now)
	if err != nil {
		return nil, err
	}
	outcomes := make([]outcome, len(group))
	accepted := make([]*submission, 0, len(group))
	var unclaimed []idempotencyScope
	for i, s := range group {
		outcomes[i] = at.judge(s)
		switch {
		case outcomes[i].stored:
			at.used[s.key.ProjectID]++
			accepted = append(accepted, s)
		case at.claimed[s.scope()]:
			unclaimed = append(unclaimed, s.scope())
		}
	}
	if err := write(ctx, tx, accepted, unclaimed, month); err != nil {
		return nil, err
	}
	for _, s := range accepted {
		handOver(tx, s)
	}
	return outcomes, nil
}

// judge decides about one submission, in the order of supplement §5's checks: a
// repetition is answered whatever has become of the survey, then the survey must be
// the one that the answers were checked against, then comes the quota.
func (at *standing) judge(s *submission) outcome {
	if s.idempotencyKey != "" && !at.claimed[s.scope()] {
		first := at.prior[s.scope()]
		if !bytes.Equal(first.bodyHash, s.bodyHash) {
			return outcome{err: errIdempotency}
		}
		return outcome{answer: first.answer}
	}
	if saved, exists := at.savedAt[s.form.id]; !exists || !saved.Equal(s.form.updatedAt) {
		return outcome{err: errStale}
	}
	used := at.used[s.key.ProjectID]
	if limit := s.key.Quotas.Responses; limit != nil && used >= *limit {
		return outcome{err: quotaExceeded(used, *limit)}
	}
	return outcome{answer: s.answer, stored: true}
}

// stand claims the group's idempotency keys, locks its projects' usage and reads what
// judge needs, in one round trip, and one more when a key was used before.
func stand(ctx context.Context, tx pgx.Tx, group []*submission, month, now time.Time) (*standing, error) {
	at := &standing{
		savedAt: make(map[string]time.Time), claimed: make(map[idempotencyScope]bool),
		used: make(map[string]int64), prior: make(map[idempotencyScope]prior),
	}
	var batch pgx.Batch
	batch.Queue(currentSQL, distinct(group, func(s *submission) string { return s.form.id })).Query(func(rows pgx.Rows) error {
		return each(rows, func(id string, saved time.Time) { at.savedAt[id] = saved })
	})
	keyed := slices.DeleteFunc(slices.Clone(group), func(s *submission) bool { return s.idempotencyKey == "" })
	slices.SortFunc(keyed, func(a, b *submission) int {
		return cmp.Or(cmp.Compare(a.key.ProjectID, b.key.ProjectID), cmp.Compare(a.key.Environment, b.key.Environment), cmp.Compare(a.idempotencyKey, b.idempotencyKey))
	})
	if len(keyed) > 0 {
		scopes := scopesOf(keyed)
		hashes, answers := make([][]byte, len(keyed)), make([][]byte, len(keyed))
		for i, s := range keyed {
			hashes[i], answers[i] = s.bodyHash, s.answer
		}
		batch.Queue(claimSQL, scopes.projects, scopes.environments, scopes.keys, hashes, answers, now, now.Add(-idempotencyFor)).Query(func(rows pgx.Rows) error {
			var scope idempotencyScope
			_, err := pgx.ForEachRow(rows, []any{&scope.project, &scope.environment, &scope.key}, func() error {
				at.claimed[scope] = true
				return nil
			})
			return err
		})
	}
	projects := distinct(group, func(s *submission) string { return s.key.ProjectID })
	batch.Queue(openUsageSQL, projects, month)
	batch.Queue(lockUsageSQL, projects, month).Query(func(rows pgx.Rows) error {
		return each(rows, func(project string, used int64) { at.used[project] = used })
	})
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, fmt.Errorf("prepare %d responses: %w", len(group), err)
	}
	used := slices.DeleteFunc(keyed, func(s *submission) bool { return at.claimed[s.scope()] })
	if len(used) == 0 {
		return at, nil
	}
	return at, readPrior(ctx, tx, scopesOf(used), at.prior)
}

func readPrior(ctx context.Context, q postgres.Querier, scopes scopes, into map[idempotencyScope]prior) error {
	rows, err := q.Query(ctx, priorSQL, scopes.projects, scopes.environments, scopes.keys)
	if err != nil {
		return fmt.Errorf("read idempotency keys: %w", err)
	}
	var scope idempotencyScope
	var first prior
	_, err = pgx.ForEachRow(rows, []any{&scope.project, &scope.environment, &scope.key, &first.bodyHash, &first.answer}, func() error {
		into[scope] = prior{bytes.Clone(first.bodyHash), bytes.Clone(first.answer)}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read idempotency keys: %w", err)
	}
	return nil
}

// scopes are idempotency scopes by column.
type scopes struct{ projects, environments, keys []string }

func scopesOf(group []*submission) (c scopes) {
	for _, s := range group {
		c.add(s.scope())
	}
	return c
}

func (c *scopes) add(s idempotencyScope) {
	c.projects, c.environments, c.keys = append(c.projects, s.project), append(c.environments, s.environment), append(c.keys, s.key)
}

// distinct are the sorted different values that of gives for the group.
func distinct(group []*submission, of func(*submission) string) []string {
	values := make([]string, len(group))
	for i, s := range group {
		values[i] = of(s)
	}
	slices.Sort(values)
	return slices.Compact(values)
}

// each calls f with the two columns of every row.
func each[A, B any](rows pgx.Rows, f func(A, B)) error {
	var a A
	var b B
	_, err := pgx.ForEachRow(rows, []any{&a, &b}, func() error {
		f(a, b)
		return nil
	})
	return err
}

// write stores the accepted submissions and gives back the keys of the refused, in
// one round trip.
func write(ctx context.Context, tx pgx.Tx, accepted []*submission, unclaimed []idempotencyScope, month time.Time) error {
	var batch pgx.Batch
	if len(unclaimed) > 0 {
		var c scopes
		for _, s := range unclaimed {
			c.add(s)
		}
		batch.Queue(unclaimSQL, c.projects, c.environments, c.keys)
	}
	if len(accepted) > 0 {
		queueUsage(&batch, accepted, month)
		queueResponses(&batch, accepted)
		queueAnswers(&batch, accepted)
		queuePartials(&batch, accepted)
	}
	if batch.Len() == 0 {
		return nil
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("store %d responses: %w", len(accepted), err)
	}
	return nil
}

func queueUsage(batch *pgx.Batch, accepted []*submission, month time.Time) {
	projects := distinct(accepted, func(s *submission) string { return s.key.ProjectID })
	counts := make([]int64, len(projects))
	for _, s := range accepted {
		at, _ := slices.BinarySearch(projects, s.key.ProjectID)
		counts[at]++
	}
	batch.Queue(raiseUsageSQL, projects, counts, month)
}

func queueResponses(batch *pgx.Batch, accepted []*submission) {
	n := len(accepted)
	var (
		surveys, ids, projects, environments      = make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		users, externals, emails                  = make([]*string, n), make([]*string, n), make([]*string, n)
		releases, devices, systems, distributions = make([]*string, n), make([]*string, n), make([]*string, n), make([]*string, n)
		scores                                    = make([]*int, n)
		submitted, received                       = make([]time.Time, n), make([]time.Time, n)
	)
	for i, s := range accepted {
		surveys[i], ids[i], projects[i], environments[i] = s.form.id, s.id, s.key.ProjectID, s.key.Environment
		users[i], externals[i], emails[i] = s.respondent.UserID, s.respondent.ExternalID, s.respondent.Email
		releases[i], devices[i] = s.context.ReleaseVersion, s.context.DeviceModel
		systems[i], distributions[i] = s.context.OSVersion, s.context.DistributionID
		scores[i], submitted[i], received[i] = s.score, s.submittedAt, s.receivedAt
	}
	batch.Queue(responsesSQL, surveys, ids, projects, environments, users, externals, emails,
		releases, devices, systems, distributions, scores, submitted, received)
}

func queueAnswers(batch *pgx.Batch, accepted []*submission) {
	var surveys, responses, questions, kinds, values []string
	var places []int
	var digests [][]byte
	for _, s := range accepted {
		for _, g := range s.given {
			surveys, responses, questions = append(surveys, s.form.id), append(responses, s.id), append(questions, g.Question.ID)
			places, kinds = append(places, g.Question.OrderIndex), append(kinds, g.Question.Kind)
			digests, values = append(digests, s.form.digests[g.Question.ID]), append(values, string(g.Value))
		}
	}
	if len(questions) > 0 {
		batch.Queue(answersSQL, surveys, responses, questions, places, kinds, digests, values)
	}
}

func queuePartials(batch *pgx.Batch, accepted []*submission) {
	var projects, environments, surveys, externals []string
	for _, s := range accepted {
		if s.respondent.ExternalID != nil {
			projects, environments = append(projects, s.key.ProjectID), append(environments, s.key.Environment)
			surveys, externals = append(surveys, s.form.id), append(externals, *s.respondent.ExternalID)
		}
	}
	if len(externals) > 0 {
		batch.Queue(finishPartialsSQL, projects, environments, surveys, externals)
	}
}

// handOver gives the transaction the response's webhook event and, where the project
// wants it, its audit entry.
func handOver(tx *commit.Tx, s *submission) {
	shown := s.submitted()
	tx.Emit(commit.Event{
		Name: eventSubmitted, OrganizationID: s.key.OrganizationID, ProjectID: s.key.ProjectID,
		Environment: s.key.Environment, Data: shown,
	})
	if !s.key.AuditResponses {
		return
	}
	tx.Audit(commit.Entry{
		OrganizationID: s.key.OrganizationID, ProjectID: s.key.ProjectID,
		Actor:  commit.Actor{ID: "api_key:" + s.key.KeyID},
		Action: eventSubmitted, ResourceType: "survey_response", ResourceID: s.id, After: shown,
		// One transaction stores many requests' responses: each entry names its own.
		Metadata: map[string]any{"request_id": s.call.RequestID, "ip": s.call.IP, "user_agent": s.call.UserAgent},
	})
}

// eventSubmitted names the outbound event and the audit action of a stored response.
const eventSubmitted = "pulse.response.submitted"

// sweepRows bounds one statement of removeExpired, so that none holds many locks.
const sweepRows = 5000

// removeExpired removes partial responses and idempotency keys past their time at a time,
// by the database's clock too.
func removeExpired(ctx context.Context, pool *pgxpool.Pool, now time.Time) error {
	now, err := postgres.Earlier(ctx, pool, now)
	if err != nil {
		return err
	}
	for _, sweep := range []struct {
		sql    string
		before time.Time
	}{
		{`DELETE FROM survey_partials WHERE ctid IN (SELECT ctid FROM survey_partials WHERE expires_at <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED)`, now},
		{`DELETE FROM survey_idempotency WHERE ctid IN (SELECT ctid FROM survey_idempotency WHERE created_at <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED)`, now.Add(-idempotencyFor)},
	} {
		for {
			done, err := pool.Exec(ctx, sweep.sql, sweep.before, sweepRows)
			if err != nil {
				return fmt.Errorf("remove expired rows: %w", err)
			}
			if done.RowsAffected() < sweepRows {
				break
			}
		}
	}
	return nil
}
