package access

import (
	"net/http"
	"time"

	"skerry/pkg/id"
	"skerry/pkg/jsonbody"
	"skerry/pkg/reply"
	"skerry/writeplane/commit"
)

// ListTokens serves GET /api/v1/projects/:id/api-tokens.
func (m *Module) ListTokens(w http.ResponseWriter, r *http.Request, c *Call) error {
	project, err := m.visibleProject(r, c)
	if err != nil {
		return err
	}
	const sql = tokenSQL + `project_id = $1 AND ($2::uuid IS NULL OR id < $2) ORDER BY id DESC LIMIT $3`
	return List[tokenRow, tokenView]{"api_tokens", sql, scanToken, tokenRow.view, func(t tokenRow) string { return t.ID }}.Serve(m.access, w, r, c, project.ID)
}

const (
	defaultTokenDays = 365
	maxTokenDays     = 3650
)

// CreateToken serves POST /api/v1/projects/:id/api-tokens. The token acts for the member
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
		project, err := m.lockProject(r.Context(), tx, c, r.PathValue("id"), forChange)
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

// RevokeToken serves DELETE /api/v1/api-tokens/:id.
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
