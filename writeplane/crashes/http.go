package crashes

import (
	"net/http"
	"net/url"
	"slices"
	"time"

	"skerry/pkg/crash"
	"skerry/pkg/instant"
	paging "skerry/pkg/page"
	"skerry/pkg/problem"
	"skerry/pkg/reply"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
	"skerry/writeplane/symbols"
)

// Module serves the endpoints of crash reports.
type Module struct {
	store  *commit.Store
	access *access.Store
}

// New returns the module.
func New(store *commit.Store, access *access.Store) *Module {
	return &Module{store: store, access: access}
}

// Get serves GET /api/v1/catch/events/{id}.
func (m *Module) Get(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	e, err := one(r.Context(), m.store.Pool(), r.PathValue("id"))
	if err != nil {
		return err
	}
	if err := c.See(access.Project{ID: e.ProjectID, OrganizationID: e.OrganizationID}); err != nil {
		return err
	}
	v, err := e.view()
	if err != nil {
		return err
	}
	return reply.JSON(w, http.StatusOK, map[string]any{"event": v})
}

// List serves GET /api/v1/catch/events: newest first by timestamp, since inclusive,
// until exclusive; release, platform and distinct_id narrow it.
func (m *Module) List(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	query := r.URL.Query()
	project, err := m.access.Project(r.Context(), c, r)
	if err != nil {
		return err
	}
	f, err := readFilter(query, project.ID)
	if err != nil {
		return err
	}
	var after position
	window, err := m.access.Cursors().Open(query, "crashes", f.Values, &after)
	if err != nil {
		return err
	}
	found, more, err := page(r.Context(), m.store.Pool(), f, after, window.Limit)
	if err != nil {
		return err
	}
	var next *string
	if more {
		last := found[len(found)-1]
		next = window.Cursor(position{last.Timestamp, last.ID})
	}
	views := make([]view, len(found))
	for i, e := range found {
		if views[i], err = e.view(); err != nil {
			return err
		}
	}
	return reply.JSON(w, http.StatusOK, paging.List("events", views, next))
}

// filter is which reports a list shows: its values are project, environment and what
// else the query names, and are what a cursor holds for.
type filter struct {
	url.Values
	since, until time.Time // zero: open
}

func readFilter(query url.Values, projectID string) (f filter, err error) {
	f.Values = url.Values{"project": {projectID}, "environment": {"live"}}
	for _, name := range []string{"environment", "release", "platform", "distinct_id", "since", "until"} {
		if v := query.Get(name); v != "" {
			f.Set(name, v)
		}
	}
	if e := f.Get("environment"); e != "live" && e != "test" {
		return f, symbols.ErrInvalidEnvironment
	}
	if p := f.Get("platform"); p != "" && !slices.Contains(crash.Platforms(), p) {
		return f, problem.Newf(problem.Invalid, "invalid_platform", "platform must be one of %v", crash.Platforms())
	}
	if f.since, err = f.time("since"); err != nil {
		return f, err
	}
	f.until, err = f.time("until")
	return f, err
}

func (f filter) time(name string) (time.Time, error) {
	text := f.Get(name)
	if text == "" {
		return time.Time{}, nil
	}
	t, err := instant.Parse(text)
	if err != nil {
		return time.Time{}, problem.Newf(problem.Invalid, "invalid_"+name, "%s", err)
	}
	return t, nil
}
