package remoteconfig

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"time"

	"skerry/pkg/decide"
	"skerry/pkg/id"
	"skerry/pkg/instant"
	"skerry/pkg/jsonbody"
	"skerry/pkg/page"
	"skerry/pkg/problem"
	"skerry/pkg/reply"
	"skerry/writeplane/access"
	"skerry/writeplane/cohorts"
	"skerry/writeplane/commit"
	"skerry/writeplane/form"
)

// Module serves the endpoints of config items.
type Module struct {
	store  *commit.Store
	access *access.Store
}

// New returns the module.
func New(store *commit.Store, access *access.Store) *Module {
	return &Module{store: store, access: access}
}

// List serves GET /api/v1/config/items: in order of key, of both environments unless one
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
	window, err := m.access.Cursors().Open(query, "config/items", url.Values{"environment": {env}, "project": {project.ID}}, &after)
	if err != nil {
		return err
	}
	found, err := list(r.Context(), m.store.Pool(), project.ID, env, after, window.Fetch())
	if err != nil {
		return err
	}
	found, next := page.Cut(window, found, func(i *Item) any { return page.Keyed{Key: i.Key, ID: &i.ID} })
	return reply.JSON(w, http.StatusOK, page.List("items", page.Views(found, (*Item).view), next))
}

// Create serves POST /api/v1/config/items.
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
	i := &Item{ID: id.New(), ProjectID: project.ID, OrganizationID: project.OrganizationID, CurrentVersion: 1, CreatedAt: at, UpdatedAt: at}
	i.Environment = in.Environment()
	i.Key = in.Key("key")
	typ, ok := in.RequiredText("type", form.MaxText)
	i.Type = decide.Type(typ)
	if ok && !i.Type.IsItemType() {
		in.Fault("invalid_type", "type", "must be bool, int, float, string or json")
	}
	i.fill(in, surroundings{hasCohort: hasCohort})
	if err := failed(); err != nil {
		return err
	}
	var note *string
	if text, ok := in.Text("note", form.MaxText); ok {
		note = &text
	}
	if err := in.Err(); err != nil {
		return err
	}
	var first Version
	err = m.store.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		first, err = create(r.Context(), tx, i, note)
		return err
	})
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusCreated, "item", i.view(), map[string]any{"version": first})
}

// find reads the item that the path names, if the caller may see it.
func (m *Module) find(r *http.Request, c *access.Call) (*Item, error) {
	i, err := one(r.Context(), m.store.Pool(), r.PathValue("id"), "")
	if err != nil {
		return nil, err
	}
	if c.See(i.project()) != nil {
		return nil, ErrItemNotFound
	}
	return i, nil
}

// lock is find for changing the item, without a look at it first: others wait, and so
// does the deletion of its project.
func lock(r *http.Request, tx *commit.Tx, c *access.Call) (*Item, error) {
	i, err := one(r.Context(), tx, r.PathValue("id"), "AND p.organization_id = $2 FOR UPDATE OF i FOR KEY SHARE OF p", c.Caller.OrganizationID)
	if err != nil {
		return nil, err
	}
	if c.See(i.project()) != nil {
		return nil, ErrItemNotFound
	}
	return i, nil
}

// Get serves GET /api/v1/config/items/{id}.
func (m *Module) Get(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	i, err := m.find(r, c)
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusOK, "item", i.view(), map[string]any{"rule": i.Rule})
}

// Versions serves GET /api/v1/config/items/{id}/versions: the newest 100, newest first.
func (m *Module) Versions(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	i, err := m.find(r, c)
	if err != nil {
		return err
	}
	found, err := versions(r.Context(), m.store.Pool(), i.ID)
	if err != nil {
		return err
	}
	return reply.JSON(w, http.StatusOK, map[string]any{"versions": found})
}

// Patch serves PATCH /api/v1/config/items/{id}: a merge patch of default_value, rule,
// description and is_archived, with a note for the version.
func (m *Module) Patch(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	body, err := jsonbody.Read(r, jsonbody.Limit)
	if err != nil {
		return err
	}
	var after *Item
	err = m.store.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		before, err := lock(r, tx, c)
		if err != nil {
			return err
		}
		if err := reply.IfMatch(r, before.view()); err != nil {
			return err
		}
		hasCohort, failed := cohorts.Known(r.Context(), tx, before.ProjectID, before.Rule.Cohorts())
		var note *string
		after, note, err = before.patched(body, hasCohort)
		if err := cmp.Or(failed(), err); err != nil {
			return err
		}
		return change(tx, before, after, note)
	})
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusOK, "item", after.view(), map[string]any{"rule": after.Rule})
}

// patched is the item after a merge patch, or every problem of it.
func (i *Item) patched(patch []byte, hasCohort func(string) bool) (after *Item, note *string, err error) {
	given, err := form.Of(patch)
	if err != nil {
		return nil, nil, err
	}
	given.Fixed("environment", i.Environment)
	given.Fixed("key", i.Key)
	given.Fixed("type", string(i.Type))
	members := []string{"default_value", "description", "rule", "is_archived"}
	for _, name := range members {
		given.Any(name)
	}
	if text, ok := given.Text("note", form.MaxText); ok {
		note = &text
	}
	if err := given.Err(); err != nil {
		return nil, nil, err
	}
	in, err := form.Patched(i.patchable(), patch, members)
	if err != nil {
		return nil, nil, err
	}
	next := *i
	next.fill(in, surroundings{before: i, hasCohort: hasCohort})
	next.IsArchived = in.Bool("is_archived", false)
	return &next, note, in.Err()
}

// Rollback serves POST /api/v1/config/items/{id}/rollback.
func (m *Module) Rollback(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	versionID, note, err := readRollback(r)
	if err != nil {
		return err
	}
	var i *Item
	var v Version
	err = m.store.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		if i, err = lock(r, tx, c); err != nil {
			return err
		}
		if i.IsArchived {
			return ErrItemNotFound
		}
		if err := reply.IfMatch(r, i.view()); err != nil {
			return err
		}
		target, err := version(r.Context(), tx, i.ID, versionID)
		if err != nil {
			return err
		}
		v, err = rollback(tx, i, target, note)
		return err
	})
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusOK, "item", i.view(), map[string]any{"version": v, "rule": i.Rule})
}

// readRollback reads the body: whatever is no object with a version_id in it has
// one answer.
func readRollback(r *http.Request) (versionID string, note *string, err error) {
	var in *form.Form
	body, err := jsonbody.ReadUTF8(r, jsonbody.Limit)
	if err == nil {
		in, err = form.Of(body)
	}
	var p *problem.Error
	if errors.As(err, &p) && p.Kind == problem.Invalid {
		return "", nil, ErrVersionRequired
	}
	if err != nil {
		return "", nil, err
	}
	versionID, _ = in.Any("version_id").(string)
	if versionID == "" {
		return "", nil, ErrVersionRequired
	}
	if err := jsonbody.Whole(body); err != nil {
		return "", nil, err // of the note, most likely
	}
	if text, ok := in.Text("note", form.MaxText); ok {
		note = &text
	}
	return versionID, note, in.Err()
}
