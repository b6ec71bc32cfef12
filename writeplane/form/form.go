// Package form reads a management body as a whole, so that every problem of it can be
// named with its path and nothing is changed until there is none.
//
// A Form holds the members of one JSON object with numbers as they were written. Its
// methods take one member each and note what is wrong; Err gives all of it as one answer.
// Names are matched exactly, and what no method was asked for is an unknown member.
package form

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"skerry/pkg/decide"
	"skerry/pkg/jsonbody"
	"skerry/pkg/problem"
)

// Form is one JSON object that is being checked.
type Form struct {
	members  map[string]any
	asked    map[string]bool
	problems []decide.Problem
}

// Read reads a request's body. Malformed JSON and anything but an object is
// refused at once.
func Read(r *http.Request) (*Form, error) {
	body, err := jsonbody.Read(r, jsonbody.Limit)
	if err != nil {
		return nil, err
	}
	return Of(body)
}

// Of reads a text.
func Of(body []byte) (*Form, error) {
	// The shared reader words what is malformed; its struct takes no member, so it
	// refuses none.
	if err := jsonbody.Object(body); err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	members := map[string]any{}
	if err := decoder.Decode(&members); err != nil {
		return nil, jsonbody.Invalid("malformed JSON")
	}
	return New(members), nil
}

// New takes members that are decoded already.
func New(members map[string]any) *Form {
	return &Form{members: members, asked: map[string]bool{}}
}

// Patched is the form of a resource after an RFC 7396 merge patch: of the named members
// alone, which are all that target has. The patch itself has been checked to name
// nothing unknown.
func Patched(target any, patch []byte, members []string) (*Form, error) {
	present, err := json.Marshal(target)
	if err != nil {
		return nil, fmt.Errorf("marshal what is patched: %w", err)
	}
	merged, err := jsonbody.MergePatch(present, patch)
	if err != nil {
		return nil, err
	}
	f, err := Of(merged)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(f.members, func(name string, _ any) bool { return !slices.Contains(members, name) })
	return f, nil
}

// Fault notes a problem.
func (f *Form) Fault(code, path, format string, args ...any) {
	f.problems = append(f.problems, decide.Problem{Code: code, Path: path, Reason: fmt.Sprintf(format, args...)})
}

// Add notes problems that another check found.
func (f *Form) Add(problems []decide.Problem) { f.problems = append(f.problems, problems...) }

// Any takes a member as it was decoded; nil when it is absent or null.
func (f *Form) Any(name string) any {
	f.asked[name] = true
	return f.members[name]
}

// Limits of texts, in characters.
const (
	MaxText  = 10_000
	MaxValue = 1 << 20 // of serialized values; documents bound them further
)

// Text takes a string of at most max characters. ok is false when it is absent or faulty.
func (f *Form) Text(name string, max int) (text string, ok bool) {
	v := f.Any(name)
	if v == nil {
		return "", false
	}
	return f.CheckText(v, name, max)
}

// RequiredText is Text for a member whose absence is a fault.
func (f *Form) RequiredText(name string, max int) (text string, ok bool) {
	if f.Any(name) == nil {
		f.Fault(decide.InvalidBody, name, "is required")
	}
	return f.Text(name, max)
}

// CheckText checks a decoded value as Text does, for members inside arrays.
func (f *Form) CheckText(v any, path string, max int) (string, bool) {
	text, isText := v.(string)
	switch {
	case !isText:
		f.Fault(decide.InvalidBody, path, "must be a string")
	case utf8.RuneCountInString(text) > max:
		f.Fault(decide.InvalidBody, path, "is longer than %d characters", max)
	case strings.ContainsRune(text, 0):
		f.Fault(decide.InvalidBody, path, "contains the character NUL")
	default:
		return text, true
	}
	return "", false
}

// Bool takes a boolean; otherwise gives the value of an absent one.
func (f *Form) Bool(name string, otherwise bool) bool {
	switch v := f.Any(name).(type) {
	case nil:
		return otherwise
	case bool:
		return v
	}
	f.Fault(decide.InvalidBody, name, "must be true or false")
	return otherwise
}

// Array takes an array of at most max entries; nil when it is absent or faulty.
func (f *Form) Array(name string, max int) []any {
	switch v := f.Any(name).(type) {
	case nil:
		return nil
	case []any:
		if len(v) <= max {
			return v
		}
		f.Fault(decide.InvalidBody, name, "has more than %d entries", max)
		return nil
	}
	f.Fault(decide.InvalidBody, name, "must be an array")
	return nil
}

// Fixed notes a fault when the member is given and differs from what it was made with.
func (f *Form) Fixed(name, is string) {
	if v := f.Any(name); v != nil && v != is {
		f.Fault(decide.InvalidBody, name, "cannot change")
	}
}

// Environment takes the required member `environment`.
func (f *Form) Environment() string {
	text, ok := f.RequiredText("environment", MaxText)
	if ok && text != "live" && text != "test" {
		f.Fault(decide.InvalidBody, "environment", "must be live or test")
	}
	return text
}

// Key takes the required member that is the resource's key.
func (f *Form) Key(name string) string {
	text, ok := f.RequiredText(name, MaxText)
	if ok && !decide.ValidKey(text) {
		f.Fault("invalid_key", name, "must be 1 to 128 of the characters A-Z a-z 0-9 . _ -")
	}
	return text
}

// Err is nil when nothing is wrong, else one 400 that names everything. Its code is the
// first problem's.
func (f *Form) Err() error {
	for _, name := range slices.Sorted(maps.Keys(f.members)) {
		if !f.asked[name] {
			f.Fault(decide.InvalidBody, name, "unknown member")
			f.asked[name] = true
		}
	}
	if len(f.problems) == 0 {
		return nil
	}
	first := f.problems[0]
	return problem.Newf(problem.Invalid, first.Code, "%s: %s", first.Path, first.Reason).With("problems", f.problems)
}
