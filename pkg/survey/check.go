package survey

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"skerry/pkg/predicate"
)

// Limits of authoring. What edges have to know of a survey is bounded as a whole too
// (replication.MaxBody).
const (
	MaxQuestions = 500
	MaxOptions   = 500
	MaxRules     = 1000
	MaxLanguages = 200
	MaxName      = 200  // code points
	MaxWords     = 8192 // code points of a description, prompt, option or translation
	maxLanguage  = 35   // bytes of a language tag
	maxOrder     = 1_000_000
	maxScale     = 1000
	maxDelayMS   = 24 * 60 * 60 * 1000
	maxCooldown  = 10 * 365 * 24 * 60 * 60
)

// The forms of what has one.
var (
	slugForm     = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)
	idForm       = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	colorForm    = regexp.MustCompile(`^#([0-9A-Fa-f]{3}|[0-9A-Fa-f]{6}|[0-9A-Fa-f]{8})$`)
	languageForm = regexp.MustCompile(`^[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*$`)
)

// Problem is one fault of an authored survey: where, and what. A reason is a word of
// the lists below, for predicates followed by ": " and the parser's own words.
type Problem struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Reasons of problems.
const (
	ProblemEmpty         = "empty"
	ProblemTooLong       = "too_long"
	ProblemTooMany       = "too_many"
	ProblemNUL           = "contains_nul"
	ProblemUnknownKind   = "unknown_kind"
	ProblemSlug          = "invalid_slug"
	ProblemSlugTaken     = "slug_taken"
	ProblemRange         = "out_of_range"
	ProblemID            = "invalid_id"
	ProblemDuplicateID   = "duplicate_id"
	ProblemDuplicateAt   = "duplicate_order_index"
	ProblemNotForKind    = "not_for_kind"
	ProblemRequired      = "required"
	ProblemDuplicate     = "duplicate"
	ProblemMinMax        = "min_not_below_max"
	ProblemPredicate     = "invalid_predicate"
	ProblemUnknownTarget = "unknown_question"
	ProblemNotForward    = "not_forward"
	ProblemColor         = "invalid_color"
	ProblemLanguage      = "invalid_language"
)

// Check finds every problem of an Authored without missing members, in the order of
// the document. Whether the slug is free is the store's to know.
func (a *Authored) Check() []Problem {
	c := &checker{problems: []Problem{}}
	c.someWords("name", *a.Name, MaxName)
	c.words("description", a.Description, MaxWords)
	if !slices.Contains([]string{KindNPS, KindRating, KindLikert, KindCSAT, KindCustom, KindServiceDesk}, *a.Kind) {
		c.add("kind", ProblemUnknownKind)
	}
	if a.Slug != nil && !slugForm.MatchString(*a.Slug) {
		c.add("slug", ProblemSlug)
	}
	if a.CooldownSeconds != nil {
		c.within("display_cooldown_seconds", *a.CooldownSeconds, 0, maxCooldown)
	}
	c.within("display_delay_ms", a.DelayMS, 0, maxDelayMS)
	c.questions(a.Questions)
	c.targeting(a.TargetingRules)
	c.branching(a.BranchingRules, a.Questions)
	if a.Theme != nil && !colorForm.MatchString(*a.Theme.PrimaryColor) {
		c.add("theme.primary_color", ProblemColor)
	}
	c.translations(a.Translations)
	return c.problems
}

type checker struct{ problems []Problem }

func (c *checker) add(path, reason string) { c.problems = append(c.problems, Problem{path, reason}) }

func (c *checker) within(path string, n, low, high int) {
	if n < low || n > high {
		c.add(path, ProblemRange)
	}
}

func (c *checker) words(path, text string, limit int) {
	switch {
	case longerThan(text, limit):
		c.add(path, ProblemTooLong)
	case strings.IndexByte(text, 0) >= 0:
		c.add(path, ProblemNUL)
	}
}

// someWords checks a text that must not be blank.
func (c *checker) someWords(path, text string, limit int) {
	if strings.TrimSpace(text) == "" {
		c.add(path, ProblemEmpty)
		return
	}
	c.words(path, text, limit)
}

// few reports whether a list is short enough to be looked at.
func (c *checker) few(path string, n, limit int) bool {
	if n > limit {
		c.add(path, ProblemTooMany)
	}
	return n <= limit
}

func (c *checker) questions(questions []AuthoredQuestion) {
	if !c.few("questions", len(questions), MaxQuestions) {
		return
	}
	ids, places := make(map[string]bool), make(map[int]bool)
	for i := range questions {
		q := &questions[i]
		path := fmt.Sprintf("questions[%d]", i)
		if q.ID != nil {
			switch {
			case !idForm.MatchString(*q.ID):
				c.add(path+".id", ProblemID)
			case ids[*q.ID]:
				c.add(path+".id", ProblemDuplicateID)
			}
			ids[*q.ID] = true
		}
		c.someWords(path+".prompt", *q.Prompt, MaxWords)
		at := orderIndex(q, i)
		c.within(path+".order_index", at, 0, maxOrder)
		if places[at] {
			c.add(path+".order_index", ProblemDuplicateAt)
		}
		places[at] = true
		c.config(path, *q.Kind, &q.Config)
	}
}

