package surveys

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"skerry/pkg/id"
	"skerry/pkg/survey"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

// The organization comes from the project: a bundle in the table cannot be wrong
// about a project that moved.
const loadSQL = `
SELECT s.bundle, s.display, s.updated_at, p.organization_id
FROM surveys s JOIN projects p ON p.id = s.project_id AND p.deleted_at IS NULL
WHERE `

// Load reads the survey that idOrSlug means in the project; access.ErrNotFound when
// there is none.
func Load(ctx context.Context, q postgres.Querier, projectID, idOrSlug string) (*Stored, error) {
	return load(ctx, q, "s.project_id = $1 AND (s.id = $2 OR s.slug = $2)", projectID, idOrSlug)
}

func loadByID(ctx context.Context, q postgres.Querier, surveyID string) (*Stored, error) {
	return load(ctx, q, "s.id = $1", surveyID)
}

// lockByID locks a survey for a change, and keeps its project from being deleted
// meanwhile (access.Keep).
func lockByID(ctx context.Context, q postgres.Querier, surveyID string) (*Stored, error) {
	return load(ctx, q, "s.id = $1 FOR UPDATE OF s FOR KEY SHARE OF p", surveyID)
}

func load(ctx context.Context, q postgres.Querier, where string, args ...any) (*Stored, error) {
	for _, arg := range args {
		if strings.IndexByte(arg.(string), 0) >= 0 { // no stored text holds it, and Postgres refuses to look
			return nil, access.ErrNotFound
		}
	}
	stored, ok, err := postgres.One(ctx, q, "read survey", scanStored, loadSQL+where, args...)
	if err == nil && !ok {
		return nil, access.ErrNotFound
	}
	return stored, err
}

func scanStored(row pgx.CollectableRow) (*Stored, error) {
	s := new(Stored)
	err := row.Scan(&s.Bundle, &s.Display, &s.UpdatedAt, &s.Bundle.Survey.OrganizationID)
	s.UpdatedAt = s.UpdatedAt.UTC()
	return s, err
}

const saveSQL = `
INSERT INTO surveys (id, project_id, slug, status, bundle, display, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (id) DO UPDATE SET slug = excluded.slug, status = excluded.status, bundle = excluded.bundle,
	display = excluded.display, updated_at = excluded.updated_at`

const saveQuestionsSQL = `
INSERT INTO survey_questions (survey_id, question_id, digest, kind, prompt, config)
SELECT $1, * FROM unnest($2::text[], $3::bytea[], $4::text[], $5::text[], $6::json[])
ON CONFLICT DO NOTHING`

// errSlugTaken is a slug that another survey took in the meantime.
var errSlugTaken = errors.New("slug taken")

// save writes the survey and hands its document over.
func save(ctx context.Context, tx *commit.Tx, s *Stored) error {
	b := &s.Bundle
	_, err := tx.Exec(ctx, saveSQL, b.Survey.ID, b.Survey.ProjectID, b.Survey.Slug, b.Survey.Status, b, s.Display,
		b.Survey.CreatedAt.Time, s.UpdatedAt)
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.ConstraintName == "surveys_slug" {
		return errSlugTaken
	}
	if err != nil {
		return fmt.Errorf("write survey: %w", err)
	}
	n := len(b.Questions)
	ids, digests, kinds, prompts, configs := make([]string, n), make([][]byte, n), make([]string, n), make([]string, n), make([]string, n)
	for i := range b.Questions {
		q := &b.Questions[i]
		config := configOf(q)
		ids[i], digests[i], kinds[i], prompts[i], configs[i] = q.ID, Digest(q), q.Kind, q.Prompt, string(config)
	}
	if _, err := tx.Exec(ctx, saveQuestionsSQL, b.Survey.ID, ids, digests, kinds, prompts, configs); err != nil {
		return fmt.Errorf("keep questions: %w", err)
	}
	subject, body := s.document()
	return tx.Put(subject, body)
}

func configOf(q *survey.Question) []byte {
	config, err := json.Marshal(q.Config)
	if err != nil {
		panic("BUG: a question's config does not marshal: " + err.Error())
	}
	return config
}

// Digest names the form of a question: the key of its snapshot in survey_questions.
func Digest(q *survey.Question) []byte {
	h := sha256.New()
	for _, part := range []string{q.Kind, q.Prompt, string(configOf(q))} {
		_, _ = fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return h.Sum(nil)[:16]
}

// slugTaken reports whether another survey of the project has the slug.
func slugTaken(ctx context.Context, tx pgx.Tx, projectID, slug, surveyID string) (taken bool, err error) {
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM surveys WHERE project_id = $1 AND slug = $2 AND id <> $3)`,
		projectID, slug, surveyID).Scan(&taken)
	if err != nil {
		return false, fmt.Errorf("look for slug: %w", err)
	}
	return taken, nil
}

// maxNumbered is up to where a derived slug is numbered; then chance decides.
const maxNumbered = 1000

// freeSlug is base, or base with the lowest number that makes it free. Those who
// derive a slug in one project do so one after the other.
func freeSlug(ctx context.Context, tx pgx.Tx, projectID, base, surveyID string) (string, error) {
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('survey slugs ' || $1, 0))`, projectID); err != nil {
		return "", fmt.Errorf("lock slugs: %w", err)
	}
	slugs, err := postgres.All(ctx, tx, "look for slugs", pgx.RowTo[string],
		`SELECT slug FROM surveys WHERE project_id = $1 AND id <> $2 AND starts_with(slug, $3)`,
		projectID, surveyID, base)
	if err != nil {
		return "", err
	}
	taken := make(map[string]bool, len(slugs))
	for _, slug := range slugs {
		taken[slug] = true
	}
	if !taken[base] {
		return base, nil
	}
	for n := 2; n < maxNumbered; n++ {
		if slug := base + "-" + strconv.Itoa(n); !taken[slug] {
			return slug, nil
		}
	}
	return strings.ToLower(id.NewPrefixed("")), nil
}

const headsSQL = `
SELECT s.bundle->'survey', s.display, s.updated_at
FROM surveys s
WHERE s.project_id = $1 AND ($2 = '' OR s.status = $2) AND ($3 = '' OR s.id < $3)
ORDER BY s.id DESC LIMIT $4`

// heads lists the project's surveys, newest first, behind the id `after`.
func heads(ctx context.Context, q postgres.Querier, projectID, status, after string, limit int) ([]Head, error) {
	return postgres.All(ctx, q, "list surveys", scanHead, headsSQL, projectID, status, after, limit)
}

func scanHead(row pgx.CollectableRow) (h Head, err error) {
	err = row.Scan(&h.Survey, &h.Display, &h.UpdatedAt.Time)
	return h, err
}
