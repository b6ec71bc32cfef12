package cohorts

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/instant"
	"skerry/pkg/problem"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
	"skerry/writeplane/form"
	"skerry/writeplane/postgres"
)

// ErrExists is the 409 of a name that the project has already.
var ErrExists = problem.New(problem.Conflict, "already_exists")

const selectCohort = `
SELECT c.id, c.project_id, p.organization_id, c.name, c.predicate, c.shards, c.member_count, c.member_bytes, c.created_at, c.updated_at
FROM cohorts c JOIN projects p ON p.id = c.project_id
WHERE c.project_id = $1 AND `

func scanCohort(row pgx.CollectableRow) (*Cohort, error) {
	c := &Cohort{}
	err := row.Scan(&c.ID, &c.ProjectID, &c.OrganizationID, &c.Name, &c.Predicate, &c.Shards, &c.MemberCount, &c.MemberBytes,
		&c.CreatedAt, &c.UpdatedAt)
	return c, err
}

// one reads a cohort by name; lock is forUpdate or empty.
func one(ctx context.Context, q postgres.Querier, project, name, lock string) (*Cohort, error) {
	c, ok, err := postgres.One(ctx, q, "read cohort", scanCohort, selectCohort+"c.name = $2 "+lock, project, name)
	if err == nil && !ok {
		return nil, access.ErrNotFound
	}
	return c, err
}

// forUpdate locks a cohort for a change, and keeps its project from being deleted
// meanwhile (access.Keep).
const forUpdate = "AND p.deleted_at IS NULL FOR UPDATE OF c FOR KEY SHARE OF p"

func list(ctx context.Context, q postgres.Querier, project, after string, limit int) ([]*Cohort, error) {
	return postgres.All(ctx, q, "list cohorts", scanCohort,
		selectCohort+"c.name > $2 ORDER BY c.name LIMIT $3", project, after, limit)
}

// judgePredicate notes what is wrong with the cohort's predicate among the project's
// others, which keep theirs until tx ends. Without a predicate nobody is kept waiting: a
// long list may follow.
func (c *Cohort) judgePredicate(ctx context.Context, tx *commit.Tx, in *form.Form) error {
	if c.Predicate == nil {
		return nil
	}
	others, err := predicates(ctx, tx, c.ProjectID)
	if err == nil {
		c.checkPredicate(in, others)
	}
	return err
}

// predicates locks a project's cohorts against other changes of predicates and reads them
// all: two changes at once could otherwise close a circle that neither sees.
func predicates(ctx context.Context, tx *commit.Tx, project string) (map[string]*string, error) {
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('cohorts ' || $1, 0))`, project); err != nil {
		return nil, fmt.Errorf("lock cohorts: %w", err)
	}
	rows, err := tx.Query(ctx, `SELECT name, predicate FROM cohorts WHERE project_id = $1`, project)
	if err != nil {
		return nil, fmt.Errorf("read predicates of cohorts: %w", err)
	}
	found := map[string]*string{}
	var name string
	var text *string
	_, err = pgx.ForEachRow(rows, []any{&name, &text}, func() error {
		found[name] = text
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read predicates of cohorts: %w", err)
	}
	return found, nil
}

// create stores a new cohort with its members, trace and documents.
func create(ctx context.Context, tx *commit.Tx, c *Cohort, members []string) error {
	done, err := tx.Exec(ctx, `
		INSERT INTO cohorts (id, project_id, name, predicate, shards, member_count, member_bytes, created_at, updated_at)
		VALUES ($1, $2, $3, $4, 0, 0, 0, $5, $5) ON CONFLICT (project_id, name) DO NOTHING`,
		c.ID, c.ProjectID, c.Name, c.Predicate, c.CreatedAt)
	if err != nil {
		return fmt.Errorf("insert cohort: %w", err)
	}
	if done.RowsAffected() == 0 {
		return ErrExists
	}
	if err := c.setMembers(ctx, tx, members); err != nil {
		return err
	}
	if err := save(ctx, tx, c); err != nil {
		return err
	}
	tx.Audit(c.entry("cohort.created", nil, c.view()))
	return nil
}

// setMembers makes the member list the given one.
func (c *Cohort) setMembers(ctx context.Context, tx *commit.Tx, members []string) error {
	members = ordered(members)
	if err := replace(ctx, tx, c.ID, members); err != nil {
		return err
	}
	c.MemberCount, c.MemberBytes = int64(len(members)), 0
	for _, m := range members {
		c.MemberBytes += size(m)
	}
	return c.putAll(ctx, tx)
}

// editMembers adds and removes members. An id in both is removed.
func (c *Cohort) editMembers(ctx context.Context, tx *commit.Tx, add, take []string) (added, removed int, err error) {
	in, err := insert(ctx, tx, c.ID, add)
	if err != nil {
		return 0, 0, err
	}
	out, err := remove(ctx, tx, c.ID, take)
	if err != nil {
		return 0, 0, err
	}
	c.MemberCount += int64(len(in) - len(out))
	if c.MemberCount > MaxMembers {
		return 0, 0, tooMany("members")
	}
	for _, m := range in {
		c.MemberBytes += size(m)
	}
	for _, m := range out {
		c.MemberBytes -= size(m)
	}
	return len(in), len(out), c.putTouched(ctx, tx, append(in, out...))
}

// save stores the cohort's row and document.
func save(ctx context.Context, tx *commit.Tx, c *Cohort) error {
	_, err := tx.Exec(ctx, `
		UPDATE cohorts SET predicate = $2, shards = $3, member_count = $4, member_bytes = $5, updated_at = $6 WHERE id = $1`,
		c.ID, c.Predicate, c.Shards, c.MemberCount, c.MemberBytes, c.UpdatedAt)
	if err != nil {
		return fmt.Errorf("update cohort: %w", err)
	}
	return tx.Put(c.subject(), c.document())
}

// touch marks a change and stores it with its trace.
func touch(ctx context.Context, tx *commit.Tx, c *Cohort, before view, metadata map[string]any) error {
	c.UpdatedAt = instant.Next(c.UpdatedAt)
	if err := save(ctx, tx, c); err != nil {
		return err
	}
	entry := c.entry("cohort.updated", before, c.view())
	entry.Metadata = metadata
	tx.Audit(entry)
	return nil
}

// drop removes a cohort. Rules that name it find nobody in it from then on.
func drop(ctx context.Context, tx *commit.Tx, c *Cohort) error {
	if _, err := tx.Exec(ctx, `DELETE FROM cohorts WHERE id = $1`, c.ID); err != nil {
		return fmt.Errorf("delete cohort: %w", err)
	}
	tx.Delete(c.subject())
	for n := range c.Shards {
		tx.Delete(c.shardSubject(n))
	}
	tx.Audit(c.entry("cohort.deleted", c.view(), nil))
	return nil
}
