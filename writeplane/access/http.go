package access

import (
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/jsonbody"
	"skerry/pkg/page"
	"skerry/pkg/problem"
	"skerry/pkg/reply"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

// Module serves the management of tenants and identities (supplement §2).
type Module struct {
	commits *commit.Store
	access  *Store
}

// NewModule returns the handlers.
func NewModule(commits *commit.Store, store *Store) *Module {
	return &Module{commits: commits, access: store}
}

// ErrDenied is the 403 of management endpoints.
var ErrDenied = problem.New(problem.Forbidden, "Permission denied")

// JWKS is GET /.well-known/jwks.json.
func (m *Module) JWKS(w http.ResponseWriter, r *http.Request, c *Call) error {
	return m.access.JWKS(w, r, c)
}

// list is one of the module's lists, newest first: R is a row and V what the API
// shows of it.
type list[R, V any] struct {
	plural string // the rows' name in the answer and in errors
	// sql selects the rows. After the parameters of its own it takes two more: the id
	// of the last row of the page before (null on the first page), and the limit.
	sql  string
	scan pgx.RowToFunc[R]
	view func(R) V
	id   func(R) string
}

// serve answers one page; args are the values of the query's own parameters.
func (l list[R, V]) serve(m *Module, w http.ResponseWriter, r *http.Request, c *Call, args ...any) error {
	query := r.URL.Query()
	// What a caller sees is a filter too: a cursor is good for its own sight only.
	name := r.URL.Path + "\x00" + c.Caller.OrganizationID + "\x00" + c.Caller.ProjectID
	var after *string
	window, err := m.access.cursors.Open(query, name, query, &after)
	if err != nil {
		return err
	}
	found, err := postgres.All(r.Context(), m.access.pool, "list "+l.plural, l.scan, l.sql, append(args, after, window.Fetch())...)
	if err != nil {
		return err
	}
	found, next := page.Cut(window, found, func(row R) any { return l.id(row) })
	return reply.JSON(w, http.StatusOK, page.List(l.plural, page.Views(found, l.view), next))
}

// GetOrganization is GET /api/v1/organization.
func (m *Module) GetOrganization(w http.ResponseWriter, r *http.Request, c *Call) error {
	row, err := one(r.Context(), m.access.pool, organizationSQL, c.Caller.OrganizationID, scanOrganization)
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusOK, "organization", row.view(), nil)
}

// PatchOrganization is PATCH /api/v1/organization: the name by org_admin, the tier
// by owner.
func (m *Module) PatchOrganization(w http.ResponseWriter, r *http.Request, c *Call) error {
	var body struct {
		Name *string `json:"name"`
		Tier *string `json:"tier"`
	}
	if err := jsonbody.StrictPatch(r, &body, "name", "tier"); err != nil {
		return err
	}
	if body.Name != nil {
		if err := checkName(*body.Name); err != nil {
			return err
		}
	}
	if body.Tier != nil && !ValidTier(*body.Tier) {
		return jsonbody.Invalid("tier must be %s", strings.Join(tiers[:], ", "))
	}
	if body.Tier != nil && c.Caller.Role < Owner {
		return ErrDenied
	}
	var after organizationRow
	err := m.commits.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		before, err := one(r.Context(), tx, organizationSQL+"FOR NO KEY UPDATE", c.Caller.OrganizationID, scanOrganization)
		if err != nil {
			return err
		}
		if err := reply.IfMatch(r, before.view()); err != nil {
			return err
		}
		after = before
		after.Name, after.Tier = or(body.Name, before.Name), or(body.Tier, before.Tier)
		if after == before {
			return nil
		}
		after.UpdatedAt = time.Now().UTC().Truncate(time.Microsecond)
		return updateOrganization(r.Context(), tx, before, after)
	})
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusOK, "organization", after.view(), nil)
}
