package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/golang-jwt/jwt/v5"
	"github.com/jackc/pgx/v5"

	"skerry/pkg/id"
	"skerry/pkg/problem"
)

// IssuerConfig is one external OpenID Connect issuer whose tokens are accepted. A
// token names a person by email; that person must be a member, and the member's role
// and projects hold. So removing the member ends the access, whatever the issuer says.
type IssuerConfig struct {
	Issuer   string // URL, equal to the tokens' `iss`; discovery is read below it
	Audience string // that tokens must be made for
	// OrganizationID whose members the issuer speaks for.
	OrganizationID string
	// EmailClaim names the claim that holds the email. Empty means "email".
	EmailClaim string
	// RoleClaim, when set, names a claim that may lower the member's role, never raise it;
	// a token without it, or with an unknown role, is refused.
	RoleClaim string
	// ProjectClaim, when set, names a claim that binds the token to one project.
	ProjectClaim string
	// TrustUnverifiedEmail accepts emails that the issuer does not call verified.
	TrustUnverifiedEmail bool
	// Algorithms accepted. Empty means RS256, ES256 and EdDSA; never an HMAC or none.
	Algorithms []string
}

var externalAlgorithms = []string{oidc.RS256, oidc.ES256, oidc.EdDSA}

var allowedAlgorithms = map[string]bool{
	oidc.RS256: true, oidc.RS384: true, oidc.RS512: true, oidc.ES256: true, oidc.ES384: true, oidc.ES512: true,
	oidc.PS256: true, oidc.PS384: true, oidc.PS512: true, oidc.EdDSA: true,
}

func (c IssuerConfig) validate() error {
	parsed, err := url.Parse(c.Issuer)
	switch {
	case err != nil || parsed.Host == "" || (parsed.Scheme != "https" && parsed.Scheme != "http"):
		return fmt.Errorf("field Issuer: %q is not an http or https URL", c.Issuer)
	case c.Audience == "":
		return errors.New("field Audience is empty")
	case !id.Valid(c.OrganizationID):
		return fmt.Errorf("field OrganizationID: %q is not a UUID", c.OrganizationID)
	}
	for _, alg := range c.Algorithms {
		if !allowedAlgorithms[alg] {
			return fmt.Errorf("field Algorithms: %q is not an asymmetric signature", alg)
		}
	}
	return nil
}

// errIssuerAway is the 503 of a token that cannot be judged now.
var errIssuerAway = problem.Newf(problem.Unavailable, "Service temporarily unavailable", "the token's issuer cannot be reached")

// issuer is an external issuer whose discovery is read on first use and again after
// a failure, at most every few seconds.
type issuer struct {
	config IssuerConfig
	client *http.Client

	mu       sync.Mutex
	verifier *oidc.IDTokenVerifier
	failed   time.Time // when discovery last failed
	err      error
}

const (
	discoveryTimeout = 5 * time.Second
	discoveryRetry   = 5 * time.Second
)

func newIssuer(config IssuerConfig) *issuer {
	if config.EmailClaim == "" {
		config.EmailClaim = "email"
	}
	if len(config.Algorithms) == 0 {
		config.Algorithms = externalAlgorithms
	}
	return &issuer{config: config, client: &http.Client{Timeout: discoveryTimeout, Transport: newRation(http.DefaultTransport)}}
}

// open returns the verifier. One caller reads the discovery, the others wait for it:
// it is bounded by the client's timeout.
func (i *issuer) open(ctx context.Context) (*oidc.IDTokenVerifier, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.verifier != nil {
		return i.verifier, nil
	}
	if i.err != nil && time.Since(i.failed) < discoveryRetry {
		return nil, i.err
	}
	// The key set outlives this request, so it must not end with it.
	provider, err := oidc.NewProvider(oidc.ClientContext(context.WithoutCancel(ctx), i.client), i.config.Issuer)
	if err != nil {
		slog.WarnContext(ctx, "external issuer away", "issuer", i.config.Issuer, "error", err)
		i.failed, i.err = time.Now(), errIssuerAway
		return nil, i.err
	}
	i.verifier = provider.Verifier(&oidc.Config{ClientID: i.config.Audience, SupportedSigningAlgs: i.config.Algorithms})
	return i.verifier, nil
}

// issuerOf is the external issuer that an unverified token claims to be from; nil
// means that it is for our own keys to judge.
func (s *Store) issuerOf(text string) *issuer {
	if len(s.issuers) == 0 {
		return nil
	}
	var unverified jwt.RegisteredClaims
	if _, _, err := jwt.NewParser().ParseUnverified(text, &unverified); err != nil {
		return nil
	}
	var from *issuer
	for _, each := range s.issuers {
		if each.config.Issuer != unverified.Issuer {
			continue
		}
		// One issuer may speak for several organizations, to each by an audience
		// of its own.
		if from == nil || slices.Contains(unverified.Audience, each.config.Audience) {
			from = each
		}
	}
	return from
}

func (s *Store) authenticateExternal(ctx context.Context, from *issuer, text string) (Caller, error) {
	verifier, err := from.open(ctx)
	if err != nil {
		return Caller{}, err
	}
	token, err := verifier.Verify(ctx, text)
	if err != nil && strings.Contains(err.Error(), "fetching keys") { // go-oidc keeps no type for it
		slog.WarnContext(ctx, "external issuer's keys away", "issuer", from.config.Issuer, "error", err)
		return Caller{}, errIssuerAway
	}
	if err != nil {
		return Caller{}, ErrBadToken
	}
	var said map[string]any
	if err := token.Claims(&said); err != nil {
		return Caller{}, ErrBadToken
	}
	email, _ := said[from.config.EmailClaim].(string)
	verified, _ := said["email_verified"].(bool)
	if email == "" || (!verified && !from.config.TrustUnverifiedEmail) {
		return Caller{}, ErrBadToken
	}
	caller, err := s.memberByEmail(ctx, from.config.OrganizationID, email)
	if err != nil {
		return Caller{}, err
	}
	return narrow(caller, from.config, said)
}

// narrow lowers the member's role and sight to what the token's claims allow.
func narrow(caller Caller, config IssuerConfig, said map[string]any) (Caller, error) {
	if config.RoleClaim != "" {
		text, _ := said[config.RoleClaim].(string)
		role, known := ParseRole(text)
		if !known {
			return Caller{}, ErrBadToken
		}
		caller.Role = min(caller.Role, role)
	}
	if config.ProjectClaim != "" {
		if project, _ := said[config.ProjectClaim].(string); project != "" {
			if !id.Valid(project) {
				return Caller{}, ErrBadToken
			}
			caller.ProjectID = strings.ToLower(project)
		}
	}
	return caller, nil
}

func (s *Store) memberByEmail(ctx context.Context, organizationID, email string) (Caller, error) {
	caller := Caller{OrganizationID: organizationID}
	var role string
	var projects []string
	err := s.pool.QueryRow(ctx, `
		SELECT id, email, role, project_ids FROM members
		WHERE organization_id = $1 AND lower(email) = lower($2) AND removed_at IS NULL`, organizationID, email).
		Scan(&caller.Subject, &caller.Email, &role, &projects)
	if errors.Is(err, pgx.ErrNoRows) {
		return Caller{}, ErrBadToken
	}
	if err != nil {
		return Caller{}, fmt.Errorf("read member: %w", err)
	}
	caller.Role, _ = ParseRole(role)
	caller.MemberProjects = boundTo(caller.Role, projects)
	return caller, nil
}
