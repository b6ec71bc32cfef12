package surveys

import (
	"net/http"
	"slices"
	"strings"

	"skerry/pkg/id"
	"skerry/pkg/jsonbody"
	"skerry/pkg/page"
	"skerry/pkg/problem"
	"skerry/pkg/reply"
	"skerry/pkg/survey"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
)

// List serves GET /api/v1/pulse/surveys: newest first, filter `status`.
func (m *Module) List(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	project, err := m.access.Project(r.Context(), c, r)
	if err != nil {
		return err
	}
	query := r.URL.Query()
	status := query.Get("status")
	if status != "" && !slices.Contains([]string{survey.Draft, survey.Published, survey.Closed, survey.Archived}, status) {
		return problem.Newf(problem.Invalid, "invalid_status", "status must be draft, published, closed or archived")
	}
	var after string
	window, err := m.access.Cursors().Open(query, "surveys of "+project.ID, query, &after)
	if err != nil {
		return err
	}
	rows, err := heads(r.Context(), m.store.Pool(), project.ID, status, after, window.Fetch())
	if err != nil {
		return err
	}
	rows, next := page.Cut(window, rows, func(h Head) any { return h.ID })
	return reply.JSON(w, http.StatusOK, page.List("surveys", rows, next))
}

// Create serves POST /api/v1/pulse/surveys.
func (m *Module) Create(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	project, err := m.access.Project(r.Context(), c, r)
	if err != nil {
		return err
	}
	body, err := jsonbody.Read(r, jsonbody.Limit)
	if err != nil {
		return err
	}
	authored, err := readAuthored([]byte("{}"), body)
	if err != nil {
		return err
	}
	made, err := m.add(r.Context(), c.Origin(), project, authored)
	if err != nil {
		return err
	}
	return show(w, http.StatusCreated, made)
}

// Get serves GET /api/v1/pulse/surveys/{id}.
func (m *Module) Get(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	stored, err := m.Visible(r, c)
	if err != nil {
		return err
	}
	return show(w, http.StatusOK, stored)
}

// Patch serves PATCH /api/v1/pulse/surveys/{id}: a merge patch over the flat bundle.
func (m *Module) Patch(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	body, err := jsonbody.Read(r, jsonbody.Limit)
	if err != nil {
		return err
	}
	return m.edit(w, r, c, func(tx *commit.Tx, before *Stored) (*Stored, error) {
		return m.patch(r.Context(), tx, before, body)
	})
}

// Publish serves POST /api/v1/pulse/surveys/{id}/publish.
func (m *Module) Publish(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	return m.step(w, r, c, publish)
}

// Close serves POST …/close.
func (m *Module) Close(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	return m.step(w, r, c, closing)
}

// Reopen serves POST …/reopen.
func (m *Module) Reopen(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	return m.step(w, r, c, reopen)
}

// Archive serves POST …/archive.
func (m *Module) Archive(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	return m.step(w, r, c, archive)
}

func (m *Module) step(w http.ResponseWriter, r *http.Request, c *access.Call, s step) error {
	return m.edit(w, r, c, func(tx *commit.Tx, before *Stored) (*Stored, error) {
		return m.take(r.Context(), tx, before, s)
	})
}

// edit changes the survey of the path, if the caller sees it and If-Match holds.
func (m *Module) edit(w http.ResponseWriter, r *http.Request, c *access.Call, edit func(tx *commit.Tx, before *Stored) (*Stored, error)) error {
	visible, err := m.Visible(r, c)
	if err != nil {
		return err
	}
	after, err := m.change(r.Context(), c.Origin(), visible.Bundle.Survey.ID, func(tx *commit.Tx, before *Stored) (*Stored, error) {
		if err := reply.IfMatch(r, before.Show()); err != nil {
			return nil, err
		}
		return edit(tx, before)
	})
	if err != nil {
		return err
	}
	return show(w, http.StatusOK, after)
}

// Visible is the survey of the path value `id`, which may be a slug in the call's
// project; access.ErrNotFound when there is none or the caller may not see it.
func (m *Module) Visible(r *http.Request, c *access.Call) (*Stored, error) {
	wanted := r.PathValue("id")
	if strings.HasPrefix(wanted, id.Survey) { // no slug has an underscore
		stored, err := loadByID(r.Context(), m.store.Pool(), wanted)
		if err != nil {
			return nil, err
		}
		return stored, c.See(stored.Project())
	}
	project, err := m.access.Project(r.Context(), c, r)
	if err != nil {
		return nil, err
	}
	return Load(r.Context(), m.store.Pool(), project.ID, wanted)
}

// show answers a survey and its tag.
func show(w http.ResponseWriter, status int, s *Stored) error {
	shown := s.Show()
	tag, err := reply.Tag(shown)
	if err != nil {
		return err
	}
	w.Header().Set("ETag", tag)
	return reply.JSON(w, status, shown)
}
