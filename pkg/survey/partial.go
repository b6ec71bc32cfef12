package survey

import "encoding/json"

// Partial is an unfinished response: the answers so far, and where the respondent was.
type Partial struct {
	Answers           map[string]json.RawMessage `json:"answers"`
	CurrentQuestionID *string                    `json:"current_question_id"`
}

// Merge applies the answers of a partial save to p: null, "" and an empty
// multiselect remove an answer, anything else is held to the rules of a submission
// and replaces it. Nothing is required. On faults p is unchanged.
func (f *Form) Merge(p *Partial, answers Answers) Faults {
	read := f.read(answers)
	given, faults := f.validate(read, answers)
	if faults.Any() {
		return faults
	}
	if p.Answers == nil {
		p.Answers = make(map[string]json.RawMessage)
	}
	for id := range answers {
		delete(p.Answers, id)
	}
	for _, g := range given {
		p.Answers[g.Question.ID] = g.Value
	}
	return faults
}

// Prune removes from p what the survey, edited since, no longer accepts, so that a
// resumed response never starts with answers it could not submit.
func (f *Form) Prune(p *Partial) {
	for id, raw := range p.Answers {
		at, known := f.byID[id]
		if !known {
			delete(p.Answers, id)
			continue
		}
		if _, reason := f.questions[at].check(ReadAnswer(raw)); reason != "" {
			delete(p.Answers, id)
		}
	}
	if p.Answers == nil {
		p.Answers = map[string]json.RawMessage{}
	}
	if p.CurrentQuestionID != nil && !f.Has(*p.CurrentQuestionID) {
		p.CurrentQuestionID = nil
	}
}
