package responses

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/instant"
	"skerry/pkg/problem"
	"skerry/pkg/reply"
	"skerry/pkg/survey"
	"skerry/writeplane/access"
	"skerry/writeplane/postgres"
)

// MaxPartial is the largest partial response in bytes, as JSON.
const MaxPartial = 1 << 20

// partialKey names one respondent's partial response to one survey.
type partialKey struct{ project, environment, survey, externalID string }

// GetPartial serves GET /api/pulse/surveys/{id}/partial: the partial response that
// the bundle shows, or {"partial":null}. Edges ask it for the bundle.
func (m *Module) GetPartial(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	f, key, err := m.partialOf(r, c)
	if err != nil {
		return err
	}
	if f.status != survey.Published {
		return notAccepting(f.status)
	}
	partial, found, err := loadPartial(r.Context(), m.store.Pool(), key, m.now())
	if err != nil {
		return err
	}
	if !found {
		return reply.JSON(w, http.StatusOK, map[string]any{"partial": nil})
	}
	f.Prune(&partial)
	return reply.JSON(w, http.StatusOK, map[string]any{"partial": partial})
}

// SavePartial serves PUT /api/pulse/surveys/{id}/partial.
func (m *Module) SavePartial(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	if !c.Key.Modules.Pulse {
		return errModuleDisabled
	}
	body, release, err := m.body(r)
	if err != nil {
		return err
	}
	defer release()
	save, err := survey.ParsePartialSave(body)
	if err != nil {
		return worded(err)
	}
	f, err := m.forms.current(r.Context(), c.Key.ProjectID, r.PathValue("id"))
	if err != nil {
		return err
	}
	if f.status != survey.Published {
		return notAccepting(f.status)
	}
	if id := save.CurrentQuestionID; id != nil && !f.Has(*id) {
		return invalidAnswers(survey.Faults{
			Invalid: []survey.InvalidAnswer{{QuestionID: *id, Reason: survey.ReasonUnknown}}, Missing: []survey.MissingAnswer{},
		})
	}
	now := m.now().UTC()
	expires := now.Add(partialFor).Truncate(time.Millisecond)
	key := partialKey{c.Key.ProjectID, c.Key.Environment, f.id, save.ExternalID}
	err = postgres.InTx(r.Context(), m.store.Pool(), func(tx pgx.Tx) error {
		partial, err := lockPartial(r.Context(), tx, key, now, expires)
		if err != nil {
			return err
		}
		if err := f.take(&partial, save); err != nil {
			return err
		}
		return savePartial(r.Context(), tx, key, partial)
	})
	if err != nil {
		return err
	}
	return reply.JSON(w, http.StatusOK, map[string]string{"expires_at": instant.Format(expires)})
}

// DeletePartial serves DELETE /api/pulse/surveys/{id}/partial?external_id=.
func (m *Module) DeletePartial(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	_, key, err := m.partialOf(r, c)
	if err != nil {
		return err
	}
	_, err = m.store.Pool().Exec(r.Context(), `
		DELETE FROM survey_partials WHERE project_id = $1 AND environment = $2 AND survey_id = $3 AND external_id = $4`,
		key.project, key.environment, key.survey, key.externalID)
	if err != nil {
		return fmt.Errorf("delete partial response: %w", err)
	}
	return reply.Deleted(w)
}

// partialOf reads which partial response a call without a body means.
func (m *Module) partialOf(r *http.Request, c *access.Call) (*form, partialKey, error) {
	if !c.Key.Modules.Pulse {
		return nil, partialKey{}, errModuleDisabled
	}
	externalID := r.URL.Query().Get("external_id")
	switch {
	case externalID == "":
		return nil, partialKey{}, problem.Newf(problem.Invalid, "invalid_external_id", "external_id is required")
	case !utf8.ValidString(externalID) || strings.IndexByte(externalID, 0) >= 0 || utf8.RuneCountInString(externalID) > survey.MaxIdentity:
		return nil, partialKey{}, problem.Newf(problem.Invalid, "invalid_external_id", "external_id must be at most %d characters of text", survey.MaxIdentity)
	}
	f, err := m.forms.current(r.Context(), c.Key.ProjectID, r.PathValue("id"))
	if err != nil {
		return nil, partialKey{}, err
	}
	return f, partialKey{c.Key.ProjectID, c.Key.Environment, f.id, externalID}, nil
}

// lockPartialSQL makes the row or locks it, in one step: between two, it could go away. One
// that has expired begins anew.
const lockPartialSQL = `
INSERT INTO survey_partials AS p (project_id, environment, survey_id, external_id, answers, expires_at)
VALUES ($1, $2, $3, $4, '{}', $6)
ON CONFLICT (project_id, environment, survey_id, external_id) DO UPDATE SET
	answers = CASE WHEN p.expires_at > $5 THEN p.answers ELSE excluded.answers END,
	current_question_id = CASE WHEN p.expires_at > $5 THEN p.current_question_id END,
	expires_at = excluded.expires_at
RETURNING answers, current_question_id`

// lockPartial reads what is kept of a respondent, for changing it. Concurrent saves of one
// respondent follow each other.
func lockPartial(ctx context.Context, tx pgx.Tx, key partialKey, now, expires time.Time) (survey.Partial, error) {
	partial, _, err := postgres.One(ctx, tx, "open partial response", pgx.RowToStructByPos[survey.Partial], lockPartialSQL,
		key.project, key.environment, key.survey, key.externalID, now, expires)
	return partial, err
}

// take merges a save into a partial response.
func (f *form) take(partial *survey.Partial, save survey.PartialSave) error {
	f.Prune(partial)
	if faults := f.Merge(partial, save.Answers); faults.Any() {
		return invalidAnswers(faults)
	}
	if save.CurrentSet {
		partial.CurrentQuestionID = save.CurrentQuestionID
	}
	return nil
}

func savePartial(ctx context.Context, tx pgx.Tx, key partialKey, partial survey.Partial) error {
	answers, err := json.Marshal(partial.Answers)
	if err != nil {
		return fmt.Errorf("marshal partial response: %w", err)
	}
	if len(answers) > MaxPartial {
		return problem.Newf(problem.TooLarge, "payload_too_large", "the partial response would be larger than %d bytes", MaxPartial)
	}
	_, err = tx.Exec(ctx, `
		UPDATE survey_partials SET answers = $5, current_question_id = $6
		WHERE project_id = $1 AND environment = $2 AND survey_id = $3 AND external_id = $4`,
		key.project, key.environment, key.survey, key.externalID, string(answers), partial.CurrentQuestionID)
	if err != nil {
		return fmt.Errorf("save partial response: %w", err)
	}
	return nil
}

// loadPartial reads a partial response; found is false when there is none, or only one
// that has expired.
func loadPartial(ctx context.Context, q postgres.Querier, key partialKey, now time.Time) (partial survey.Partial, found bool, err error) {
	return postgres.One(ctx, q, "read partial response", pgx.RowToStructByPos[survey.Partial], `
		SELECT answers, current_question_id FROM survey_partials
		WHERE project_id = $1 AND environment = $2 AND survey_id = $3 AND external_id = $4 AND expires_at > $5`,
		key.project, key.environment, key.survey, key.externalID, now)
}
