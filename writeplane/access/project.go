package access

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/instant"
	"skerry/pkg/jsonbody"
	"skerry/pkg/state"
	"skerry/replication"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

// projectView is the project as the API shows it: its settings are flat members
// (supplement §2). Quotas are the project's own; null stands for the tier's.
type projectView struct {
	ID             string           `json:"id"`
	OrganizationID string           `json:"organization_id"`
	Name           string           `json:"name"`
	Modules        state.Modules    `json:"modules"`
	Allowlist      state.Allowlist  `json:"allowlist"`
	RateLimits     state.RateLimits `json:"rate_limits"`
	Quotas         state.Quotas     `json:"quotas"`
	AuditResponses bool             `json:"audit_responses"`
	CreatedAt      instant.Time     `json:"created_at"`
	UpdatedAt      instant.Time     `json:"updated_at"`
}

func (p ProjectRow) view() projectView {
	return projectView{p.ID, p.OrganizationID, p.Name, p.Modules, p.Allowlist, p.RateLimits, p.Quotas,
		p.AuditResponses, instant.Of(p.CreatedAt), instant.Of(p.UpdatedAt)}
}

func (p ProjectRow) entry(action string, before, after any) commit.Entry {
	return commit.Entry{OrganizationID: p.OrganizationID, ProjectID: p.ID, Action: action,
		ResourceType: "project", ResourceID: p.ID, Before: before, After: after}
}

// settings are the members that POST and PATCH accept.
type settings struct {
	Name           *string           `json:"name"`
	Modules        *state.Modules    `json:"modules"`
	Allowlist      *state.Allowlist  `json:"allowlist"`
	RateLimits     *state.RateLimits `json:"rate_limits"`
	Quotas         *state.Quotas     `json:"quotas"`
	AuditResponses *bool             `json:"audit_responses"`
}

func (p ProjectRow) settings() settings {
	return settings{&p.Name, &p.Modules, &p.Allowlist, &p.RateLimits, &p.Quotas, &p.AuditResponses}
}

// with is p with the settings that are given; a null or removed one is the default.
func (p ProjectRow) with(s settings) ProjectRow {
	fresh := newProject(p.OrganizationID, p.Tier, p.Name, p.CreatedAt)
	if s.Name != nil {
		p.Name = *s.Name
	}
	p.Modules = or(s.Modules, fresh.Modules)
	p.Allowlist = or(s.Allowlist, fresh.Allowlist)
	p.RateLimits = or(s.RateLimits, fresh.RateLimits)
	p.Quotas = or(s.Quotas, fresh.Quotas)
	p.AuditResponses = or(s.AuditResponses, false)
	if p.Allowlist.Origins == nil {
		p.Allowlist.Origins = []string{}
	}
	if p.Allowlist.CIDRs == nil {
		p.Allowlist.CIDRs = []string{}
	}
	return p
}

// patched is p after a merge patch of its settings; what the patch removes gets its
// default, and what it does not name stays.
func (p ProjectRow) patched(patch []byte) (ProjectRow, error) {
	now, err := json.Marshal(p.settings())
	if err != nil {
		return p, fmt.Errorf("marshal settings: %w", err)
	}
	merged, err := jsonbody.MergePatch(now, patch)
	if err != nil {
		return p, err
	}
	fresh := newProject(p.OrganizationID, p.Tier, "", p.CreatedAt)
	// Decoding over the defaults gives them to members that were removed.
	into := settings{nil, &fresh.Modules, &fresh.Allowlist, &fresh.RateLimits, &fresh.Quotas, &fresh.AuditResponses}
	if err := jsonbody.Unmarshal(merged, &into); err != nil {
		return p, err
	}
	if into.Name == nil {
		return p, jsonbody.Missing("name")
	}
	after := p.with(into)
	return after, after.check()
}

func or[T any](v *T, otherwise T) T {
	if v != nil {
		return *v
	}
	return otherwise
}

const maxListed = 1000

// check names the first setting that cannot be acted upon.
func (p ProjectRow) check() error {
	if err := checkName(p.Name); err != nil {
		return err
	}
	if len(p.Allowlist.Origins) > maxListed || len(p.Allowlist.CIDRs) > maxListed {
		return jsonbody.Invalid("allowlist has more than %d entries", maxListed)
	}
	for i, origin := range p.Allowlist.Origins {
		if !validOrigin(origin) {
			return jsonbody.Invalid("allowlist.origins[%d] is not an origin such as https://app.example.com", i)
		}
	}
	for i, cidr := range p.Allowlist.CIDRs {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			return jsonbody.Invalid("allowlist.cidrs[%d] is not a network such as 192.0.2.0/24", i)
		}
	}
	limits := p.RateLimits
	switch {
	case limits.IngestPerMinute < 1:
		return jsonbody.Invalid("rate_limits.ingest_per_minute must be at least 1")
	case limits.HandshakePerMinute < 1:
		return jsonbody.Invalid("rate_limits.handshake_per_minute must be at least 1")
	case limits.DecisionsPerMinute != nil && *limits.DecisionsPerMinute < 1:
		return jsonbody.Invalid("rate_limits.decisions_per_minute must be at least 1, or null for no limit")
	}
	for name, quota := range map[string]*int64{"events": p.Quotas.Events, "handshakes": p.Quotas.Handshakes, "responses": p.Quotas.Responses} {
		if quota != nil && *quota < 0 {
			return jsonbody.Invalid("quotas.%s must not be negative", name)
		}
	}
	return nil
}

