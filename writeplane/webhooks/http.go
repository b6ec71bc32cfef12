package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"skerry/pkg/id"
	"skerry/pkg/instant"
	"skerry/pkg/jsonbody"
	"skerry/pkg/problem"
	"skerry/pkg/reply"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
	"skerry/writeplane/webhooks/target"
)

// Module serves the management endpoints of supplement §8.
type Module struct {
	store  *commit.Store
	access *access.Store
	guard  *target.Guard
}

// New returns a Module.
func New(store *commit.Store, access *access.Store, guard *target.Guard) *Module {
	return &Module{store: store, access: access, guard: guard}
}

var (
	errDenied = problem.New(problem.Forbidden, "Permission denied")
	errPlan   = problem.Newf(problem.Forbidden, "plan_required", "%s needs the tier pro or above", EventAuditEntry)
)

// mayManage tells whether the caller may have a subscription with these settings:
// a project admin only narrowed to an own project and without the audit stream.
func mayManage(c *access.Call, organization string, s settings) error {
	if organization != c.Caller.OrganizationID {
		return access.ErrNotFound
	}
	if s.ProjectID != nil {
		if err := c.See(access.Project{ID: *s.ProjectID, OrganizationID: organization}); err != nil {
			return err
		}
	}
	if bound(c) && (s.ProjectID == nil || s.hearsAudit()) {
		return errDenied
	}
	return nil
}

// bound reports whether the caller manages projects' subscriptions only.
func bound(c *access.Call) bool { return c.Caller.Role < access.OrgAdmin || c.Caller.ProjectID != "" }

// sightSQL is which subscriptions s a list holds: of organization $1, of projects $2 unless
// it is NULL, and for a caller who is bound ($3) none that hears the audit stream.
const sightSQL = `s.organization_id = $1 AND s.deleted_at IS NULL AND ($2::uuid[] IS NULL OR s.project_id = ANY ($2))
	AND NOT ($3 AND '` + EventAuditEntry + `' = ANY (s.events))`

// find returns a subscription that the caller may manage; one out of sight is absent.
func (m *Module) find(ctx context.Context, q postgres.Querier, c *access.Call, subscriptionID string) (subscription, error) {
	return m.findBy(ctx, q, c, subscriptionID, "s.id = $1 AND s.organization_id = $2")
}

// findLocked is find for a mutation: the row stays as it is until tx ends.
func (m *Module) findLocked(ctx context.Context, tx *commit.Tx, c *access.Call, subscriptionID string) (subscription, error) {
	return m.findBy(ctx, tx, c, subscriptionID, "s.id = $1 AND s.organization_id = $2 FOR NO KEY UPDATE")
}

func (m *Module) findBy(ctx context.Context, q postgres.Querier, c *access.Call, subscriptionID, where string) (subscription, error) {
	if !id.Valid(subscriptionID) {
		return subscription{}, access.ErrNotFound
	}
	s, err := oneSubscription(ctx, q, where, subscriptionID, c.Caller.OrganizationID)
	if err != nil {
		return s, err
	}
	return s, mayManage(c, s.OrganizationID, settingsOf(s.Subscription))
}

// judge checks settings as a whole: shape, rights, tier, target. Of a subscription that
// exists (was), project, tier and target matter where they change or sending begins
// again: one whose project, target or tier is no more can still be switched off.
func (m *Module) judge(ctx context.Context, c *access.Call, s settings, was *Subscription) error {
	if err := s.check(); err != nil {
		return err
	}
	organization := c.Caller.OrganizationID
	if s.ProjectID != nil && (was == nil || was.ProjectID == nil || *was.ProjectID != *s.ProjectID) {
		if !id.Valid(*s.ProjectID) {
			return access.ErrNotFound
		}
		var err error
		if organization, err = projectOrganization(ctx, m.store.Pool(), *s.ProjectID); err != nil {
			return err
		}
	}
	if err := mayManage(c, organization, s); err != nil {
		return err
	}
	begins := was == nil || (s.enabled() && !was.Enabled)
	if s.hearsAudit() && (begins || !settingsOf(*was).hearsAudit()) {
		if err := m.judgeTier(ctx, organization); err != nil {
			return err
		}
	}
	if begins || s.URL != was.URL {
		return m.judgeTarget(ctx, s.URL)
	}
	return nil
}

