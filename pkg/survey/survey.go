// Package survey is what both planes know about surveys (specification, Pulse
// sections; supplement §5): the shapes of bundle, list entry and draft, the checks
// of authoring, branching, the validation of answers, the score, partial responses
// and the arithmetic of results.
//
// Everything here is pure: no clock, no store, no network, no state. The same input
// gives the same output in the same order on every run, and work is linear in the
// size of the input (times the number of branching rules at most), whoever sent it.
//
// It does not decide who may do what, and it keeps nothing.
package survey

import "skerry/pkg/instant"

// Survey kinds: hints for authoring and results, they restrict nothing.
const (
	KindNPS         = "nps"
	KindRating      = "rating"
	KindLikert      = "likert"
	KindCSAT        = "csat"
	KindCustom      = "custom"
	KindServiceDesk = "service_desk"
)

// Statuses of a survey: draft → published ⇄ closed → archived.
const (
	Draft     = "draft"
	Published = "published"
	Closed    = "closed"
	Archived  = "archived"
)

// Question kinds.
const (
	Text        = "text"
	NPS         = "nps"
	Rating      = "rating"
	CSAT        = "csat"
	Likert      = "likert"
	Select      = "select"
	Multiselect = "multiselect"
	Boolean     = "boolean"
	Date        = "date"
)

// Defaults of authoring.
const (
	DefaultCooldownSeconds = 604800 // seven days
	DefaultWeight          = 1000   // always
	DefaultRatingMax       = 5
	DefaultLikertMin       = 1
	DefaultLikertMax       = 7
)

// Bundle is a full survey as clients fetch it; members stand in the specification's
// order. Questions also carry config (supplement §5).
type Bundle struct {
	Survey         Survey                       `json:"survey"`
	Questions      []Question                   `json:"questions"`
	TargetingRules []TargetingRule              `json:"targeting_rules"`
	BranchingRules []BranchingRule              `json:"branching_rules"`
	Theme          *Theme                       `json:"theme"`
	Translations   map[string]map[string]string `json:"translations"`
	// Partial is never stored with the bundle; whoever answers a request adds it.
	Partial *Partial `json:"partial,omitempty"`
}

// Survey is the bundle's member `survey`.
type Survey struct {
	ID             string        `json:"id"`
	OrganizationID string        `json:"organization_id"`
	ProjectID      string        `json:"project_id"`
	Name           string        `json:"name"`
	Description    string        `json:"description"`
	Kind           string        `json:"kind"`
	Status         string        `json:"status"`
	Slug           string        `json:"slug"`
	ArchivedAt     *instant.Time `json:"archived_at"`
	CreatedAt      instant.Time  `json:"created_at"`
}

// Question is one question; its id is unique within its survey.
type Question struct {
	ID         string `json:"id"`
	SurveyID   string `json:"survey_id"`
	Kind       string `json:"kind"`
	Prompt     string `json:"prompt"`
	Required   bool   `json:"required"`
	OrderIndex int    `json:"order_index"`
	Config     Config `json:"config"`
}

// Config narrows what a question accepts: Options belong to select and multiselect,
// Min and Max to likert (rating has Max), MaxLength, in code points, to text.
type Config struct {
	Options   []string `json:"options,omitempty"`
	Min       *int     `json:"min,omitempty"`
	Max       *int     `json:"max,omitempty"`
	MaxLength *int     `json:"max_length,omitempty"`
}

// TargetingRule is evaluated by the client. WeightNumerator is per thousand.
type TargetingRule struct {
	Predicate       string `json:"predicate"`
	WeightNumerator int    `json:"weight_numerator"`
}

// BranchingRule leads from a question to a later one; ToQuestionID nil ends the survey.
type BranchingRule struct {
	FromQuestionID string  `json:"from_question_id"`
	Predicate      string  `json:"predicate"`
	ToQuestionID   *string `json:"to_question_id"`
}

// Theme is how the client paints the survey.
type Theme struct {
	ID           string `json:"id"`
	SurveyID     string `json:"survey_id"`
	PrimaryColor string `json:"primary_color"`
}

// Display is what decides when and how the client shows a survey. The list has it
// and the bundle does not.
type Display struct {
	AutoShow        bool `json:"auto_show"`
	CooldownSeconds int  `json:"display_cooldown_seconds"`
	DelayMS         int  `json:"display_delay_ms"`
}

// Entry is one entry of the list of eligible surveys: exactly the specification's fields.
type Entry struct {
	ID              string          `json:"id"`
	Name            string          `json:"name"`
	Description     string          `json:"description"`
	Kind            string          `json:"kind"`
	Status          string          `json:"status"`
	Slug            string          `json:"slug"`
	AutoShow        bool            `json:"auto_show"`
	CooldownSeconds int             `json:"display_cooldown_seconds"`
	DelayMS         int             `json:"display_delay_ms"`
	TargetingRules  []TargetingRule `json:"targeting_rules"`
}

// Entry is the list's view of the bundle.
func (b *Bundle) Entry(display Display) Entry {
	return Entry{
		ID: b.Survey.ID, Name: b.Survey.Name, Description: b.Survey.Description, Kind: b.Survey.Kind,
		Status: b.Survey.Status, Slug: b.Survey.Slug,
		AutoShow: display.AutoShow, CooldownSeconds: display.CooldownSeconds, DelayMS: display.DelayMS,
		TargetingRules: b.TargetingRules,
	}
}
