// Package identity knows which identifiers are one person (supplement §3).
//
// An alias links an identifier to a person's canonical one, at depth one. The package
// keeps the links, the profiles that merge with them, and the list of erased people;
// it rewrites the history of events that was stored under an identifier before its
// link; and it answers questions about persons.
//
// Promised: links do not depend on which edge or process brings them, the first to
// commit wins; a profile does not depend on the order in which its changes are stored;
// no event stored beside an alias keeps the old identifier for longer than the
// rewriting takes; an erasure takes what was received under the person's identifiers
// until then and nothing else, whatever is linked meanwhile; rewriting and removing can
// be killed at any point and run again.
//
// Not promised: that links take the order of the clients' clocks, or that two anonymous
// identifiers are ever found to be one person without a link.
package identity

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"skerry/replication/up"
	"skerry/writeplane/postgres"
)

// Scope is what identifiers are unique in: an environment of a project.
type Scope struct {
	Project     uuid.UUID
	Environment up.Environment
}

// MaxIDBytes is how long an identifier may be that is stored anywhere, and the name of a
// property: an index entry holds 2,704 bytes, and some hold two of them. The 200 characters
// of an identifier are fewer, but it may have any number of blanks around them.
const MaxIDBytes = 1280

// stripes is how many locks there are. Scopes share them, so that a transaction with
// any number of scopes takes a bounded number of locks: the server's table of locks is
// bounded too.
const stripes = 256

// lockSpace keeps these advisory locks apart from others.
const lockSpace = 0x6964 // "id"

const (
	lockSharedSQL    = `SELECT count(pg_advisory_xact_lock_shared($1, k)) FROM unnest($2::int[]) k`
	lockExclusiveSQL = `SELECT count(pg_advisory_xact_lock($1, k)) FROM unnest($2::int[]) k`
)

// LockShared keeps the scopes' links as they are until the transaction ends. Whoever
// stores under resolved identifiers takes it, so that no row slips in between a link
// and the rewriting of what was there before it. Locks are taken in one order.
func LockShared(ctx context.Context, tx pgx.Tx, scopes []Scope) error {
	return lock(ctx, tx, lockSharedSQL, scopes)
}

// LockExclusive keeps everybody else out of the scopes until the transaction ends.
// Whoever changes links takes it.
func LockExclusive(ctx context.Context, tx pgx.Tx, scopes []Scope) error {
	return lock(ctx, tx, lockExclusiveSQL, scopes)
}

func lock(ctx context.Context, tx pgx.Tx, sql string, scopes []Scope) error {
	if len(scopes) == 0 {
		return nil
	}
	keys := make([]int32, len(scopes))
	for i, s := range scopes {
		keys[i] = s.stripe()
	}
	slices.Sort(keys)
	if _, err := tx.Exec(ctx, sql, int32(lockSpace), slices.Compact(keys)); err != nil {
		return fmt.Errorf("lock identities: %w", err)
	}
	return nil
}

func (s Scope) stripe() int32 {
	h := fnv.New32a()
	_, _ = h.Write(s.Project[:])
	_, _ = h.Write([]byte{byte(s.Environment)})
	return int32(h.Sum32() % stripes)
}

// Querier is a pool, a connection or a transaction, to read with.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// ID is an identifier in its scope.
type ID struct {
	Scope Scope
	Text  string
}

// resolveSQL looks up one id after the other in the primary key; OFFSET 0 keeps the
// planner from joining. It would expect an array to name many projects, so it merged by
// project and compared each id of a batch with each alias of its project: with 100,000
// aliases three thousand ids took a minute and a half. Its other way to join reads the
// whole table.
const resolveSQL = `
SELECT k.i, a.canonical_id
FROM unnest($1::uuid[], $2::smallint[], $3::text[]) WITH ORDINALITY AS k (project_id, environment, alias_id, i)
CROSS JOIN LATERAL (
	SELECT canonical_id FROM aliases
	WHERE project_id = k.project_id AND environment = k.environment AND alias_id = k.alias_id OFFSET 0
) a`

const headsSQL = `
SELECT k.i FROM unnest($1::uuid[], $2::smallint[]) WITH ORDINALITY AS k (project_id, environment, i)
JOIN alias_heads h USING (project_id, environment)`

// Resolve finds the canonical identifiers of those among ids that are aliases.
func Resolve(ctx context.Context, q Querier, ids []ID) (map[ID]string, error) {
	linked, err := withAliases(ctx, q, ids)
	if err != nil || len(linked) == 0 {
		return nil, err
	}
	var asked []ID
	var projects [][16]byte
	var environments []int16
	var texts []string
	for _, id := range ids {
		if linked[id.Scope] {
			asked = append(asked, id)
			projects = append(projects, id.Scope.Project)
			environments = append(environments, int16(id.Scope.Environment))
			texts = append(texts, id.Text)
		}
	}
	rows, err := q.Query(ctx, resolveSQL, projects, environments, texts)
	if err != nil {
		return nil, fmt.Errorf("resolve identifiers: %w", err)
	}
	defer rows.Close()
	canonical := map[ID]string{}
	for rows.Next() {
		var i int64
		var text string
		if err := rows.Scan(&i, &text); err != nil {
			return nil, fmt.Errorf("resolve identifiers: %w", err)
		}
		canonical[asked[i-1]] = text
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("resolve identifiers: %w", err)
	}
	return canonical, nil
}

