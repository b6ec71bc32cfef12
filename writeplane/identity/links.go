package identity

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/writeplane/postgres"
)

// Effect is what a claim did.
type Effect string

// The effects of a claim (supplement §3, Identity).
const (
	Linked    Effect = "linked"    // the alias now belongs to the person
	Unchanged Effect = "unchanged" // it already did
	Equal     Effect = "equal"     // both ids are the same: nothing to link
	Circle    Effect = "circle"    // the person is already linked to the alias: nothing is done, and it is no conflict
	Conflict  Effect = "conflict"  // the alias belongs to somebody else and stays there
)

// Links are the links of one scope, at depth one: no canonical id is itself an alias.
type Links struct {
	canonical map[string]string
	aliases   map[string][]string // of each canonical id
}

// NewLinks returns links without any.
func NewLinks() *Links {
	return &Links{canonical: map[string]string{}, aliases: map[string][]string{}}
}

// Add adds a link that is known to stand.
func (l *Links) Add(alias, canonical string) {
	l.canonical[alias] = canonical
	l.aliases[canonical] = append(l.aliases[canonical], alias)
}

// Root is the canonical identifier of id.
func (l *Links) Root(id string) string {
	if root, ok := l.canonical[id]; ok {
		return root
	}
	return id
}

// Claim links alias to the canonical id of distinct, if the rules allow. kept is the
// present owner when they do not.
func (l *Links) Claim(alias, distinct string) (effect Effect, kept string) {
	if alias == distinct {
		return Equal, ""
	}
	root := l.Root(distinct)
	if root == alias {
		return Circle, ""
	}
	if owner, ok := l.canonical[alias]; ok {
		if owner == root {
			return Unchanged, ""
		}
		return Conflict, owner
	}
	// Whoever was linked to the alias moves along.
	for _, id := range l.aliases[alias] {
		l.Add(id, root)
	}
	delete(l.aliases, alias)
	l.Add(alias, root)
	return Linked, ""
}

// Claim is an alias operation.
type Claim struct {
	Scope                 Scope
	AliasID, DistinctID   string
	AliasedAt, ReceivedAt time.Time
}

// Apply carries out the claims in order. The caller holds their scopes exclusively.
func Apply(ctx context.Context, tx pgx.Tx, claims []Claim) error {
	byScope := map[Scope][]Claim{}
	var scopes []Scope
	for _, c := range claims {
		if byScope[c.Scope] == nil {
			scopes = append(scopes, c.Scope)
		}
		byScope[c.Scope] = append(byScope[c.Scope], c)
	}
	for _, s := range scopes {
		if err := applyScope(ctx, tx, s, byScope[s]); err != nil {
			return err
		}
	}
	return nil
}

// loadLinksSQL reads what concerns the batch and not all of the scope, as resolveSQL does.
const loadLinksSQL = `
SELECT k.alias_id, a.canonical_id FROM unnest($3::text[]) AS k (alias_id)
CROSS JOIN LATERAL (
	SELECT canonical_id FROM aliases WHERE project_id = $1 AND environment = $2 AND alias_id = k.alias_id OFFSET 0
) a`

