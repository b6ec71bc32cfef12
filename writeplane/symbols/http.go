package symbols

import (
	"net/http"
	"net/url"

	"skerry/pkg/instant"
	"skerry/pkg/page"
	"skerry/pkg/reply"
	"skerry/writeplane/access"
	"skerry/writeplane/blobs"
	"skerry/writeplane/symbolicate"
)

// environment reads the query's environment.
func environment(query url.Values) (string, error) {
	switch e := query.Get("environment"); e {
	case "":
		return "live", nil
	case "live", "test":
		return e, nil
	}
	return "", ErrInvalidEnvironment
}

// List serves GET /api/v1/catch/symbols: newest first, with the members that the
// specification lists.
func (m *Module) List(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	query := r.URL.Query()
	project, err := m.access.Project(r.Context(), c, r)
	if err != nil {
		return err
	}
	env, err := environment(query)
	if err != nil {
		return err
	}
	filters := url.Values{"project": {project.ID}, "environment": {env}}
	if kind := query.Get("kind"); kind != "" {
		if !symbolicate.Kind(kind).Valid() {
			return ErrInvalidKind
		}
		filters.Set("kind", kind)
	}
	for _, name := range []string{"release", "sha256"} { // sha256 lets a client skip what is there
		if value := query.Get(name); value != "" {
			filters.Set(name, value)
		}
	}
	var after position
	window, err := m.access.Cursors().Open(query, "symbols", filters, &after)
	if err != nil {
		return err
	}
	found, err := m.page(r.Context(), project.ID, filters, after, window.Fetch())
	if err != nil {
		return err
	}
	found, next := page.Cut(window, found, func(a *Artifact) any { return position{a.UploadedAt, a.ID} })
	return reply.JSON(w, http.StatusOK, page.List("artifacts", page.Views(found, (*Artifact).line), next))
}

// Delete serves DELETE /api/v1/catch/symbols/{id}.
func (m *Module) Delete(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	if err := m.remove(r, c, r.PathValue("id")); err != nil {
		return err
	}
	return reply.Deleted(w)
}

// Download serves GET /api/v1/catch/symbols/{id}/download: a signed URL of ten minutes.
func (m *Module) Download(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	a, err := one(r.Context(), m.store.Pool(), r.PathValue("id"), "")
	if err != nil {
		return err
	}
	if err := c.See(access.Project{ID: a.ProjectID, OrganizationID: a.OrganizationID}); err != nil {
		return err
	}
	if a.DeletedAt != nil {
		return access.ErrNotFound
	}
	name := a.OriginalName
	if name == "" {
		name = a.ID
	}
	address, expires, err := m.blobs.SignedURL(r.Context(), a.StoragePath, name, blobs.DefaultExpiry)
	if err != nil {
		return err
	}
	return reply.JSON(w, http.StatusOK, map[string]any{"url": address, "expires_at": instant.Of(expires)})
}
