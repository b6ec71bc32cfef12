package access

import (
	"net/http"
	"strings"
	"time"

	"skerry/pkg/jsonbody"
	"skerry/pkg/problem"
	"skerry/pkg/reply"
	"skerry/writeplane/commit"
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

// JWKS serves GET /.well-known/jwks.json.
func (m *Module) JWKS(w http.ResponseWriter, r *http.Request, c *Call) error {
	return m.access.JWKS(w, r, c)
}

// GetOrganization serves GET /api/v1/organization.
func (m *Module) GetOrganization(w http.ResponseWriter, r *http.Request, c *Call) error {
	row, err := one(r.Context(), m.access.pool, organizationSQL, c.Caller.OrganizationID, scanOrganization)
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusOK, "organization", row.view(), nil)
}

// PatchOrganization serves PATCH /api/v1/organization: the name by org_admin, the tier
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
