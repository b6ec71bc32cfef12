package ingest

import (
	"errors"
	"net/http"
	"net/url"
	"time"

	"skerry/pkg/instant"
	"skerry/pkg/page"
	"skerry/pkg/problem"
	"skerry/writeplane/access"
)

// Module answers questions about what was received (supplement §3, Queries).
type Module struct {
	store   *Store
	access  *access.Store
	cursors *page.Signer
}

// New returns the module over the store.
func New(store *Store, access *access.Store) *Module {
	return &Module{store: store, access: access, cursors: access.Cursors()}
}

// Faults of queries.
var (
	errSince = problem.Newf(problem.Invalid, "invalid_since", "since must be an ISO 8601 time")
	errUntil = problem.Newf(problem.Invalid, "invalid_until", "until must be an ISO 8601 time")
)

// times reads `since` (inclusive) and `until` (exclusive); nil means unbounded.
func times(query url.Values) (since, until *time.Time, err error) {
	if since, err = timeOf(query, "since"); err != nil {
		return nil, nil, errSince
	}
	if until, err = timeOf(query, "until"); err != nil {
		return nil, nil, errUntil
	}
	return since, until, nil
}

func timeOf(query url.Values, name string) (*time.Time, error) {
	if !query.Has(name) {
		return nil, nil
	}
	t, err := instant.Parse(query.Get(name))
	if err != nil {
		return nil, err
	}
	if t.Year() < 1 || t.Year() > 9999 {
		return nil, errors.New("out of range")
	}
	return &t, nil
}

// pageBytes is about how much of properties or payloads one page may hold: a page of
// 200 events could otherwise weigh 25 GB. A page always has at least one entry.
const pageBytes = 16 << 20

// writeHeader starts an answer that is written piece by piece.
func writeHeader(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
}
