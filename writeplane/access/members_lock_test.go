package access

import (
	"fmt"
	"testing"

	"skerry/pkg/id"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres/dbtest"
)

// A change of the organization's tier holds all of its projects, one after the other.
func TestProjectsOfAMemberAreLockedInTheOrderOfTheirIDs(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	m := memberRow{OrganizationID: id.New()}
	dbtest.Exec(t, db.App, `INSERT INTO organizations (id, name, tier) VALUES ($1, 'Example', 'pro')`, m.OrganizationID)
	for i := range 30 {
		project := fmt.Sprintf("01890000-0000-7000-8000-%012d", 30-i) // the newest lies first in the table
		dbtest.Exec(t, db.App, `INSERT INTO projects (id, organization_id, name, modules, allowlist, rate_limits, quotas) VALUES ($1, $2, 'Demo', '{}', '{}', '{}', '{}')`, project, m.OrganizationID)
		m.ProjectIDs = append(m.ProjectIDs, project)
	}
	tx, err := db.App.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	const lock = `SELECT FROM projects WHERE organization_id = $1 ORDER BY id LIMIT $2 FOR NO KEY UPDATE`
	dbtest.Exec(t, tx, lock, m.OrganizationID, 1)
	checked := make(chan error)
	go func() {
		checked <- commit.New(db.App, commit.Sinks{}).InTx(t.Context(), commit.Origin{}, func(tx *commit.Tx) error {
			return checkProjects(t.Context(), tx, m, nil)
		})
	}()
	for waiting := false; !waiting; {
		err := db.Owner.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tx.Exec(t.Context(), lock, m.OrganizationID, 30); err != nil {
		t.Errorf("while a member's projects are locked: %v", err)
	}
	_ = tx.Commit(t.Context())
	if err := <-checked; err != nil {
		t.Errorf("while all projects are locked: %v", err)
	}
}