func (m *Module) judgeTier(ctx context.Context, organization string) error {
	var tier string
	if err := m.store.Pool().QueryRow(ctx, "SELECT tier FROM organizations WHERE id = $1", organization).Scan(&tier); err != nil {
		return fmt.Errorf("read tier: %w", err)
	}
	if !access.TierAtLeast(tier, access.Pro) {
		return errPlan
	}
	return nil
}

func (m *Module) judgeTarget(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // a slow name server must not hold the request
	defer cancel()
	if err := m.guard.Check(ctx, url); err != nil {
		return problem.Newf(problem.Invalid, "invalid_url", "%v", err)
	}
	return nil
}

// Create serves POST /api/v1/webhooks/subscriptions.
func (m *Module) Create(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	var body settings
	if err := jsonbody.Strict(r, &body); err != nil {
		return err
	}
	if err := m.judge(r.Context(), c, body, nil); err != nil {
		return err
	}
	now := instant.Of(time.Now())
	s := subscription{OrganizationID: c.Caller.OrganizationID, Subscription: Subscription{
		ID: id.New(), URL: body.URL, Events: body.Events, Description: body.Description, Enabled: body.enabled(),
		RateLimitPerSecond: body.RateLimitPerSecond, ProjectID: body.ProjectID, Environment: body.Environment, CreatedAt: now, UpdatedAt: now,
	}}
	shown, sealed := newSecret(m.access.Sealer(), s.ID)
	s.secret = sealed
	err := m.store.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error { return insertSubscription(r.Context(), tx, &s) })
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusCreated, "subscription", s.Subscription, map[string]any{"secret": shown})
}

// Get serves GET /api/v1/webhooks/subscriptions/{id}.
func (m *Module) Get(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	s, err := m.find(r.Context(), m.store.Pool(), c, r.PathValue("id"))
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusOK, "subscription", s.Subscription, nil)
}

// Patch serves PATCH /api/v1/webhooks/subscriptions/{id}.
func (m *Module) Patch(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	patch, err := jsonbody.Read(r, jsonbody.Limit)
	if err != nil {
		return err
	}
	if err := jsonbody.Unmarshal(patch, &settings{}); err != nil {
		return err
	}
	// What is to be is judged before the row is locked: a look-up of the target can take
	// seconds, and a question to the database while a transaction is open takes a second
	// connection, which is not there when all callers hold one. Whoever was overtaken
	// judges anew.
	for {
		current, err := m.find(r.Context(), m.store.Pool(), c, r.PathValue("id"))
		if err != nil {
			return err
		}
		next, err := merged(current.Subscription, patch)
		if err != nil {
			return err
		}
		if err := m.judge(r.Context(), c, next, &current.Subscription); err != nil {
			return err
		}
		changed, err := m.change(r, c, current.Subscription, next)
		if errors.Is(err, errOvertaken) {
			continue
		}
		if err != nil {
			return err
		}
		return reply.Resource(w, http.StatusOK, "subscription", changed, nil)
	}
}

// errOvertaken means that a subscription is no longer what was judged.
var errOvertaken = errors.New("the subscription was changed meanwhile")

// change stores settings that were judged for the subscription as it was.
func (m *Module) change(r *http.Request, c *access.Call, judged Subscription, next settings) (changed Subscription, err error) {
	err = m.store.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		row, err := m.findLocked(r.Context(), tx, c, judged.ID)
		if err != nil {
			return err
		}
		if err := reply.IfMatch(r, row.Subscription); err != nil {
			return err
		}
		if !reflect.DeepEqual(row.Subscription, judged) {
			return errOvertaken
		}
		row.URL, row.Events, row.Description, row.Enabled = next.URL, next.Events, next.Description, next.enabled()
		row.RateLimitPerSecond, row.ProjectID, row.Environment = next.RateLimitPerSecond, next.ProjectID, next.Environment
		if row.Enabled {
			row.DisabledReason = nil
		}
		if err := saveSubscription(r.Context(), tx, judged, &row, time.Now()); err != nil {
			return err
		}
		changed = row.Subscription
		return nil
	})
	return changed, err
}

