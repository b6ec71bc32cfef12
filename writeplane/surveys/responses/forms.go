package responses

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/pkg/survey"
	"skerry/writeplane/access"
	"skerry/writeplane/surveys"
)

// form is a survey ready to be answered, as it was at one save.
type form struct {
	*survey.Form
	id, slug, status string
	updatedAt        time.Time
	digests          map[string][]byte // of each question's snapshot
}

// forms keeps compiled surveys. What it holds may be out of date: acceptance is
// confirmed inside the transaction (see writer), refusal by reading anew.
type forms struct {
	pool *pgxpool.Pool

	mu        sync.Mutex
	known     map[string]*form // by project, NUL, id or slug as asked for
	questions int              // among all known, for the bound
}

// maxQuestions bounds the cache: at a few hundred bytes a question, some tens of MiB.
const maxQuestions = 50_000

func newForms(pool *pgxpool.Pool) *forms {
	return &forms{pool: pool, known: make(map[string]*form)}
}

// cached is the form if it is held, however old.
func (f *forms) cached(projectID, idOrSlug string) (*form, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	held, ok := f.known[projectID+"\x00"+idOrSlug]
	return held, ok
}

// current is the form as it is now: the one held, if the survey has not been saved
// since, else read anew. errSurveyUnknown when there is none.
func (f *forms) current(ctx context.Context, projectID, idOrSlug string) (*form, error) {
	held, ok := f.cached(projectID, idOrSlug)
	if !ok {
		return f.load(ctx, projectID, idOrSlug)
	}
	var same bool
	err := f.pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM surveys WHERE project_id = $1 AND id = $2 AND updated_at = $3)`,
		projectID, held.id, held.updatedAt).Scan(&same)
	if err != nil {
		return nil, fmt.Errorf("look at survey: %w", err)
	}
	if same {
		return held, nil
	}
	return f.load(ctx, projectID, idOrSlug)
}

// load reads the form as it is now; errSurveyUnknown when there is none.
func (f *forms) load(ctx context.Context, projectID, idOrSlug string) (*form, error) {
	stored, err := surveys.Load(ctx, f.pool, projectID, idOrSlug)
	if errors.Is(err, access.ErrNotFound) {
		f.hold(projectID+"\x00"+idOrSlug, nil)
		return nil, errSurveyUnknown
	}
	if err != nil {
		return nil, err
	}
	compiled, err := survey.Compile(&stored.Bundle)
	if err != nil {
		return nil, fmt.Errorf("compile stored survey: %w", err)
	}
	made := &form{
		Form: compiled, id: stored.Bundle.Survey.ID, slug: stored.Bundle.Survey.Slug,
		status: stored.Bundle.Survey.Status, updatedAt: stored.UpdatedAt,
		digests: make(map[string][]byte, len(stored.Bundle.Questions)),
	}
	for i := range stored.Bundle.Questions {
		q := &stored.Bundle.Questions[i]
		made.digests[q.ID] = surveys.Digest(q)
	}
	f.hold(projectID+"\x00"+idOrSlug, made)
	return made, nil
}

// hold keeps made under the key, or forgets the key when made is nil. When there is
// no room, whichever others go: all of them can be read again.
func (f *forms) hold(key string, made *form) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropLocked(key)
	if made == nil {
		return
	}
	f.known[key] = made
	f.questions += made.weight()
	for other := range f.known {
		if f.questions <= maxQuestions {
			return
		}
		if other != key {
			f.dropLocked(other)
		}
	}
}

func (f *forms) dropLocked(key string) {
	if held, ok := f.known[key]; ok {
		f.questions -= held.weight()
		delete(f.known, key)
	}
}

// weight counts a survey without questions too.
func (f *form) weight() int { return len(f.digests) + 1 }