// withAliases tells which of the ids' scopes have any alias.
func withAliases(ctx context.Context, q Querier, ids []ID) (map[Scope]bool, error) {
	var scopes []Scope
	seen := map[Scope]bool{}
	var projects [][16]byte
	var environments []int16
	for _, id := range ids {
		if !seen[id.Scope] {
			seen[id.Scope] = true
			scopes = append(scopes, id.Scope)
			projects = append(projects, id.Scope.Project)
			environments = append(environments, int16(id.Scope.Environment))
		}
	}
	if len(scopes) == 0 {
		return nil, nil
	}
	found, err := postgres.All(ctx, q, "look for aliases", pgx.RowTo[int64], headsSQL, projects, environments)
	if err != nil {
		return nil, err
	}
	linked := map[Scope]bool{}
	for _, i := range found {
		linked[scopes[i-1]] = true
	}
	return linked, nil
}

const membersSQL = `
WITH root AS (
	SELECT coalesce((SELECT canonical_id FROM aliases WHERE project_id = $1 AND environment = $2 AND alias_id = $3), $3) AS id
)
SELECT id, false FROM root
UNION ALL
SELECT a.alias_id, true FROM root JOIN aliases a ON a.project_id = $1 AND a.environment = $2 AND a.canonical_id = root.id
ORDER BY 2, 1`

// Members lists a person's identifiers, the canonical one first, by any of them. An
// identifier that nobody has linked is a person's only one.
func Members(ctx context.Context, q Querier, scope Scope, id string) ([]string, error) {
	return postgres.All(ctx, q, "list a person's ids", scanMember, membersSQL, scope.Project, int16(scope.Environment), id)
}

func scanMember(row pgx.CollectableRow) (text string, err error) {
	var alias bool
	err = row.Scan(&text, &alias)
	return text, err
}

const holdingSQL = `
WITH root AS (
	SELECT coalesce((SELECT canonical_id FROM aliases WHERE project_id = $1 AND environment = $2 AND alias_id = $3), $3) AS id
)
SELECT id FROM root
UNION ALL
SELECT a.alias_id FROM root
JOIN aliases a ON a.project_id = $1 AND a.environment = $2 AND a.canonical_id = root.id
JOIN rewrites r ON r.project_id = $1 AND r.environment = $2 AND r.alias_id = a.alias_id`

// Holding lists those of a person's identifiers under which events lie: the canonical
// one, and aliases whose history is not rewritten yet. Looking under all of them, in each
// of thirty partitions, took most of a minute for a person of 300,000. The events have to
// be read in the same snapshot.
func Holding(ctx context.Context, q Querier, scope Scope, id string) ([]string, error) {
	return postgres.All(ctx, q, "list ids that hold events", pgx.RowTo[string], holdingSQL, scope.Project, int16(scope.Environment), id)
}

// Erased are the erasures that may concern a batch.
type Erased map[Scope]map[[sha256.Size]byte]time.Time

// Has tells whether what was received under the identifier at the time has been erased.
func (e Erased) Has(scope Scope, id []byte, receivedAt time.Time) bool {
	erased := e[scope]
	if len(erased) == 0 {
		return false
	}
	at, ok := erased[sha256.Sum256(id)]
	return ok && !receivedAt.After(at)
}

// erasuresAtOnce is how many erasures are read for a batch whoever they are of.
const erasuresAtOnce = 10_000

const erasedSQL = `
SELECT e.project_id, e.environment, e.id_hash, e.erased_at
FROM unnest($1::uuid[], $2::smallint[]) AS k (project_id, environment)
JOIN erasures e USING (project_id, environment)
WHERE e.erased_at >= $3 LIMIT $4`

// erasedAmongSQL looks up one id after the other, as resolveSQL does.
const erasedAmongSQL = `
SELECT k.project_id, k.environment, k.id_hash, e.erased_at
FROM unnest($1::uuid[], $2::smallint[], $3::bytea[]) AS k (project_id, environment, id_hash)
CROSS JOIN LATERAL (
	SELECT erased_at FROM erasures
	WHERE project_id = k.project_id AND environment = k.environment AND id_hash = k.id_hash OFFSET 0
) e`

// ErasedSince reads the erasures that concern anything received in the scopes since
// oldest. Mostly there are none, or few. Of an edge that comes back after years there may
// be millions; then those of ids, the batch's own, are looked up.
func ErasedSince(ctx context.Context, q Querier, scopes []Scope, oldest time.Time, ids func() []ID) (Erased, error) {
	projects, environments := spread(scopes)
	erased, n, err := readErased(ctx, q, erasedSQL, projects, environments, oldest, erasuresAtOnce+1)
	if err != nil || n <= erasuresAtOnce {
		return erased, err
	}
	seen := map[ID]bool{}
	var asked []Scope
	var hashes [][]byte
	for _, id := range ids() {
		if !seen[id] {
			seen[id] = true
			sum := sha256.Sum256([]byte(id.Text))
			asked, hashes = append(asked, id.Scope), append(hashes, sum[:])
		}
	}
	projects, environments = spread(asked)
	erased, _, err = readErased(ctx, q, erasedAmongSQL, projects, environments, hashes)
	return erased, err
}

// readErased reads erasures and counts them.
func readErased(ctx context.Context, q Querier, sql string, args ...any) (erased Erased, n int, err error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, 0, fmt.Errorf("read erasures: %w", err)
	}
	erased = Erased{}
	var s Scope
	var environment int16
	var hash []byte
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&s.Project, &environment, &hash, &at}, func() error {
		n++
		s.Environment = up.Environment(environment)
		if erased[s] == nil {
			erased[s] = map[[sha256.Size]byte]time.Time{}
		}
		if len(hash) == sha256.Size {
			erased[s][[sha256.Size]byte(hash)] = at
		}
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("read erasures: %w", err)
	}
	return erased, n, nil
}
