package symbols

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/id"
	"skerry/pkg/problem"
	"skerry/pkg/reply"
	"skerry/writeplane/access"
	"skerry/writeplane/blobs"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

const columns = `a.id, a.project_id, p.organization_id, a.environment, a.kind, a.release, a.match_key, a.size_bytes, a.sha256,
	a.uploaded_at, a.storage_path, a.original_name, a.commit_sha, a.debug_ids, a.warnings, a.deleted_at,
	a.index_path, a.index_sha256, a.index_reason, a.index_text`

const selectArtifact = `SELECT ` + columns + ` FROM symbol_artifacts a JOIN projects p ON p.id = a.project_id `

func scanArtifact(row pgx.CollectableRow) (*Artifact, error) {
	a := &Artifact{}
	err := row.Scan(&a.ID, &a.ProjectID, &a.OrganizationID, &a.Environment, &a.Kind, &a.Release, &a.MatchKey, &a.SizeBytes, &a.SHA256,
		&a.UploadedAt, &a.StoragePath, &a.OriginalName, &a.CommitSHA, &a.DebugIDs, &a.Warnings, &a.DeletedAt,
		&a.IndexPath, &a.IndexSHA256, &a.IndexReason, &a.IndexText)
	return a, err
}

func query(ctx context.Context, q postgres.Querier, sql string, args ...any) ([]*Artifact, error) {
	return postgres.All(ctx, q, "read artifacts", scanArtifact, selectArtifact+sql, args...)
}

// one reads an artifact of a project that lives, deleted artifacts included.
func one(ctx context.Context, q postgres.Querier, artifactID, lock string) (*Artifact, error) {
	if !id.Valid(artifactID) {
		return nil, access.ErrNotFound
	}
	found, err := query(ctx, q, `WHERE a.id = $1 AND p.deleted_at IS NULL `+lock, artifactID)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, access.ErrNotFound
	}
	return found[0], nil
}

// position is where a page of the list ended.
type position struct {
	At time.Time `json:"at"`
	ID string    `json:"id"`
}

// never is later than all that is listed, also what came while a clock was ahead.
var never = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// page reads artifacts, newest first, that stand behind after.
func (m *Module) page(ctx context.Context, projectID string, filters url.Values, after position, limit int) ([]*Artifact, error) {
	if after.ID == "" {
		after = position{never, "ffffffff-ffff-ffff-ffff-ffffffffffff"}
	}
	return query(ctx, m.store.Pool(), `
		WHERE a.project_id = $1 AND a.environment = $2 AND a.deleted_at IS NULL AND (a.uploaded_at, a.id) < ($3, $4)
		  AND ($5 = '' OR a.kind = $5) AND ($6 = '' OR a.release = $6) AND ($7 = '' OR a.sha256 = lower($7))
		ORDER BY a.uploaded_at DESC, a.id DESC LIMIT $8`,
		projectID, filters.Get("environment"), after.At, after.ID, filters.Get("kind"), filters.Get("release"), filters.Get("sha256"), limit)
}

// room checks the storage of the project's tier for some bytes more.
func (m *Module) room(ctx context.Context, project access.ProjectRow, more int64) error {
	return m.roomIn(ctx, m.store.Pool(), project.ID, project.Tier, more)
}

func (m *Module) roomIn(ctx context.Context, q postgres.Querier, projectID, tier string, more int64) error {
	if tier != access.Hobby {
		return nil
	}
	used, _, err := postgres.One(ctx, q, "sum symbol storage", pgx.RowTo[int64],
		`SELECT coalesce(sum(size_bytes), 0)::bigint FROM symbol_artifacts WHERE project_id = $1 AND deleted_at IS NULL`, projectID)
	if err != nil {
		return err
	}
	if used+more > m.config.HobbyBytes {
		return problem.Newf(problem.QuotaExceeded, "quota_exceeded", "the symbol storage of the project's tier is used up").
			With("current", used).With("limit", m.config.HobbyBytes)
	}
	return nil
}

// keep stores the row of an upload, or returns the artifact that is the same.
func (m *Module) keep(ctx context.Context, c *access.Call, a *Artifact) (stored *Artifact, err error) {
	err = m.store.InTx(ctx, c.Origin(), func(tx *commit.Tx) error {
		// The sum below is then no guess, and of two equal files at once the second finds
		// the first.
		if err := lock(ctx, tx, a.ProjectID); err != nil {
			return err
		}
		same, err := query(ctx, tx, `
			WHERE a.project_id = $1 AND a.environment = $2 AND a.kind = $3 AND a.release = $4 AND a.match_key = $5 AND a.sha256 = $6
			  AND a.deleted_at IS NULL`, a.ProjectID, a.Environment, a.Kind, a.Release, a.MatchKey, a.SHA256)
		if err != nil {
			return err
		}
		if len(same) > 0 {
			stored = same[0]
			return nil
		}
		var tier string
		err = tx.QueryRow(ctx, `SELECT o.tier FROM projects p JOIN organizations o ON o.id = p.organization_id
			WHERE p.id = $1 AND p.deleted_at IS NULL`, a.ProjectID).Scan(&tier)
		if errors.Is(err, pgx.ErrNoRows) {
			return access.ErrNotFound // the project was deleted while the file travelled
		}
		if err != nil {
			return fmt.Errorf("read tier: %w", err)
		}
		if err := m.roomIn(ctx, tx, a.ProjectID, tier, a.SizeBytes); err != nil {
			return err
		}
		if err := newest(ctx, tx, a); err != nil {
			return err
		}
		stored = a
		return insert(ctx, tx, a)
	})
	return stored, err
}

