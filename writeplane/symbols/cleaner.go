package symbols

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"skerry/pkg/id"
	"skerry/writeplane/postgres"
)

const (
	cleanEvery  = time.Minute
	orphanEvery = 6 * time.Hour
	orphanAge   = 24 * time.Hour // an upload under way has no row yet
	cleanBatch  = 200
)

// Cleaner purges the files of deleted artifacts, of deleted projects, and of uploads
// whose process died before it could clean up.
type Cleaner struct {
	m      *Module
	leader func(ctx context.Context, name string, term time.Duration) (bool, error)
}

// NewCleaner returns the cleaner; leader says whether this process is the one that cleans.
func NewCleaner(m *Module, leader func(ctx context.Context, name string, term time.Duration) (bool, error)) *Cleaner {
	return &Cleaner{m: m, leader: leader}
}

// Run cleans until ctx ends.
func (c *Cleaner) Run(ctx context.Context) error {
	ticker := time.NewTicker(cleanEvery)
	defer ticker.Stop()
	var orphans time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if lead, err := c.leader(ctx, "symbols-cleaner", 2*cleanEvery); err != nil || !lead {
			continue
		}
		err := c.Purge(ctx)
		if err == nil && time.Since(orphans) > orphanEvery {
			orphans = time.Now()
			err = c.Orphans(ctx, time.Now(), orphanAge)
		}
		if err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "cleaning symbols was put off", "error", err)
		}
	}
}

// Purge removes the files of artifacts that are deleted, or whose project is.
func (c *Cleaner) Purge(ctx context.Context) error {
	pool := c.m.store.Pool()
	if _, err := pool.Exec(ctx, `UPDATE symbol_artifacts a SET deleted_at = now() FROM projects p
		WHERE p.id = a.project_id AND p.deleted_at IS NOT NULL AND a.deleted_at IS NULL`); err != nil {
		return fmt.Errorf("delete artifacts of deleted projects: %w", err)
	}
	for {
		gone, err := query(ctx, pool, `WHERE a.deleted_at IS NOT NULL AND a.purged_at IS NULL ORDER BY a.deleted_at LIMIT $1`, cleanBatch)
		if err != nil || len(gone) == 0 {
			return err
		}
		for _, a := range gone {
			if err := errors.Join(c.m.blobs.Delete(ctx, a.StoragePath), c.m.blobs.Delete(ctx, indexPath(a.StoragePath))); err != nil {
				return err
			}
			if _, err := pool.Exec(ctx, `UPDATE symbol_artifacts SET purged_at = now() WHERE id = $1`, a.ID); err != nil {
				return fmt.Errorf("note purged artifact: %w", err)
			}
		}
	}
}

// Orphans removes files of this installation's projects that are older than age at a
// time, by the database's clock too, and have no row. Files of other projects are another
// installation's, in the same bucket.
func (c *Cleaner) Orphans(ctx context.Context, now time.Time, age time.Duration) error {
	agreed, err := postgres.Earlier(ctx, c.m.store.Pool(), now)
	if err != nil {
		return err
	}
	before := agreed.Add(-age)
	return c.m.blobs.Walk(ctx, "symbols/", func(key string, _ int64, modified time.Time) error {
		if modified.After(before) {
			return nil
		}
		project, _, _ := strings.Cut(strings.TrimPrefix(key, "symbols/"), "/")
		if !id.Valid(project) {
			return nil
		}
		var orphan bool
		err := c.m.store.Pool().QueryRow(ctx, `
			SELECT EXISTS (SELECT FROM projects WHERE id = $1)
				AND NOT EXISTS (SELECT FROM symbol_artifacts WHERE storage_path = $2 AND purged_at IS NULL)`,
			project, strings.TrimSuffix(key, ".index")).Scan(&orphan)
		if err != nil {
			return fmt.Errorf("look for the row of a file: %w", err)
		}
		if !orphan {
			return nil
		}
		return c.m.blobs.Delete(ctx, key)
	})
}
