package survey

import "encoding/json"

// Tally adds up the answers to one question, in the form of the summary endpoint. The
// zero value with QuestionID and Kind set is ready. Respondents who did not answer are
// not added, so they count in no average.
type Tally struct {
	QuestionID string
	Kind       string

	answered     int64
	distribution map[string]int64
	sum          int64
	ratings      ratings
}

// ratings are the counts that NPS and CSAT are made of.
type ratings struct{ promoters, passives, detractors, satisfied int64 }

// Add counts n answers of a stored value. Texts are counted, not told apart: a
// distribution of free text would hold every answer.
func (t *Tally) Add(value json.RawMessage, n int64) {
	if t.distribution == nil {
		t.distribution = make(map[string]int64)
	}
	t.answered += n
	answer := ReadAnswer(value)
	switch {
	case t.Kind == Text:
	case answer.kind == listAnswer:
		for _, option := range answer.list {
			t.distribution[option] += n
		}
	case answer.kind == textAnswer:
		t.distribution[answer.text] += n
	default:
		t.distribution[string(answer.raw)] += n
	}
	if scorable(t.Kind) {
		t.addNumber(readWhole(string(answer.raw)).value, n)
	}
}

func (t *Tally) addNumber(value, n int64) {
	t.sum += value * n
	switch {
	case value >= 9:
		t.ratings.promoters += n
	case value >= 7:
		t.ratings.passives += n
	default:
		t.ratings.detractors += n
	}
	if value >= 4 {
		t.ratings.satisfied += n
	}
}

// QuestionSummary is the summary of one question (supplement §5).
type QuestionSummary struct {
	QuestionID   string           `json:"question_id"`
	Kind         string           `json:"kind"`
	Answered     int64            `json:"answered"`
	Distribution map[string]int64 `json:"distribution"`
	Mean         *float64         `json:"mean"`
	NPS          *NPSResult       `json:"nps"`
	CSAT         *float64         `json:"csat"`
}

// NPSResult is the net promoter score: 100·(promoters − detractors)/answered, where
// 9 and 10 promote and 0 to 6 detract.
type NPSResult struct {
	Score      float64 `json:"score"`
	Promoters  int64   `json:"promoters"`
	Passives   int64   `json:"passives"`
	Detractors int64   `json:"detractors"`
}

// Summary is what was added so far. Means and scores are nil where nobody answered.
func (t *Tally) Summary() QuestionSummary {
	s := QuestionSummary{QuestionID: t.QuestionID, Kind: t.Kind, Answered: t.answered, Distribution: t.distribution}
	if s.Distribution == nil {
		s.Distribution = map[string]int64{}
	}
	if t.answered == 0 || !scorable(t.Kind) {
		return s
	}
	mean := float64(t.sum) / float64(t.answered)
	s.Mean = &mean
	switch t.Kind {
	case NPS:
		s.NPS = &NPSResult{
			Score:     100 * float64(t.ratings.promoters-t.ratings.detractors) / float64(t.answered),
			Promoters: t.ratings.promoters, Passives: t.ratings.passives, Detractors: t.ratings.detractors,
		}
	case CSAT:
		percentage := 100 * float64(t.ratings.satisfied) / float64(t.answered)
		s.CSAT = &percentage
	}
	return s
}
