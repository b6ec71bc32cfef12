package cohorts

import (
	"net/http"
	"net/url"
	"time"

	"golang.org/x/sync/semaphore"

	"skerry/pkg/decide"
	"skerry/pkg/id"
	"skerry/pkg/instant"
	"skerry/pkg/page"
	"skerry/pkg/reply"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
	"skerry/writeplane/form"
	"skerry/writeplane/postgres"
)

// Module serves the endpoints of cohorts.
type Module struct {
	store  *commit.Store
	access *access.Store
	room   *semaphore.Weighted // bytes of long lists at work
}

// New returns the module. Its routes that take member lists bound their bodies themselves.
func New(store *commit.Store, access *access.Store) *Module {
	return &Module{store: store, access: access, room: semaphore.NewWeighted(allRoom)}
}

// List serves GET /api/v1/cohorts: in order of name, without members.
func (m *Module) List(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	project, err := m.access.Project(r.Context(), c, r)
	if err != nil {
		return err
	}
	var after string
	window, err := m.access.Cursors().Open(r.URL.Query(), "cohorts", url.Values{"project": {project.ID}}, &after)
	if err != nil {
		return err
	}
	found, err := list(r.Context(), m.store.Pool(), project.ID, after, window.Fetch())
	if err != nil {
		return err
	}
	found, next := page.Cut(window, found, func(c *Cohort) any { return c.Name })
	return reply.JSON(w, http.StatusOK, page.List("cohorts", page.Views(found, (*Cohort).view), next))
}

// Create serves POST /api/v1/cohorts.
func (m *Module) Create(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	project, err := m.access.Project(r.Context(), c, r)
	if err != nil {
		return err
	}
	in, err := m.readBody(r, "members")
	if err != nil {
		return err
	}
	defer in.release()
	at := instant.Next(time.Time{})
	made := &Cohort{ID: id.New(), ProjectID: project.ID, OrganizationID: project.OrganizationID, CreatedAt: at, UpdatedAt: at}
	made.Name = in.form.Key("name")
	made.readPredicate(in)
	checkMembers(in.form, "members", in.lists["members"])
	err = m.store.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		access.Keep(tx, project.ID)
		if err := made.judgePredicate(r.Context(), tx, in.form); err != nil {
			return err
		}
		if err := in.form.Err(); err != nil {
			return err
		}
		return create(r.Context(), tx, made, in.lists["members"])
	})
	if err != nil {
		return err
	}
	return m.show(w, r, http.StatusCreated, made, true)
}

func (c *Cohort) readPredicate(in *body) {
	c.Predicate = nil
	if text, ok := in.form.Text("predicate", form.MaxText); ok {
		c.Predicate = &text
	}
}

// show answers a cohort; its tag does not cover the members one by one, which change its
// updated_at.
func (m *Module) show(w http.ResponseWriter, r *http.Request, status int, c *Cohort, members bool) error {
	tag, err := reply.Tag(c.view())
	if err != nil {
		return err
	}
	var shown any = c.view()
	if members {
		found, err := all(r.Context(), m.store.Pool(), c.ID)
		if err != nil {
			return err
		}
		shown = fullView{c.view(), found}
	}
	w.Header().Set("ETag", tag)
	return reply.JSON(w, status, map[string]any{"cohort": shown})
}

// Get serves GET /api/v1/cohorts/{name}; with ?members=false without the members.
func (m *Module) Get(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	project, err := m.access.Project(r.Context(), c, r)
	if err != nil {
		return err
	}
	found, err := find(r, m.store.Pool(), project, "")
	if err != nil {
		return err
	}
	return m.show(w, r, http.StatusOK, found, r.URL.Query().Get("members") != "false")
}

func find(r *http.Request, q postgres.Querier, project access.Project, lock string) (*Cohort, error) {
	name := r.PathValue("name")
	if !decide.ValidKey(name) {
		return nil, access.ErrNotFound
	}
	return one(r.Context(), q, project.ID, name, lock)
}

// change runs a change of the cohort that the path names, in a transaction that
// holds its row.
func (m *Module) change(r *http.Request, c *access.Call, do func(tx *commit.Tx, found *Cohort) error) (*Cohort, error) {
	project, err := m.access.Project(r.Context(), c, r)
	if err != nil {
		return nil, err
	}
	var found *Cohort
	err = m.store.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		found, err = find(r, tx, project, forUpdate)
		if err != nil {
			return err
		}
		if err := reply.IfMatch(r, found.view()); err != nil {
			return err
		}
		return do(tx, found)
	})
	return found, err
}

// Patch serves PATCH /api/v1/cohorts/{name}: of predicate and members, which are replaced.
func (m *Module) Patch(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	in, err := m.readBody(r, "members")
	if err != nil {
		return err
	}
	defer in.release()
	changed, err := m.change(r, c, func(tx *commit.Tx, found *Cohort) error {
		before := found.view()
		in.form.Fixed("name", found.Name)
		checkMembers(in.form, "members", in.lists["members"])
		if _, mentioned := in.given["predicate"]; mentioned {
			found.readPredicate(in)
			if err := found.judgePredicate(r.Context(), tx, in.form); err != nil {
				return err
			}
		}
		if err := in.form.Err(); err != nil {
			return err
		}
		if _, mentioned := in.given["members"]; mentioned {
			if err := found.setMembers(r.Context(), tx, in.lists["members"]); err != nil {
				return err
			}
		}
		return touch(r.Context(), tx, found, before, nil)
	})
	if err != nil {
		return err
	}
	return m.show(w, r, http.StatusOK, changed, true)
}

// Members serves POST /api/v1/cohorts/{name}/members {add, remove}. The answer is the
// cohort without its members.
func (m *Module) Members(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	in, err := m.readBody(r, "add", "remove")
	if err != nil {
		return err
	}
	defer in.release()
	changed, err := m.change(r, c, func(tx *commit.Tx, found *Cohort) error {
		before := found.view()
		checkMembers(in.form, "add", in.lists["add"])
		checkMembers(in.form, "remove", in.lists["remove"])
		if err := in.form.Err(); err != nil {
			return err
		}
		added, removed, err := found.editMembers(r.Context(), tx, in.lists["add"], in.lists["remove"])
		if err != nil || added+removed == 0 {
			return err
		}
		return touch(r.Context(), tx, found, before, map[string]any{"added": added, "removed": removed})
	})
	if err != nil {
		return err
	}
	return m.show(w, r, http.StatusOK, changed, false)
}

// Delete serves DELETE /api/v1/cohorts/{name}.
func (m *Module) Delete(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	_, err := m.change(r, c, func(tx *commit.Tx, found *Cohort) error { return drop(r.Context(), tx, found) })
	if err != nil {
		return err
	}
	return reply.Deleted(w)
}
