package access

import (
	"net/http"

	"skerry/pkg/jsonbody"
	"skerry/pkg/problem"
	"skerry/pkg/reply"
	"skerry/writeplane/commit"
)

// ListKeys serves GET /api/v1/projects/:id/api-keys; revoked keys stay in the list.
func (m *Module) ListKeys(w http.ResponseWriter, r *http.Request, c *Call) error {
	project, err := m.visibleProject(r, c)
	if err != nil {
		return err
	}
	const sql = keySQL + `k.project_id = $1 AND ($2::uuid IS NULL OR k.id < $2) ORDER BY k.id DESC LIMIT $3`
	return List[keyRow, keyView]{"api_keys", sql, scanKey, keyRow.view, func(k keyRow) string { return k.ID }}.Serve(m.access, w, r, c, project.ID)
}

// CreateKey serves POST /api/v1/projects/:id/api-keys; the secret is shown this once.
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
		project, err := m.lockProject(r.Context(), tx, c, r.PathValue("id"), forChange)
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

// lockKey is the key in the path, locked: one that the caller may see, and as If-Match
// wants it.
func (m *Module) lockKey(r *http.Request, tx *commit.Tx, c *Call) (keyRow, error) {
	row, err := one(r.Context(), tx, keySQL+"k.id = $1 FOR NO KEY UPDATE OF k", r.PathValue("id"), scanKey)
	if err != nil {
		return row, err
	}
	if err := c.See(Project{ID: row.ProjectID, OrganizationID: row.OrganizationID}); err != nil {
		return row, err
	}
	return row, reply.IfMatch(r, row.view())
}

// ErrRevoked is the 409 of rotating a key that was revoked.
var ErrRevoked = problem.Newf(problem.Conflict, "revoked", "a revoked key cannot be rotated")

// RotateKey serves POST /api/v1/api-keys/:id/rotate.
func (m *Module) RotateKey(w http.ResponseWriter, r *http.Request, c *Call) error {
	grace, err := ReadGrace(r)
	if err != nil {
		return err
	}
	var key keyRow
	var secret string
	err = m.commits.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		row, err := m.lockKey(r, tx, c)
		if err != nil {
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

// RevokeKey serves DELETE /api/v1/api-keys/:id.
func (m *Module) RevokeKey(w http.ResponseWriter, r *http.Request, c *Call) error {
	err := m.commits.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		row, err := m.lockKey(r, tx, c)
		if err != nil {
			return err
		}
		return revokeKey(r.Context(), tx, row)
	})
	if err != nil {
		return err
	}
	return reply.Deleted(w)
}
