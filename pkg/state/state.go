// Package state holds the bodies of documents: what an edge needs to know about
// one thing. Both planes share these shapes; the write plane marshals them as JSON
// and the edge compiles them. Members are only ever added, so that an edge and a
// write plane of neighbouring versions understand each other.
package state

import (
	"time"

	"skerry/pkg/decide"
	"skerry/pkg/survey"
)

// Key is the body of `key.<sha256>`: what one API key opens.
type Key struct {
	ID          string `json:"id"`
	ProjectID   string `json:"project_id"`
	Environment string `json:"environment"`
	// ExpiresAt ends a rotated key's grace period; nil holds until revoked.
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

// Revoked is the body of the urgent `revoked.<sha256>`: it closes a key at once,
// however long the normal lane's backlog is.
type Revoked struct {
	At time.Time `json:"at"`
}

// Project is the body of `project.<id>`: the settings that edges act upon.
type Project struct {
	ID             string     `json:"id"`
	OrganizationID string     `json:"organization_id"`
	Name           string     `json:"name"`
	Tier           string     `json:"tier"`
	Modules        Modules    `json:"modules"`
	Allowlist      Allowlist  `json:"allowlist"`
	RateLimits     RateLimits `json:"rate_limits"`
	Quotas         Quotas     `json:"quotas"`
}

// Modules tells which parts of the service are on for the project (supplement §2).
type Modules struct {
	Switch bool `json:"switch"`
	Config bool `json:"config"`
	Pulse  bool `json:"pulse"`
	Catch  bool `json:"catch"`
}

// Allowlist judges requests with an Origin header by Origins and those without by
// CIDRs; an empty list admits all (supplement §3).
type Allowlist struct {
	Origins []string `json:"origins"`
	CIDRs   []string `json:"cidrs"`
}

// RateLimits are requests per fixed minute; DecisionsPerMinute nil means no limit.
type RateLimits struct {
	IngestPerMinute    int  `json:"ingest_per_minute"`
	HandshakePerMinute int  `json:"handshake_per_minute"`
	DecisionsPerMinute *int `json:"decisions_per_minute"`
}

// Quotas are monthly quantities as they are in force: the project's own setting or
// else its tier's. nil means unlimited.
type Quotas struct {
	Events     *int64 `json:"events"`
	Handshakes *int64 `json:"handshakes"`
	Responses  *int64 `json:"responses"`
}

// Usage is the body of `<project>.usage`: totals over all edges for one month (UTC).
// They are as of the write plane's last totalling and never fall within a month.
type Usage struct {
	Month      string `json:"month"` // 2026-01
	Events     int64  `json:"events"`
	Handshakes int64  `json:"handshakes"`
	// EventsBy and HandshakesBy are what the totals contain of each source (an edge's
	// store), so that an edge can put its own present count in the place of its
	// reported one.
	EventsBy     map[string]int64 `json:"events_by,omitempty"`
	HandshakesBy map[string]int64 `json:"handshakes_by,omitempty"`
}

// Flag is the body of `<project>.<env>.flag.<key>`.
type Flag = decide.FlagDefinition

// Halt is the body of the urgent `<project>.<env>.halt.<key>`: it overlays its flag
// with the default that the flag had when it was halted. Its tombstone is the resume.
type Halt = decide.HaltDefinition

// ConfigItem is the body of `<project>.<env>.config.<key>`.
type ConfigItem = decide.ItemDefinition

// Cohort is the body of `<project>.cohort.<name>`. A member list lies in Shards
// hash shards of its own; 0 shards means a cohort by predicate alone.
type Cohort struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Predicate string `json:"predicate,omitempty"`
	Shards    int    `json:"shards"`
}

// CohortShard is the body of `<project>.members.<name>.<n>`: the members for which
// decide.Shard is n, sorted. A lookup needs this one document, so an edge need not hold
// the others.
type CohortShard struct {
	Members []string `json:"members"`
}

// Survey is the body of `<project>.survey.<id>`. Surveys of every status are
// there, drafts included, because the list's ETag covers them all.
type Survey struct {
	survey.Bundle
	survey.Display
	UpdatedAt time.Time `json:"updated_at"`
}
