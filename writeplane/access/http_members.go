package access

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/id"
	"skerry/pkg/jsonbody"
	"skerry/pkg/reply"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

// ListMembers serves GET /api/v1/members.
func (m *Module) ListMembers(w http.ResponseWriter, r *http.Request, c *Call) error {
	const sql = memberSQL + `organization_id = $1 AND ($2::uuid IS NULL OR id < $2) ORDER BY id DESC LIMIT $3`
	return List[memberRow, memberView]{"members", sql, scanMember, memberRow.view, func(m memberRow) string { return m.ID }}.Serve(m.access, w, r, c, c.Caller.OrganizationID)
}

// InviteMember serves POST /api/v1/members. Nobody grants a role above their own.
func (m *Module) InviteMember(w http.ResponseWriter, r *http.Request, c *Call) error {
	var body struct {
		Email      string   `json:"email"`
		Role       string   `json:"role"`
		ProjectIDs []string `json:"project_ids"`
	}
	if err := jsonbody.Strict(r, &body); err != nil {
		return err
	}
	if err := checkEmail(body.Email); err != nil {
		return err
	}
	if err := checkProjectIDs(body.ProjectIDs); err != nil {
		return err
	}
	role, err := checkRole(body.Role)
	if err != nil {
		return err
	}
	if role > c.Caller.Role {
		return ErrDenied
	}
	at := time.Now().UTC().Truncate(time.Microsecond)
	made := memberRow{ID: id.New(), OrganizationID: c.Caller.OrganizationID, Email: body.Email, Role: role.String(),
		ProjectIDs: distinct(body.ProjectIDs), CreatedAt: at, UpdatedAt: at}
	err = m.commits.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		if err := checkProjects(r.Context(), tx, made, nil); err != nil {
			return err
		}
		return insertMember(r.Context(), tx, made)
	})
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusCreated, "member", made.view(), nil)
}

// PatchMember serves PATCH /api/v1/members/:id: another role, other projects.
func (m *Module) PatchMember(w http.ResponseWriter, r *http.Request, c *Call) error {
	var body struct {
		Role       *string   `json:"role"`
		ProjectIDs *[]string `json:"project_ids"`
	}
	if err := jsonbody.StrictPatch(r, &body, "role", "project_ids"); err != nil {
		return err
	}
	if body.Role != nil {
		if _, err := checkRole(*body.Role); err != nil {
			return err
		}
	}
	if err := checkProjectIDs(or(body.ProjectIDs, nil)); err != nil {
		return err
	}
	var after memberRow
	err := m.commits.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		before, err := m.lockMember(r, tx, c)
		if err != nil {
			return err
		}
		after = before
		after.Role = or(body.Role, before.Role)
		after.ProjectIDs = distinct(or(body.ProjectIDs, before.ProjectIDs))
		if after.role() > c.Caller.Role {
			return ErrDenied
		}
		if err := checkProjects(r.Context(), tx, after, before.ProjectIDs); err != nil {
			return err
		}
		if same(before.view(), after.view()) {
			return nil
		}
		after.UpdatedAt = time.Now().UTC().Truncate(time.Microsecond)
		return updateMember(r.Context(), tx, before, after)
	})
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusOK, "member", after.view(), nil)
}

// RemoveMember serves DELETE /api/v1/members/:id. The member's tokens are refused
// from now on.
func (m *Module) RemoveMember(w http.ResponseWriter, r *http.Request, c *Call) error {
	err := m.commits.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		row, err := m.lockMember(r, tx, c)
		if err != nil {
			return err
		}
		return removeMember(r.Context(), tx, row)
	})
	if err != nil {
		return err
	}
	return reply.Deleted(w)
}

// lockMember is the member in the path, locked: of the caller's organization, not
// above the caller, and as If-Match wants it.
func (m *Module) lockMember(r *http.Request, tx *commit.Tx, c *Call) (memberRow, error) {
	row, err := lockMember(r.Context(), tx, c.Caller.OrganizationID, r.PathValue("id"))
	if err != nil {
		return row, err
	}
	if row.role() > c.Caller.Role {
		return row, ErrDenied
	}
	return row, reply.IfMatch(r, row.view())
}

// checkProjects refuses projects that are not the organization's. Those that the member
// has already may have been deleted since, which is no reason to keep its role.
func checkProjects(ctx context.Context, tx *commit.Tx, m memberRow, has []string) error {
	for i, projectID := range m.ProjectIDs {
		if !id.Valid(projectID) {
			return jsonbody.Invalid("project_ids[%d] is not a project of the organization", i)
		}
	}
	// In the order in which a change of the tier locks all of them.
	found, err := postgres.All(ctx, tx, "read member's projects", pgx.RowTo[string],
		`SELECT id FROM projects WHERE organization_id = $1 AND id = ANY($2::uuid[]) AND deleted_at IS NULL ORDER BY id FOR SHARE`, m.OrganizationID, m.ProjectIDs)
	if err != nil {
		return err
	}
	for i, projectID := range m.ProjectIDs {
		if !slices.Contains(found, projectID) && !slices.Contains(has, projectID) {
			return jsonbody.Invalid("project_ids[%d] is not a project of the organization", i)
		}
	}
	return nil
}

// checkProjectIDs refuses more than anybody could mean, before they are compared with
// each other.
func checkProjectIDs(ids []string) error {
	if len(ids) > maxListed {
		return jsonbody.Invalid("project_ids has more than %d entries", maxListed)
	}
	return nil
}

// distinct are the ids as they will be stored, each once.
func distinct(ids []string) []string {
	out := []string{}
	for _, each := range ids {
		if each = strings.ToLower(each); !slices.Contains(out, each) {
			out = append(out, each)
		}
	}
	return out
}

func same(a, b any) bool { return reflect.DeepEqual(a, b) }
