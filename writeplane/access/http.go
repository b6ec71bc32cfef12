package access

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/id"
	"skerry/pkg/jsonbody"
	"skerry/pkg/page"
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

// JWKS is GET /.well-known/jwks.json.
func (m *Module) JWKS(w http.ResponseWriter, r *http.Request, c *Call) error {
	return m.access.JWKS(w, r, c)
}

// listed answers one page of rows that a query finds newest first. The query's last
// two parameters are the id to go on behind (nil at the beginning) and the limit.
func listed[R any, V any](m *Module, w http.ResponseWriter, r *http.Request, c *Call, plural, sql string, args []any,
	scan pgx.RowToFunc[R], view func(R) V, rowID func(R) string) error {
	query := r.URL.Query()
	// What a caller sees is a filter too: a cursor is good for its own sight only.
	list := r.URL.Path + "\x00" + c.Caller.OrganizationID + "\x00" + c.Caller.ProjectID
	var after *string
	window, err := m.access.cursors.Open(query, list, query, &after)
	if err != nil {
		return err
	}
	rows, err := m.access.pool.Query(r.Context(), sql, append(args, after, window.Fetch())...)
	if err != nil {
		return fmt.Errorf("list %s: %w", plural, err)
	}
	found, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return fmt.Errorf("list %s: %w", plural, err)
	}
	found, next := page.Cut(window, found, func(row R) any { return rowID(row) })
	return reply.JSON(w, http.StatusOK, page.List(plural, page.Views(found, view), next))
}

// GetOrganization is GET /api/v1/organization.
func (m *Module) GetOrganization(w http.ResponseWriter, r *http.Request, c *Call) error {
	row, err := one(r.Context(), m.access.pool, organizationSQL, c.Caller.OrganizationID, scanOrganization)
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusOK, "organization", row.view(), nil)
}

// PatchOrganization is PATCH /api/v1/organization: the name by org_admin, the tier by owner.
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

// ListProjects is GET /api/v1/projects: those that the caller may see.
func (m *Module) ListProjects(w http.ResponseWriter, r *http.Request, c *Call) error {
	visible := c.Caller.MemberProjects
	if c.Caller.ProjectID != "" {
		visible = []string{c.Caller.ProjectID}
		if c.Caller.MemberProjects != nil && !slices.Contains(c.Caller.MemberProjects, c.Caller.ProjectID) {
			visible = []string{}
		}
	}
	const sql = projectSQL + `p.organization_id = $1 AND ($2::uuid[] IS NULL OR p.id = ANY($2)) AND ($3::uuid IS NULL OR p.id < $3) ORDER BY p.id DESC LIMIT $4`
	return listed(m, w, r, c, "projects", sql, []any{c.Caller.OrganizationID, visible}, scanProject, ProjectRow.view, func(p ProjectRow) string { return p.ID })
}

// CreateProject is POST /api/v1/projects.
func (m *Module) CreateProject(w http.ResponseWriter, r *http.Request, c *Call) error {
	sent, err := jsonbody.Read(r, jsonbody.Limit)
	if err != nil {
		return err
	}
	var shape settings
	if err := jsonbody.Unmarshal(sent, &shape, true); err != nil {
		return err
	}
	if shape.Name == nil {
		return jsonbody.Missing("name")
	}
	var made ProjectRow
	err = m.commits.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		// The lock keeps the tier as it is until the project's document stands.
		organization, err := one(r.Context(), tx, organizationSQL+"FOR SHARE", c.Caller.OrganizationID, scanOrganization)
		if err != nil {
			return err
		}
		at := time.Now().UTC().Truncate(time.Microsecond)
		// What the body does not name keeps its default, within objects too.
		if made, err = newProject(organization.ID, organization.Tier, *shape.Name, at).patched(sent); err != nil {
			return err
		}
		return insertProject(r.Context(), tx, made)
	})
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusCreated, "project", made.view(), nil)
}

// visibleProject is the project in the path, if the caller may see it.
func (m *Module) visibleProject(r *http.Request, c *Call) (ProjectRow, error) {
	row, err := m.access.ProjectByID(r.Context(), r.PathValue("id"))
	if err != nil {
		return row, err
	}
	return row, c.See(row.Access())
}

// lockProject is visibleProject for a mutation: the tier and the row stay as they
// are. Organization before project, the order in which a change of tier locks them.
func (m *Module) lockProject(ctx context.Context, tx *commit.Tx, c *Call, projectID string) (ProjectRow, error) {
	if _, err := one(ctx, tx, organizationSQL+"FOR SHARE", c.Caller.OrganizationID, scanOrganization); err != nil {
		return ProjectRow{}, err
	}
	row, err := readProject(ctx, tx, projectID, "FOR NO KEY UPDATE OF p")
	if err != nil {
		return row, err
	}
	return row, c.See(row.Access())
}

