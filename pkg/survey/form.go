package survey

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
)

// Form is a survey compiled for answering: immutable, for any number of goroutines.
type Form struct {
	questions []question // in order_index order
	byID      map[string]int
}

// question is a Question with what its answers are held to.
type question struct {
	Question
	min, max int // of the kinds whose answers are whole numbers
	rules    []branch
}

// branch is a compiled branching rule; to is an index into questions, or its length
// for the end of the survey.
type branch struct {
	when *Branch
	to   int
}

// Compile prepares a bundle that passed Check. An error means that it did not.
func Compile(b *Bundle) (*Form, error) {
	f := &Form{byID: make(map[string]int, len(b.Questions))}
	for _, q := range b.Questions {
		low, high := q.bounds()
		f.questions = append(f.questions, question{Question: q, min: low, max: high})
	}
	slices.SortStableFunc(f.questions, func(a, b question) int { return cmp.Compare(a.OrderIndex, b.OrderIndex) })
	for i := range f.questions {
		f.byID[f.questions[i].ID] = i
	}
	for _, rule := range b.BranchingRules {
		if err := f.addRule(rule); err != nil {
			return nil, fmt.Errorf("compile survey %s: %w", b.Survey.ID, err)
		}
	}
	return f, nil
}

func (f *Form) addRule(rule BranchingRule) error {
	from, known := f.byID[rule.FromQuestionID]
	if !known {
		return fmt.Errorf("branching from unknown question %s", rule.FromQuestionID)
	}
	to := len(f.questions)
	if rule.ToQuestionID != nil {
		if to, known = f.byID[*rule.ToQuestionID]; !known || to <= from {
			return fmt.Errorf("branching from %s to %s does not lead forward", rule.FromQuestionID, *rule.ToQuestionID)
		}
	}
	when, err := ParseBranch(rule.Predicate)
	if err != nil {
		return fmt.Errorf("branching from %s: %w", rule.FromQuestionID, err)
	}
	f.questions[from].rules = append(f.questions[from].rules, branch{when, to})
	return nil
}

// bounds are the least and the greatest answer of a kind whose answers are whole numbers.
func (q *Question) bounds() (low, high int) {
	or := func(set *int, otherwise int) int {
		if set != nil {
			return *set
		}
		return otherwise
	}
	switch q.Kind {
	case NPS:
		return 0, 10
	case CSAT:
		return 1, 5
	case Rating:
		return 1, or(q.Config.Max, DefaultRatingMax)
	case Likert:
		return or(q.Config.Min, DefaultLikertMin), or(q.Config.Max, DefaultLikertMax)
	}
	return 0, 0
}

// scorable reports whether an answer to the kind can be a response's score.
func scorable(kind string) bool {
	return kind == NPS || kind == Rating || kind == CSAT || kind == Likert
}

// Empty reports whether the survey has no questions.
func (f *Form) Empty() bool { return len(f.questions) == 0 }

// Has reports whether the survey has the question.
func (f *Form) Has(questionID string) bool {
	_, known := f.byID[questionID]
	return known
}

// InvalidAnswer names an answer that its question does not accept.
type InvalidAnswer struct {
	QuestionID string `json:"question_id"`
	Prompt     string `json:"prompt"`
	Reason     string `json:"reason"`
}

// MissingAnswer names a required question without an answer.
type MissingAnswer struct {
	QuestionID string `json:"question_id"`
	Prompt     string `json:"prompt"`
}

// Faults is everything that is wrong with the answers, in order_index order, then
// unknown questions in order of id. Neither list is nil.
type Faults struct {
	Invalid []InvalidAnswer `json:"invalid"`
	Missing []MissingAnswer `json:"missing"`
}

// Any reports whether there is a fault.
func (f Faults) Any() bool { return len(f.Invalid)+len(f.Missing) > 0 }

// Message says in words how much is wrong.
func (f Faults) Message() string {
	return fmt.Sprintf("%s invalid, %s missing", count(len(f.Invalid), "answer"), count(len(f.Missing), "required answer"))
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Given is one valid answer beside its question as it stood.
type Given struct {
	Question *Question
	Value    json.RawMessage
}

// Check validates the answers of a submission. A required question that the given
// answers skip by branching is not missing; an answer to a skipped question counts
// like any other. Answers stand in order_index order and are only to be used when
// there are no faults.
func (f *Form) Check(answers Answers) ([]Given, Faults) {
	read := f.read(answers)
	given, faults := f.validate(read, answers)
	onPath := f.path(read)
	for i := range f.questions {
		q := &f.questions[i]
		if q.Required && onPath[i] && !read[i].given(q.Kind) {
			faults.Missing = append(faults.Missing, MissingAnswer{q.ID, q.Prompt})
		}
	}
	return given, faults
}

// read reads the answer to each question once.
func (f *Form) read(answers Answers) []Answer {
	read := make([]Answer, len(f.questions))
	for i := range f.questions {
		if raw, ok := answers[f.questions[i].ID]; ok {
			read[i] = ReadAnswer(raw)
		}
	}
	return read
}

func (f *Form) validate(read []Answer, answers Answers) ([]Given, Faults) {
	faults := Faults{Invalid: []InvalidAnswer{}, Missing: []MissingAnswer{}}
	given := make([]Given, 0, len(answers))
	for i := range f.questions {
		q := &f.questions[i]
		if !read[i].given(q.Kind) {
			continue
		}
		value, reason := q.check(read[i])
		if reason != "" {
			faults.Invalid = append(faults.Invalid, InvalidAnswer{q.ID, q.Prompt, reason})
			continue
		}
		given = append(given, Given{&q.Question, value})
	}
	faults.Invalid = append(faults.Invalid, f.unknown(answers)...)
	return given, faults
}

// unknown are the answers to questions that the survey does not have. A null is no
// answer, so it is no fault either.
func (f *Form) unknown(answers Answers) []InvalidAnswer {
	var unknown []InvalidAnswer
	for id, raw := range answers {
		if !f.Has(id) && string(raw) != "null" {
			unknown = append(unknown, InvalidAnswer{QuestionID: id, Reason: ReasonUnknown})
		}
	}
	slices.SortFunc(unknown, func(a, b InvalidAnswer) int { return cmp.Compare(a.QuestionID, b.QuestionID) })
	return unknown
}

// path walks the survey as the given answers lead: the first matching rule of a
// question decides, else the next question follows. Rules lead forward only, so the
// walk ends.
func (f *Form) path(read []Answer) []bool {
	onPath := make([]bool, len(f.questions))
	for at := 0; at < len(f.questions); {
		onPath[at] = true
		q := &f.questions[at]
		answer := read[at]
		if !answer.given(q.Kind) {
			answer = Answer{}
		}
		next := at + 1
		for _, rule := range q.rules {
			if rule.when.Matches(answer) {
				next = rule.to
				break
			}
		}
		at = next
	}
	return onPath
}

// Score is the value of the first nps, rating, csat or likert question answered, in
// order_index order; nil when there is none.
func Score(given []Given) *int {
	for _, g := range given {
		if !scorable(g.Question.Kind) {
			continue
		}
		if number := readWhole(string(g.Value)); number.state == isWhole {
			score := int(number.value)
			return &score
		}
	}
	return nil
}