// validOrigin accepts what a browser sends in Origin: scheme, host and perhaps port.
func validOrigin(origin string) bool {
	parsed, err := url.Parse(origin)
	return err == nil && parsed.Scheme != "" && parsed.Host != "" && parsed.User == nil &&
		parsed.Path == "" && parsed.RawQuery == "" && parsed.Fragment == "" && !strings.HasSuffix(origin, "#") && !strings.HasSuffix(origin, "?")
}

func insertProject(ctx context.Context, tx *commit.Tx, p ProjectRow) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO projects (id, organization_id, name, modules, allowlist, rate_limits, quotas, audit_responses, created_at, updated_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		p.ID, p.OrganizationID, p.Name, p.Modules, p.Allowlist, p.RateLimits, p.Quotas, p.AuditResponses, p.CreatedAt, p.UpdatedAt)
	if err != nil {
		return fmt.Errorf("insert project: %w", err)
	}
	record(tx, p.entry("project.created", nil, p.view()))
	return putProject(tx, p)
}

func updateProject(tx *commit.Tx, before, after ProjectRow) error {
	tx.Later("update project", `
		UPDATE projects SET name = $2, modules = $3, allowlist = $4, rate_limits = $5, quotas = $6, audit_responses = $7, updated_at = $8
		WHERE id = $1`,
		after.ID, after.Name, after.Modules, after.Allowlist, after.RateLimits, after.Quotas, after.AuditResponses, after.UpdatedAt)
	record(tx, after.entry("project.updated", before.view(), after.view()))
	return putProject(tx, after)
}

// Keep makes a transaction that writes documents of the project wait for its deletion, and
// the deletion for the transaction: a document that came behind it would stay at the edges
// for ever, where no key reaches it. It travels with the next statement, which fails with
// ErrNotFound when the project is gone. Whoever reads a row of the project's for a change
// can lock the project's by the same statement: FOR KEY SHARE OF p.
func Keep(tx *commit.Tx, projectID string) {
	tx.Ask("keep project", func(rows pgx.Rows) error {
		found := rows.Next()
		for rows.Next() {
		}
		if err := rows.Err(); err != nil || found {
			return err
		}
		return ErrNotFound
	}, `SELECT FROM projects WHERE id = $1 AND deleted_at IS NULL FOR KEY SHARE`, projectID)
}

// deleteProject ends a project: its keys and tokens stop, and edges forget all of it.
// Its rows stay, for the audit log to be read beside them.
func deleteProject(ctx context.Context, tx *commit.Tx, p ProjectRow) error {
	if _, err := tx.Exec(ctx, `UPDATE projects SET deleted_at = now(), updated_at = now() WHERE id = $1`, p.ID); err != nil {
		return fmt.Errorf("delete project: %w", err)
	}
	if err := endKeysOf(ctx, tx, p.ID); err != nil {
		return err
	}
	subjects, err := postgres.All(ctx, tx, "read project's documents", pgx.RowTo[string], `
		SELECT subject FROM documents WHERE body IS NOT NULL AND (starts_with(subject, $1) OR starts_with(subject, $2))`,
		replication.ProjectPrefix(replication.Normal, p.ID), replication.ProjectPrefix(replication.Urgent, p.ID))
	if err != nil {
		return err
	}
	for _, subject := range subjects {
		tx.Delete(replication.Subject(subject))
	}
	tx.Delete(replication.ProjectSubject(p.ID))
	record(tx, p.entry("project.deleted", p.view(), nil))
	return nil
}

func endKeysOf(ctx context.Context, tx *commit.Tx, projectID string) error {
	keys, err := postgres.All(ctx, tx, "read project's api keys", scanKey,
		anyKeySQL+"k.project_id = $1 AND k.revoked_at IS NULL ORDER BY k.id FOR NO KEY UPDATE OF k", projectID)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if err := revokeKey(ctx, tx, key); err != nil {
			return err
		}
	}
	return nil
}

// record writes the mutation's audit entry and tells subscribers by the event of the
// same name, whose data is the resource as it is now, or was before its deletion.
func record(tx *commit.Tx, entry commit.Entry) {
	tx.Audit(entry)
	shown := entry.After
	if shown == nil {
		shown = entry.Before
	}
	tx.Emit(commit.Event{Name: entry.Action, OrganizationID: entry.OrganizationID, ProjectID: entry.ProjectID,
		Data: map[string]any{entry.ResourceType: shown}})
}