func applyScope(ctx context.Context, tx pgx.Tx, s Scope, claims []Claim) error {
	ids := make([]string, 0, 2*len(claims))
	for _, c := range claims {
		ids = append(ids, c.AliasID, c.DistinctID)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	rows, err := tx.Query(ctx, loadLinksSQL, s.Project, int16(s.Environment), ids)
	if err != nil {
		return fmt.Errorf("load aliases: %w", err)
	}
	links := NewLinks()
	var alias, canonical string
	if _, err := pgx.ForEachRow(rows, []any{&alias, &canonical}, func() error {
		links.Add(alias, canonical)
		return nil
	}); err != nil {
		return fmt.Errorf("load aliases: %w", err)
	}
	var fresh, refused []Claim
	var kept []string
	for _, c := range claims {
		switch effect, owner := links.Claim(c.AliasID, c.DistinctID); effect {
		case Linked:
			fresh = append(fresh, c)
		case Conflict:
			refused, kept = append(refused, c), append(kept, owner)
		}
	}
	if err := storeConflicts(ctx, tx, s, refused, kept); err != nil {
		return err
	}
	return storeLinks(ctx, tx, s, links, fresh)
}

// The statements that make links take whole arrays. Children move to the final root of
// each alias, so that a chain made within one batch is stored at depth one.
const (
	childrenSQL = `
SELECT c.alias_id, m.root FROM unnest($3::text[], $4::text[]) AS m (alias_id, root)
CROSS JOIN LATERAL (
	SELECT alias_id FROM aliases WHERE project_id = $1 AND environment = $2 AND canonical_id = m.alias_id OFFSET 0
) c`
	moveChildrenSQL = `
UPDATE aliases a SET canonical_id = m.root
FROM unnest($3::text[], $4::text[]) AS m (alias_id, root)
WHERE a.project_id = $1 AND a.environment = $2 AND a.alias_id = m.alias_id`
	insertLinksSQL = `
INSERT INTO aliases (project_id, environment, alias_id, canonical_id, aliased_at, received_at)
SELECT $1, $2, m.* FROM unnest($3::text[], $4::text[], $5::timestamptz[], $6::timestamptz[]) AS m`
	insertHeadSQL = `
INSERT INTO alias_heads (project_id, environment) VALUES ($1, $2) ON CONFLICT DO NOTHING`
	insertRewritesSQL = `
INSERT INTO rewrites (project_id, environment, alias_id) SELECT $1, $2, m FROM unnest($3::text[]) m
ON CONFLICT (project_id, environment, alias_id) DO UPDATE SET queued_at = now()`
	insertConflictsSQL = `
INSERT INTO identity_conflicts (project_id, environment, alias_id, kept_distinct_id, refused_distinct_id, received_at)
SELECT $1, $2, m.* FROM unnest($3::text[], $4::text[], $5::text[], $6::timestamptz[]) AS m
ON CONFLICT DO NOTHING`
)

func storeLinks(ctx context.Context, tx pgx.Tx, s Scope, links *Links, fresh []Claim) error {
	if len(fresh) == 0 {
		return nil
	}
	var aliases, roots []string
	var aliased, received []time.Time
	for _, c := range fresh {
		aliases, roots = append(aliases, c.AliasID), append(roots, links.Root(c.AliasID))
		aliased, received = append(aliased, c.AliasedAt), append(received, c.ReceivedAt)
	}
	project, environment := s.Project, int16(s.Environment)
	if err := moveChildren(ctx, tx, s, aliases, roots); err != nil {
		return err
	}
	for _, statement := range []struct {
		sql  string
		args []any
	}{
		{insertLinksSQL, []any{project, environment, aliases, roots, aliased, received}},
		{insertHeadSQL, []any{project, environment}},
		{insertRewritesSQL, []any{project, environment, aliases}},
	} {
		if _, err := tx.Exec(ctx, statement.sql, statement.args...); err != nil {
			return fmt.Errorf("store aliases: %w", err)
		}
	}
	return mergeProfiles(ctx, tx, s, aliases, roots)
}

// moveChildren takes along whoever was linked to one of the aliases: nobody, mostly.
func moveChildren(ctx context.Context, tx pgx.Tx, s Scope, aliases, roots []string) error {
	rows, err := tx.Query(ctx, childrenSQL, s.Project, int16(s.Environment), aliases, roots)
	if err != nil {
		return fmt.Errorf("find those who move along: %w", err)
	}
	var children, to []string
	var child, root string
	if _, err := pgx.ForEachRow(rows, []any{&child, &root}, func() error {
		children, to = append(children, child), append(to, root)
		return nil
	}); err != nil {
		return fmt.Errorf("find those who move along: %w", err)
	}
	if len(children) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, moveChildrenSQL, s.Project, int16(s.Environment), children, to); err != nil {
		return fmt.Errorf("move along: %w", err)
	}
	return nil
}

