package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/pkg/apikey"
	"skerry/pkg/id"
	"skerry/pkg/page"
	"skerry/pkg/problem"
	"skerry/pkg/seal"
	"skerry/pkg/state"
	"skerry/writeplane/postgres"
)

// Config says how identities are made and checked.
type Config struct {
	// Issuer is the `iss` of this installation's tokens. Empty means "skerry".
	Issuer string
	// SealingKeys seal secrets in the database, 32 bytes each: the first one seals, the
	// others, former ones, still open what they sealed. None: the key is kept in the
	// database itself, so whoever can read all of the database can read the secrets.
	SealingKeys [][]byte
	// Issuers are the external OIDC issuers whose tokens are accepted.
	Issuers []IssuerConfig
}

// DefaultIssuer is the `iss` of tokens when none is configured.
const DefaultIssuer = "skerry"

// Validate names the first field that is wrong.
func (c Config) Validate() error {
	for i, key := range c.SealingKeys {
		if len(key) != seal.KeyLen {
			return fmt.Errorf("access: SealingKeys[%d] has %d bytes, not %d", i, len(key), seal.KeyLen)
		}
	}
	for i, issuer := range c.Issuers {
		if err := issuer.validate(); err != nil {
			return fmt.Errorf("access: Issuers[%d]: %w", i, err)
		}
		twice := func(other IssuerConfig) bool {
			return other.Issuer == issuer.Issuer && other.Audience == issuer.Audience
		}
		switch {
		case issuer.Issuer == c.Issuer:
			return fmt.Errorf("access: Issuers[%d]: field Issuer: %q is this installation's own", i, issuer.Issuer)
		case slices.ContainsFunc(c.Issuers[:i], twice):
			return fmt.Errorf("access: Issuers[%d]: another has the same Issuer and Audience", i)
		}
	}
	return nil
}

// Store answers who calls and what a call means. It is safe for concurrent use.
type Store struct {
	pool    *pgxpool.Pool
	sealer  *seal.Sealer
	cursors *page.Signer
	tokens  *tokens
	issuers []*issuer
	used    *lastUsed
}

// New opens the store: it makes the installation's signing key when there is none.
// External issuers are not called here, so that one that is away delays nothing.
func New(ctx context.Context, config Config, pool *pgxpool.Pool) (*Store, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	kept, err := postgres.Secret(ctx, pool, "sealing-key", seal.KeyLen)
	if err != nil {
		return nil, err
	}
	keys := append(slices.Clone(config.SealingKeys), kept)
	sealer, err := seal.New(keys[0], keys[1:]...)
	if err != nil {
		return nil, fmt.Errorf("open sealer: %w", err)
	}
	secret, err := postgres.Secret(ctx, pool, "cursor-key", 32)
	if err != nil {
		return nil, err
	}
	s := &Store{pool: pool, sealer: sealer, cursors: page.NewSigner(secret), used: newLastUsed(pool)}
	if s.tokens, err = openTokens(ctx, config, pool, sealer); err != nil {
		return nil, err
	}
	for _, each := range config.Issuers {
		s.issuers = append(s.issuers, newIssuer(each))
	}
	return s, nil
}

// Run writes down when keys were last used, until ctx ends.
func (s *Store) Run(ctx context.Context) error { return s.used.run(ctx) }

// Sealer seals other modules' secrets under the installation's key.
func (s *Store) Sealer() *seal.Sealer { return s.sealer }

// Cursors signs the cursors of all management lists.
func (s *Store) Cursors() *page.Signer { return s.cursors }

// maxCredential is the length in bytes of the longest token that is parsed at all.
const maxCredential = 16 << 10

// KeyIdentity is what an API key resolves to at this moment.
type KeyIdentity struct {
	KeyID          string
	ProjectID      string
	ProjectName    string
	OrganizationID string
	Environment    string
	Tier           string
	Modules        state.Modules
	Quotas         state.Quotas // in force: the project's own or else the tier's
	AuditResponses bool
}

const byKeySQL = `
SELECT k.id, p.id, p.name, p.organization_id, k.environment, o.tier, p.modules, p.quotas, p.audit_responses
FROM api_key_secrets s
JOIN api_keys k ON k.id = s.key_id
JOIN projects p ON p.id = k.project_id
JOIN organizations o ON o.id = p.organization_id
WHERE s.hash = $1 AND k.revoked_at IS NULL AND p.deleted_at IS NULL
  AND (s.expires_at IS NULL OR s.expires_at > now())`

