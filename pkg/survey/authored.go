package survey

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"skerry/pkg/instant"
)

// Authored is a survey as authors write it: the whole bundle, flat. Pointers tell
// absence from zero. Members that the server gives (a question's or a theme's
// survey_id, a theme's id) are accepted, so that what was read can be sent back, and
// have no effect.
type Authored struct {
	Name            *string                      `json:"name,omitempty"`
	Description     string                       `json:"description,omitempty"`
	Kind            *string                      `json:"kind,omitempty"`
	Slug            *string                      `json:"slug,omitempty"`
	AutoShow        bool                         `json:"auto_show,omitempty"`
	CooldownSeconds *int                         `json:"display_cooldown_seconds,omitempty"`
	DelayMS         int                          `json:"display_delay_ms,omitempty"`
	Questions       []AuthoredQuestion           `json:"questions,omitempty"`
	TargetingRules  []AuthoredTargeting          `json:"targeting_rules,omitempty"`
	BranchingRules  []BranchingRule              `json:"branching_rules,omitempty"`
	Theme           *AuthoredTheme               `json:"theme,omitempty"`
	Translations    map[string]map[string]string `json:"translations,omitempty"`
}

// AuthoredQuestion is a question as authors write it: without an id it gets one,
// without an order_index it stands where the array has it.
type AuthoredQuestion struct {
	ID         *string `json:"id,omitempty"`
	SurveyID   string  `json:"survey_id,omitempty"`
	Kind       *string `json:"kind,omitempty"`
	Prompt     *string `json:"prompt,omitempty"`
	Required   bool    `json:"required,omitempty"`
	OrderIndex *int    `json:"order_index,omitempty"`
	Config     Config  `json:"config"`
}

// AuthoredTargeting is a targeting rule; without a weight it always applies.
type AuthoredTargeting struct {
	Predicate       *string `json:"predicate,omitempty"`
	WeightNumerator *int    `json:"weight_numerator,omitempty"`
}

// AuthoredTheme is the theme's part that authors choose.
type AuthoredTheme struct {
	ID           string  `json:"id,omitempty"`
	SurveyID     string  `json:"survey_id,omitempty"`
	PrimaryColor *string `json:"primary_color,omitempty"`
}

// AuthoredOf is the authored form of a stored survey: what a merge patch is applied to.
func AuthoredOf(b *Bundle, display Display) Authored {
	a := Authored{
		Name: &b.Survey.Name, Description: b.Survey.Description, Kind: &b.Survey.Kind, Slug: &b.Survey.Slug,
		AutoShow: display.AutoShow, CooldownSeconds: &display.CooldownSeconds, DelayMS: display.DelayMS,
		BranchingRules: b.BranchingRules, Translations: b.Translations,
	}
	for i := range b.Questions {
		q := &b.Questions[i]
		a.Questions = append(a.Questions, AuthoredQuestion{
			ID: &q.ID, Kind: &q.Kind, Prompt: &q.Prompt, Required: q.Required, OrderIndex: &q.OrderIndex, Config: q.Config,
		})
	}
	for i := range b.TargetingRules {
		rule := &b.TargetingRules[i]
		a.TargetingRules = append(a.TargetingRules, AuthoredTargeting{&rule.Predicate, &rule.WeightNumerator})
	}
	if b.Theme != nil {
		a.Theme = &AuthoredTheme{PrimaryColor: &b.Theme.PrimaryColor}
	}
	return a
}

// MissingMember names the first member that must be there and is not; "" when all are.
func (a *Authored) MissingMember() string {
	switch {
	case a.Name == nil:
		return "name"
	case a.Kind == nil:
		return "kind"
	}
	for i, q := range a.Questions {
		switch {
		case q.Kind == nil:
			return fmt.Sprintf("questions[%d].kind", i)
		case q.Prompt == nil:
			return fmt.Sprintf("questions[%d].prompt", i)
		}
	}
	for i, rule := range a.TargetingRules {
		if rule.Predicate == nil {
			return fmt.Sprintf("targeting_rules[%d].predicate", i)
		}
	}
	if a.Theme != nil && a.Theme.PrimaryColor == nil {
		return "theme.primary_color"
	}
	return ""
}

// Identity is what a survey has that its author does not write.
type Identity struct {
	ID, OrganizationID, ProjectID string
	ThemeID                       string
	Status                        string
	CreatedAt                     instant.Time
	ArchivedAt                    *instant.Time
}

// Build makes the bundle of an Authored without missing members or problems, its
// questions in order_index order. newID names those that came without an id.
func (a *Authored) Build(identity Identity, newID func() string) (Bundle, Display) {
	b := Bundle{
		Survey: Survey{
			ID: identity.ID, OrganizationID: identity.OrganizationID, ProjectID: identity.ProjectID,
			Name: *a.Name, Description: a.Description, Kind: *a.Kind, Status: identity.Status,
			ArchivedAt: identity.ArchivedAt, CreatedAt: identity.CreatedAt,
		},
		Questions: []Question{}, TargetingRules: []TargetingRule{}, BranchingRules: []BranchingRule{},
		Translations: map[string]map[string]string{},
	}
	if a.Slug != nil {
		b.Survey.Slug = *a.Slug
	}
	for i, q := range a.Questions {
		made := Question{
			SurveyID: identity.ID, Kind: *q.Kind, Prompt: *q.Prompt, Required: q.Required,
			OrderIndex: orderIndex(&a.Questions[i], i), Config: q.Config,
		}
		if q.ID != nil {
			made.ID = *q.ID
		} else {
			made.ID = newID()
		}
		b.Questions = append(b.Questions, made)
	}
	slices.SortStableFunc(b.Questions, func(a, b Question) int { return cmp.Compare(a.OrderIndex, b.OrderIndex) })
	for _, rule := range a.TargetingRules {
		weight := DefaultWeight
		if rule.WeightNumerator != nil {
			weight = *rule.WeightNumerator
		}
		b.TargetingRules = append(b.TargetingRules, TargetingRule{*rule.Predicate, weight})
	}
	b.BranchingRules = append(b.BranchingRules, a.BranchingRules...)
	if a.Theme != nil {
		b.Theme = &Theme{ID: identity.ThemeID, SurveyID: identity.ID, PrimaryColor: *a.Theme.PrimaryColor}
	}
	for language, texts := range a.Translations {
		if texts != nil {
			b.Translations[language] = texts
		}
	}
	display := Display{AutoShow: a.AutoShow, CooldownSeconds: DefaultCooldownSeconds, DelayMS: a.DelayMS}
	if a.CooldownSeconds != nil {
		display.CooldownSeconds = *a.CooldownSeconds
	}
	return b, display
}

// orderIndex is the question's place: its own word, or else where the array has it.
func orderIndex(q *AuthoredQuestion, at int) int {
	if q.OrderIndex != nil {
		return *q.OrderIndex
	}
	return at
}

// SlugOf derives a slug from a survey's name, at most 56 bytes long so that a number
// can be added.
func SlugOf(name string) string {
	var slug strings.Builder
	for _, r := range strings.ToLower(name) {
		if slug.Len() >= 56 {
			break
		}
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			slug.WriteRune(r)
		case slug.Len() > 0 && !strings.HasSuffix(slug.String(), "-"):
			slug.WriteByte('-')
		}
	}
	if trimmed := strings.TrimSuffix(slug.String(), "-"); trimmed != "" {
		return trimmed
	}
	return "survey"
}