// GetProject is GET /api/v1/projects/:id.
func (m *Module) GetProject(w http.ResponseWriter, r *http.Request, c *Call) error {
	row, err := m.visibleProject(r, c)
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusOK, "project", row.view(), nil)
}

// PatchProject is PATCH /api/v1/projects/:id: a merge patch of the settings.
func (m *Module) PatchProject(w http.ResponseWriter, r *http.Request, c *Call) error {
	patch, err := jsonbody.Read(r, jsonbody.Limit)
	if err != nil {
		return err
	}
	var shape settings // the patch alone must have the settings' shape, so that faults are named
	if err := jsonbody.Unmarshal(patch, &shape, true); err != nil {
		return err
	}
	var after ProjectRow
	err = m.commits.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		before, err := m.lockProject(r.Context(), tx, c, r.PathValue("id"))
		if err != nil {
			return err
		}
		if err := reply.IfMatch(r, before.view()); err != nil {
			return err
		}
		if after, err = before.patched(patch); err != nil {
			return err
		}
		if same(before.view(), after.view()) {
			return nil
		}
		after.UpdatedAt = time.Now().UTC().Truncate(time.Microsecond)
		return updateProject(r.Context(), tx, before, after)
	})
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusOK, "project", after.view(), nil)
}

// DeleteProject is DELETE /api/v1/projects/:id.
func (m *Module) DeleteProject(w http.ResponseWriter, r *http.Request, c *Call) error {
	err := m.commits.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		row, err := m.lockProject(r.Context(), tx, c, r.PathValue("id"))
		if err != nil {
			return err
		}
		if err := reply.IfMatch(r, row.view()); err != nil {
			return err
		}
		return deleteProject(r.Context(), tx, row)
	})
	if err != nil {
		return err
	}
	return reply.Deleted(w)
}

// ListKeys is GET /api/v1/projects/:id/api-keys; revoked keys stay in the list.
func (m *Module) ListKeys(w http.ResponseWriter, r *http.Request, c *Call) error {
	project, err := m.visibleProject(r, c)
	if err != nil {
		return err
	}
	const sql = keySQL + `k.project_id = $1 AND ($2::uuid IS NULL OR k.id < $2) ORDER BY k.id DESC LIMIT $3`
	return listed(m, w, r, c, "api_keys", sql, []any{project.ID}, scanKey, keyRow.view, func(k keyRow) string { return k.ID })
}

// CreateKey is POST /api/v1/projects/:id/api-keys; the secret is shown this once.
func (m *Module) CreateKey(w http.ResponseWriter, r *http.Request, c *Call) error {
	var body struct {
		Name        string `json:"name"`
		Environment string `json:"environment"`
	}
	if err := jsonbody.Strict(r, &body); err != nil {
		return err
	}
	if err := checkName(body.Name); err != nil {
		return err
	}
	switch body.Environment {
	case "live", "test":
	case "":
		return jsonbody.Missing("environment")
	default:
		return jsonbody.Invalid("environment must be live or test")
	}
	var made keyRow
	var secret string
	err := m.commits.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		project, err := m.lockProject(r.Context(), tx, c, r.PathValue("id"))
		if err != nil {
			return err
		}
		made, secret = newKey(project, body.Name, body.Environment)
		return insertKey(r.Context(), tx, made, secret)
	})
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusCreated, "api_key", made.view(), map[string]any{"secret": secret})
}

// lockKey is the key in the path, locked, if the caller may see it.
func (m *Module) lockKey(r *http.Request, tx *commit.Tx, c *Call) (keyRow, error) {
	row, err := one(r.Context(), tx, keySQL+"k.id = $1 FOR NO KEY UPDATE OF k", r.PathValue("id"), scanKey)
	if err != nil {
		return row, err
	}
	return row, c.See(Project{ID: row.ProjectID, OrganizationID: row.OrganizationID})
}

const (
	defaultGrace = 24 * time.Hour
	maxGrace     = 30 * 24 * time.Hour
)

// ErrRevoked is the 409 of rotating a key that was revoked.
var ErrRevoked = problem.Newf(problem.Conflict, "revoked", "a revoked key cannot be rotated")

