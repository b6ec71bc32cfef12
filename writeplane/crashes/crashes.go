// Package crashes keeps crash reports and makes their frames readable: on arrival,
// and again when an upload of the following 24 hours may help (specification,
// Symbolication worker; supplement §6).
//
// It promises that a report is stored once however often it arrives, with what was
// sent untouched; that a frame once made readable stays so, whatever becomes of its
// artifact; and that every other frame says why it is not.
package crashes

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"skerry/pkg/crash"
	"skerry/pkg/instant"
	"skerry/writeplane/symbolicate"
)

// Window is how long after its receipt a report is looked at again for an upload.
const Window = 24 * time.Hour

// Event is a stored report.
type Event struct {
	ID, ProjectID, OrganizationID, Environment string
	Timestamp, ReceivedAt                      time.Time
	Record                                     []byte // as sent: crash.Event
	Answers                                    []byte // []answer; nil: not yet looked at
}

// answer is what became of a frame, as stored.
type answer struct {
	Symbolicated *symbolicate.Symbolicated `json:"symbolicated"`
	Reason       *string                   `json:"reason"`
}

func answerOf(a symbolicate.Answer) answer {
	if a.Symbolicated != nil {
		return answer{Symbolicated: a.Symbolicated}
	}
	if a.Reason == symbolicate.Awaited {
		return answer{}
	}
	return answer{Reason: &a.Reason}
}

// frame is a frame as shown: its members as sent and what became of it. A frame that
// nobody has looked at yet, or whose artifact is awaited, has neither.
type frame struct {
	crash.Frame
	answer
}

type view struct {
	ID          string          `json:"id"`
	Release     string          `json:"release"`
	Platform    string          `json:"platform"`
	Environment string          `json:"environment"`
	Timestamp   instant.Time    `json:"timestamp"`
	ReceivedAt  instant.Time    `json:"received_at"`
	DistinctID  *string         `json:"distinct_id"`
	Exception   crash.Exception `json:"exception"`
	Frames      []frame         `json:"frames"`
	Stacktrace  *string         `json:"stacktrace"`
}

func (e *Event) view() (view, error) {
	sent, err := crash.Unmarshal(e.Record)
	if err != nil {
		return view{}, err
	}
	answers, err := e.answers()
	if err != nil {
		return view{}, err
	}
	v := view{
		ID: e.ID, Release: sent.Release, Platform: sent.Platform, Environment: e.Environment,
		Timestamp: instant.Of(e.Timestamp), ReceivedAt: instant.Of(e.ReceivedAt), DistinctID: optional(sent.DistinctID),
		Exception: sent.Exception, Frames: make([]frame, len(sent.Frames)), Stacktrace: optional(sent.Stacktrace),
	}
	for i, f := range sent.Frames {
		v.Frames[i].Frame = f
		if i < len(answers) {
			v.Frames[i].answer = answers[i]
		}
	}
	return v, nil
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func (e *Event) answers() ([]answer, error) {
	if e.Answers == nil {
		return nil, nil
	}
	var answers []answer
	if err := json.Unmarshal(e.Answers, &answers); err != nil {
		return nil, fmt.Errorf("read answers of crash report: %w", err)
	}
	return answers, nil
}

// merge keeps frames that were readable before and takes the new answer elsewhere.
// settled tells that no upload could improve any frame.
func merge(before []answer, now []symbolicate.Answer) (merged []answer, settled bool) {
	merged, settled = make([]answer, len(now)), true
	for i, a := range now {
		if i < len(before) && before[i].Symbolicated != nil {
			merged[i] = before[i]
			continue
		}
		merged[i] = answerOf(a)
		settled = settled && (a.Symbolicated != nil || a.Reason == symbolicate.Synthesized || i >= symbolicate.MaxFrames)
	}
	return merged, settled
}

// debugIDs are those of a report's frames, lower case, each once.
func debugIDs(e crash.Event) []string {
	ids := []string{}
	for _, f := range e.Frames {
		if f.DebugID == nil || *f.DebugID == "" || strings.ContainsRune(*f.DebugID, 0) || len(*f.DebugID) > 1024 {
			continue
		}
		if id := strings.ToLower(*f.DebugID); !slices.Contains(ids, id) {
			if ids = append(ids, id); len(ids) == maxIDs {
				break
			}
		}
	}
	return ids
}

// maxIDs bounds the images that one report may name.
const maxIDs = 1_000
