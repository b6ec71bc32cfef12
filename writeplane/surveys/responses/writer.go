package responses

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"skerry/pkg/instant"
	"skerry/pkg/survey"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

// submission is one valid submission on its way to the store.
type submission struct {
	id          string
	key         access.KeyIdentity
	form        *form
	respondent  survey.Respondent
	context     survey.Context
	submittedAt time.Time
	receivedAt  time.Time
	given       []survey.Given
	score       *int
	answer      []byte // the body of its 201
	size        int    // bytes of the request's body

	idempotencyKey string // empty: none
	bodyHash       []byte

	call *access.Call
	done chan outcome // takes one
}

// outcome is what became of a submission: an answer to send with 201, or an error.
type outcome struct {
	answer []byte
	err    error
	stored bool // now, rather than by an earlier submission with its key
}

// errStale is a submission that was checked against a survey that has been saved
// since; it must be checked again.
var errStale = errors.New("survey changed since the submission was checked")

// writer commits submissions in groups. Whatever arrives while a group is being
// committed is the next group, so that an idle service answers at once and a busy one
// pays a disk sync, and the lock on the project's counter, once for many. The counter
// is exact because it is read and raised under its row's lock, in the transaction
// that stores what it counts.
type writer struct {
	store    *commit.Store
	announce func(stored []*submission)
	queue    chan *submission
	stopped  chan struct{} // closed when run has ended
	stored   atomic.Int64
	groups   atomic.Int64
}

const (
	maxGroup      = 256
	maxGroupBytes = 8 << 20 // bodies' bytes; one larger submission goes alone
	commitTimeout = 20 * time.Second
)

func newWriter(store *commit.Store, announce func(stored []*submission)) *writer {
	return &writer{
		store: store, announce: announce, queue: make(chan *submission, maxGroup),
		stopped: make(chan struct{}),
	}
}

// write commits the submission and says what became of it. When ctx ends first, nobody
// can tell whether the submission is stored.
func (w *writer) write(ctx context.Context, s *submission) ([]byte, error) {
	s.done = make(chan outcome, 1)
	select {
	case w.queue <- s:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-w.stopped:
		return nil, errUnavailable
	}
	select {
	case o := <-s.done:
		return o.answer, o.err
	case <-ctx.Done():
		return nil, errUnknownFate
	case <-w.stopped:
	}
	select { // it may have been decided just before the end
	case o := <-s.done:
		return o.answer, o.err
	default:
		return nil, errUnavailable
	}
}

func (w *writer) run(ctx context.Context) error {
	defer close(w.stopped)
	var left []*submission // of the last group, to be tried in the next
	for {
		group := left
		if len(group) == 0 {
			select {
			case <-ctx.Done():
				return nil
			case first := <-w.queue:
				group = append(group, first)
			}
		}
		group = w.gather(group)
		group, left = separate(group)
		// What was begun is finished: a client waits for its answer.
		commitCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
		w.commit(commitCtx, group)
		cancel()
	}
}

// gather adds what waits in the queue, up to the bounds of a group.
func (w *writer) gather(group []*submission) []*submission {
	size := 0
	for _, s := range group {
		size += s.size
	}
	for len(group) < maxGroup && size < maxGroupBytes {
		select {
		case next := <-w.queue:
			group = append(group, next)
			size += next.size
		default:
			return group
		}
	}
	return group
}

// separate leaves the second of two submissions with one Idempotency-Key for the next
// group: by then the first one's answer is known.
func separate(group []*submission) (now, later []*submission) {
	seen := make(map[idempotencyScope]bool)
	for _, s := range group {
		at := s.scope()
		if s.idempotencyKey != "" && seen[at] {
			later = append(later, s)
			continue
		}
		seen[at] = true
		now = append(now, s)
	}
	return now, later
}

// commit stores a group and answers each of it. A statement that Postgres refuses
// fails the whole transaction, so the group is then tried one by one: nobody's
// submission fails for another's fault.
func (w *writer) commit(ctx context.Context, group []*submission) {
	outcomes, err := w.try(ctx, group)
	if retriable(err) {
		outcomes, err = w.try(ctx, group)
	}
	switch {
	case err == nil:
		w.finish(group, outcomes)
	case postgres.Unavailable(err):
		fate := error(errUnavailable)
		if postgres.FateUnknown(err) {
			fate = errUnknownFate
		}
		slog.Warn("survey responses not stored", "responses", len(group), "fate_unknown", fate == errUnknownFate, "error", err)
		for _, s := range group {
			s.done <- outcome{err: fate}
		}
	case len(group) > 1:
		for _, s := range group {
			w.commit(ctx, []*submission{s})
		}
	default:
		group[0].done <- outcome{err: fmt.Errorf("store response: %w", err)}
	}
}

// retriable is what another run may not meet: deadlocks and lost serialization, of which
// nothing is stored.
func retriable(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code[:2] == "40"
}

func (w *writer) try(ctx context.Context, group []*submission) (outcomes []outcome, err error) {
	err = w.store.InTx(ctx, commit.Origin{}, func(tx *commit.Tx) error {
		outcomes, err = storeGroup(ctx, tx, group)
		return err
	})
	return outcomes, err
}

func (w *writer) finish(group []*submission, outcomes []outcome) {
	stored := make([]*submission, 0, len(group))
	for i, s := range group {
		if outcomes[i].stored {
			stored = append(stored, s)
		}
	}
	w.stored.Add(int64(len(stored)))
	w.groups.Add(1)
	for i, s := range group {
		s.done <- outcomes[i]
	}
	w.announce(stored)
}

// submitted is the response as others learn of it.
func (s *submission) submitted() Submitted {
	answers := make(map[string]json.RawMessage, len(s.given))
	for _, g := range s.given {
		answers[g.Question.ID] = g.Value
	}
	return Submitted{
		ID: s.id, SurveyID: s.form.id, Score: s.score, Env: s.key.Environment, Respondent: s.respondent, Context: s.context,
		Answers: answers, SubmittedAt: instant.Of(s.submittedAt), OrganizationID: s.key.OrganizationID, ProjectID: s.key.ProjectID,
	}
}