// merged applies a merge patch to a subscription's settings.
func merged(s Subscription, patch []byte) (next settings, err error) {
	current, err := json.Marshal(settingsOf(s))
	if err != nil {
		return next, fmt.Errorf("marshal subscription: %w", err)
	}
	merged, err := jsonbody.MergePatch(current, patch)
	if err != nil {
		return next, err
	}
	return next, jsonbody.Unmarshal(merged, &next)
}

// Delete serves DELETE /api/v1/webhooks/subscriptions/{id}. What was queued for it is
// not sent any more.
func (m *Module) Delete(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	err := m.store.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		row, err := m.findLocked(r.Context(), tx, c, r.PathValue("id"))
		if err != nil {
			return err
		}
		if err := reply.IfMatch(r, row.Subscription); err != nil {
			return err
		}
		if _, err := tx.Exec(r.Context(), "UPDATE webhook_subscriptions SET deleted_at = now(), enabled = false WHERE id = $1", row.ID); err != nil {
			return fmt.Errorf("delete subscription: %w", err)
		}
		tx.Audit(row.entry("webhook.subscription.deleted", row.Subscription, nil))
		return nil
	})
	if err != nil {
		return err
	}
	return reply.Deleted(w)
}

// List serves GET /api/v1/webhooks/subscriptions, newest first.
func (m *Module) List(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	projects, err := m.visible(r, c)
	if err != nil {
		return err
	}
	return access.List[subscription, Subscription]{
		Plural: "subscriptions",
		SQL: `
			SELECT ` + subscriptionColumns + ` FROM webhook_subscriptions s
			WHERE ` + sightSQL + ` AND ($4::uuid IS NULL OR s.id < $4)
			ORDER BY s.id DESC LIMIT $5`,
		Scan: scanSubscription,
		View: func(s subscription) Subscription { return s.Subscription },
		ID:   func(s subscription) string { return s.ID },
	}.Serve(m.access, w, r, c, c.Caller.OrganizationID, projects, bound(c))
}

// visible returns the projects whose subscriptions the caller manages, nil for all of
// the organization's. A query's project_id narrows them.
func (m *Module) visible(r *http.Request, c *access.Call) ([]string, error) {
	if r.URL.Query().Has("project_id") || c.Caller.ProjectID != "" {
		p, err := m.access.Project(r.Context(), c, r)
		if err != nil {
			return nil, err
		}
		return []string{p.ID}, nil
	}
	if c.Caller.Role >= access.OrgAdmin {
		return nil, nil
	}
	if c.Caller.MemberProjects == nil {
		return nil, access.ErrProjectRequired
	}
	return c.Caller.MemberProjects, nil
}

// RotateSecret serves POST /api/v1/webhooks/subscriptions/{id}/rotate-secret: while
// the grace period lasts, messages carry a signature under either secret.
func (m *Module) RotateSecret(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	grace, err := access.ReadGrace(r)
	if err != nil {
		return err
	}
	var shown string
	var row subscription
	err = m.store.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
		var err error
		if row, err = m.findLocked(r.Context(), tx, c, r.PathValue("id")); err != nil {
			return err
		}
		if err := reply.IfMatch(r, row.Subscription); err != nil {
			return err
		}
		before := row.Subscription
		now := time.Now()
		row.UpdatedAt = instant.Of(now)
		var sealed []byte
		shown, sealed = newSecret(m.access.Sealer(), row.ID)
		_, err = tx.Exec(r.Context(), `
			UPDATE webhook_subscriptions SET secret = $2, previous_secret = secret, previous_until = $3, updated_at = $4 WHERE id = $1`,
			row.ID, sealed, now.Add(grace), now)
		if err != nil {
			return fmt.Errorf("rotate secret: %w", err)
		}
		tx.Audit(row.entry("webhook.subscription.secret_rotated", before, row.Subscription))
		return nil
	})
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusOK, "subscription", row.Subscription, map[string]any{"secret": shown})
}
