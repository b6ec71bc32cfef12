package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

// Append stores the entries at the ends of their organizations' chains, in the given
// transaction. It is the sink of commit.Store, which hands entries over sorted by
// organization. The chain's row stays locked to the end of the transaction, so seq
// order is commit order.
func Append(ctx context.Context, tx *postgres.Pipeline, origin commit.Origin, entries []commit.Entry) ([]commit.StoredEntry, error) {
	stored := make([]commit.StoredEntry, 0, len(entries))
	for first := 0; first < len(entries); {
		last := first
		for last < len(entries) && entries[last].OrganizationID == entries[first].OrganizationID {
			last++
		}
		chain, err := appendChain(ctx, tx, origin, entries[first:last])
		if err != nil {
			return nil, err
		}
		for i := range chain {
			body, err := json.Marshal(chain[i].view())
			if err != nil {
				return nil, fmt.Errorf("marshal entry: %w", err)
			}
			stored = append(stored, commit.StoredEntry{OrganizationID: chain[i].OrganizationID, ProjectID: entries[first+i].ProjectID,
				Action: chain[i].Action, ResourceID: chain[i].ResourceID, Body: body})
		}
		first = last
	}
	return stored, nil
}

// head is the end of a chain.
type head struct {
	seq     int64
	hash    []byte
	at      time.Time
	tier    string
	classes []string
}

const lockHeadSQL = `
SELECT c.seq, c.hash, c.at, o.tier, c.classes FROM audit_chains c JOIN organizations o ON o.id = c.organization_id
WHERE c.organization_id = $1 FOR UPDATE OF c`

func lockHead(ctx context.Context, tx pgx.Tx, organizationID string) (h head, err error) {
	read := func() error {
		return tx.QueryRow(ctx, lockHeadSQL, organizationID).Scan(&h.seq, &h.hash, &h.at, &h.tier, &h.classes)
	}
	if err = read(); !errors.Is(err, pgx.ErrNoRows) {
		return h, err
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO audit_chains (organization_id, seq, hash, at, begun_at, classes) VALUES ($1, 0, $2, 'epoch', $3, '{}') ON CONFLICT DO NOTHING`,
		organizationID, genesis(), time.Now().UTC().Truncate(time.Millisecond))
	if err != nil {
		return h, err
	}
	return h, read()
}

// noteClass makes the chain's class known to readers, once.
func noteClass(tx *postgres.Pipeline, organizationID string, end head) {
	if !slices.Contains(end.classes, end.tier) {
		tx.Later("note retention class", `UPDATE audit_chains SET classes = array_append(classes, $2) WHERE organization_id = $1`, organizationID, end.tier)
	}
}

func appendChain(ctx context.Context, tx *postgres.Pipeline, origin commit.Origin, entries []commit.Entry) ([]Entry, error) {
	chain := make([]Entry, len(entries))
	for i, entry := range entries {
		var err error
		if chain[i], err = draft(origin, entry); err != nil {
			return nil, err
		}
	}
	organizationID := entries[0].OrganizationID
	end, err := lockHead(ctx, tx, organizationID)
	if err != nil {
		return nil, fmt.Errorf("lock chain: %w", err)
	}
	noteClass(tx, organizationID, end)
	for i := range chain {
		end.take(&chain[i], time.Now().UTC().Truncate(time.Millisecond))
	}
	insert(tx, chain)
	return chain, nil
}

// take makes the draft the chain's next entry. Times never fall along a chain,
// whatever the clocks of several processes say.
func (h *head) take(e *Entry, at time.Time) {
	if at.Before(h.at) {
		at = h.at
	}
	h.seq++
	e.Seq, e.ID, e.CreatedAt, e.Retention = h.seq, idAt(at), at, h.tier
	e.Hash = e.chained(h.hash)
	h.hash, h.at = e.Hash, at
}

// draft is an entry but for what only its place in the chain tells. Snapshots are
// brought into their canonical form here, before anybody waits for the chain.
func draft(origin commit.Origin, from commit.Entry) (e Entry, err error) {
	e = Entry{OrganizationID: from.OrganizationID, ActorID: storable(from.Actor.ID),
		Action: storable(from.Action), ResourceType: storable(from.ResourceType), ResourceID: storable(redact(from.ResourceID))}
	if from.ProjectID != "" {
		e.ProjectID = &from.ProjectID
	}
	if email := storable(from.Actor.Email); email != "" {
		e.ActorEmail = &email
	}
	if e.Before, err = canonicalJSON(from.Before); err != nil {
		return e, err
	}
	if e.After, err = canonicalJSON(from.After); err != nil {
		return e, err
	}
	if e.Metadata, err = canonicalJSON(metadata(origin, from.Metadata)); err != nil {
		return e, err
	}
	return e, nil
}

// metadata is where the mutation came from and what its module adds.
func metadata(origin commit.Origin, added map[string]any) map[string]any {
	all := map[string]any{}
	for name, value := range map[string]string{"request_id": origin.RequestID, "ip": origin.IP, "user_agent": origin.UserAgent} {
		if value != "" {
			all[name] = value
		}
	}
	maps.Copy(all, added)
	return all
}

// idAt is a UUIDv7 of the instant, so that an entry's id leads to its partition.
func idAt(at time.Time) string {
	id := uuid.Must(uuid.NewV7())
	ms := at.UnixMilli()
	for i := range 6 {
		id[i] = byte(ms >> (8 * (5 - i)))
	}
	return id.String()
}

// insertSQL stores the entries and moves the chain's head in one statement.
const insertSQL = `
WITH entries AS (
	INSERT INTO audit_entries (organization_id, seq, id, project_id, actor_id, actor_email, action, resource_type, resource_id,
	                           before, after, metadata, created_at, retention, hash)
	SELECT $1, e.seq, e.id, e.project_id, e.actor_id, e.actor_email, e.action, e.resource_type, e.resource_id,
	       e.before::json, e.after::json, e.metadata::json, e.created_at, $2, e.hash
	FROM unnest($3::bigint[], $4::uuid[], $5::uuid[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
	            $11::text[], $12::text[], $13::text[], $14::timestamptz[], $15::bytea[])
	     AS e (seq, id, project_id, actor_id, actor_email, action, resource_type, resource_id, before, after, metadata, created_at, hash)
)
UPDATE audit_chains SET seq = $16, hash = $17, at = $18 WHERE organization_id = $1`

func insert(tx *postgres.Pipeline, chain []Entry) {
	n := len(chain)
	var (
		seqs                                     = make([]int64, n)
		ids, actors, actions, types, resources   = make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		projects, emails, befores, afters, metas = make([]*string, n), make([]*string, n), make([]*string, n), make([]*string, n), make([]*string, n)
		times                                    = make([]time.Time, n)
		hashes                                   = make([][]byte, n)
	)
	for i := range chain {
		e := &chain[i]
		seqs[i], ids[i], projects[i], actors[i], emails[i] = e.Seq, e.ID, e.ProjectID, e.ActorID, e.ActorEmail
		actions[i], types[i], resources[i] = e.Action, e.ResourceType, e.ResourceID
		befores[i], afters[i], metas[i] = text(e.Before), text(e.After), text(e.Metadata)
		times[i], hashes[i] = e.CreatedAt, e.Hash
	}
	end := &chain[n-1]
	tx.Later("insert entries", insertSQL, end.OrganizationID, end.Retention, seqs, ids, projects, actors, emails, actions, types,
		resources, befores, afters, metas, times, hashes, end.Seq, end.Hash, end.CreatedAt)
}

func text(b []byte) *string {
	if b == nil {
		return nil
	}
	s := string(b)
	return &s
}
