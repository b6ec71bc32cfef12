package access

import (
	"net/http"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/page"
	"skerry/pkg/reply"
	"skerry/writeplane/postgres"
)

// List is a list of things of an organization, newest first: by descending id. R is a row
// and V what the API shows of it.
type List[R, V any] struct {
	Plural string // the rows' name in the answer and in errors
	// SQL selects the rows. After the parameters of its own it takes two more: the id
	// of the last row of the page before (null on the first page), and the limit.
	SQL  string
	Scan pgx.RowToFunc[R]
	View func(R) V
	ID   func(R) string
}

// Serve answers one page; args are the values of the query's own parameters.
func (l List[R, V]) Serve(s *Store, w http.ResponseWriter, r *http.Request, c *Call, args ...any) error {
	query := r.URL.Query()
	var after *string
	window, err := s.cursors.Open(query, c.ListName(r), query, &after)
	if err != nil {
		return err
	}
	found, err := postgres.All(r.Context(), s.pool, "list "+l.Plural, l.Scan, l.SQL, append(args, after, window.Fetch())...)
	if err != nil {
		return err
	}
	found, next := page.Cut(window, found, func(row R) any { return l.ID(row) })
	return reply.JSON(w, http.StatusOK, page.List(l.Plural, page.Views(found, l.View), next))
}
