package audit

import (
	"fmt"
	"net/http"
	"net/mail"
	"time"

	"skerry/pkg/id"
	"skerry/pkg/jsonbody"
	"skerry/pkg/page"
	"skerry/pkg/problem"
	"skerry/pkg/reply"
	"skerry/writeplane/access"
	"skerry/writeplane/blobs"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

var (
	errPlan  = problem.Newf(problem.Forbidden, "plan_required", "exports need the tier pro or above")
	errFiles = problem.Newf(problem.Forbidden, "plan_required", "schedules that end in a download need the tier growth or above; those by email need pro")
	errEmail = problem.Newf(problem.Invalid, "email_not_configured", "the operator has configured no mail server")
)

// exportTier is the tier of the caller's organization, which must include exports.
func (m *Module) exportTier(r *http.Request, c *access.Call) (tier string, err error) {
	err = m.log.pool.QueryRow(r.Context(), `SELECT tier FROM organizations WHERE id = $1`, c.Caller.OrganizationID).Scan(&tier)
	if err != nil {
		return "", fmt.Errorf("read tier: %w", err)
	}
	if !canExport(tier) {
		return "", errPlan
	}
	return tier, nil
}

// scope is the sight of an export: one project when one is named, else all that the
// caller may read.
func (m *Module) scope(r *http.Request, c *access.Call, projectID *string) (f filters, err error) {
	if projectID == nil || *projectID == "" {
		f.Projects = sight(c.Caller)
		if len(f.Projects) == 1 {
			f.ProjectID = &f.Projects[0]
		}
		return f, nil
	}
	project, err := m.seeProject(r.Context(), c, *projectID)
	if err != nil {
		return f, err
	}
	return filters{Projects: []string{project}, ProjectID: &project}, nil
}

// CreateExport serves POST /api/v1/audit/exports.
func (m *Module) CreateExport(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	if _, err := m.exportTier(r, c); err != nil {
		return err
	}
	var body struct {
		ProjectID    *string `json:"project_id"`
		Since        string  `json:"since"`
		Until        string  `json:"until"`
		ActorID      string  `json:"actor_id"`
		Action       string  `json:"action"`
		ResourceType string  `json:"resource_type"`
	}
	if err := jsonbody.Strict(r, &body); err != nil {
		return err
	}
	switch {
	case body.Since == "":
		return jsonbody.Missing("since")
	case body.Until == "":
		return jsonbody.Missing("until")
	}
	since, until, err := parseRange(body.Since, body.Until)
	switch {
	case err != nil:
		return err
	case !since.Before(until):
		return errUntil
	}
	f, err := m.scope(r, c, body.ProjectID)
	if err != nil {
		return err
	}
	f.Since, f.Until, f.ActorID, f.Action, f.ResourceType = since, until, body.ActorID, body.Action, body.ResourceType
	export := exportRow{ID: id.New(), OrganizationID: c.Caller.OrganizationID, Filters: f, Status: "pending",
		RequestedBy: c.Caller.Subject, RequestedEmail: email(c), CreatedAt: time.Now().UTC()}
	err = m.commits.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		return insertExport(r.Context(), tx, m.queue, export, nil)
	})
	if err != nil {
		return err
	}
	return reply.JSON(w, http.StatusAccepted, map[string]exportView{"export": export.view()})
}

func email(c *access.Call) *string {
	if c.Caller.Email == "" {
		return nil
	}
	return &c.Caller.Email
}

// GetExport serves GET /api/v1/audit/exports/:id; each answer of a ready one has a
// fresh URL.
func (m *Module) GetExport(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	if !id.Valid(r.PathValue("id")) {
		return access.ErrNotFound
	}
	row, ok, err := postgres.One(r.Context(), m.log.pool, "read export", scanExport,
		exportSQL+"id = $1 AND organization_id = $2", r.PathValue("id"), c.Caller.OrganizationID)
	if err != nil {
		return err
	}
	if !ok || !covers(c.Caller, row.Filters) {
		return access.ErrNotFound
	}
	shown, err := row.signed(r.Context(), m.blobs, blobs.DefaultExpiry)
	if err != nil {
		return err
	}
	return reply.JSON(w, http.StatusOK, map[string]exportView{"export": shown})
}

// covers reports whether the caller may read everything that the filters let through.
func covers(c access.Caller, f filters) bool {
	if sight(c) == nil {
		return true
	}
	for _, project := range f.Projects {
		if !c.Sees(access.Project{ID: project, OrganizationID: c.OrganizationID}) {
			return false
		}
	}
	return f.Projects != nil
}

