package identity

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"skerry/pkg/apikey"
	"skerry/pkg/instant"
	"skerry/pkg/reply"
	"skerry/replication/up"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

// Module answers questions about persons.
type Module struct {
	store  *commit.Store
	access *access.Store
}

// New returns the module. A Worker must run somewhere to finish its erasures.
func New(store *commit.Store, access *access.Store) *Module {
	return &Module{store: store, access: access}
}

// ScopeOf is the scope that a management call means: the project as everywhere, and
// query `environment`, `live` when it is absent.
func ScopeOf(ctx context.Context, a *access.Store, c *access.Call, r *http.Request) (Scope, access.Project, error) {
	project, err := a.Project(ctx, c, r)
	if err != nil {
		return Scope{}, project, err
	}
	name, err := access.Environment(r.URL.Query(), apikey.Live)
	if err != nil {
		return Scope{}, project, err
	}
	environment, _ := up.ParseEnvironment(name) // it knows the same two
	id, err := uuid.Parse(project.ID)
	if err != nil {
		return Scope{}, project, fmt.Errorf("project id %q: %w", project.ID, err)
	}
	return Scope{Project: id, Environment: environment}, project, nil
}

// person is the answer's member (supplement §3).
type person struct {
	DistinctID string          `json:"distinct_id"`
	IDs        []string        `json:"ids"`
	Properties json.RawMessage `json:"properties"`
	FirstSeen  instant.Time    `json:"first_seen"`
	LastSeen   instant.Time    `json:"last_seen"`
	EventCount int64           `json:"event_count"`
}

// Get serves GET /api/v1/persons/{distinct_id}.
func (m *Module) Get(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	ctx := r.Context()
	scope, _, id, err := m.named(r, c)
	if err != nil {
		return err
	}
	var p person
	err = m.atOneMoment(ctx, func(tx pgx.Tx) (err error) {
		p, err = load(ctx, tx, scope, id)
		return err
	})
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusOK, "person", p, nil)
}

// atOneMoment reads in one snapshot: a link that commits between two questions would
// count events twice, or find nobody.
func (m *Module) atOneMoment(ctx context.Context, read func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, m.store.Pool(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, read)
}

// named is the identifier in the path, and the scope in which the call means it.
func (m *Module) named(r *http.Request, c *access.Call) (Scope, access.Project, string, error) {
	id := r.PathValue("distinct_id")
	scope, project, err := ScopeOf(r.Context(), m.access, c, r)
	if err == nil && !storable(id) {
		err = access.ErrNotFound
	}
	return scope, project, id, err
}

// storable tells whether a text can be in the database at all.
func storable(id string) bool {
	return id != "" && strings.IndexByte(id, 0) < 0 && utf8.ValidString(id)
}

// load reads a person in the transaction's one snapshot, or under the scope's lock.
func load(ctx context.Context, q Querier, s Scope, id string) (person, error) {
	members, err := Members(ctx, q, s, id)
	if err != nil {
		return person{}, err
	}
	holding, err := Holding(ctx, q, s, id)
	if err != nil {
		return person{}, err
	}
	p := person{DistinctID: members[0], IDs: members}
	var first, last, seenFirst, seenLast *time.Time
	err = q.QueryRow(ctx, `
		SELECT count(*), min(e.timestamp), max(e.timestamp) FROM events e
		WHERE e.project_id = $1 AND e.environment = $2 AND e.distinct_id = ANY($3) AND `+HideErased,
		s.Project, int16(s.Environment), holding).Scan(&p.EventCount, &first, &last)
	if err != nil {
		return person{}, fmt.Errorf("count a person's events: %w", err)
	}
	err = q.QueryRow(ctx, `
		SELECT first_seen, last_seen FROM profiles WHERE project_id = $1 AND environment = $2 AND distinct_id = $3`,
		s.Project, int16(s.Environment), members[0]).Scan(&seenFirst, &seenLast)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return person{}, fmt.Errorf("read a profile: %w", err)
	}
	if len(members) == 1 && p.EventCount == 0 && seenFirst == nil {
		return person{}, access.ErrNotFound
	}
	p.FirstSeen, p.LastSeen = bound(first, seenFirst, time.Time.Before), bound(last, seenLast, time.Time.After)
	p.Properties, err = properties(ctx, q, s, members[0])
	return p, err
}

// bound is the one of two optional times that comes first by the given order.
func bound(a, b *time.Time, first func(time.Time, time.Time) bool) instant.Time {
	switch {
	case a == nil && b == nil:
		return instant.Time{}
	case a == nil || b != nil && first(*b, *a):
		return instant.Of(*b)
	}
	return instant.Of(*a)
}

