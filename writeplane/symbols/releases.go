package symbols

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/instant"
	"skerry/pkg/page"
	"skerry/pkg/reply"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

// release is a release that artifacts or crash reports named.
type release struct {
	Release     string       `json:"release"`
	Environment string       `json:"environment"`
	CreatedAt   instant.Time `json:"created_at"`
	Artifacts   int64        `json:"artifacts"`
	SizeBytes   int64        `json:"size_bytes"`
}

type releasePosition struct {
	At      time.Time `json:"at"`
	Release string    `json:"release"`
}

// Releases serves GET /api/v1/catch/releases: newest first.
func (m *Module) Releases(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	query := r.URL.Query()
	project, err := m.access.Project(r.Context(), c, r)
	if err != nil {
		return err
	}
	env, err := environment(query)
	if err != nil {
		return err
	}
	after := releasePosition{At: never}
	window, err := m.access.Cursors().Open(query, "releases", url.Values{"project": {project.ID}, "environment": {env}}, &after)
	if err != nil {
		return err
	}
	found, err := m.releases(r.Context(), project.ID, env, after, window.Fetch())
	if err != nil {
		return err
	}
	found, next := page.Cut(window, found, func(r release) any { return releasePosition{r.CreatedAt.Time, r.Release} })
	return reply.JSON(w, http.StatusOK, page.List("releases", found, next))
}

func (m *Module) releases(ctx context.Context, projectID, env string, after releasePosition, limit int) ([]release, error) {
	return postgres.All(ctx, m.store.Pool(), "list releases", scanRelease, `
		SELECT r.release, r.environment, r.created_at, count(a.id), coalesce(sum(a.size_bytes), 0)::bigint
		FROM (SELECT * FROM releases WHERE project_id = $1 AND environment = $2 AND deleted_at IS NULL
		        AND (created_at < $3 OR created_at = $3 AND release > $4)
		      ORDER BY created_at DESC, release LIMIT $5) r
		LEFT JOIN symbol_artifacts a ON a.project_id = r.project_id AND a.environment = r.environment AND a.release = r.release AND a.deleted_at IS NULL
		GROUP BY r.release, r.environment, r.created_at ORDER BY r.created_at DESC, r.release`, projectID, env, after.At, after.Release, limit)
}

func scanRelease(row pgx.CollectableRow) (r release, err error) {
	err = row.Scan(&r.Release, &r.Environment, &r.CreatedAt.Time, &r.Artifacts, &r.SizeBytes)
	return r, err
}

// DeleteRelease serves DELETE /api/v1/catch/releases/{release}: its symbols are
// deleted with it, and the cleaner purges their files. Deleting it again is no fault.
func (m *Module) DeleteRelease(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	project, err := m.access.Project(r.Context(), c, r)
	if err != nil {
		return err
	}
	env, err := environment(r.URL.Query())
	if err != nil {
		return err
	}
	ctx, name := r.Context(), r.PathValue("release")
	err = m.store.InTx(ctx, c.Origin(), func(tx *commit.Tx) error {
		if err := lock(ctx, tx, project.ID); err != nil {
			return err
		}
		var was release
		var deleted bool
		err := tx.QueryRow(ctx, `SELECT release, environment, created_at, deleted_at IS NOT NULL FROM releases
			WHERE project_id = $1 AND environment = $2 AND release = $3 FOR UPDATE`, project.ID, env, name).
			Scan(&was.Release, &was.Environment, &was.CreatedAt.Time, &deleted)
		if errors.Is(err, pgx.ErrNoRows) {
			return access.ErrNotFound
		}
		if err != nil {
			return fmt.Errorf("read release: %w", err)
		}
		if deleted {
			return nil
		}
		if _, err := tx.Exec(ctx, `UPDATE releases SET deleted_at = now() WHERE project_id = $1 AND environment = $2 AND release = $3`, project.ID, env, name); err != nil {
			return fmt.Errorf("delete release: %w", err)
		}
		err = tx.QueryRow(ctx, `
			WITH gone AS (UPDATE symbol_artifacts SET deleted_at = now()
				WHERE project_id = $1 AND environment = $2 AND release = $3 AND deleted_at IS NULL RETURNING size_bytes)
			SELECT count(*), coalesce(sum(size_bytes), 0)::bigint FROM gone`, project.ID, env, name).Scan(&was.Artifacts, &was.SizeBytes)
		if err != nil {
			return fmt.Errorf("delete artifacts of release: %w", err)
		}
		if err := reply.IfMatch(r, was); err != nil { // what was deleted is known only now, and comes back
			return err
		}
		tx.Audit(commit.Entry{
			OrganizationID: project.OrganizationID, ProjectID: project.ID, Action: "catch.release.deleted",
			ResourceType: "release", ResourceID: name, Before: was,
		})
		return nil
	})
	if err != nil {
		return err
	}
	return reply.Deleted(w)
}