// ListSchedules serves GET /api/v1/audit/export-schedules.
func (m *Module) ListSchedules(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	query := r.URL.Query()
	var after *string
	window, err := m.access.Cursors().Open(query, c.ListName(r), query, &after)
	if err != nil {
		return err
	}
	// An organization's schedules are few; those out of sight are left out here.
	found, err := postgres.All(r.Context(), m.log.pool, "list schedules", scanSchedule,
		scheduleSQL+`s.organization_id = $1 AND ($2::uuid IS NULL OR s.id < $2) ORDER BY s.id DESC`, c.Caller.OrganizationID, after)
	if err != nil {
		return err
	}
	views := []scheduleView{}
	for _, s := range found {
		if covers(c.Caller, s.Filters) {
			views = append(views, s.view())
		}
	}
	shown, next := page.Cut(window, views, func(s scheduleView) any { return s.ID })
	return reply.JSON(w, http.StatusOK, page.List("export_schedules", shown, next))
}

// CreateSchedule serves POST /api/v1/audit/export-schedules.
func (m *Module) CreateSchedule(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	tier, err := m.exportTier(r, c)
	if err != nil {
		return err
	}
	var body struct {
		ProjectID *string   `json:"project_id"`
		Frequency string    `json:"frequency"`
		Delivery  *delivery `json:"delivery"`
	}
	if err := jsonbody.Strict(r, &body); err != nil {
		return err
	}
	switch body.Frequency {
	case "daily", "weekly", "monthly":
	case "":
		return jsonbody.Missing("frequency")
	default:
		return jsonbody.Invalid("frequency must be daily, weekly or monthly")
	}
	if body.Delivery == nil {
		return jsonbody.Missing("delivery")
	}
	if err := m.checkDelivery(body.Delivery, tier, c); err != nil {
		return err
	}
	f, err := m.scope(r, c, body.ProjectID)
	if err != nil {
		return err
	}
	now := time.Now().UTC()
	made := scheduleRow{ID: id.New(), OrganizationID: c.Caller.OrganizationID, Filters: f, Frequency: body.Frequency, Delivery: *body.Delivery,
		CreatedBy: c.Caller.Subject, CreatedEmail: email(c), CreatedAt: now, NextAt: periodEnd(body.Frequency, now)}
	err = m.commits.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		_, err := tx.Exec(r.Context(), `
			INSERT INTO audit_export_schedules (id, organization_id, filters, frequency, delivery, created_by, created_email, created_at, next_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
			made.ID, made.OrganizationID, made.Filters, made.Frequency, made.Delivery, made.CreatedBy, made.CreatedEmail, made.CreatedAt, made.NextAt)
		if err != nil {
			return fmt.Errorf("insert schedule: %w", err)
		}
		tx.Audit(made.entry("audit.export_schedule.created", nil, made.view()))
		return nil
	})
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusCreated, "export_schedule", made.view(), nil)
}

func (s scheduleRow) entry(action string, before, after any) commit.Entry {
	e := commit.Entry{OrganizationID: s.OrganizationID, Action: action, ResourceType: "audit_export", ResourceID: s.ID, Before: before, After: after}
	if s.Filters.ProjectID != nil {
		e.ProjectID = *s.Filters.ProjectID
	}
	return e
}

func (m *Module) checkDelivery(d *delivery, tier string, c *access.Call) error {
	switch d.Type {
	case "presigned_url":
		if d.To != "" {
			return jsonbody.Invalid("delivery.to is for email")
		}
	case "email":
		if d.To == "" {
			d.To = c.Caller.Email
		}
		parsed, err := mail.ParseAddress(d.To)
		if err != nil || parsed.Address != d.To {
			return jsonbody.Invalid("delivery.to is not an address")
		}
	case "":
		return jsonbody.Missing("delivery.type")
	default:
		return jsonbody.Invalid("delivery.type must be email or presigned_url")
	}
	if !canSchedule(tier, d.Type) {
		return errFiles
	}
	if d.Type == "email" && m.mailer == nil {
		return errEmail
	}
	return nil
}

// DeleteSchedule serves DELETE /api/v1/audit/export-schedules/:id.
func (m *Module) DeleteSchedule(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	if !id.Valid(r.PathValue("id")) {
		return access.ErrNotFound
	}
	err := m.commits.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		row, ok, err := postgres.One(r.Context(), tx, "read schedule", scanSchedule,
			scheduleSQL+"s.id = $1 AND s.organization_id = $2 FOR UPDATE OF s", r.PathValue("id"), c.Caller.OrganizationID)
		if err != nil {
			return err
		}
		if !ok || !covers(c.Caller, row.Filters) {
			return access.ErrNotFound
		}
		if err := reply.IfMatch(r, row.view()); err != nil {
			return err
		}
		return row.end(r.Context(), tx, nil)
	})
	if err != nil {
		return err
	}
	return reply.Deleted(w)
}
