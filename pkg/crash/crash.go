// Package crash reads crash reports (supplement §6, POST /api/catch/events).
//
// It promises that what Decode accepts can be stored and answered again with the
// members of every frame as they were sent. It does not judge whether a frame can
// be symbolicated: a strange address costs that frame its reason, never the report.
package crash

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"skerry/pkg/instant"
	"skerry/pkg/problem"
)

// The limits of one report. Frames past the symbolicator's own limit are kept
// and answered with reason `limit`.
const (
	MaxBodyBytes = 16 << 20 // of the body, decoded, and of what Marshal makes of it
	MaxFrames    = 20_000   // a runaway recursion still fits
	maxText      = 1_024    // characters of release and distinct_id
	// MaxReleaseBytes bounds a release, which stands in indexes of the store.
	MaxReleaseBytes = 1_400
)

// The platforms of a report.
const (
	JavaScript = "javascript"
	IOS        = "ios"
	Android    = "android"
	NDK        = "ndk"
	Flutter    = "flutter"
)

// Platforms lists what `platform` may be.
func Platforms() []string { return []string{JavaScript, IOS, Android, NDK, Flutter} }

// Event is one crash report as sent. Its JSON form is the body of the intake, so
// Decode reads back what Marshal writes.
type Event struct {
	Release    string       `json:"release"`
	Platform   string       `json:"platform"`
	Timestamp  instant.Time `json:"timestamp"` // zero: the sender gave none
	DistinctID string       `json:"distinct_id,omitempty"`
	Exception  Exception    `json:"exception"`
	Frames     []Frame      `json:"frames"` // innermost first
	Stacktrace string       `json:"stacktrace,omitempty"`
}

// Exception names what was thrown or which signal ended the process.
type Exception struct {
	Type  string `json:"type"`
	Value string `json:"value"`
}

// Frame is one frame as sent; a nil member was absent. Lines and columns count
// from 1, addresses are "0x…" strings.
type Frame struct {
	Filename  *string `json:"filename,omitempty"`
	Function  *string `json:"function,omitempty"`
	Lineno    *int64  `json:"lineno,omitempty"`
	Colno     *int64  `json:"colno,omitempty"`
	Module    *string `json:"module,omitempty"`
	DebugID   *string `json:"debug_id,omitempty"`
	Address   *string `json:"address,omitempty"`
	ImageBase *string `json:"image_base,omitempty"`
}

// invalid words a fault of the body (400 invalid_body).
func invalid(format string, args ...any) *problem.Error {
	return problem.Newf(problem.Invalid, "invalid_body", format, args...)
}

// Decode reads and checks the body of the intake. A fault is a *problem.Error
// whose message names the member; unknown members are ignored, the last of
// duplicate keys wins, null is absence. A timestamp more than 24 h after now is
// dropped, so that the time of receipt takes its place.
func Decode(body []byte, now time.Time) (Event, error) {
	if len(body) > MaxBodyBytes {
		return Event{}, errTooLarge
	}
	if !utf8.Valid(body) {
		return Event{}, invalid("the body is not UTF-8")
	}
	m, ok := map[string]json.RawMessage(nil), json.Valid(body)
	if ok {
		m, ok = object(body, "release", "platform", "timestamp", "distinct_id", "exception", "frames", "stacktrace")
	}
	if !ok {
		return Event{}, invalid("the body is not a JSON object")
	}
	r := reader{members: m}
	var e Event
	e.Release = r.required("release")
	e.Platform = r.required("platform")
	e.DistinctID = r.optional("distinct_id")
	e.Stacktrace = r.optional("stacktrace")
	e.Timestamp = r.time("timestamp", now)
	r.text("release", e.Release)
	if len(e.Release) > MaxReleaseBytes {
		r.fail("release", fmt.Sprintf("is longer than %d bytes", MaxReleaseBytes))
	}
	r.text("distinct_id", e.DistinctID)
	if r.fault == nil && !known(e.Platform) {
		r.fault = invalid("platform must be one of %s", strings.Join(Platforms(), ", "))
	}
	e.Exception = r.exception()
	e.Frames = r.frames()
	if r.fault != nil {
		return Event{}, r.fault
	}
	return e, nil
}

var errTooLarge = problem.Newf(problem.TooLarge, "payload_too_large", "a crash report is at most %d bytes", MaxBodyBytes)

// Marshal is the JSON form of the event that Decode reads again: no form of a report is
// larger than MaxBodyBytes, or it could not travel. It does not escape <, > and &, which
// would make six bytes of each; what grows all the same (U+2028) may be too large here,
// and the error is the *problem.Error of Decode.
func (e Event) Marshal() ([]byte, error) {
	if e.Frames == nil {
		e.Frames = []Frame{}
	}
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil {
		return nil, fmt.Errorf("marshal crash event: %w", err)
	}
	record := bytes.TrimSuffix(body.Bytes(), []byte("\n"))
	if len(record) > MaxBodyBytes {
		return nil, errTooLarge
	}
	return record, nil
}