// ByKey resolves the text of an API key; ok is false when it opens nothing now.
func (s *Store) ByKey(ctx context.Context, key string) (identity KeyIdentity, ok bool, err error) {
	if _, plausible := apikey.Environment(key); !plausible {
		return KeyIdentity{}, false, nil
	}
	hash := apikey.Of(key)
	var own state.Quotas
	err = s.pool.QueryRow(ctx, byKeySQL, hash[:]).Scan(&identity.KeyID, &identity.ProjectID, &identity.ProjectName,
		&identity.OrganizationID, &identity.Environment, &identity.Tier, &identity.Modules, &own, &identity.AuditResponses)
	if errors.Is(err, pgx.ErrNoRows) {
		return KeyIdentity{}, false, nil
	}
	if err != nil {
		return KeyIdentity{}, false, fmt.Errorf("resolve api key: %w", err)
	}
	identity.Quotas = EffectiveQuotas(identity.Tier, own)
	s.used.mark(identity.KeyID, time.Now())
	return identity, true, nil
}

// ProjectRow is a project with its settings.
type ProjectRow struct {
	ID             string
	OrganizationID string
	Tier           string
	Name           string
	Modules        state.Modules
	Allowlist      state.Allowlist
	RateLimits     state.RateLimits
	Quotas         state.Quotas // the project's own; nil members stand for the tier's
	AuditResponses bool
	CreatedAt      time.Time
	UpdatedAt      time.Time
}

// Access is the row as access sees it.
func (p ProjectRow) Access() Project { return Project{ID: p.ID, OrganizationID: p.OrganizationID} }

// EffectiveQuotas are the row's quotas in force.
func (p ProjectRow) EffectiveQuotas() state.Quotas { return EffectiveQuotas(p.Tier, p.Quotas) }

const projectSQL = `
SELECT p.id, p.organization_id, o.tier, p.name, p.modules, p.allowlist, p.rate_limits, p.quotas, p.audit_responses, p.created_at, p.updated_at
FROM projects p JOIN organizations o ON o.id = p.organization_id
WHERE p.deleted_at IS NULL AND `

func scanProject(row pgx.CollectableRow) (p ProjectRow, err error) {
	err = row.Scan(&p.ID, &p.OrganizationID, &p.Tier, &p.Name, &p.Modules, &p.Allowlist, &p.RateLimits, &p.Quotas,
		&p.AuditResponses, &p.CreatedAt, &p.UpdatedAt)
	return p, err
}

// ProjectByID reads a project that is not deleted; ErrNotFound when there is none.
func (s *Store) ProjectByID(ctx context.Context, projectID string) (ProjectRow, error) {
	return readProject(ctx, s.pool, projectID, "")
}

func readProject(ctx context.Context, q postgres.Querier, projectID, lock string) (ProjectRow, error) {
	if !id.Valid(projectID) {
		return ProjectRow{}, ErrNotFound
	}
	row, ok, err := postgres.One(ctx, q, "read project", scanProject, projectSQL+"p.id = $1 "+lock, projectID)
	if err == nil && !ok {
		return row, ErrNotFound
	}
	return row, err
}

// one runs a query for the row of an id; a malformed id is absent like any other.
func one[T any](ctx context.Context, q postgres.Querier, sql, rowID string, scan pgx.RowToFunc[T]) (row T, err error) {
	if !id.Valid(rowID) {
		return row, ErrNotFound
	}
	row, ok, err := postgres.One(ctx, q, "read row", scan, sql, rowID)
	if err == nil && !ok {
		return row, ErrNotFound
	}
	return row, err
}

// ErrEnvironment is the 400 of an environment that is neither of the two.
var ErrEnvironment = problem.New(problem.Invalid, "environment must be live or test")

// Environment is the environment that a management call means: the query's, else
// otherwise.
func Environment(query url.Values, otherwise string) (string, error) {
	if !query.Has("environment") {
		return otherwise, nil
	}
	env := query.Get("environment")
	if env != apikey.Live && env != apikey.Test {
		return "", ErrEnvironment
	}
	return env, nil
}

// ErrProjectRequired is the 400 of a call that does not say which project it means.
var ErrProjectRequired = problem.New(problem.Invalid, "project_id is required")

// Project is the project that a management call means (supplement §2): the token's
// own, else the query's project_id, else 400. One that the caller may not see is
// ErrNotFound, and so is one that contradicts the token's.
func (s *Store) Project(ctx context.Context, c *Call, r *http.Request) (Project, error) {
	row, err := s.ProjectRow(ctx, c, r)
	return row.Access(), err
}

// ProjectRow is Project with the settings.
func (s *Store) ProjectRow(ctx context.Context, c *Call, r *http.Request) (ProjectRow, error) {
	asked := r.URL.Query().Get("project_id")
	wanted := asked
	if own := c.Caller.ProjectID; own != "" {
		if asked != "" && !strings.EqualFold(asked, own) {
			return ProjectRow{}, ErrNotFound
		}
		wanted = own
	}
	if wanted == "" {
		return ProjectRow{}, ErrProjectRequired
	}
	row, err := s.ProjectByID(ctx, wanted)
	if err != nil {
		return ProjectRow{}, err
	}
	return row, c.See(row.Access())
}
