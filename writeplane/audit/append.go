package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

// Append drafts the entries, queues the locking of their organizations' chains, which
// travels with the next statement, and returns the function that stores the entries at
// the chains' ends once the locks are held. It is the sink of commit.Store, which hands
// entries over sorted by organization. A chain's row stays locked to the end of the
// transaction, so seq order is commit order.
func Append(tx *postgres.Pipeline, origin commit.Origin, entries []commit.Entry) (func(context.Context) ([]commit.StoredEntry, error), error) {
	var runs []*run
	for _, entry := range entries {
		drafted, err := draft(origin, entry)
		if err != nil {
			return nil, err
		}
		if len(runs) == 0 || runs[len(runs)-1].organizationID != entry.OrganizationID {
			runs = append(runs, &run{organizationID: entry.OrganizationID})
		}
		last := runs[len(runs)-1]
		last.entries = append(last.entries, drafted)
	}
	for _, r := range runs {
		r.askHead(tx)
	}
	return func(ctx context.Context) ([]commit.StoredEntry, error) {
		stored := make([]commit.StoredEntry, 0, len(entries))
		for _, r := range runs {
			var err error
			if stored, err = r.store(ctx, tx, stored); err != nil {
				return nil, err
			}
		}
		return stored, nil
	}, nil
}

// run is what a transaction adds to one chain.
type run struct {
	organizationID string
	entries        []Entry
	end            head
	begun          bool // the chain has a head
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

func (r *run) askHead(tx *postgres.Pipeline) {
	tx.Ask("lock chain", func(rows pgx.Rows) error {
		h := &r.end
		_, err := pgx.ForEachRow(rows, []any{&h.seq, &h.hash, &h.at, &h.tier, &h.classes}, func() error {
			r.begun = true
			return nil
		})
		return err
	}, lockHeadSQL, r.organizationID)
}

// begin makes the head of a chain that has none, which happens once.
func (r *run) begin(ctx context.Context, tx *postgres.Pipeline) error {
	tx.Later("begin chain", `
		INSERT INTO audit_chains (organization_id, seq, hash, at, begun_at, classes) VALUES ($1, 0, $2, 'epoch', $3, '{}') ON CONFLICT DO NOTHING`,
		r.organizationID, genesis(), time.Now().UTC().Truncate(time.Millisecond))
	r.askHead(tx)
	if err := tx.Settle(ctx); err != nil {
		return err
	}
	if !r.begun {
		return fmt.Errorf("organization %s has no chain", r.organizationID)
	}
	return nil
}

// noteClass makes the chain's class known to readers, once.
func (r *run) noteClass(tx *postgres.Pipeline) {
	if !slices.Contains(r.end.classes, r.end.tier) {
		tx.Later("note retention class", `UPDATE audit_chains SET classes = array_append(classes, $2) WHERE organization_id = $1`,
			r.organizationID, r.end.tier)
	}
}

// store writes the entries, their places known now, and appends them to stored.
func (r *run) store(ctx context.Context, tx *postgres.Pipeline, stored []commit.StoredEntry) ([]commit.StoredEntry, error) {
	if !r.begun {
		if err := r.begin(ctx, tx); err != nil {
			return nil, err
		}
	}
	r.noteClass(tx)
	for i := range r.entries {
		e := &r.entries[i]
		r.end.take(e, time.Now().UTC().Truncate(time.Millisecond))
		insert(tx, e)
		body, err := json.Marshal(e.view())
		if err != nil {
			return nil, fmt.Errorf("marshal entry: %w", err)
		}
		s := commit.StoredEntry{OrganizationID: e.OrganizationID, Action: e.Action, ResourceID: e.ResourceID, Body: body}
		if e.ProjectID != nil {
			s.ProjectID = *e.ProjectID
		}
		stored = append(stored, s)
	}
	r.move(tx)
	return stored, nil
}

// move makes the last entry stored the chain's head.
func (r *run) move(tx *postgres.Pipeline) {
	tx.Later("move chain", `UPDATE audit_chains SET seq = $2, hash = $3, at = $4 WHERE organization_id = $1`,
		r.organizationID, r.end.seq, r.end.hash, r.end.at)
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

// insertSQL stores one entry. Arrays for many at once cost the server twice as much for
// one, which is what nearly every mutation has.
const insertSQL = `
INSERT INTO audit_entries (organization_id, seq, id, project_id, actor_id, actor_email, action, resource_type, resource_id,
                           before, after, metadata, created_at, retention, hash)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`

func insert(tx *postgres.Pipeline, e *Entry) {
	tx.Later("insert entry", insertSQL, e.OrganizationID, e.Seq, e.ID, e.ProjectID, e.ActorID, e.ActorEmail, e.Action, e.ResourceType,
		e.ResourceID, e.Before, e.After, e.Metadata, e.CreatedAt, e.Retention, e.Hash)
}
