package survey

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"skerry/pkg/instant"
)

// Limits of a submission's own members.
const (
	MaxIdentity    = 512            // code points of each member of respondent and context
	MaxAnswers     = 10_000         // members of answers
	maxFutureClock = 24 * time.Hour // submitted_at may be ahead this much
)

// Answers maps a question id to an answer as it was written.
type Answers map[string]json.RawMessage

// Respondent is who answered; absent members are nil.
type Respondent struct {
	UserID     *string `json:"user_id"`
	ExternalID *string `json:"external_id"`
	Email      *string `json:"email"`
}

// Context is where it was answered; absent members are nil.
type Context struct {
	ReleaseVersion *string `json:"release_version"`
	DeviceModel    *string `json:"device_model"`
	OSVersion      *string `json:"os_version"`
	DistributionID *string `json:"distribution_id"`
}

// Submission is the parsed body of POST /api/pulse/responses.
type Submission struct {
	Survey      string // id or slug
	Respondent  Respondent
	Context     Context
	SubmittedAt time.Time // zero: absent
	Answers     Answers   // parts of the body, which must outlive them
}

// BodyFault is a body that cannot be taken for what the endpoint expects; Code is
// invalid_body or invalid_answers.
type BodyFault struct{ Code, Message string }

func (e *BodyFault) Error() string { return e.Code + ": " + e.Message }

// The codes of a BodyFault.
const (
	CodeInvalidBody    = "invalid_body"
	CodeInvalidAnswers = "invalid_answers"
)

func invalidBody(format string, args ...any) error {
	return &BodyFault{CodeInvalidBody, fmt.Sprintf(format, args...)}
}

func invalidAnswers(format string, args ...any) error {
	return &BodyFault{CodeInvalidAnswers, fmt.Sprintf(format, args...)}
}

// ParseSubmission reads a submission's body in the order of checks of supplement §5.
// Unknown members are ignored, the last of two equal keys wins, null is absence. The
// error is a *BodyFault.
func ParseSubmission(body []byte, now time.Time) (Submission, error) {
	var s Submission
	root, err := readObject(body)
	if err != nil {
		return s, err
	}
	survey, err := text(root, "survey_id", math.MaxInt) // one that is too long is unknown
	if err != nil {
		return s, err
	}
	if survey == nil {
		return s, invalidBody("survey_id is required")
	}
	s.Survey = *survey
	if err := texts(root, "respondent", map[string]**string{
		"user_id": &s.Respondent.UserID, "external_id": &s.Respondent.ExternalID, "email": &s.Respondent.Email,
	}); err != nil {
		return s, err
	}
	if err := texts(root, "context", map[string]**string{
		"release_version": &s.Context.ReleaseVersion, "device_model": &s.Context.DeviceModel,
		"os_version": &s.Context.OSVersion, "distribution_id": &s.Context.DistributionID,
	}); err != nil {
		return s, err
	}
	if s.SubmittedAt, err = submittedAt(root, now); err != nil {
		return s, err
	}
	s.Answers, err = readAnswers(root["answers"])
	return s, err
}

// PartialSave is the parsed body of a partial save.
type PartialSave struct {
	ExternalID string
	Answers    Answers // parts of the body, which must outlive them
	// CurrentQuestionID is kept as it was when CurrentSet is false, and removed when nil.
	CurrentQuestionID *string
	CurrentSet        bool
}

// ParsePartialSave reads the body of PUT …/partial. Absent answers are no change.
// The error is a *BodyFault.
func ParsePartialSave(body []byte) (PartialSave, error) {
	var s PartialSave
	root, err := readObject(body)
	if err != nil {
		return s, err
	}
	externalID, err := text(root, "external_id", MaxIdentity)
	if err != nil {
		return s, err
	}
	if externalID == nil {
		return s, invalidBody("external_id is required")
	}
	s.ExternalID = *externalID
	_, s.CurrentSet = root["current_question_id"]
	if s.CurrentQuestionID, err = text(root, "current_question_id", MaxIdentity); err != nil {
		return s, err
	}
	if raw := root["answers"]; raw == nil || string(raw) == "null" {
		return s, nil
	}
	s.Answers, err = readAnswers(root["answers"])
	return s, err
}

// readObject checks the whole body and splits its top level.
func readObject(body []byte) (map[string][]byte, error) {
	if !utf8.Valid(body) {
		return nil, invalidBody("the body is not UTF-8")
	}
	if !json.Valid(body) {
		return nil, invalidBody("the body is not valid JSON")
	}
	if skipSpace(body)[0] != '{' {
		return nil, invalidBody("the body is not a JSON object")
	}
	root := make(map[string][]byte)
	members(body, func(key string, value []byte) { root[key] = value })
	return root, nil
}

// text reads an optional string; null and "" are absence. NUL is refused because no
// store of text takes it.
func text(object map[string][]byte, member string, limit int) (*string, error) {
	raw, ok := object[member]
	if !ok || string(raw) == "null" {
		return nil, nil
	}
	if raw[0] != '"' {
		return nil, invalidBody("%s must be a string", member)
	}
	s := unquote(raw)
	switch {
	case s == "":
		return nil, nil
	case longerThan(s, limit):
		return nil, invalidBody("%s is longer than %d characters", member, limit)
	case strings.IndexByte(s, 0) >= 0:
		return nil, invalidBody("%s contains NUL", member)
	}
	return &s, nil
}

// texts reads an optional object of optional strings.
func texts(root map[string][]byte, member string, into map[string]**string) error {
	raw, ok := root[member]
	if !ok || string(raw) == "null" {
		return nil
	}
	if raw[0] != '{' {
		return invalidBody("%s must be an object", member)
	}
	object := make(map[string][]byte, len(into))
	members(raw, func(key string, value []byte) { object[key] = value })
	for _, name := range slices.Sorted(maps.Keys(into)) { // the same fault on every run
		value, err := text(object, name, MaxIdentity)
		if fault, ok := err.(*BodyFault); ok {
			return invalidBody("%s.%s", member, fault.Message)
		}
		*into[name] = value
	}
	return nil
}

func submittedAt(root map[string][]byte, now time.Time) (time.Time, error) {
	written, err := text(root, "submitted_at", MaxIdentity)
	if err != nil || written == nil {
		if raw := root["submitted_at"]; err == nil && raw != nil && raw[0] == '"' {
			return time.Time{}, invalidBody("submitted_at is not an ISO 8601 time")
		}
		return time.Time{}, err
	}
	at, err := instant.Parse(*written)
	if err != nil {
		return time.Time{}, invalidBody("submitted_at is not an ISO 8601 time")
	}
	if at.After(now.Add(maxFutureClock)) {
		return time.Time{}, invalidBody("submitted_at is more than 24 hours ahead")
	}
	return at, nil
}

func readAnswers(raw []byte) (Answers, error) {
	if raw == nil || string(raw) == "null" {
		return nil, invalidAnswers("answers is required")
	}
	if raw[0] != '{' {
		return nil, invalidAnswers("answers must be an object")
	}
	answers := make(Answers)
	tooMany := false
	members(raw, func(key string, value []byte) {
		if len(answers) < MaxAnswers {
			answers[key] = value
		} else if _, again := answers[key]; !again {
			tooMany = true
		} else {
			answers[key] = value
		}
	})
	if tooMany {
		return nil, invalidAnswers("more than %d answers", MaxAnswers)
	}
	return answers, nil
}
