package responses

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/apikey"
	"skerry/pkg/instant"
	"skerry/pkg/page"
	"skerry/pkg/problem"
	"skerry/pkg/reply"
	"skerry/pkg/survey"
	"skerry/writeplane/access"
	"skerry/writeplane/postgres"
	"skerry/writeplane/surveys"
)

// Result is one stored response. Questions are the answered ones as they were when
// they were answered, in order.
type Result struct {
	ID          string                     `json:"id"`
	SurveyID    string                     `json:"survey_id"`
	Env         string                     `json:"env"`
	Score       *int                       `json:"score"`
	Respondent  survey.Respondent          `json:"respondent"`
	Context     survey.Context             `json:"context"`
	Answers     map[string]json.RawMessage `json:"answers"`
	Questions   []AnsweredQuestion         `json:"questions"`
	SubmittedAt instant.Time               `json:"submitted_at"`
	ReceivedAt  instant.Time               `json:"received_at"`
}

// AnsweredQuestion is a question's snapshot.
type AnsweredQuestion struct {
	ID         string        `json:"id"`
	Kind       string        `json:"kind"`
	Prompt     string        `json:"prompt"`
	OrderIndex int           `json:"order_index"`
	Config     survey.Config `json:"config"`
}

// filter narrows results; empty members narrow nothing. Times are of submission.
type filter struct {
	environment, release, distribution string
	since, until                       *time.Time
}

func readFilter(query url.Values) (f filter, err error) {
	f = filter{environment: query.Get("environment"), release: query.Get("release_version"), distribution: query.Get("distribution_id")}
	if f.environment != "" && f.environment != apikey.Live && f.environment != apikey.Test {
		return f, problem.Newf(problem.Invalid, "invalid_environment", "environment must be live or test")
	}
	if strings.IndexByte(f.release+f.distribution, 0) >= 0 {
		return f, problem.Newf(problem.Invalid, "invalid_filter", "a filter contains NUL")
	}
	if f.since, err = instantOf(query, "since"); err != nil {
		return f, err
	}
	f.until, err = instantOf(query, "until")
	return f, err
}

func instantOf(query url.Values, name string) (*time.Time, error) {
	if query.Get(name) == "" {
		return nil, nil
	}
	at, err := instant.Parse(query.Get(name))
	if err != nil {
		return nil, problem.Newf(problem.Invalid, "invalid_"+name, "%s is not an ISO 8601 time", name)
	}
	return &at, nil
}

// where is the filter in SQL over survey_responses r; its arguments are $1 to $6.
const where = ` r.survey_id = $1 AND ($2 = '' OR r.environment = $2) AND ($3 = '' OR r.release_version = $3)
	AND ($4 = '' OR r.distribution_id = $4) AND ($5::timestamptz IS NULL OR r.submitted_at >= $5)
	AND ($6::timestamptz IS NULL OR r.submitted_at < $6) `

func (f filter) args(surveyID string, more ...any) []any {
	return append([]any{surveyID, f.environment, f.release, f.distribution, f.since, f.until}, more...)
}

// List serves GET /api/v1/pulse/surveys/{id}/responses: newest first.
func (m *Module) List(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	stored, err := m.surveys.Visible(r, c)
	if err != nil {
		return err
	}
	query := r.URL.Query()
	f, err := readFilter(query)
	if err != nil {
		return err
	}
	surveyID := stored.Bundle.Survey.ID
	var after string
	window, err := m.access.Cursors().Open(query, "responses of "+surveyID, query, &after)
	if err != nil {
		return err
	}
	rows, err := results(r.Context(), m.store.Pool(), f.args(surveyID, after, window.Fetch()))
	if err != nil {
		return err
	}
	rows, next := page.Cut(window, rows, func(r Result) any { return r.ID })
	if err := addAnswers(r.Context(), m.store.Pool(), surveyID, rows); err != nil {
		return err
	}
	return reply.JSON(w, http.StatusOK, page.List("responses", rows, next))
}

