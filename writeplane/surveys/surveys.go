// Package surveys is the authoring of in-product surveys (specification, Pulse
// sections; supplement §5): whole-bundle saves that are checked at once, the life
// cycle, and the documents by which edges learn of them.
//
// It promises: what was saved compiles (see pkg/survey), a slug is unique in its
// project, updated_at rises by at least a millisecond with every save, and a save,
// its audit entry and its document are committed together or not at all. Every form
// a question ever had is kept, so that answers stay readable.
//
// What respondents send is package responses' matter.
package surveys

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"skerry/pkg/id"
	"skerry/pkg/instant"
	"skerry/pkg/jsonbody"
	"skerry/pkg/problem"
	"skerry/pkg/state"
	"skerry/pkg/survey"
	"skerry/replication"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
)

// Module is the authoring of surveys. Its exported handlers are routes.
type Module struct {
	store  *commit.Store
	access *access.Store
	now    func() time.Time
}

// New returns the module.
func New(store *commit.Store, access *access.Store) *Module {
	return &Module{store: store, access: access, now: time.Now}
}

// Stored is a survey as it is kept.
type Stored struct {
	Bundle    survey.Bundle
	Display   survey.Display
	UpdatedAt time.Time
}

// Project is the survey's project.
func (s *Stored) Project() access.Project {
	return access.Project{ID: s.Bundle.Survey.ProjectID, OrganizationID: s.Bundle.Survey.OrganizationID}
}

// Head is a survey without its questions, as management lists show it.
type Head struct {
	survey.Survey
	survey.Display
	UpdatedAt instant.Time `json:"updated_at"`
}

// Shown is a survey as management endpoints show it: the bundle, with what only the
// list of eligible surveys has and the time of the last save in its member survey.
type Shown struct {
	Survey         Head                         `json:"survey"`
	Questions      []survey.Question            `json:"questions"`
	TargetingRules []survey.TargetingRule       `json:"targeting_rules"`
	BranchingRules []survey.BranchingRule       `json:"branching_rules"`
	Theme          *survey.Theme                `json:"theme"`
	Translations   map[string]map[string]string `json:"translations"`
}

// Show is the survey's management form.
func (s *Stored) Show() Shown {
	b := &s.Bundle
	return Shown{
		Survey:    Head{b.Survey, s.Display, instant.Of(s.UpdatedAt)},
		Questions: b.Questions, TargetingRules: b.TargetingRules, BranchingRules: b.BranchingRules,
		Theme: b.Theme, Translations: b.Translations,
	}
}

// document is what edges have to know.
func (s *Stored) document() (replication.Subject, state.Survey) {
	return replication.SurveySubject(s.Bundle.Survey.ProjectID, s.Bundle.Survey.ID),
		state.Survey{Bundle: s.Bundle, Display: s.Display, UpdatedAt: s.UpdatedAt}
}

// touch is the time of a save: now, and at least a millisecond past the last one.
func (s *Stored) touch(now time.Time) {
	now = now.UTC().Truncate(time.Millisecond)
	if least := s.UpdatedAt.Add(time.Millisecond); now.Before(least) {
		now = least
	}
	s.UpdatedAt = now
}

// step is a transition of the life cycle.
type step struct {
	from   []string
	to     string
	action string // of the audit entry
}

// The steps: draft → published ⇄ closed → archived. Publishing also reopens.
var (
	publish = step{[]string{survey.Draft, survey.Closed}, survey.Published, "pulse.survey.published"}
	closing = step{[]string{survey.Published}, survey.Closed, "pulse.survey.closed"}
	reopen  = step{[]string{survey.Closed}, survey.Published, "pulse.survey.reopened"}
	archive = step{[]string{survey.Closed}, survey.Archived, "pulse.survey.archived"}
)

func (s step) allowed(status string) error {
	if slices.Contains(s.from, status) {
		return nil
	}
	return problem.Newf(problem.Conflict, "invalid_transition", "only a survey that is %s can become %s by this step; this one is %s",
		strings.Join(s.from, " or "), s.to, status)
}

// invalidSurvey is the answer to a save with problems.
func invalidSurvey(problems []survey.Problem) error {
	return problem.Newf(problem.Invalid, "invalid_survey", "%s", summary(len(problems))).With("problems", problems)
}

func summary(n int) string {
	if n == 1 {
		return "the survey has 1 problem"
	}
	return fmt.Sprintf("the survey has %d problems", n)
}

// readAuthored reads a body laid over target (the authored form of what is stored,
// "{}" for a new survey), refusing unknown members and wrong types by name.
func readAuthored(target, body []byte) (*survey.Authored, error) {
	// The body alone first: its members must be right even where null removes them,
	// and nothing nested deeper than a survey reaches the merge.
	var alone survey.Authored
	if err := jsonbody.Unmarshal(body, &alone); err != nil {
		return nil, err
	}
	merged, err := jsonbody.MergePatch(target, body)
	if err != nil {
		return nil, fmt.Errorf("merge survey: %w", err)
	}
	authored := new(survey.Authored)
	if err := json.Unmarshal(merged, authored); err != nil {
		return nil, fmt.Errorf("read merged survey: %w", err)
	}
	if member := authored.MissingMember(); member != "" {
		return nil, jsonbody.Missing(member)
	}
	return authored, nil
}

// build makes what is stored out of an Authored without problems. before is what was
// stored, nil for a new survey.
func build(authored *survey.Authored, project access.Project, before *Stored, now time.Time) *Stored {
	identity := survey.Identity{
		ID: id.NewPrefixed(id.Survey), OrganizationID: project.OrganizationID, ProjectID: project.ID,
		ThemeID: id.New(), Status: survey.Draft,
	}
	after := new(Stored)
	if before != nil {
		was := before.Bundle.Survey
		identity.ID, identity.Status = was.ID, was.Status
		identity.CreatedAt, identity.ArchivedAt = was.CreatedAt, was.ArchivedAt
		if before.Bundle.Theme != nil {
			identity.ThemeID = before.Bundle.Theme.ID
		}
		after.UpdatedAt = before.UpdatedAt
	}
	after.touch(now)
	if before == nil {
		identity.CreatedAt = instant.Of(after.UpdatedAt)
	}
	after.Bundle, after.Display = authored.Build(identity, func() string { return id.NewPrefixed(id.Question) })
	return after
}
