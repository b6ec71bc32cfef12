// Package page reads the paging parameters of list endpoints and signs cursors
// (supplement §1): limit 1–200, default 50; a cursor is opaque, bound to the
// filters it was made with, and refused when altered.
package page

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"

	"skerry/pkg/problem"
)

// The bounds of limit.
const (
	DefaultLimit = 50
	MaxLimit     = 200
)

// Faults of paging parameters.
var (
	ErrLimit  = problem.Newf(problem.Invalid, "invalid_limit", "limit must be a whole number from 1 to %d", MaxLimit)
	ErrCursor = problem.Newf(problem.Invalid, "invalid_cursor", "the cursor was altered, or its filters were changed")
)

// Limit reads `limit` from a query.
func Limit(query url.Values) (int, error) {
	if !query.Has("limit") {
		return DefaultLimit, nil
	}
	limit, err := strconv.Atoi(query.Get("limit"))
	if err != nil || limit < 1 || limit > MaxLimit {
		return 0, ErrLimit
	}
	return limit, nil
}

// Signer makes and opens cursors. Every process of the write plane must hold the
// same secret, or a cursor from one is refused by another.
type Signer struct{ secret []byte }

// NewSigner returns a Signer with the secret, at least 16 bytes.
func NewSigner(secret []byte) *Signer {
	if len(secret) < 16 {
		panic("BUG: a cursor secret under 16 bytes")
	}
	return &Signer{secret: secret}
}

const macLen = 16

// Encode makes a cursor out of a position (anything that marshals as JSON) for a
// list, named by its path, under its filters (the query's own parameters).
func (s *Signer) Encode(list string, filters url.Values, position any) string {
	body, err := json.Marshal(position)
	if err != nil {
		panic("BUG: cursor position does not marshal: " + err.Error())
	}
	return base64.RawURLEncoding.EncodeToString(append(s.mac(list, filters, body), body...))
}

// Decode opens the query's `cursor` into position; ok is false when there is none.
func (s *Signer) Decode(list string, query url.Values, position any) (ok bool, err error) {
	if query.Get("cursor") == "" {
		return false, nil
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(query.Get("cursor"))
	if err != nil || len(raw) < macLen {
		return false, ErrCursor
	}
	body := raw[macLen:]
	if !hmac.Equal(raw[:macLen], s.mac(list, query, body)) {
		return false, ErrCursor
	}
	if err := json.Unmarshal(body, position); err != nil {
		return false, fmt.Errorf("open a cursor of ours: %w", err)
	}
	return true, nil
}

// mac binds body to the list and its filters; cursor and limit are no filters.
func (s *Signer) mac(list string, filters url.Values, body []byte) []byte {
	bound := url.Values{}
	for name, values := range filters {
		if name != "cursor" && name != "limit" {
			bound[name] = values
		}
	}
	h := hmac.New(sha256.New, s.secret)
	_, _ = fmt.Fprintf(h, "%s\x00%s\x00", list, bound.Encode())
	_, _ = h.Write(body)
	return h.Sum(nil)[:macLen]
}

// Cut splits limit+1 fetched rows into a page and whether more follow.
func Cut[T any](rows []T, limit int) (page []T, more bool) {
	if len(rows) > limit {
		return rows[:limit], true
	}
	return rows, false
}

// List is the body of a list answer under its plural name.
func List[T any](plural string, rows []T, next string, more bool) map[string]any {
	if rows == nil {
		rows = []T{}
	}
	body := map[string]any{plural: rows, "has_more": more, "next_cursor": nil}
	if more {
		body["next_cursor"] = next
	}
	return body
}
