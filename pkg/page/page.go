// Package page reads the paging parameters of list endpoints and signs cursors
// (supplement §1): limit 1–200, default 50; a cursor is opaque, bound to the
// filters it was made with, and refused when altered.
//
// A handler opens the window that a request asks for, reads one row more than the
// window shows, and cuts:
//
//	window, err := signer.Open(r.URL.Query(), "flags", filters, &after)
//	rows, err := list(ctx, after, window.Fetch())
//	rows, next := page.Cut(window, rows, func(f *Flag) any { return page.Keyed{f.Key, &f.ID} })
//	page.List("flags", rows, next)
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

// limitOf reads `limit` from a query.
func limitOf(query url.Values) (int, error) {
	if !query.Has("limit") {
		return DefaultLimit, nil
	}
	text := query.Get("limit")
	limit, err := strconv.Atoi(text)
	if err != nil || text[0] == '+' || limit < 1 || limit > MaxLimit {
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

// Window is the part of a list that one request asks for.
type Window struct {
	// Limit is how many rows the answer shows at most.
	Limit int

	signer  *Signer
	list    string
	filters url.Values
}

// Open reads `limit` and `cursor` of a query. list names the list and whatever decides
// what this caller sees of it; filters are the parameters that narrow it, as they are
// understood (a default is a filter too). after takes the position behind which the
// window begins, anything that reads from JSON; without a cursor it stays as it is.
func (s *Signer) Open(query url.Values, list string, filters url.Values, after any) (Window, error) {
	limit, err := limitOf(query)
	if err != nil {
		return Window{}, err
	}
	w := Window{Limit: limit, signer: s, list: list, filters: filters}
	if cursor := query.Get("cursor"); cursor != "" {
		err = w.open(cursor, after)
	}
	return w, err
}

func (w Window) open(cursor string, after any) error {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(raw) < macLen {
		return ErrCursor
	}
	body := raw[macLen:]
	if !hmac.Equal(raw[:macLen], w.mac(body)) {
		return ErrCursor
	}
	if err := json.Unmarshal(body, after); err != nil {
		return fmt.Errorf("open a cursor of ours: %w", err)
	}
	return nil
}

// Fetch is how many rows to read: one more than is shown tells whether others follow.
func (w Window) Fetch() int { return w.Limit + 1 }

// Cursor opens the window behind a position, anything that marshals as JSON.
func (w Window) Cursor(position any) *string {
	body, err := json.Marshal(position)
	if err != nil {
		panic("BUG: cursor position does not marshal: " + err.Error())
	}
	cursor := base64.RawURLEncoding.EncodeToString(append(w.mac(body), body...))
	return &cursor
}

// mac binds body to the list and its filters; cursor and limit are no filters.
func (w Window) mac(body []byte) []byte {
	bound := url.Values{}
	for name, values := range w.filters {
		if name != "cursor" && name != "limit" {
			bound[name] = values
		}
	}
	h := hmac.New(sha256.New, w.signer.secret)
	_, _ = fmt.Fprintf(h, "%s\x00%s\x00", w.list, bound.Encode())
	_, _ = h.Write(body)
	return h.Sum(nil)[:macLen]
}

// Cut splits Fetch rows into those that are shown and the cursor to those behind them,
// nil when there are none. place is the position of the last row shown.
func Cut[R any](w Window, rows []R, place func(R) any) (shown []R, next *string) {
	if len(rows) <= w.Limit {
		return rows, nil
	}
	shown = rows[:w.Limit]
	return shown, w.Cursor(place(shown[w.Limit-1]))
}

// Keyed is a position in a list that is ordered by key and then by id. In SQL it is behind
// (key, id) > ($1, $2): the zero value is before every row, since no key is empty and its
// id, NULL, is never compared.
type Keyed struct {
	Key string
	ID  *string
}

// Views are the rows as they are shown.
func Views[R, V any](rows []R, view func(R) V) []V {
	views := make([]V, len(rows))
	for i, row := range rows {
		views[i] = view(row)
	}
	return views
}

// List is the body of a list answer under its plural name; next is nil on the last page.
func List[V any](plural string, rows []V, next *string) map[string]any {
	if rows == nil {
		rows = []V{}
	}
	return map[string]any{plural: rows, "has_more": next != nil, "next_cursor": next}
}