func storeConflicts(ctx context.Context, tx pgx.Tx, s Scope, refused []Claim, kept []string) error {
	if len(refused) == 0 {
		return nil
	}
	var aliases, others []string
	var received []time.Time
	for _, c := range refused {
		aliases, others, received = append(aliases, c.AliasID), append(others, c.DistinctID), append(received, c.ReceivedAt)
	}
	_, err := tx.Exec(ctx, insertConflictsSQL, s.Project, int16(s.Environment), aliases, kept, others, received)
	if err != nil {
		return fmt.Errorf("store identity conflicts: %w", err)
	}
	return nil
}

const (
	withProfilesSQL = `
SELECT distinct_id FROM profiles WHERE project_id = $1 AND environment = $2 AND distinct_id = ANY($3)`
	takeSeenSQL = `
DELETE FROM profiles WHERE project_id = $1 AND environment = $2 AND distinct_id = ANY($3)
RETURNING distinct_id, first_seen, last_seen`
	takeValuesSQL = `
DELETE FROM profile_values WHERE project_id = $1 AND environment = $2 AND distinct_id = ANY($3)
RETURNING distinct_id, name, value::text, stamp, once::text, once_stamp`
	// profilesAtOnce bounds what is in memory: a profile has some kilobytes, and may have
	// megabytes.
	profilesAtOnce = 500
)

// mergeProfiles moves what is known of each alias to its root. Few aliases have a
// profile of their own, so those are found first.
func mergeProfiles(ctx context.Context, tx pgx.Tx, s Scope, aliases, roots []string) error {
	with, err := postgres.All(ctx, tx, "find profiles to merge", pgx.RowTo[string],
		withProfilesSQL, s.Project, int16(s.Environment), aliases)
	if err != nil || len(with) == 0 {
		return err
	}
	rootOf := make(map[string]ID, len(aliases))
	for i, alias := range aliases {
		rootOf[alias] = ID{s, roots[i]}
	}
	for part := range slices.Chunk(with, profilesAtOnce) {
		if err := moveProfiles(ctx, tx, s, part, rootOf); err != nil {
			return fmt.Errorf("merge profiles: %w", err)
		}
	}
	return nil
}

// moveProfiles takes profiles away and brings them into those of their roots. Several
// may carry the same trait to the same root, so they are merged here first.
func moveProfiles(ctx context.Context, tx pgx.Tx, s Scope, aliases []string, rootOf map[string]ID) error {
	rows, err := tx.Query(ctx, takeSeenSQL, s.Project, int16(s.Environment), aliases)
	if err != nil {
		return err
	}
	var alias string
	var first, last time.Time
	seen := map[ID][2]time.Time{}
	if _, err := pgx.ForEachRow(rows, []any{&alias, &first, &last}, func() error {
		root := rootOf[alias]
		if span, ok := seen[root]; ok {
			first, last = earlier(first, span[0]), later(last, span[1])
		}
		seen[root] = [2]time.Time{first, last}
		return nil
	}); err != nil {
		return err
	}
	if rows, err = tx.Query(ctx, takeValuesSQL, s.Project, int16(s.Environment), aliases); err != nil {
		return err
	}
	var name string
	var value, once *string
	var stamp, onceStamp []byte
	traits := map[traitKey]Trait{}
	if _, err := pgx.ForEachRow(rows, []any{&alias, &name, &value, &stamp, &once, &onceStamp}, func() error {
		key := traitKey{rootOf[alias], name}
		traits[key] = traits[key].Merge(Trait{Value: raw(value), Stamp: slices.Clone(stamp), Once: raw(once), OnceStamp: slices.Clone(onceStamp)})
		return nil
	}); err != nil {
		return err
	}
	if err := upsertSeen(ctx, tx, seen); err != nil {
		return err
	}
	return upsertValues(ctx, tx, traits)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// spread lays scopes out as two columns.
func spread(scopes []Scope) (projects [][16]byte, environments []int16) {
	for _, s := range scopes {
		projects = append(projects, s.Project)
		environments = append(environments, int16(s.Environment))
	}
	return projects, environments
}
