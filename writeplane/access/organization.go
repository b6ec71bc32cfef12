package access

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/instant"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

// organizationRow is a tenant.
type organizationRow struct {
	ID        string
	Name      string
	Tier      string
	CreatedAt time.Time
	UpdatedAt time.Time
}

type organizationView struct {
	ID        string       `json:"id"`
	Name      string       `json:"name"`
	Tier      string       `json:"tier"`
	CreatedAt instant.Time `json:"created_at"`
	UpdatedAt instant.Time `json:"updated_at"`
}

func (o organizationRow) view() organizationView {
	return organizationView{o.ID, o.Name, o.Tier, instant.Of(o.CreatedAt), instant.Of(o.UpdatedAt)}
}

const organizationSQL = `SELECT id, name, tier, created_at, updated_at FROM organizations WHERE id = $1 `

func scanOrganization(row pgx.CollectableRow) (o organizationRow, err error) {
	err = row.Scan(&o.ID, &o.Name, &o.Tier, &o.CreatedAt, &o.UpdatedAt)
	return o, err
}

// updateOrganization stores name and tier. Another tier means other quotas, so every
// project's document goes down anew.
func updateOrganization(ctx context.Context, tx *commit.Tx, before, after organizationRow) error {
	_, err := tx.Exec(ctx, `UPDATE organizations SET name = $2, tier = $3, updated_at = $4 WHERE id = $1`,
		after.ID, after.Name, after.Tier, after.UpdatedAt)
	if err != nil {
		return fmt.Errorf("update organization: %w", err)
	}
	record(tx, commit.Entry{OrganizationID: after.ID, Action: "organization.updated", ResourceType: "organization",
		ResourceID: after.ID, Before: before.view(), After: after.view()})
	if before.Tier == after.Tier {
		return nil
	}
	projects, err := postgres.All(ctx, tx, "read organization's projects", scanProject,
		projectSQL+"p.organization_id = $1 ORDER BY p.id FOR NO KEY UPDATE OF p", after.ID)
	if err != nil {
		return err
	}
	for _, project := range projects {
		if err := putProject(tx, project); err != nil {
			return err
		}
	}
	return nil
}