// properties renders a profile; values are as they were sent.
func properties(ctx context.Context, q Querier, s Scope, id string) (json.RawMessage, error) {
	rows, err := q.Query(ctx, `
		SELECT name, coalesce(value, once)::text FROM profile_values
		WHERE project_id = $1 AND environment = $2 AND distinct_id = $3 AND coalesce(value, once) IS NOT NULL ORDER BY name`,
		s.Project, int16(s.Environment), id)
	if err != nil {
		return nil, fmt.Errorf("read a profile: %w", err)
	}
	out := []byte{'{'}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		key, err := json.Marshal(name)
		if err != nil {
			return err
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, key...), ':'), value...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read a profile: %w", err)
	}
	return append(out, '}'), nil
}

// conflict is an entry of the answer (supplement §3).
type conflict struct {
	AliasID           string       `json:"alias_id"`
	KeptDistinctID    string       `json:"kept_distinct_id"`
	RefusedDistinctID string       `json:"refused_distinct_id"`
	ReceivedAt        instant.Time `json:"received_at"`
}

// Conflicts serves GET /api/v1/persons/{distinct_id}/conflicts: the claims on this
// person's identifiers that were refused, and those that this person lost.
func (m *Module) Conflicts(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	ctx := r.Context()
	scope, _, id, err := m.named(r, c)
	if err != nil {
		return err
	}
	var conflicts []conflict
	err = m.atOneMoment(ctx, func(tx pgx.Tx) (err error) {
		conflicts, err = loadConflicts(ctx, tx, scope, id)
		return err
	})
	if err != nil {
		return err
	}
	return reply.JSON(w, http.StatusOK, map[string]any{"conflicts": conflicts})
}

func loadConflicts(ctx context.Context, q Querier, scope Scope, id string) ([]conflict, error) {
	members, err := Members(ctx, q, scope, id)
	if err != nil {
		return nil, err
	}
	scan := func(row pgx.CollectableRow) (c conflict, err error) {
		var at time.Time
		err = row.Scan(&c.AliasID, &c.KeptDistinctID, &c.RefusedDistinctID, &at)
		c.ReceivedAt = instant.Of(at)
		return c, err
	}
	conflicts, err := postgres.All(ctx, q, "list conflicts", scan, `
		SELECT alias_id, kept_distinct_id, refused_distinct_id, received_at FROM identity_conflicts
		WHERE project_id = $1 AND environment = $2 AND (alias_id = ANY($3) OR refused_distinct_id = ANY($3))
		ORDER BY received_at DESC, alias_id, refused_distinct_id LIMIT 1000`,
		scope.Project, int16(scope.Environment), members)
	if err != nil || len(conflicts) > 0 {
		return conflicts, err
	}
	known, err := exists(ctx, q, scope, members)
	if err == nil && !known {
		err = access.ErrNotFound
	}
	return []conflict{}, err
}

// Delete serves DELETE /api/v1/persons/{distinct_id}: from the answer on the person is
// gone for every reader; the worker removes the rows. The audit entry names the person
// by a hash, for a log that is kept for years must not keep what was to be erased.
func (m *Module) Delete(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	ctx := r.Context()
	scope, project, id, err := m.named(r, c)
	if err != nil {
		return err
	}
	err = m.store.InTx(ctx, c.Origin(), func(tx *commit.Tx) error {
		if err := unchanged(ctx, tx, scope, id, r); err != nil {
			return err
		}
		members, err := erase(ctx, tx, scope, id)
		if err != nil {
			return err
		}
		if members == nil {
			return access.ErrNotFound
		}
		sum := sha256.Sum256([]byte(members[0]))
		tx.Audit(commit.Entry{
			OrganizationID: project.OrganizationID, ProjectID: project.ID,
			Action: "person.erased", ResourceType: "person", ResourceID: hex.EncodeToString(sum[:]),
			Metadata: map[string]any{"environment": scope.Environment.String(), "ids": len(members)},
		})
		return nil
	})
	if err != nil {
		return err
	}
	return reply.Deleted(w)
}

// unchanged honours If-Match of an erasure. Links are locked as for the erasure itself,
// so that it is the same person that was judged; an event that comes in between changes
// nothing that the answer has promised.
func unchanged(ctx context.Context, tx pgx.Tx, scope Scope, id string, r *http.Request) error {
	if r.Header.Get("If-Match") == "" {
		return nil
	}
	if err := LockExclusive(ctx, tx, []Scope{scope}); err != nil {
		return err
	}
	p, err := load(ctx, tx, scope, id)
	if err != nil {
		return err
	}
	return reply.IfMatch(r, p)
}
