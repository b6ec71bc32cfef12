// Package audit keeps the log of who changed what (specification, Audit entry and
// Audit endpoints; supplement §7).
//
// It promises that an entry is stored with the mutation it tells of or not at all;
// that each organization's entries form a chain which shows any later change,
// removal or reordering; that the program itself can only add and read; that no
// secret stands in an entry; and that reading and exporting cost the same however
// long the log is. It does not promise that somebody who may rewrite the whole
// database, chain head included, leaves a trace.
package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"

	"skerry/pkg/instant"
)

// Entry is one stored entry. Before, After and Metadata are canonical JSON; nil
// where the column is NULL.
type Entry struct {
	OrganizationID string
	Seq            int64
	ID             string
	ProjectID      *string
	ActorID        string
	ActorEmail     *string
	Action         string
	ResourceType   string
	ResourceID     string
	Before         []byte
	After          []byte
	Metadata       []byte
	CreatedAt      time.Time
	Retention      string
	Hash           []byte
}

// view is the entry as the API shows it.
type view struct {
	ID           string          `json:"id"`
	ActorID      string          `json:"actor_id"`
	ActorEmail   *string         `json:"actor_email"`
	Action       string          `json:"action"`
	ResourceType string          `json:"resource_type"`
	ResourceID   string          `json:"resource_id"`
	Before       json.RawMessage `json:"before"`
	After        json.RawMessage `json:"after"`
	Metadata     json.RawMessage `json:"metadata"`
	CreatedAt    instant.Time    `json:"created_at"`
	Seq          int64           `json:"seq"`
	Hash         string          `json:"hash"`
	ProjectID    *string         `json:"project_id"`
}

func (e *Entry) view() view {
	return view{e.ID, e.ActorID, e.ActorEmail, e.Action, e.ResourceType, e.ResourceID, e.Before, e.After, e.Metadata,
		instant.Of(e.CreatedAt), e.Seq, hex.EncodeToString(e.Hash), e.ProjectID}
}

// canonical is the RFC 8785 form of every stored column but the hash, appended to b:
// members in order of name, no blanks.
func (e *Entry) canonical(b []byte) []byte {
	b = append(b, `{"action":`...)
	b = appendString(b, e.Action)
	b = append(b, `,"actor_email":`...)
	b = appendNullable(b, e.ActorEmail)
	b = append(b, `,"actor_id":`...)
	b = appendString(b, e.ActorID)
	b = append(b, `,"after":`...)
	b = appendJSON(b, e.After)
	b = append(b, `,"before":`...)
	b = appendJSON(b, e.Before)
	b = append(b, `,"created_at":"`...)
	b = e.CreatedAt.UTC().AppendFormat(b, "2006-01-02T15:04:05.000000Z")
	b = append(b, `","id":`...)
	b = appendString(b, e.ID)
	b = append(b, `,"metadata":`...)
	b = appendJSON(b, e.Metadata)
	b = append(b, `,"organization_id":`...)
	b = appendString(b, e.OrganizationID)
	b = append(b, `,"project_id":`...)
	b = appendNullable(b, e.ProjectID)
	b = append(b, `,"resource_id":`...)
	b = appendString(b, e.ResourceID)
	b = append(b, `,"resource_type":`...)
	b = appendString(b, e.ResourceType)
	b = append(b, `,"retention":`...)
	b = appendString(b, e.Retention)
	b = append(b, `,"seq":`...)
	b = strconv.AppendInt(b, e.Seq, 10)
	return append(b, '}')
}

// chained is the entry's hash behind the one before it.
func (e *Entry) chained(previous []byte) []byte {
	h := sha256.New()
	_, _ = h.Write(previous)
	_, _ = h.Write(e.canonical(nil))
	return h.Sum(nil)
}

// genesis stands for the hash before an organization's first entry.
func genesis() []byte { return make([]byte, sha256.Size) }

func appendNullable(b []byte, s *string) []byte {
	if s == nil {
		return append(b, "null"...)
	}
	return appendString(b, *s)
}

func appendJSON(b, canonical []byte) []byte {
	if canonical == nil {
		return append(b, "null"...)
	}
	return append(b, canonical...)
}

// text is canonical JSON as a column's text; nil is NULL.
func text(b []byte) *string {
	if b == nil {
		return nil
	}
	s := string(b)
	return &s
}
