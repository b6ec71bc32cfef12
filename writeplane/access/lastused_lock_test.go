package access

import (
	"fmt"
	"testing"
	"time"

	"skerry/pkg/id"
	"skerry/writeplane/postgres/dbtest"
)

// Whoever ends a project holds all of its keys, one after the other.
func TestUsesAreNotedInTheOrderInWhichKeysAreLocked(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	organization, project := id.New(), id.New()
	dbtest.Exec(t, db.App, `INSERT INTO organizations (id, name, tier) VALUES ($1, 'Example', 'pro')`, organization)
	dbtest.Exec(t, db.App, `INSERT INTO projects (id, organization_id, name, modules, allowlist, rate_limits, quotas) VALUES ($1, $2, 'Demo', '{}', '{}', '{}', '{}')`, project, organization)
	used := newLastUsed(db.App)
	for i := range 30 {
		key := fmt.Sprintf("01890000-0000-7000-8000-%012d", 30-i) // the newest lies first in the table
		dbtest.Exec(t, db.App, `INSERT INTO api_keys (id, project_id, environment, name, prefix, created_at) VALUES ($1, $2, 'live', 'k', 'sk_live_xxxx', now())`, key, project)
		used.mark(key, time.Now())
	}
	tx, err := db.App.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	const lock = `SELECT FROM api_keys WHERE project_id = $1 ORDER BY id LIMIT $2 FOR NO KEY UPDATE`
	dbtest.Exec(t, tx, lock, project, 1)
	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		used.flush(t.Context())
	}()
	for waiting := false; !waiting; {
		err := db.Owner.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tx.Exec(t.Context(), lock, project, 30); err != nil {
		t.Errorf("while uses are noted: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Errorf("while uses are noted: %v", err)
	}
	<-flushed
	if noted := dbtest.One[int](t, db.App, `SELECT count(last_used_at) FROM api_keys`); noted != 30 {
		t.Errorf("%d uses noted, want 30", noted)
	}
}
