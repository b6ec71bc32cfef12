// Package webhooks tells subscribers what happened (specification, Events;
// supplement §8).
//
// A mutation's events become messages and deliveries in the mutation's own transaction,
// so an event is delivered when and only when its change was committed, whatever dies in
// between. The Dispatcher delivers at least once: each attempt of one message carries the
// same webhook-id, by which a receiver drops repetitions. One target that is slow or dead
// delays no other.
package webhooks

import (
	"slices"
	"strings"
	"unicode/utf8"

	"skerry/pkg/instant"
	"skerry/pkg/jsonbody"
	"skerry/pkg/problem"
)

// Names of events that mean something to the code here.
const (
	EventAuditEntry     = "audit.entry.created"
	EventTest           = "webhook.test"
	EventDeliveryFailed = "webhook.delivery.failed"
)

// known are the event names that a subscription may ask for: those of the specification
// and of the supplement, sorted.
var known = []string{
	"api_key.created", "api_key.revoked", "api_key.rotated",
	"api_token.created", "api_token.revoked",
	EventAuditEntry, "audit.export.delivered", "audit.export.requested",
	"auth.password.changed", "auth.signin", "auth.signout",
	"catch.alert.fired", "catch.release.deleted", "catch.symbol.deleted", "catch.symbol.uploaded",
	"cohort.created", "cohort.deleted", "cohort.updated",
	"config.item.archived", "config.item.created", "config.item.published", "config.item.rolled_back",
	"deploy.release.disabled", "deploy.release.promoted", "deploy.release.uploaded",
	"member.invited", "member.removed", "member.role.updated",
	"organization.updated",
	"plan.ticket.created", "plan.ticket.transitioned",
	"project.created", "project.deleted", "project.region.changed", "project.updated",
	"pulse.response.submitted", "pulse.survey.archived", "pulse.survey.closed", "pulse.survey.created",
	"pulse.survey.published", "pulse.survey.reopened", "pulse.survey.updated",
	"switch.flag.created", "switch.flag.halted", "switch.flag.toggled", "switch.flag.unhalted", "switch.flag.updated",
	"team.created", "team.member.added", "team.project.assigned",
	"vision.board.created", "vision.initiative.linked",
	EventDeliveryFailed, "webhook.subscription.created", "webhook.subscription.deleted",
	"webhook.subscription.secret_rotated", "webhook.subscription.updated",
}

// validPattern reports whether a pattern is a known name, "*", or "prefix.*" under
// which at least one known name stands.
func validPattern(pattern string) bool {
	if pattern == "*" || slices.Contains(known, pattern) {
		return true
	}
	prefix, isPrefix := strings.CutSuffix(pattern, "*")
	return isPrefix && strings.HasSuffix(prefix, ".") &&
		slices.ContainsFunc(known, func(name string) bool { return strings.HasPrefix(name, prefix) })
}

// Bounds of a subscription's members.
const (
	maxPatterns      = 100
	maxDescription   = 1000
	maxRatePerSecond = 1000
)

// Subscription is what the API shows of one; the secret is never in it.
type Subscription struct {
	ID                 string       `json:"id"`
	URL                string       `json:"url"`
	Events             []string     `json:"events"`
	Description        string       `json:"description"`
	Enabled            bool         `json:"enabled"`
	RateLimitPerSecond *int         `json:"rate_limit_per_second"`
	ProjectID          *string      `json:"project_id"`
	Environment        *string      `json:"environment"`
	DisabledReason     *string      `json:"disabled_reason"`
	CreatedAt          instant.Time `json:"created_at"`
	UpdatedAt          instant.Time `json:"updated_at"`
}

// settings are the members that a client sets: of POST, and of PATCH by merging.
type settings struct {
	URL                string   `json:"url"`
	Events             []string `json:"events"`
	Description        string   `json:"description"`
	Enabled            *bool    `json:"enabled"`
	RateLimitPerSecond *int     `json:"rate_limit_per_second"`
	ProjectID          *string  `json:"project_id"`
	Environment        *string  `json:"environment"`
}

func settingsOf(s Subscription) settings {
	return settings{
		URL: s.URL, Events: s.Events, Description: s.Description, Enabled: &s.Enabled,
		RateLimitPerSecond: s.RateLimitPerSecond, ProjectID: s.ProjectID, Environment: s.Environment,
	}
}

// check judges everything but the URL's target and the caller's rights.
func (s settings) check() error {
	switch {
	case s.URL == "":
		return jsonbody.Missing("url")
	case len(s.Events) == 0:
		return jsonbody.Missing("events")
	case len(s.Events) > maxPatterns:
		return jsonbody.Invalid("events holds more than %d patterns", maxPatterns)
	case utf8.RuneCountInString(s.Description) > maxDescription:
		return jsonbody.Invalid("description is longer than %d characters", maxDescription)
	case s.RateLimitPerSecond != nil && (*s.RateLimitPerSecond < 1 || *s.RateLimitPerSecond > maxRatePerSecond):
		return jsonbody.Invalid("rate_limit_per_second must be from 1 to %d, or null", maxRatePerSecond)
	case s.Environment != nil && *s.Environment != "live" && *s.Environment != "test":
		return jsonbody.Invalid("environment must be live or test")
	}
	for _, pattern := range s.Events {
		if !validPattern(pattern) {
			return problem.Newf(problem.Invalid, "invalid_events",
				"%q is no event: expected a full name, a prefix such as switch.*, or *", pattern)
		}
	}
	return nil
}

// enabled is how the subscription is to be: sending unless it says otherwise.
func (s settings) enabled() bool { return s.Enabled == nil || *s.Enabled }

// hearsAudit reports whether the subscription takes the audit stream, which must be
// asked for by its full name.
func (s settings) hearsAudit() bool { return slices.Contains(s.Events, EventAuditEntry) }

// Delivery is one message on its way to one subscription, as the API shows it.
type Delivery struct {
	ID             string        `json:"id"`
	Event          string        `json:"event"`
	Status         string        `json:"status"` // pending, delivered, failed (will be tried again), dead
	Attempts       int           `json:"attempts"`
	NextAttemptAt  *instant.Time `json:"next_attempt_at"`
	LastStatusCode *int          `json:"last_status_code"`
	LastError      *string       `json:"last_error"`
	ResponseHead   *string       `json:"response_head"`
	CreatedAt      instant.Time  `json:"created_at"`
}