// RotateKey is POST /api/v1/api-keys/:id/rotate.
func (m *Module) RotateKey(w http.ResponseWriter, r *http.Request, c *Call) error {
	var body struct {
		GracePeriodSeconds *int64 `json:"grace_period_seconds"`
	}
	if r.ContentLength != 0 {
		if err := jsonbody.Strict(r, &body); err != nil {
			return err
		}
	}
	grace := defaultGrace
	if body.GracePeriodSeconds != nil {
		seconds := *body.GracePeriodSeconds
		if seconds < 0 || seconds > int64(maxGrace/time.Second) {
			return jsonbody.Invalid("grace_period_seconds must be from 0 to %d", int64(maxGrace/time.Second))
		}
		grace = time.Duration(seconds) * time.Second
	}
	var key keyRow
	var secret string
	err := m.commits.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		row, err := m.lockKey(r, tx, c)
		if err != nil {
			return err
		}
		if err := reply.IfMatch(r, row.view()); err != nil {
			return err
		}
		if row.RevokedAt != nil {
			return ErrRevoked
		}
		key, secret, err = rotateKey(r.Context(), tx, row, grace)
		return err
	})
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusOK, "api_key", key.view(), map[string]any{"secret": secret})
}

// RevokeKey is DELETE /api/v1/api-keys/:id.
func (m *Module) RevokeKey(w http.ResponseWriter, r *http.Request, c *Call) error {
	err := m.commits.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		row, err := m.lockKey(r, tx, c)
		if err != nil {
			return err
		}
		if err := reply.IfMatch(r, row.view()); err != nil {
			return err
		}
		return revokeKey(r.Context(), tx, row)
	})
	if err != nil {
		return err
	}
	return reply.Deleted(w)
}

// ListTokens is GET /api/v1/projects/:id/api-tokens.
func (m *Module) ListTokens(w http.ResponseWriter, r *http.Request, c *Call) error {
	project, err := m.visibleProject(r, c)
	if err != nil {
		return err
	}
	const sql = tokenSQL + `project_id = $1 AND ($2::uuid IS NULL OR id < $2) ORDER BY id DESC LIMIT $3`
	return listed(m, w, r, c, "api_tokens", sql, []any{project.ID}, scanToken, tokenRow.view, func(t tokenRow) string { return t.ID })
}

const (
	defaultTokenDays = 365
	maxTokenDays     = 3650
)

// CreateToken is POST /api/v1/projects/:id/api-tokens. The token acts for the member
// who makes it, in this project, and never allows more than the member may.
func (m *Module) CreateToken(w http.ResponseWriter, r *http.Request, c *Call) error {
	var body struct {
		Name          string `json:"name"`
		Role          string `json:"role"`
		ExpiresInDays *int   `json:"expires_in_days"`
	}
	if err := jsonbody.Strict(r, &body); err != nil {
		return err
	}
	if err := checkName(body.Name); err != nil {
		return err
	}
	role, err := checkRole(body.Role)
	if err != nil {
		return err
	}
	days := or(body.ExpiresInDays, defaultTokenDays)
	if days < 1 || days > maxTokenDays {
		return jsonbody.Invalid("expires_in_days must be from 1 to %d", maxTokenDays)
	}
	if role > c.Caller.Role {
		return ErrDenied
	}
	var made tokenRow
	err = m.commits.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		project, err := m.lockProject(r.Context(), tx, c, r.PathValue("id"))
		if err != nil {
			return err
		}
		at := time.Now().UTC().Truncate(time.Second)
		made = tokenRow{ID: id.New(), OrganizationID: project.OrganizationID, MemberID: c.Caller.Subject, ProjectID: &project.ID,
			Name: body.Name, Role: role.String(), CreatedAt: at, ExpiresAt: at.AddDate(0, 0, days)}
		return insertToken(r.Context(), tx, made)
	})
	if err != nil {
		return err
	}
	text, err := m.access.tokens.mint(Grant{TokenID: made.ID, MemberID: made.MemberID, Email: c.Caller.Email,
		OrganizationID: made.OrganizationID, Role: role, ProjectID: *made.ProjectID, IssuedAt: made.CreatedAt, ExpiresAt: made.ExpiresAt})
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusCreated, "api_token", made.view(), map[string]any{"token": text})
}

// RevokeToken is DELETE /api/v1/api-tokens/:id.
func (m *Module) RevokeToken(w http.ResponseWriter, r *http.Request, c *Call) error {
	err := m.commits.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		row, err := one(r.Context(), tx, tokenSQL+"id = $1 FOR NO KEY UPDATE", r.PathValue("id"), scanToken)
		if err != nil {
			return err
		}
		if err := seeToken(c, row); err != nil {
			return err
		}
		if err := reply.IfMatch(r, row.view()); err != nil {
			return err
		}
		return revokeToken(r.Context(), tx, row)
	})
	if err != nil {
		return err
	}
	return reply.Deleted(w)
}

// seeToken hides tokens of other organizations and projects; one that is bound to no
// project belongs to the organization.
func seeToken(c *Call, t tokenRow) error {
	if t.ProjectID != nil {
		return c.See(Project{ID: *t.ProjectID, OrganizationID: t.OrganizationID})
	}
	if t.OrganizationID != c.Caller.OrganizationID || c.Caller.Role < OrgAdmin || c.Caller.ProjectID != "" {
		return ErrNotFound
	}
	return nil
}