// newest puts an upload behind all before it, whatever the clock of this process says: of
// artifacts that fit the newest is used.
func newest(ctx context.Context, tx pgx.Tx, a *Artifact) error {
	var last *time.Time
	err := tx.QueryRow(ctx, `SELECT max(uploaded_at) FROM symbol_artifacts WHERE project_id = $1 AND environment = $2 AND deleted_at IS NULL`,
		a.ProjectID, a.Environment).Scan(&last)
	if err != nil {
		return fmt.Errorf("read the last upload: %w", err)
	}
	if last != nil && !a.UploadedAt.After(*last) {
		a.UploadedAt = last.UTC().Add(time.Millisecond)
	}
	return nil
}

// lock lets one upload, or one deletion of a release, of a project at a time pass: an
// artifact that comes just then goes with its release, or brings it back.
func lock(ctx context.Context, tx pgx.Tx, projectID string) error {
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('symbols ' || $1, 0))`, projectID); err != nil {
		return fmt.Errorf("lock symbols: %w", err)
	}
	return nil
}

func insert(ctx context.Context, tx *commit.Tx, a *Artifact) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO symbol_artifacts (id, project_id, environment, kind, release, match_key, size_bytes, sha256, uploaded_at,
			storage_path, original_name, commit_sha, debug_ids, warnings)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`,
		a.ID, a.ProjectID, a.Environment, a.Kind, a.Release, a.MatchKey, a.SizeBytes, a.SHA256, a.UploadedAt,
		a.StoragePath, a.OriginalName, a.CommitSHA, orEmpty(a.DebugIDs), orEmpty(a.Warnings))
	if err != nil {
		return fmt.Errorf("insert artifact: %w", err)
	}
	if err := Touch(ctx, tx, a.ProjectID, a.Environment, []string{a.Release}); err != nil {
		return err
	}
	tx.Audit(a.entry("catch.symbol.uploaded", nil, a.view()))
	return nil
}

// mend gives an artifact whose file is lost, or could not be read, the file of the same
// bytes that came again, and has it indexed again: a 201 means that it can be used.
func (m *Module) mend(ctx context.Context, stored, again *Artifact) error {
	if stored.IndexReason == nil && !m.lost(ctx, stored) {
		return nil
	}
	tag, err := m.store.Pool().Exec(ctx, `
		UPDATE symbol_artifacts SET storage_path = $3, warnings = $4, index_path = NULL, index_sha256 = NULL, index_reason = NULL,
			index_text = NULL, index_after = '-infinity'
		WHERE id = $1 AND storage_path = $2 AND deleted_at IS NULL`, stored.ID, stored.StoragePath, again.StoragePath, orEmpty(again.Warnings))
	if err != nil {
		return fmt.Errorf("mend artifact: %w", err)
	}
	if tag.RowsAffected() > 0 {
		stored.StoragePath, stored.Warnings = again.StoragePath, again.Warnings
	}
	return nil
}

// lost reports whether an artifact's file is known to be gone or cut off.
func (m *Module) lost(ctx context.Context, a *Artifact) bool {
	file, err := m.blobs.Open(ctx, a.StoragePath)
	if err != nil {
		return errors.Is(err, blobs.ErrNotFound)
	}
	defer file.Close()
	return file.Size() != a.SizeBytes
}

// Touch makes releases known, and those that were deleted live again: something new
// has come for them. A release that is known is not locked, or every crash report of
// it would wait for every other.
func Touch(ctx context.Context, tx pgx.Tx, projectID, environment string, releases []string) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO releases (project_id, environment, release)
		SELECT $1, $2, r FROM (SELECT DISTINCT unnest($3::text[])) AS named (r)
		WHERE r <> '' AND NOT EXISTS (SELECT FROM releases x
			WHERE x.project_id = $1 AND x.environment = $2 AND x.release = r AND x.deleted_at IS NULL)
		ORDER BY r
		ON CONFLICT (project_id, environment, release) DO UPDATE SET deleted_at = NULL, created_at = now()
		WHERE releases.deleted_at IS NOT NULL`, projectID, environment, releases)
	if err != nil {
		return fmt.Errorf("note releases: %w", err)
	}
	return nil
}

// remove deletes an artifact; one that is deleted stays so. The file goes later.
func (m *Module) remove(r *http.Request, c *access.Call, artifactID string) error {
	ctx := r.Context()
	return m.store.InTx(ctx, c.Origin(), func(tx *commit.Tx) error {
		a, err := one(ctx, tx, artifactID, "FOR UPDATE OF a")
		if err != nil {
			return err
		}
		if err := c.See(access.Project{ID: a.ProjectID, OrganizationID: a.OrganizationID}); err != nil {
			return err
		}
		if a.DeletedAt != nil {
			return nil
		}
		if err := reply.IfMatch(r, a.view()); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE symbol_artifacts SET deleted_at = now() WHERE id = $1`, a.ID); err != nil {
			return fmt.Errorf("delete artifact: %w", err)
		}
		tx.Audit(a.entry("catch.symbol.deleted", a.view(), nil))
		return nil
	})
}

// lowered is ids in the form that the database compares.
func lowered(ids []string) []string {
	out := make([]string, len(ids))
	for i, s := range ids {
		out[i] = strings.ToLower(s)
	}
	return out
}