// Unmarshal reads what Marshal wrote, without the checks of Decode.
func Unmarshal(body []byte) (Event, error) {
	var e Event
	if err := json.Unmarshal(body, &e); err != nil {
		return Event{}, fmt.Errorf("read crash event: %w", err)
	}
	return e, nil
}

func known(platform string) bool {
	for _, p := range Platforms() {
		if p == platform {
			return true
		}
	}
	return false
}

// reader takes members out of one object and keeps the first fault.
type reader struct {
	members map[string]json.RawMessage
	path    string // prefix of member names in messages
	fault   *problem.Error
}

func (r *reader) fail(member, must string) {
	if r.fault == nil {
		r.fault = invalid("%s%s %s", r.path, member, must)
	}
}

func (r *reader) raw(member string) (json.RawMessage, bool) {
	raw, ok := r.members[member]
	return raw, ok && string(raw) != "null"
}

func (r *reader) string(member string) *string {
	raw, ok := r.raw(member)
	if !ok {
		return nil
	}
	var s string
	if raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		r.fail(member, "must be a string")
		return nil
	}
	return &s
}

func (r *reader) optional(member string) string {
	if s := r.string(member); s != nil {
		return *s
	}
	return ""
}

func (r *reader) required(member string) string {
	s := r.string(member)
	if s == nil || *s == "" {
		r.fail(member, "is required")
		return ""
	}
	return *s
}

// text refuses what a text column of the store cannot hold or index.
func (r *reader) text(member, s string) {
	if strings.ContainsRune(s, 0) {
		r.fail(member, "must not contain NUL")
	}
	if utf8.RuneCountInString(s) > maxText {
		r.fail(member, fmt.Sprintf("is longer than %d characters", maxText))
	}
}

func (r *reader) time(member string, now time.Time) instant.Time {
	s := r.string(member)
	if s == nil {
		return instant.Time{}
	}
	t, err := instant.Parse(*s)
	if err != nil {
		r.fail(member, "must be an ISO 8601 time")
		return instant.Time{}
	}
	if t.After(now.Add(24 * time.Hour)) {
		return instant.Time{}
	}
	return instant.Of(t)
}

func (r *reader) integer(member string) *int64 {
	raw, ok := r.raw(member)
	if !ok {
		return nil
	}
	n, ok := integer(raw)
	if !ok {
		r.fail(member, "must be an integer")
		return nil
	}
	return &n
}

// integer reads a JSON number that is whole: 12, 12.0 and 1.2e1 are.
func integer(raw json.RawMessage) (int64, bool) {
	var n int64
	if json.Unmarshal(raw, &n) == nil {
		return n, true
	}
	var f float64
	if json.Unmarshal(raw, &f) != nil || f != float64(int64(f)) || f > 1<<53 || f < -1<<53 {
		return 0, false
	}
	return int64(f), true
}

func (r *reader) exception() Exception {
	raw, ok := r.raw("exception")
	if !ok {
		r.fail("exception", "is required")
		return Exception{}
	}
	m, ok := object(raw, "type", "value")
	if !ok {
		r.fail("exception", "must be an object")
		return Exception{}
	}
	in := reader{members: m, path: "exception."}
	e := Exception{Type: in.required("type"), Value: in.optional("value")}
	if r.fault == nil {
		r.fault = in.fault
	}
	return e
}

func (r *reader) frames() []Frame {
	raw, ok := r.raw("frames")
	if !ok {
		r.fail("frames", "is required")
		return nil
	}
	var frames []Frame
	isArray := elements(raw, func(element []byte) bool {
		if len(frames) == MaxFrames {
			r.fail("frames", fmt.Sprintf("has more than %d entries", MaxFrames))
			return false
		}
		m, ok := object(element, "filename", "function", "lineno", "colno", "module", "debug_id", "address", "image_base")
		if !ok {
			r.fail(fmt.Sprintf("frames[%d]", len(frames)), "must be an object")
			return false
		}
		in := reader{members: m, path: fmt.Sprintf("frames[%d].", len(frames))}
		frames = append(frames, in.frame())
		if r.fault == nil {
			r.fault = in.fault
		}
		return in.fault == nil
	})
	if !isArray {
		r.fail("frames", "must be an array")
	}
	return frames
}

func (r *reader) frame() Frame {
	return Frame{
		Filename: r.string("filename"), Function: r.string("function"),
		Lineno: r.integer("lineno"), Colno: r.integer("colno"),
		Module: r.string("module"), DebugID: r.string("debug_id"),
		Address: r.string("address"), ImageBase: r.string("image_base"),
	}
}
