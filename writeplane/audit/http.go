package audit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/id"
	"skerry/pkg/instant"
	"skerry/pkg/page"
	"skerry/pkg/problem"
	"skerry/pkg/reply"
	"skerry/writeplane/access"
	"skerry/writeplane/blobs"
	"skerry/writeplane/commit"
	"skerry/writeplane/jobs"
)

// Module serves the audit log (specification, Audit endpoints; supplement §7).
type Module struct {
	log     *Log
	commits *commit.Store
	access  *access.Store
	blobs   *blobs.Store
	queue   *jobs.Queue
	mailer  Mailer // nil: the operator configured no mail
}

// NewModule returns the handlers; the exporter, which is bound to its queue, writes the
// exports that they are asked for.
func NewModule(exporter *Exporter, store *access.Store) *Module {
	return &Module{log: exporter.log, commits: exporter.commits, access: store, blobs: exporter.blobs, queue: exporter.queue, mailer: exporter.mailer}
}

// Faults of the audit endpoints.
var (
	errSince = problem.Newf(problem.Invalid, "invalid_since", "since must be an ISO 8601 time")
	errUntil = problem.Newf(problem.Invalid, "invalid_until", "until must be an ISO 8601 time, after since")
	errOrder = problem.Newf(problem.Invalid, "invalid_order", "order must be asc or desc")
)

// sight is which projects' entries a caller may read; nil is all of the organization.
func sight(c access.Caller) []string {
	switch {
	case c.ProjectID != "" && c.Sees(access.Project{ID: c.ProjectID, OrganizationID: c.OrganizationID}):
		return []string{c.ProjectID}
	case c.ProjectID != "":
		return []string{}
	case c.Role >= access.OrgAdmin:
		return nil
	case c.MemberProjects != nil:
		return c.MemberProjects
	}
	return []string{}
}

// List serves GET /api/v1/audit.
func (m *Module) List(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	query := r.URL.Query()
	projects := sight(c.Caller)
	if asked := query.Get("project_id"); asked != "" {
		project, err := m.seeProject(r.Context(), c, asked)
		if err != nil {
			return err
		}
		projects = []string{project}
	}
	return m.list(w, r, c, projects)
}

// ListProject serves GET /api/v1/projects/:id/audit: a project's own entries, for whoever
// may see the project.
func (m *Module) ListProject(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	project, err := m.seeProject(r.Context(), c, r.PathValue("id"))
	if err != nil {
		return err
	}
	return m.list(w, r, c, []string{project})
}

// seeProject admits projects of the caller's sight, deleted ones included: their
// entries outlive them. It returns the id as it is stored.
func (m *Module) seeProject(ctx context.Context, c *access.Call, asked string) (project string, err error) {
	if !id.Valid(asked) {
		return "", access.ErrNotFound
	}
	err = m.log.pool.QueryRow(ctx, `SELECT id FROM projects WHERE id = $1 AND organization_id = $2`, asked, c.Caller.OrganizationID).Scan(&project)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", access.ErrNotFound
	}
	if err != nil {
		return "", fmt.Errorf("read project: %w", err)
	}
	return project, c.See(access.Project{ID: project, OrganizationID: c.Caller.OrganizationID})
}

func (m *Module) list(w http.ResponseWriter, r *http.Request, c *access.Call, projects []string) error {
	query := r.URL.Query()
	q, err := parseFilters(query)
	if err != nil {
		return err
	}
	q.OrganizationID, q.Projects = c.Caller.OrganizationID, projects
	window, err := m.access.Cursors().Open(query, c.ListName(r), query, &q.After)
	if err != nil {
		return err
	}
	q.Limit = window.Fetch()
	shown, last, more, err := m.page(r.Context(), q, window.Limit)
	if err != nil {
		return err
	}
	var next *string
	if more {
		next = window.Cursor(last)
	}
	return reply.JSON(w, http.StatusOK, page.List("entries", shown, next))
}

// pageBytes of snapshots end a page before its limit.
const pageBytes = 16 << 20

var errPageFull = errors.New("BUG: the end of a page is no fault")

// page reads up to limit entries, fewer when they are heavy: the page then ends with the
// one that passes pageBytes. last is where it ends, and more tells whether others follow.
func (m *Module) page(ctx context.Context, q Query, limit int) (shown []view, last Position, more bool, err error) {
	if q.Projects != nil && len(q.Projects) == 0 {
		return nil, last, false, nil
	}
	weight := 0
	err = m.log.Read(ctx, q, func(e *Entry) error {
		if len(shown) == limit || weight > pageBytes {
			more = true
			return errPageFull
		}
		shown, last = append(shown, e.view()), Position{e.CreatedAt, e.Seq}
		weight += len(e.Before) + len(e.After) + len(e.Metadata)
		return nil
	})
	if errors.Is(err, errPageFull) {
		err = nil
	}
	return shown, last, more, err
}

// parseFilters reads what list and export have in common, and the order.
func parseFilters(query url.Values) (q Query, err error) {
	q = Query{ActorID: query.Get("actor_id"), Action: ParsePattern(query.Get("action")), ResourceType: ParsePattern(query.Get("resource_type"))}
	if q.Since, q.Until, err = parseRange(query.Get("since"), query.Get("until")); err != nil {
		return q, err
	}
	switch query.Get("order") {
	case "", "desc":
	case "asc":
		q.Ascending = true
	default:
		return q, errOrder
	}
	return q, nil
}

func parseRange(since, until string) (from, to time.Time, err error) {
	if since != "" {
		if from, err = instant.Parse(since); err != nil {
			return from, to, errSince
		}
	}
	if until != "" {
		if to, err = instant.Parse(until); err != nil {
			return from, to, errUntil
		}
	}
	if since != "" && until != "" && to.Before(from) {
		return from, to, errUntil
	}
	return from, to, nil
}

// Get serves GET /api/v1/audit/:id.
func (m *Module) Get(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	entry, ok, err := m.log.Find(r.Context(), c.Caller.OrganizationID, r.PathValue("id"))
	if err != nil {
		return err
	}
	if !ok || !sees(c.Caller, entry.ProjectID) {
		return access.ErrNotFound
	}
	return reply.JSON(w, http.StatusOK, map[string]view{"entry": entry.view()})
}

// sees reports whether an entry of the caller's organization is within sight; entries
// of no project are the organization's own.
func sees(c access.Caller, projectID *string) bool {
	projects := sight(c)
	if projects == nil {
		return true
	}
	return projectID != nil && c.Sees(access.Project{ID: *projectID, OrganizationID: c.OrganizationID})
}

// Verify serves GET /api/v1/audit/verify.
func (m *Module) Verify(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	verdict, err := m.log.Verify(r.Context(), c.Caller.OrganizationID)
	if err != nil {
		return err
	}
	return reply.JSON(w, http.StatusOK, verdict)
}
