package surveys

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"skerry/pkg/instant"
	"skerry/pkg/survey"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
)

// slugTries is how often a derived slug is chosen anew after a concurrent save took it.
const slugTries = 5

// add makes a new survey, a draft, of an Authored without missing members. The error
// is a 400 invalid_survey when it has problems.
func (m *Module) add(ctx context.Context, origin commit.Origin, project access.Project, authored *survey.Authored) (*Stored, error) {
	var made *Stored
	err := m.withFreeSlug(authored, func() error {
		return m.store.InTx(ctx, origin, func(tx *commit.Tx) (err error) {
			access.Keep(tx, project.ID)
			made, err = m.put(ctx, tx, project, authored, nil)
			return err
		})
	})
	return made, err
}

// withFreeSlug runs a save again when a slug that it derived was taken meanwhile. One
// that the author chose is a problem to report.
func (m *Module) withFreeSlug(authored *survey.Authored, run func() error) error {
	for try := 1; ; try++ {
		err := run()
		switch {
		case !errors.Is(err, errSlugTaken):
			return err
		case authored.Slug != nil:
			return invalidSurvey([]survey.Problem{{Path: "slug", Reason: survey.ProblemSlugTaken}})
		case try == slugTries:
			return fmt.Errorf("derive a free slug: %w", err)
		}
	}
}

// put checks and writes the authored survey over before, nil for a new one.
func (m *Module) put(ctx context.Context, tx *commit.Tx, project access.Project, authored *survey.Authored, before *Stored) (*Stored, error) {
	problems := authored.Check()
	surveyID := ""
	if before != nil {
		surveyID = before.Bundle.Survey.ID
	}
	if authored.Slug != nil && !slices.ContainsFunc(problems, func(p survey.Problem) bool { return p.Path == "slug" }) {
		taken, err := slugTaken(ctx, tx, project.ID, *authored.Slug, surveyID)
		if err != nil {
			return nil, err
		}
		if taken {
			problems = append(problems, survey.Problem{Path: "slug", Reason: survey.ProblemSlugTaken})
		}
	}
	if len(problems) > 0 {
		return nil, invalidSurvey(problems)
	}
	after := build(authored, project, before, m.now())
	if authored.Slug == nil {
		slug, err := freeSlug(ctx, tx, project.ID, survey.SlugOf(*authored.Name), surveyID)
		if err != nil {
			return nil, err
		}
		after.Bundle.Survey.Slug = slug
	}
	action := "pulse.survey.updated"
	if before == nil {
		action = "pulse.survey.created"
	}
	return after, m.saveAudited(ctx, tx, before, after, action)
}

// saveAudited writes the survey and the entry that says who changed what.
func (m *Module) saveAudited(ctx context.Context, tx *commit.Tx, before, after *Stored, action string) error {
	if err := save(ctx, tx, after); err != nil {
		return err
	}
	entry := commit.Entry{
		OrganizationID: after.Bundle.Survey.OrganizationID, ProjectID: after.Bundle.Survey.ProjectID,
		Action: action, ResourceType: "survey", ResourceID: after.Bundle.Survey.ID, After: after.Show(),
	}
	if before != nil {
		entry.Before = before.Show()
	}
	tx.Audit(entry)
	return nil
}

// change runs edit on the locked survey, in one transaction.
func (m *Module) change(ctx context.Context, origin commit.Origin, surveyID string, edit func(tx *commit.Tx, before *Stored) (*Stored, error)) (*Stored, error) {
	var after *Stored
	err := m.store.InTx(ctx, origin, func(tx *commit.Tx) error {
		before, err := lockByID(ctx, tx, surveyID)
		if err != nil {
			return err
		}
		after, err = edit(tx, before)
		return err
	})
	return after, err
}

// patch lays an RFC 7396 merge patch over the authored form of before.
func (m *Module) patch(ctx context.Context, tx *commit.Tx, before *Stored, body []byte) (*Stored, error) {
	target, err := json.Marshal(survey.AuthoredOf(&before.Bundle, before.Display))
	if err != nil {
		return nil, fmt.Errorf("author survey: %w", err)
	}
	authored, err := readAuthored(target, body)
	if err != nil {
		return nil, err
	}
	after, err := m.put(ctx, tx, before.Project(), authored, before)
	if errors.Is(err, errSlugTaken) { // between the look and the write
		return nil, invalidSurvey([]survey.Problem{{Path: "slug", Reason: survey.ProblemSlugTaken}})
	}
	return after, err
}

// take takes a step of the life cycle.
func (m *Module) take(ctx context.Context, tx *commit.Tx, before *Stored, s step) (*Stored, error) {
	if err := s.allowed(before.Bundle.Survey.Status); err != nil {
		return nil, err
	}
	after := *before
	after.touch(m.now())
	after.Bundle.Survey.Status = s.to
	if s.to == survey.Archived {
		at := instant.Of(after.UpdatedAt)
		after.Bundle.Survey.ArchivedAt = &at
	}
	return &after, m.saveAudited(ctx, tx, before, &after, s.action)
}
