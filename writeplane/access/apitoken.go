package access

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/instant"
	"skerry/writeplane/commit"
)

// tokenRow is a signed token that was handed out; its text is kept nowhere.
type tokenRow struct {
	ID             string // jti
	OrganizationID string
	MemberID       string
	ProjectID      *string // nil: every project the member may see
	Name           string
	Role           string
	CreatedAt      time.Time
	ExpiresAt      time.Time
	RevokedAt      *time.Time
}

// tokenView is the token as the API shows it.
type tokenView struct {
	ID        string        `json:"id"`
	ProjectID *string       `json:"project_id"`
	MemberID  string        `json:"member_id"`
	Name      string        `json:"name"`
	Role      string        `json:"role"`
	CreatedAt instant.Time  `json:"created_at"`
	ExpiresAt instant.Time  `json:"expires_at"`
	RevokedAt *instant.Time `json:"revoked_at"`
}

func (t tokenRow) view() tokenView {
	return tokenView{t.ID, t.ProjectID, t.MemberID, t.Name, t.Role, instant.Of(t.CreatedAt), instant.Of(t.ExpiresAt), instant.OfPtr(t.RevokedAt)}
}

func (t tokenRow) entry(action string, before, after any) commit.Entry {
	e := commit.Entry{OrganizationID: t.OrganizationID, Action: action, ResourceType: "api_token", ResourceID: t.ID, Before: before, After: after}
	if t.ProjectID != nil {
		e.ProjectID = *t.ProjectID
	}
	return e
}

const tokenSQL = `
SELECT id, organization_id, member_id, project_id, name, role, created_at, expires_at, revoked_at FROM api_tokens WHERE `

func scanToken(row pgx.CollectableRow) (t tokenRow, err error) {
	err = row.Scan(&t.ID, &t.OrganizationID, &t.MemberID, &t.ProjectID, &t.Name, &t.Role, &t.CreatedAt, &t.ExpiresAt, &t.RevokedAt)
	return t, err
}

func insertToken(ctx context.Context, tx *commit.Tx, t tokenRow) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO api_tokens (id, organization_id, member_id, project_id, name, role, created_at, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		t.ID, t.OrganizationID, t.MemberID, t.ProjectID, t.Name, t.Role, t.CreatedAt, t.ExpiresAt)
	if err != nil {
		return fmt.Errorf("insert api token: %w", err)
	}
	record(tx, t.entry("api_token.created", nil, t.view()))
	return nil
}

// revokeToken ends the token; Authenticate refuses it from the commit on.
func revokeToken(ctx context.Context, tx *commit.Tx, t tokenRow) error {
	if t.RevokedAt != nil {
		return nil
	}
	before := t.view()
	now := time.Now()
	if _, err := tx.Exec(ctx, `UPDATE api_tokens SET revoked_at = $2 WHERE id = $1`, t.ID, now); err != nil {
		return fmt.Errorf("revoke api token: %w", err)
	}
	t.RevokedAt = &now
	record(tx, t.entry("api_token.revoked", before, t.view()))
	return nil
}
