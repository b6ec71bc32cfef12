package access

import (
	"context"
	"fmt"
	"time"

	"skerry/pkg/apikey"
	"skerry/pkg/id"
	"skerry/pkg/state"
	"skerry/replication"
	"skerry/writeplane/commit"
)

// Founding is everything random about a first organization, its project, keys and
// members. Whoever founds writes it to a safe place first and hands it to Bootstrap
// then, as often as needed: the same founding always ends in the same organization
// with the same secrets, wherever the process was killed in between.
type Founding struct {
	OrganizationID   string                    `json:"organization_id"`
	OrganizationName string                    `json:"organization_name"`
	Tier             string                    `json:"tier"`
	ProjectID        string                    `json:"project_id"`
	ProjectName      string                    `json:"project_name"`
	Keys             map[string]FoundingKey    `json:"keys"`    // by environment
	Members          map[string]FoundingMember `json:"members"` // by the token's name in credentials
	At               time.Time                 `json:"at"`
}

// FoundingKey is an API key to be made: Secret is its text.
type FoundingKey struct {
	ID     string `json:"id"`
	Secret string `json:"secret"`
}

// FoundingMember is a member to be made, with one token.
type FoundingMember struct {
	ID      string `json:"id"`
	Email   string `json:"email"`
	Role    string `json:"role"`
	TokenID string `json:"token_id"`
	// Bound: the token carries the project's id.
	Bound bool `json:"bound"`
}

// foundingTokenLife is long because nobody renews the credentials of a demo.
const foundingTokenLife = 10 * 365 * 24 * time.Hour

// NewFounding plans an organization with one project, a live and a test key, and the
// members viewer, editor (tokens bound to the project), admin and owner (bound to none).
func NewFounding(organization, project, tier string) Founding {
	f := Founding{
		OrganizationID: id.New(), OrganizationName: organization, Tier: tier,
		ProjectID: id.New(), ProjectName: project,
		Keys: map[string]FoundingKey{}, Members: map[string]FoundingMember{},
		At: time.Now().UTC().Truncate(time.Second),
	}
	for _, environment := range []string{apikey.Live, apikey.Test} {
		f.Keys[environment] = FoundingKey{ID: id.New(), Secret: apikey.New(environment)}
	}
	add := func(name string, role Role, bound bool) {
		f.Members[name] = FoundingMember{ID: id.New(), Email: name + "@example.com", Role: role.String(), TokenID: id.New(), Bound: bound}
	}
	add("viewer", Viewer, true)
	add("editor", Editor, true)
	add("admin", OrgAdmin, false)
	add("owner", Owner, false)
	return f
}

// Validate names what the management interface would refuse, too.
func (f Founding) Validate() error {
	if err := checkName(f.OrganizationName); err != nil {
		return fmt.Errorf("organization: %w", err)
	}
	if err := checkName(f.ProjectName); err != nil {
		return fmt.Errorf("project: %w", err)
	}
	for _, member := range f.Members {
		if err := checkEmail(member.Email); err != nil {
			return fmt.Errorf("%q: %w", member.Email, err)
		}
	}
	return nil
}

// Bootstrap makes what the founding plans unless its organization exists, and returns
// the members' tokens by name.
func (s *Store) Bootstrap(ctx context.Context, store *commit.Store, f Founding) (map[string]string, error) {
	origin := commit.Origin{Actor: commit.Actor{ID: "system:bootstrap"}}
	err := store.InTx(ctx, origin, func(tx *commit.Tx) error {
		made, err := tx.Exec(ctx, `INSERT INTO organizations (id, name, tier, created_at, updated_at)
			VALUES ($1, $2, $3, $4, $4) ON CONFLICT DO NOTHING`, f.OrganizationID, f.OrganizationName, f.Tier, f.At)
		if err != nil || made.RowsAffected() == 0 {
			return err
		}
		return s.found(ctx, tx, f)
	})
	if err != nil {
		return nil, fmt.Errorf("bootstrap organization: %w", err)
	}
	texts := make(map[string]string, len(f.Members))
	for name, member := range f.Members {
		role, _ := ParseRole(member.Role)
		grant := Grant{TokenID: member.TokenID, MemberID: member.ID, Email: member.Email, OrganizationID: f.OrganizationID,
			Role: role, IssuedAt: f.At, ExpiresAt: f.At.Add(foundingTokenLife)}
		if member.Bound {
			grant.ProjectID = f.ProjectID
		}
		if texts[name], err = s.tokens.mint(grant); err != nil {
			return nil, err
		}
	}
	return texts, nil
}

func (s *Store) found(ctx context.Context, tx *commit.Tx, f Founding) error {
	project := newProject(f.OrganizationID, f.Tier, f.ProjectName, f.At)
	project.ID = f.ProjectID
	if err := insertProject(ctx, tx, project); err != nil {
		return err
	}
	for environment, key := range f.Keys {
		row := keyRow{ID: key.ID, ProjectID: f.ProjectID, OrganizationID: f.OrganizationID, Environment: environment,
			Name: "demo " + environment, Prefix: apikey.Display(key.Secret), CreatedAt: f.At}
		if err := insertKey(ctx, tx, row, key.Secret); err != nil {
			return err
		}
	}
	for name, member := range f.Members {
		projects := []string{}
		if member.Bound {
			projects = append(projects, f.ProjectID)
		}
		row := memberRow{ID: member.ID, OrganizationID: f.OrganizationID, Email: member.Email, Role: member.Role,
			ProjectIDs: projects, CreatedAt: f.At, UpdatedAt: f.At}
		if err := insertMember(ctx, tx, row); err != nil {
			return err
		}
		token := tokenRow{ID: member.TokenID, OrganizationID: f.OrganizationID, MemberID: member.ID, Name: "bootstrap " + name,
			Role: member.Role, CreatedAt: f.At, ExpiresAt: f.At.Add(foundingTokenLife)}
		if member.Bound {
			token.ProjectID = &f.ProjectID
		}
		if err := insertToken(ctx, tx, token); err != nil {
			return err
		}
	}
	return nil
}

// newProject is a project with the settings that nobody has changed yet.
func newProject(organizationID, tier, name string, at time.Time) ProjectRow {
	return ProjectRow{
		ID: id.New(), OrganizationID: organizationID, Tier: tier, Name: name,
		Modules:    state.Modules{Switch: true, Config: true, Pulse: true, Catch: true},
		Allowlist:  state.Allowlist{Origins: []string{}, CIDRs: []string{}},
		RateLimits: state.RateLimits{IngestPerMinute: 500, HandshakePerMinute: 500},
		CreatedAt:  at, UpdatedAt: at,
	}
}

// putProject hands over the document that edges know the project by.
func putProject(tx *commit.Tx, p ProjectRow) error {
	return tx.Put(replication.ProjectSubject(p.ID), state.Project{
		ID: p.ID, OrganizationID: p.OrganizationID, Name: p.Name, Tier: p.Tier, Modules: p.Modules,
		Allowlist: p.Allowlist, RateLimits: p.RateLimits, Quotas: p.EffectiveQuotas(),
	})
}
