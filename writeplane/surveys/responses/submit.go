package responses

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"skerry/pkg/id"
	"skerry/pkg/problem"
	"skerry/pkg/survey"
	"skerry/writeplane/access"
)

const (
	// smallBody is up to where a body is read without asking for room.
	smallBody = 64 << 10
	// firstRoom is what a larger one waits for; then it doubles.
	firstRoom = 1 << 20
)

// MaxIdempotencyKey is the longest Idempotency-Key in bytes.
const MaxIdempotencyKey = 255

// accepted is the body of the 201, in the specification's order.
type accepted struct {
	ID     string `json:"id"`
	Score  *int   `json:"score"`
	Env    string `json:"env"`
	Survey string `json:"survey"`
}

// Submit serves POST /api/pulse/responses.
func (m *Module) Submit(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	if !c.Key.Modules.Pulse {
		return errModuleDisabled
	}
	body, release, err := m.body(r)
	if err != nil {
		return err
	}
	defer release()
	now := m.now()
	parsed, err := survey.ParseSubmission(body, now)
	if err != nil {
		return worded(err)
	}
	s := &submission{
		key: c.Key, call: c, respondent: parsed.Respondent, context: parsed.Context, size: len(body),
		receivedAt: now.UTC().Truncate(time.Microsecond), submittedAt: parsed.SubmittedAt,
	}
	if s.submittedAt.IsZero() {
		s.submittedAt = s.receivedAt
	}
	if s.idempotencyKey, err = idempotencyKey(r); err != nil {
		return err
	}
	hash := sha256.Sum256(body)
	s.bodyHash = hash[:]
	answer, err := m.submit(r.Context(), s, &parsed)
	if err != nil {
		return err
	}
	respond(w, http.StatusCreated, answer)
	return nil
}

// staleTries bounds how often a submission meets a survey saved in between. Nothing is
// stored then, and whoever is told so may try again.
const staleTries = 5

// submit checks the submission against the survey as it is held in memory, which the
// transaction confirms. Any refusal is confirmed by checking against the survey read
// anew, so that nobody is refused by what is no longer so.
func (m *Module) submit(ctx context.Context, s *submission, parsed *survey.Submission) ([]byte, error) {
	f, held := m.forms.cached(s.key.ProjectID, parsed.Survey)
	for range staleTries {
		anew := !held
		if anew {
			var err error
			if f, err = m.forms.load(ctx, s.key.ProjectID, parsed.Survey); err != nil {
				return m.refused(ctx, s, err)
			}
		}
		if err := s.check(f, parsed.Answers); err == nil {
			answer, err := m.writer.write(ctx, s)
			if !errors.Is(err, errStale) {
				return answer, err
			}
		} else if anew {
			return m.refused(ctx, s, err)
		}
		held = false
	}
	slog.WarnContext(ctx, "survey response not stored: its survey was saved again and again meanwhile", "survey", f.id, "tries", staleTries)
	return nil, errUnavailable
}

// check validates the submission against the form and completes it.
func (s *submission) check(f *form, answers survey.Answers) error {
	if f.status != survey.Published {
		return notAccepting(f.status)
	}
	if f.Empty() {
		return errNoQuestions
	}
	given, faults := f.Check(answers)
	if faults.Any() {
		return invalidAnswers(faults)
	}
	s.id, s.form, s.given, s.score = id.NewPrefixed(id.Response), f, given, survey.Score(given)
	answer, err := json.Marshal(accepted{s.id, s.score, s.key.Environment, f.id})
	if err != nil {
		return fmt.Errorf("marshal answer: %w", err)
	}
	s.answer = answer
	return nil
}

// refused answers a submission that does not hold now: with the first answer again
// when it is a repetition of one that did hold, else with what is wrong.
func (m *Module) refused(ctx context.Context, s *submission, fault error) ([]byte, error) {
	var expected *problem.Error
	if s.idempotencyKey == "" || !errors.As(fault, &expected) {
		return nil, fault
	}
	first, used, err := m.firstAnswer(ctx, s)
	switch {
	case err != nil:
		return nil, err
	case !used:
		return nil, fault
	case string(first.bodyHash) != string(s.bodyHash):
		return nil, errIdempotency
	}
	return first.answer, nil
}

func (m *Module) firstAnswer(ctx context.Context, s *submission) (first prior, used bool, err error) {
	found := make(map[idempotencyScope]prior)
	rows, err := m.store.Pool().Query(ctx, `
		SELECT body_sha256, answer FROM survey_idempotency
		WHERE project_id = $1 AND environment = $2 AND key = $3 AND created_at > $4`,
		s.key.ProjectID, s.key.Environment, s.idempotencyKey, s.receivedAt.Add(-idempotencyFor))
	if err != nil {
		return prior{}, false, fmt.Errorf("read idempotency key: %w", err)
	}
	if err := each(rows, func(hash, answer []byte) { found[s.scope()] = prior{hash, answer} }); err != nil {
		return prior{}, false, fmt.Errorf("read idempotency key: %w", err)
	}
	first, used = found[s.scope()]
	return first, used, nil
}

// idempotencyKey reads the header; "" when there is none.
func idempotencyKey(r *http.Request) (string, error) {
	key := r.Header.Get("Idempotency-Key")
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return "", errIdempotencyKey
		}
	}
	if len(key) > MaxIdempotencyKey {
		return "", errIdempotencyKey
	}
	return key, nil
}

var errIdempotencyKey = problem.Newf(problem.Invalid, "invalid_idempotency_key",
	"Idempotency-Key must be 1 to %d visible ASCII characters", MaxIdempotencyKey)

// body reads the request's body. Once it proves large, it waits in turn for a little room,
// and takes more as it comes, while there is some; release gives it back. So memory stays
// bounded however many come at once, and whoever announces much and sends little keeps
// nobody out. None waits who holds room already, or all might wait for each other.
func (m *Module) body(r *http.Request) (body []byte, release func(), err error) {
	tooLarge := problem.Newf(problem.TooLarge, "payload_too_large", "the body is larger than %d bytes", m.config.MaxBody)
	if r.ContentLength > m.config.MaxBody {
		return nil, nil, tooLarge
	}
	var room int64
	defer func() {
		if err != nil {
			m.bodies.Release(room)
		}
	}()
	var read bytes.Buffer
	for limit := min(smallBody, m.config.MaxBody); ; limit = room {
		if _, err := read.ReadFrom(io.LimitReader(r.Body, limit+1-int64(read.Len()))); err != nil {
			return nil, nil, errBrokenOff
		}
		if int64(read.Len()) <= limit {
			return read.Bytes(), func() { m.bodies.Release(room) }, nil
		}
		more := min(max(2*room, firstRoom), m.config.MaxBody) - room
		switch {
		case more == 0:
			return nil, nil, tooLarge
		case room == 0:
			err = m.bodies.Acquire(r.Context(), more)
		case !m.bodies.TryAcquire(more):
			err = errUnavailable
		}
		if err != nil {
			return nil, nil, err
		}
		room += more
		if left := min(room, r.ContentLength) - int64(read.Len()); left > 0 {
			read.Grow(int(left) + bytes.MinRead)
		}
	}
}

var errBrokenOff = problem.Newf(problem.Invalid, survey.CodeInvalidBody, "the body broke off")

func respond(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has gone may ask again with its Idempotency-Key
}
