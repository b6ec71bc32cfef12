package responses

import (
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"

	"skerry/pkg/instant"
	"skerry/pkg/survey"
)

// Submitted is a stored response as other modules and webhook subscribers learn of it
// (supplement §8).
type Submitted struct {
	ID          string                     `json:"id"`
	SurveyID    string                     `json:"survey_id"`
	Score       *int                       `json:"score"`
	Env         string                     `json:"env"`
	Respondent  survey.Respondent          `json:"respondent"`
	Context     survey.Context             `json:"context"`
	Answers     map[string]json.RawMessage `json:"answers"`
	SubmittedAt instant.Time               `json:"submitted_at"`

	OrganizationID string `json:"-"`
	ProjectID      string `json:"-"`
}

// Bus hands stored responses to other modules of the process, such as a planning
// board that makes tickets of them. It never makes a submission wait: a subscriber
// whose buffer is full misses what comes, and that is counted. Whoever must not miss
// any reads the table.
type Bus struct {
	dropped atomic.Int64

	mu          sync.RWMutex
	subscribers []chan Submitted
}

// Subscribe returns a channel with a buffer and a function that ends it. The channel
// is never closed.
func (b *Bus) Subscribe(buffer int) (responses <-chan Submitted, stop func()) {
	subscriber := make(chan Submitted, buffer)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subscribers = append(b.subscribers, subscriber)
	return subscriber, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.subscribers = slices.DeleteFunc(b.subscribers, func(c chan Submitted) bool { return c == subscriber })
	}
}

func (b *Bus) publish(s Submitted) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, subscriber := range b.subscribers {
		select {
		case subscriber <- s:
		default:
			b.dropped.Add(1)
		}
	}
}
