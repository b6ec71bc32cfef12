package webhooks

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

// subscriber is what decides whether a subscription hears of something.
type subscriber struct {
	ID             string
	OrganizationID string
	ProjectID      *string // nil: all of the organization
	Environment    *string // nil: both
	Events         []string
	Audited        bool // its organization's tier has the audit stream
}

const subscribersSQL = `
SELECT s.id::text, s.organization_id::text, s.project_id::text, s.environment, s.events, o.tier <> 'hobby'
FROM webhook_subscriptions s JOIN organizations o ON o.id = s.organization_id
WHERE s.organization_id = ANY ($1) AND s.enabled AND s.deleted_at IS NULL AND s.events && $2`

// readSubscribers reads the subscriptions with a pattern for any of the events or, where
// there are entries, for the audit stream.
func readSubscribers(ctx context.Context, tx *postgres.Pipeline, events []commit.Event, entries []commit.Entry) ([]subscriber, error) {
	var organizations, patterns []string
	add := func(to *[]string, texts ...string) {
		for _, text := range texts {
			if !slices.Contains(*to, text) {
				*to = append(*to, text)
			}
		}
	}
	for _, e := range events {
		add(&organizations, e.OrganizationID)
		add(&patterns, patternsFor(e.Name)...)
	}
	for _, e := range entries {
		add(&organizations, e.OrganizationID)
		add(&patterns, EventAuditEntry)
	}
	return postgres.All(ctx, tx, "read subscriptions", pgx.RowToStructByPos[subscriber], subscribersSQL, organizations, patterns)
}

// patternsFor lists what a subscription may have among its events to hear one. The audit
// stream is heard by its full name alone.
func patternsFor(event string) []string {
	if event == EventAuditEntry {
		return []string{event}
	}
	patterns := []string{event, "*"}
	for i := range len(event) {
		if event[i] == '.' {
			patterns = append(patterns, event[:i+1]+"*")
		}
	}
	return patterns
}

func (s *subscriber) hears(m *message) bool {
	switch {
	case !strings.EqualFold(s.OrganizationID, m.organization),
		s.ProjectID != nil && !strings.EqualFold(*s.ProjectID, m.project),
		s.Environment != nil && *s.Environment != m.environment,
		strings.EqualFold(s.ID, m.except),
		m.event == EventAuditEntry && !s.Audited:
		return false
	}
	return slices.ContainsFunc(m.patterns, func(p string) bool { return slices.Contains(s.Events, p) })
}