func (c *checker) config(path, kind string, config *Config) {
	if !slices.Contains([]string{Text, NPS, Rating, CSAT, Likert, Select, Multiselect, Boolean, Date}, kind) {
		c.add(path+".kind", ProblemUnknownKind)
		return
	}
	path += ".config"
	if kind == Select || kind == Multiselect {
		c.options(path+".options", config.Options)
	} else if config.Options != nil {
		c.add(path+".options", ProblemNotForKind)
	}
	if config.MaxLength != nil {
		if kind != Text {
			c.add(path+".max_length", ProblemNotForKind)
		} else {
			c.within(path+".max_length", *config.MaxLength, 1, MaxText)
		}
	}
	c.bounds(path, kind, config)
}

func (c *checker) options(path string, options []string) {
	if len(options) == 0 {
		c.add(path, ProblemRequired)
	}
	if !c.few(path, len(options), MaxOptions) {
		return
	}
	seen := make(map[string]bool)
	for i, option := range options {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case option == "": // "" is how a client says that nothing was chosen
			c.add(at, ProblemEmpty)
		case seen[option]:
			c.add(at, ProblemDuplicate)
		default:
			c.words(at, option, MaxWords)
		}
		seen[option] = true
	}
}

// bounds checks min and max. Where the kind fixes one, repeating it is no problem.
func (c *checker) bounds(path, kind string, config *Config) {
	fixed := func(member string, set *int, value int) {
		if set != nil && *set != value {
			c.add(path+"."+member, ProblemNotForKind)
		}
	}
	switch kind {
	case Likert:
		low, high := (&Question{Kind: kind, Config: *config}).bounds()
		c.within(path+".min", low, -maxScale, maxScale)
		c.within(path+".max", high, -maxScale, maxScale)
		if low >= high {
			c.add(path+".max", ProblemMinMax)
		}
	case Rating:
		fixed("min", config.Min, 1)
		if config.Max != nil {
			c.within(path+".max", *config.Max, 1, maxScale)
		}
	case NPS, CSAT:
		low, high := (&Question{Kind: kind}).bounds()
		fixed("min", config.Min, low)
		fixed("max", config.Max, high)
	default:
		if config.Min != nil {
			c.add(path+".min", ProblemNotForKind)
		}
		if config.Max != nil {
			c.add(path+".max", ProblemNotForKind)
		}
	}
}

func (c *checker) targeting(rules []AuthoredTargeting) {
	if !c.few("targeting_rules", len(rules), MaxRules) {
		return
	}
	for i, rule := range rules {
		path := fmt.Sprintf("targeting_rules[%d]", i)
		if _, err := predicate.Parse(*rule.Predicate); err != nil {
			c.add(path+".predicate", ProblemPredicate+": "+err.Error())
		}
		if rule.WeightNumerator != nil {
			c.within(path+".weight_numerator", *rule.WeightNumerator, 0, DefaultWeight)
		}
	}
}

// branching checks that rules lead strictly forward, which leaves no circles.
func (c *checker) branching(rules []BranchingRule, questions []AuthoredQuestion) {
	if !c.few("branching_rules", len(rules), MaxRules) || len(questions) > MaxQuestions {
		return
	}
	places := make(map[string]int)
	for i := range questions {
		if id := questions[i].ID; id != nil {
			places[*id] = orderIndex(&questions[i], i)
		}
	}
	for i, rule := range rules {
		path := fmt.Sprintf("branching_rules[%d]", i)
		from, known := places[rule.FromQuestionID]
		if !known {
			c.add(path+".from_question_id", ProblemUnknownTarget)
		}
		if _, err := ParseBranch(rule.Predicate); err != nil {
			c.add(path+".predicate", ProblemPredicate+": "+err.Error())
		}
		if rule.ToQuestionID == nil {
			continue
		}
		to, exists := places[*rule.ToQuestionID]
		switch {
		case !exists:
			c.add(path+".to_question_id", ProblemUnknownTarget)
		case known && to <= from:
			c.add(path+".to_question_id", ProblemNotForward)
		}
	}
}

// translations takes any key: which of them a client looks up is the client's
// matter, and those of a question that was removed do no harm.
func (c *checker) translations(translations map[string]map[string]string) {
	if !c.few("translations", len(translations), MaxLanguages) {
		return
	}
	for _, language := range slices.Sorted(maps.Keys(translations)) {
		path := "translations." + shortened(language)
		if len(language) > maxLanguage || !languageForm.MatchString(language) {
			c.add(path, ProblemLanguage)
		}
		for _, key := range slices.Sorted(maps.Keys(translations[language])) {
			c.someWords(path, key, MaxName)
			c.words(path+"."+shortened(key), translations[language][key], MaxWords)
		}
	}
}

// shortened keeps an author's own words in a path from swelling the answer.
func shortened(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	cut := most
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
