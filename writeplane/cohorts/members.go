package cohorts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/murmur3"

	"skerry/pkg/decide"
	"skerry/pkg/problem"
	"skerry/pkg/state"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

// Members lie in the table in order of hash. A shard is a stretch of hashes (decide.Shard
// is the hash's highest bits, the number of shards being a power of two), hence one
// stretch of the table too.

const (
	shardTarget = 256 << 10 // bytes of members that a shard is planned for; a document holds twice that
	shardFloor  = 48 << 10  // with fewer, there are too many shards
	maxShards   = 1 << 16
	chunk       = 50_000 // rows a statement
)

func hashOf(member string) int64 { return int64(murmur3.StringSum32(member)) }

// ordered is the members in order of hash, each once.
func ordered(members []string) []string {
	type hashed struct {
		hash   uint32
		member string
	}
	all := make([]hashed, len(members))
	for i, m := range members {
		all[i] = hashed{murmur3.StringSum32(m), m}
	}
	slices.SortFunc(all, func(a, b hashed) int {
		if a.hash != b.hash {
			return int(int64(a.hash) - int64(b.hash))
		}
		return strings.Compare(a.member, b.member)
	})
	out := make([]string, len(all))
	for i := range all {
		out[i] = all[i].member
	}
	return slices.Compact(out)
}

// size is what a member takes in a document.
func size(member string) int64 {
	quoted, err := json.Marshal(member)
	if err != nil {
		panic("BUG: a string does not marshal: " + err.Error())
	}
	return int64(len(quoted)) + 1
}

// insert adds members that are not there yet and says which.
func insert(ctx context.Context, tx pgx.Tx, cohortID string, members []string) ([]string, error) {
	return inChunks(members, func(part []string, hashes []int64) ([]string, error) {
		return query(ctx, tx, `
			INSERT INTO cohort_members (cohort_id, hash, member)
			SELECT $1, m.hash, m.member FROM unnest($2::bigint[], $3::text[]) AS m (hash, member)
			ON CONFLICT DO NOTHING RETURNING member`, cohortID, hashes, part)
	})
}

// remove takes members away and says which were there.
func remove(ctx context.Context, tx pgx.Tx, cohortID string, members []string) ([]string, error) {
	return inChunks(members, func(part []string, hashes []int64) ([]string, error) {
		return query(ctx, tx, `
			DELETE FROM cohort_members c USING unnest($2::bigint[], $3::text[]) AS m (hash, member)
			WHERE c.cohort_id = $1 AND c.hash = m.hash AND c.member = m.member RETURNING c.member`, cohortID, hashes, part)
	})
}

func inChunks(members []string, do func(part []string, hashes []int64) ([]string, error)) ([]string, error) {
	var all []string
	for part := range slices.Chunk(ordered(members), chunk) {
		hashes := make([]int64, len(part))
		for i, m := range part {
			hashes[i] = hashOf(m)
		}
		done, err := do(part, hashes)
		if err != nil {
			return nil, err
		}
		all = append(all, done...)
	}
	return all, nil
}

func query(ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]string, error) {
	return postgres.All(ctx, tx, "change members", pgx.RowTo[string], sql, args...)
}

// replace makes the list the given one.
func replace(ctx context.Context, tx pgx.Tx, cohortID string, members []string) error {
	if _, err := tx.Exec(ctx, `DELETE FROM cohort_members WHERE cohort_id = $1`, cohortID); err != nil {
		return fmt.Errorf("empty member list: %w", err)
	}
	i := -1
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"cohort_members"}, []string{"cohort_id", "hash", "member"},
		pgx.CopyFromFunc(func() ([]any, error) {
			if i++; i == len(members) {
				return nil, nil
			}
			return []any{cohortID, hashOf(members[i]), members[i]}, nil
		}))
	if err != nil {
		return fmt.Errorf("copy member list: %w", err)
	}
	return nil
}

// all reads the members in order of text.
func all(ctx context.Context, q postgres.Querier, cohortID string) ([]string, error) {
	return postgres.All(ctx, q, "list members", pgx.RowTo[string],
		`SELECT member FROM cohort_members WHERE cohort_id = $1 ORDER BY member`, cohortID)
}

// plan is the number of shards for so many bytes, given the present number: it stays
// while it is not far off, so that members that come and go do not move everybody.
func plan(bytes int64, present int) int {
	if bytes == 0 {
		return 0
	}
	need := int(bytes+shardTarget-1) / shardTarget
	shards := 1 << bits.Len(uint(need-1))
	if present > shards && bytes >= int64(present)*shardFloor {
		return present
	}
	return shards
}

// putAll hands all member documents over. The list itself has been changed already.
func (c *Cohort) putAll(ctx context.Context, tx *commit.Tx) error {
	return c.putIn(ctx, tx, plan(c.MemberBytes, c.Shards))
}

// putTouched hands over the documents that hold the touched members, or all when their
// number changes. The list itself has been changed already.
func (c *Cohort) putTouched(ctx context.Context, tx *commit.Tx, touched []string) error {
	shards := plan(c.MemberBytes, c.Shards)
	if shards == c.Shards {
		err := c.putShardsOf(ctx, tx, touched)
		if !c.canSplit(err) {
			return err
		}
		shards *= 2
	}
	return c.putIn(ctx, tx, shards)
}

// putIn hands all member documents over in so many shards, or in more when one of them is
// too large: an uneven spread, somebody chose the ids so. What an attempt with fewer has
// handed over is replaced.
func (c *Cohort) putIn(ctx context.Context, tx *commit.Tx, shards int) error {
	before := c.Shards
	for c.Shards = shards; ; c.Shards *= 2 {
		err := c.putRange(ctx, tx, 0, c.Shards)
		if err == nil {
			break
		}
		if !c.canSplit(err) {
			return err
		}
	}
	for n := c.Shards; n < before; n++ {
		tx.Delete(c.shardSubject(n))
	}
	return nil
}

// canSplit reports whether more shards may mend the error: one of them is too large for a
// document.
func (c *Cohort) canSplit(err error) bool {
	var p *problem.Error
	return errors.As(err, &p) && c.Shards < maxShards
}

func (c *Cohort) putShardsOf(ctx context.Context, tx *commit.Tx, touched []string) error {
	done := map[int]bool{}
	for _, m := range touched {
		n := decide.Shard(m, c.Shards)
		if done[n] {
			continue
		}
		done[n] = true
		if err := c.putRange(ctx, tx, n, n+1); err != nil {
			return err
		}
	}
	return nil
}

// putRange hands over the shards from first up to end, in one pass over their stretch of
// the table.
func (c *Cohort) putRange(ctx context.Context, tx *commit.Tx, first, end int) error {
	if first >= end {
		return nil
	}
	width := uint64(1<<32) / uint64(c.Shards)
	members, err := postgres.All(ctx, tx, "read members of shards", pgx.RowTo[string],
		`SELECT member FROM cohort_members WHERE cohort_id = $1 AND hash >= $2 AND hash < $3 ORDER BY hash`,
		c.ID, int64(uint64(first)*width), int64(uint64(end)*width))
	if err != nil {
		return err
	}
	for n := first; n < end; n++ {
		i := slices.IndexFunc(members, func(m string) bool { return decide.Shard(m, c.Shards) != n })
		if i < 0 {
			i = len(members)
		}
		shard := slices.Clone(members[:i])
		slices.Sort(shard)
		if err := tx.Put(c.shardSubject(n), state.CohortShard{Members: shard}); err != nil {
			return err
		}
		members = members[i:]
	}
	return nil
}
