package flags

import (
	"cmp"
	"net/http"
	"net/url"
	"time"

	"skerry/pkg/decide"
	"skerry/pkg/id"
	"skerry/pkg/instant"
	"skerry/pkg/jsonbody"
	"skerry/pkg/page"
	"skerry/pkg/reply"
	"skerry/writeplane/access"
	"skerry/writeplane/cohorts"
	"skerry/writeplane/commit"
	"skerry/writeplane/form"
)

// Module serves the endpoints of flags.
type Module struct {
	store  *commit.Store
	access *access.Store
}

// New returns the module.
func New(store *commit.Store, access *access.Store) *Module {
	return &Module{store: store, access: access}
}

// List serves GET /api/v1/switch/flags: in order of key, of both environments unless one
// is named.
func (m *Module) List(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	query := r.URL.Query()
	env, err := access.Environment(query, "")
	if err != nil {
		return err
	}
	project, err := m.access.Project(r.Context(), c, r)
	if err != nil {
		return err
	}
	var after page.Keyed
	window, err := m.access.Cursors().Open(query, "flags", url.Values{"environment": {env}, "project": {project.ID}}, &after)
	if err != nil {
		return err
	}
	found, err := list(r.Context(), m.store.Pool(), project.ID, env, after, window.Fetch())
	if err != nil {
		return err
	}
	found, next := page.Cut(window, found, func(f *Flag) any { return page.Keyed{Key: f.Key, ID: &f.ID} })
	return reply.JSON(w, http.StatusOK, page.List("flags", page.Views(found, (*Flag).full), next))
}

// Create serves POST /api/v1/switch/flags.
func (m *Module) Create(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	project, err := m.access.Project(r.Context(), c, r)
	if err != nil {
		return err
	}
	in, err := form.Read(r)
	if err != nil {
		return err
	}
	hasCohort, failed := cohorts.Known(r.Context(), m.store.Pool(), project.ID, nil)
	at := instant.Next(time.Time{})
	f := &Flag{ID: id.New(), ProjectID: project.ID, OrganizationID: project.OrganizationID, CurrentVersion: 1, CreatedAt: at, UpdatedAt: at}
	f.Environment = in.Environment()
	f.Key = in.Key("key")
	f.readKind(in)
	f.fill(in, surroundings{given: map[string]any{"default_value": in.Any("default_value")}, hasCohort: hasCohort})
	if err := failed(); err != nil {
		return err
	}
	if err := in.Err(); err != nil {
		return err
	}
	err = m.store.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error { return create(r.Context(), tx, f) })
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusCreated, "flag", f.full(), nil)
}

func (f *Flag) readKind(in *form.Form) {
	kind, ok := in.RequiredText("kind", form.MaxText)
	f.Kind = decide.Type(kind)
	if ok && !f.Kind.IsFlagKind() {
		in.Fault("invalid_type", "kind", "must be boolean, string, number or json")
	}
}

// find reads the flag that a path names by id or key. A key needs an environment, live
// unless the query says otherwise.
func (m *Module) find(r *http.Request, c *access.Call, otherwise string) (*Flag, error) {
	idOrKey := r.PathValue("id_or_key")
	query := r.URL.Query()
	env, err := access.Environment(query, otherwise)
	if err != nil {
		return nil, err
	}
	if id.Valid(idOrKey) {
		f, err := one(r.Context(), m.store.Pool(), "f.id = $1", idOrKey)
		if err == nil {
			if err := c.See(f.project()); err != nil {
				return nil, err
			}
			if env != "" && env != f.Environment {
				return nil, access.ErrNotFound
			}
			return f, nil
		}
		if err != access.ErrNotFound {
			return nil, err
		}
	}
	if !decide.ValidKey(idOrKey) {
		return nil, access.ErrNotFound
	}
	project, err := m.access.Project(r.Context(), c, r)
	if err != nil {
		return nil, err
	}
	if env == "" {
		env = "live"
	}
	return one(r.Context(), m.store.Pool(), "f.project_id = $1 AND f.environment = $2 AND f.key = $3", project.ID, env, idOrKey)
}

// change runs fn on the flag that a path names, locked, in a transaction. An id is locked
// without a look at it first, if it is one of the caller's organization: others' flags
// are not made to wait. Where that finds none, the path is read as find does.
func (m *Module) change(r *http.Request, c *access.Call, otherwise string, fn func(tx *commit.Tx, f *Flag) error) error {
	env, err := access.Environment(r.URL.Query(), otherwise)
	if err != nil {
		return err
	}
	flagID, found := r.PathValue("id_or_key"), false
	run := func() error {
		return m.store.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
			f, err := one(r.Context(), tx, "f.id = $1 AND p.organization_id = $2 "+locked, flagID, c.Caller.OrganizationID)
			if err != nil {
				return err
			}
			if c.See(f.project()) != nil || env != "" && env != f.Environment {
				return access.ErrNotFound
			}
			found = true
			return fn(tx, f)
		})
	}
	if id.Valid(flagID) {
		if err := run(); found || err != access.ErrNotFound {
			return err
		}
	}
	f, err := m.find(r, c, otherwise)
	if err != nil {
		return err
	}
	flagID = f.ID
	return run()
}

// Get serves GET /api/v1/switch/flags/{id_or_key}.
func (m *Module) Get(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	f, err := m.find(r, c, "")
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusOK, "flag", f.full(), nil)
}

// Patch serves PATCH /api/v1/switch/flags/{id_or_key}: a merge patch of everything but
// environment, key and kind.
func (m *Module) Patch(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	body, err := jsonbody.Read(r, jsonbody.Limit)
	if err != nil {
		return err
	}
	var after *Flag
	err = m.change(r, c, "", func(tx *commit.Tx, before *Flag) error {
		if err := reply.IfMatch(r, before.full()); err != nil {
			return err
		}
		hasCohort, failed := cohorts.Known(r.Context(), tx, before.ProjectID, before.Rule.Cohorts())
		after, err = before.patched(body, hasCohort)
		if err := cmp.Or(failed(), err); err != nil {
			return err
		}
		return change(tx, before, after)
	})
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusOK, "flag", after.full(), nil)
}

// patched is the flag after a merge patch, or every problem of it.
func (f *Flag) patched(patch []byte, hasCohort func(string) bool) (*Flag, error) {
	given, err := form.Of(patch)
	if err != nil {
		return nil, err
	}
	given.Fixed("environment", f.Environment)
	given.Fixed("key", f.Key)
	given.Fixed("kind", string(f.Kind))
	s := surroundings{before: f, given: map[string]any{}, hasCohort: hasCohort}
	members := []string{"description", "default_value", "default_variant", "variants", "enabled", "rule", "is_archived"}
	for _, name := range members {
		s.given[name] = given.Any(name)
	}
	if err := given.Err(); err != nil {
		return nil, err
	}
	merged, err := form.Patched(f.patchable(), patch, members)
	if err != nil {
		return nil, err
	}
	after := *f
	after.fill(merged, s)
	after.IsArchived = merged.Bool("is_archived", false)
	if err := merged.Err(); err != nil {
		return nil, err
	}
	return &after, nil
}
