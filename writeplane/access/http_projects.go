package access

import (
	"context"
	"net/http"
	"slices"
	"time"

	"skerry/pkg/jsonbody"
	"skerry/pkg/reply"
	"skerry/writeplane/commit"
)

// ListProjects serves GET /api/v1/projects: those that the caller may see.
func (m *Module) ListProjects(w http.ResponseWriter, r *http.Request, c *Call) error {
	visible := c.Caller.MemberProjects
	if c.Caller.ProjectID != "" {
		visible = []string{c.Caller.ProjectID}
		if c.Caller.MemberProjects != nil && !slices.Contains(c.Caller.MemberProjects, c.Caller.ProjectID) {
			visible = []string{}
		}
	}
	const sql = projectSQL + `p.organization_id = $1 AND ($2::uuid[] IS NULL OR p.id = ANY($2)) AND ($3::uuid IS NULL OR p.id < $3) ORDER BY p.id DESC LIMIT $4`
	return List[ProjectRow, projectView]{"projects", sql, scanProject, ProjectRow.view, func(p ProjectRow) string { return p.ID }}.Serve(m.access, w, r, c, c.Caller.OrganizationID, visible)
}

// CreateProject serves POST /api/v1/projects.
func (m *Module) CreateProject(w http.ResponseWriter, r *http.Request, c *Call) error {
	sent, err := jsonbody.Read(r, jsonbody.Limit)
	if err != nil {
		return err
	}
	var shape settings
	if err := jsonbody.Unmarshal(sent, &shape); err != nil {
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

// What a project's row is locked for.
const (
	forChange   = "FOR NO KEY UPDATE"
	forDeletion = "FOR UPDATE"
)

// lockProject is visibleProject for a mutation: the tier and the row stay as they
// are. Organization before project, the order in which a change of tier locks them. The
// lock for a deletion waits for whoever keeps the project (Keep).
func (m *Module) lockProject(ctx context.Context, tx *commit.Tx, c *Call, projectID, lock string) (ProjectRow, error) {
	tx.Later("lock organization", organizationSQL+"FOR SHARE", c.Caller.OrganizationID)
	row, err := readProject(ctx, tx, projectID, lock+" OF p")
	if err != nil {
		return row, err
	}
	return row, c.See(row.Access())
}

// GetProject serves GET /api/v1/projects/:id.
func (m *Module) GetProject(w http.ResponseWriter, r *http.Request, c *Call) error {
	row, err := m.visibleProject(r, c)
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusOK, "project", row.view(), nil)
}

// PatchProject serves PATCH /api/v1/projects/:id: a merge patch of the settings.
func (m *Module) PatchProject(w http.ResponseWriter, r *http.Request, c *Call) error {
	patch, err := jsonbody.Read(r, jsonbody.Limit)
	if err != nil {
		return err
	}
	var shape settings // the patch alone must have the settings' shape, so that faults are named
	if err := jsonbody.Unmarshal(patch, &shape); err != nil {
		return err
	}
	var after ProjectRow
	err = m.commits.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		before, err := m.lockProject(r.Context(), tx, c, r.PathValue("id"), forChange)
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
		return updateProject(tx, before, after)
	})
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusOK, "project", after.view(), nil)
}

// DeleteProject serves DELETE /api/v1/projects/:id.
func (m *Module) DeleteProject(w http.ResponseWriter, r *http.Request, c *Call) error {
	err := m.commits.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		row, err := m.lockProject(r.Context(), tx, c, r.PathValue("id"), forDeletion)
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