func results(ctx context.Context, q postgres.Querier, args []any) ([]Result, error) {
	return postgres.All(ctx, q, "list responses", scanResult, `
		SELECT id, survey_id, environment, score, user_id, external_id, email,
			release_version, device_model, os_version, distribution_id, submitted_at, received_at
		FROM survey_responses r WHERE `+where+`AND ($7 = '' OR r.id < $7) ORDER BY r.id DESC LIMIT $8`, args...)
}

func scanResult(row pgx.CollectableRow) (r Result, err error) {
	err = row.Scan(&r.ID, &r.SurveyID, &r.Env, &r.Score, &r.Respondent.UserID, &r.Respondent.ExternalID, &r.Respondent.Email,
		&r.Context.ReleaseVersion, &r.Context.DeviceModel, &r.Context.OSVersion, &r.Context.DistributionID,
		&r.SubmittedAt.Time, &r.ReceivedAt.Time)
	r.Answers, r.Questions = map[string]json.RawMessage{}, []AnsweredQuestion{}
	return r, err
}

// addAnswers completes results of one survey with their answers and snapshots.
func addAnswers(ctx context.Context, q postgres.Querier, surveyID string, list []Result) error {
	byID := make(map[string]*Result, len(list))
	ids := make([]string, len(list))
	for i := range list {
		ids[i], byID[list[i].ID] = list[i].ID, &list[i]
	}
	rows, err := q.Query(ctx, `
		SELECT a.response_id, a.question_id, a.kind, a.order_index, a.value, s.prompt, s.config
		FROM survey_answers a JOIN survey_questions s USING (survey_id, question_id, digest)
		WHERE a.survey_id = $1 AND a.response_id = ANY ($2) ORDER BY a.response_id, a.order_index, a.question_id`, surveyID, ids)
	if err != nil {
		return fmt.Errorf("list answers: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var responseID string
		var value json.RawMessage
		var question AnsweredQuestion
		if err := rows.Scan(&responseID, &question.ID, &question.Kind, &question.OrderIndex, &value, &question.Prompt, &question.Config); err != nil {
			return fmt.Errorf("read answer: %w", err)
		}
		result := byID[responseID]
		result.Answers[question.ID] = value
		result.Questions = append(result.Questions, question)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("list answers: %w", err)
	}
	return nil
}

// summary is what the answers of some responses add up to.
type summary struct {
	Responses int64                    `json:"responses"`
	Questions []survey.QuestionSummary `json:"questions"`
}

// groupSummary is the summary of one release, day or distribution; Key is null for
// responses that name none.
type groupSummary struct {
	Key *string `json:"key"`
	summary
}

// everything is the key of one group that holds all.
const everything = `NULL::text`

// groupKey is what a summary can be broken down by, in SQL over survey_responses r.
func groupKey(groupBy string) (sql string, known bool) {
	switch groupBy {
	case "":
		return everything, true
	case "release_version", "distribution_id":
		return `r.` + groupBy, true
	case "day":
		return `to_char(r.submitted_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')`, true
	}
	return "", false
}

// maxGroups bounds a breakdown; a longer one needs narrower filters.
const maxGroups = 1000

// Summary serves GET /api/v1/pulse/surveys/{id}/summary. With group_by it also has
// the same for each release_version, day or distribution_id, in order of the key.
func (m *Module) Summary(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	stored, err := m.surveys.Visible(r, c)
	if err != nil {
		return err
	}
	f, err := readFilter(r.URL.Query())
	if err != nil {
		return err
	}
	groupBy := r.URL.Query().Get("group_by")
	key, known := groupKey(groupBy)
	if !known {
		return problem.Newf(problem.Invalid, "invalid_group_by", "group_by must be release_version, distribution_id or day")
	}
	var whole, groups []groupSummary
	// All counts are of one moment: there are no more answers than responses.
	once := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(r.Context(), m.store.Pool(), once, func(tx pgx.Tx) (err error) {
		if whole, err = summarize(r.Context(), tx, stored, f, everything); err != nil || groupBy == "" {
			return err
		}
		groups, err = summarize(r.Context(), tx, stored, f, key)
		return err
	})
	if err != nil {
		return err
	}
	all := summary{Questions: ordered(nil, stored)}
	if len(whole) > 0 {
		all = whole[0].summary
	}
	body := map[string]any{"survey_id": stored.Bundle.Survey.ID, "responses": all.Responses, "questions": all.Questions}
	if groupBy != "" {
		body["groups"] = groups
	}
	return reply.JSON(w, http.StatusOK, body)
}

// summarize counts responses and equal answers in the database and adds them up here.
// Free text is counted without being read.
func summarize(ctx context.Context, q postgres.Querier, stored *surveys.Stored, f filter, key string) ([]groupSummary, error) {
	surveyID := stored.Bundle.Survey.ID
	scan := func(row pgx.CollectableRow) (g groupSummary, err error) {
		err = row.Scan(&g.Key, &g.Responses)
		return g, err
	}
	list, err := postgres.All(ctx, q, "count responses", scan, `
		SELECT `+key+` AS key, count(*) FROM survey_responses r WHERE `+where+
		fmt.Sprintf(`GROUP BY 1 ORDER BY 1 NULLS LAST LIMIT %d`, maxGroups+1), f.args(surveyID)...)
	if err != nil {
		return nil, err
	}
	if len(list) > maxGroups {
		return nil, problem.Newf(problem.Invalid, "too_many_groups", "more than %d groups: narrow the filters", maxGroups)
	}
	tallies, err := tally(ctx, q, key, f.args(surveyID))
	if err != nil {
		return nil, err
	}
	for i := range list {
		list[i].Questions = ordered(tallies[keyText(list[i].Key)], stored)
	}
	return list, nil
}

// keyText tells a null key from an empty one.
func keyText(key *string) string {
	if key == nil {
		return "null"
	}
	return "=" + *key
}

// asked is a question in one kind: an edit may have changed it.
type asked struct{ id, kind string }

func tally(ctx context.Context, q postgres.Querier, key string, args []any) (map[string]map[asked]*survey.Tally, error) {
	rows, err := q.Query(ctx, `
		SELECT `+key+`, a.question_id, a.kind, CASE WHEN a.kind = 'text' THEN 'null' ELSE a.value::text END, count(*)
		FROM survey_responses r JOIN survey_answers a ON a.survey_id = r.survey_id AND a.response_id = r.id
		WHERE `+where+`GROUP BY 1, 2, 3, 4`, args...)
	if err != nil {
		return nil, fmt.Errorf("count answers: %w", err)
	}
	tallies := make(map[string]map[asked]*survey.Tally)
	var group *string
	var question asked
	var value string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&group, &question.id, &question.kind, &value, &n}, func() error {
		at := keyText(group)
		if tallies[at] == nil {
			tallies[at] = make(map[asked]*survey.Tally)
		}
		if tallies[at][question] == nil {
			tallies[at][question] = &survey.Tally{QuestionID: question.id, Kind: question.kind}
		}
		tallies[at][question].Add(json.RawMessage(value), n)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("count answers: %w", err)
	}
	return tallies, nil
}

// ordered lists the survey's questions in order_index order, answered or not, and
// behind them what was asked otherwise or is no longer asked.
func ordered(tallies map[asked]*survey.Tally, stored *surveys.Stored) []survey.QuestionSummary {
	questions := stored.Bundle.Questions
	list := make([]survey.QuestionSummary, 0, len(questions))
	current := make(map[asked]bool, len(questions))
	for _, q := range questions {
		tally := tallies[asked{q.ID, q.Kind}]
		if tally == nil {
			tally = &survey.Tally{QuestionID: q.ID, Kind: q.Kind}
		}
		current[asked{q.ID, q.Kind}] = true
		list = append(list, tally.Summary())
	}
	var former []asked
	for question := range tallies {
		if !current[question] {
			former = append(former, question)
		}
	}
	slices.SortFunc(former, func(a, b asked) int { return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.kind, b.kind)) })
	for _, question := range former {
		list = append(list, tallies[question].Summary())
	}
	return list
}
