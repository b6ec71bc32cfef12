package access

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"skerry/pkg/id"
	"skerry/pkg/instant"
	"skerry/pkg/jsonbody"
	"skerry/pkg/problem"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

// memberRow is a person of an organization.
type memberRow struct {
	ID             string
	OrganizationID string
	Email          string
	Role           string
	ProjectIDs     []string
	CreatedAt      time.Time
	UpdatedAt      time.Time
}

// memberView is the member as the API shows it.
type memberView struct {
	ID         string       `json:"id"`
	Email      string       `json:"email"`
	Role       string       `json:"role"`
	ProjectIDs []string     `json:"project_ids"`
	CreatedAt  instant.Time `json:"created_at"`
	UpdatedAt  instant.Time `json:"updated_at"`
}

func (m memberRow) view() memberView {
	return memberView{m.ID, m.Email, m.Role, m.ProjectIDs, instant.Of(m.CreatedAt), instant.Of(m.UpdatedAt)}
}

func (m memberRow) role() Role {
	role, _ := ParseRole(m.Role)
	return role
}

func (m memberRow) entry(action string, before, after any) commit.Entry {
	return commit.Entry{OrganizationID: m.OrganizationID, Action: action, ResourceType: "member", ResourceID: m.ID, Before: before, After: after}
}

const memberSQL = `
SELECT id, organization_id, email, role, project_ids, created_at, updated_at FROM members WHERE removed_at IS NULL AND `

func scanMember(row pgx.CollectableRow) (m memberRow, err error) {
	err = row.Scan(&m.ID, &m.OrganizationID, &m.Email, &m.Role, &m.ProjectIDs, &m.CreatedAt, &m.UpdatedAt)
	return m, err
}

// MemberCaller is what a member may do and see at this moment, for what goes on in the
// member's name without a request; ok is false when the organization has no such member.
func MemberCaller(ctx context.Context, q postgres.Querier, organizationID, memberID string) (c Caller, ok bool, err error) {
	if !id.Valid(memberID) {
		return Caller{}, false, nil
	}
	m, ok, err := postgres.One(ctx, q, "read member", scanMember, memberSQL+`organization_id = $1 AND id = $2`, organizationID, memberID)
	if err != nil || !ok {
		return Caller{}, false, err
	}
	return Caller{Subject: m.ID, Email: m.Email, OrganizationID: m.OrganizationID, Role: m.role(), MemberProjects: boundTo(m.role(), m.ProjectIDs)}, true, nil
}

// ErrExists is the 409 of a name that is taken.
var ErrExists = problem.New(problem.Conflict, "already_exists")

// errLastOwner keeps an organization from locking itself out.
var errLastOwner = problem.Newf(problem.Conflict, "last_owner", "an organization keeps at least one owner")

func insertMember(ctx context.Context, tx *commit.Tx, m memberRow) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO members (id, organization_id, email, role, project_ids, created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		m.ID, m.OrganizationID, m.Email, m.Role, m.ProjectIDs, m.CreatedAt, m.UpdatedAt)
	if isUnique(err) {
		return ErrExists
	}
	if err != nil {
		return fmt.Errorf("insert member: %w", err)
	}
	record(tx, m.entry("member.invited", nil, m.view()))
	return nil
}

// updateMember stores another role or other projects. Its tokens follow at once: they
// never allow more than the member may.
func updateMember(ctx context.Context, tx *commit.Tx, before, after memberRow) error {
	if before.role() == Owner && after.role() != Owner {
		if err := keepAnOwner(ctx, tx, before); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, `UPDATE members SET role = $2, project_ids = $3, updated_at = $4 WHERE id = $1`,
		after.ID, after.Role, after.ProjectIDs, after.UpdatedAt)
	if err != nil {
		return fmt.Errorf("update member: %w", err)
	}
	record(tx, after.entry("member.role.updated", before.view(), after.view()))
	return nil
}

func removeMember(ctx context.Context, tx *commit.Tx, m memberRow) error {
	if m.role() == Owner {
		if err := keepAnOwner(ctx, tx, m); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, `UPDATE members SET removed_at = now(), updated_at = now() WHERE id = $1`, m.ID); err != nil {
		return fmt.Errorf("remove member: %w", err)
	}
	record(tx, m.entry("member.removed", m.view(), nil))
	return nil
}

// lockMember is the organization's member of that id, locked, and with it every owner:
// whoever takes an owner away holds that owner's row, so that the others wait and two
// owners cannot remove each other at once. All are locked by one statement in the order
// of their ids, so that two such changes do not wait for each other.
func lockMember(ctx context.Context, tx *commit.Tx, organizationID, memberID string) (memberRow, error) {
	if !id.Valid(memberID) {
		return memberRow{}, ErrNotFound
	}
	rows, err := postgres.All(ctx, tx, "lock member", scanMember,
		memberSQL+`organization_id = $1 AND (id = $2 OR role = 'owner') ORDER BY id FOR NO KEY UPDATE`, organizationID, memberID)
	if err != nil {
		return memberRow{}, err
	}
	for _, row := range rows {
		if strings.EqualFold(row.ID, memberID) {
			return row, nil
		}
	}
	return memberRow{}, ErrNotFound
}

// keepAnOwner fails when m, an owner that lockMember locked, is the only one.
func keepAnOwner(ctx context.Context, tx *commit.Tx, m memberRow) error {
	var owners int
	err := tx.QueryRow(ctx, `SELECT count(*) FROM members WHERE organization_id = $1 AND role = 'owner' AND removed_at IS NULL`, m.OrganizationID).Scan(&owners)
	if err != nil {
		return fmt.Errorf("count owners: %w", err)
	}
	if owners < 2 {
		return errLastOwner
	}
	return nil
}

func isUnique(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "23505"
}

const (
	maxName  = 200
	maxEmail = 254
)

// checkName refuses names that no list could show.
func checkName(name string) error {
	switch {
	case strings.TrimSpace(name) == "":
		return jsonbody.Missing("name")
	case utf8.RuneCountInString(name) > maxName:
		return jsonbody.Invalid("name has more than %d characters", maxName)
	case strings.ContainsFunc(name, unicode.IsControl):
		return jsonbody.Invalid("name has control characters")
	}
	return nil
}

// checkEmail refuses what cannot be an address; whether it is one only mail can tell.
func checkEmail(email string) error {
	at := strings.LastIndexByte(email, '@')
	switch {
	case email == "":
		return jsonbody.Missing("email")
	case len(email) > maxEmail, at < 1, at == len(email)-1,
		strings.ContainsFunc(email, func(r rune) bool {
			return unicode.IsSpace(r) || unicode.IsControl(r) || strings.ContainsRune("<>,;\"", r)
		}):
		return jsonbody.Invalid("email is not an address")
	}
	return nil
}

func checkRole(name string) (Role, error) {
	if name == "" {
		return NoRole, jsonbody.Missing("role")
	}
	role, ok := ParseRole(name)
	if !ok {
		return NoRole, jsonbody.Invalid("role must be viewer, editor, project_admin, org_admin or owner")
	}
	return role, nil
}
