package access

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/pkg/id"
	"skerry/pkg/seal"
	"skerry/writeplane/postgres"
)

// Audience is the `aud` of this installation's tokens (supplement §2).
const Audience = "skerry"

// Why a call has no Caller. Each family of endpoints words them in its own way.
var (
	ErrNoToken  = errors.New("no Authorization header")
	ErrBadToken = errors.New("not a token that holds now")
)

// claims are what a token says (supplement §2).
type claims struct {
	jwt.RegisteredClaims
	Email     string `json:"email"`
	Org       string `json:"org"`
	Role      string `json:"role"`
	ProjectID string `json:"project_id,omitempty"`
}

// tokens signs and verifies this installation's own tokens.
type tokens struct {
	issuer string
	kid    string
	sign   ed25519.PrivateKey
	verify map[string]ed25519.PublicKey // by kid
	parser *jwt.Parser
	times  *jwt.Validator // of the claims, as the parser does it
	seen   verified
	jwks   []byte
}

func openTokens(ctx context.Context, config Config, pool *pgxpool.Pool, sealer *seal.Sealer) (*tokens, error) {
	t := &tokens{issuer: config.Issuer, verify: map[string]ed25519.PublicKey{}}
	if t.issuer == "" {
		t.issuer = DefaultIssuer
	}
	// The method is fixed here and never taken from the token: neither "none" nor an
	// HMAC keyed with the public key gets as far as a comparison.
	options := []jwt.ParserOption{
		jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}),
		jwt.WithIssuer(t.issuer), jwt.WithAudience(Audience),
		jwt.WithExpirationRequired(), jwt.WithStrictDecoding(),
	}
	t.parser, t.times = jwt.NewParser(options...), jwt.NewValidator(options...)
	err := postgres.InTx(ctx, pool, func(tx pgx.Tx) error {
		// Two processes that start at once must not make a key each.
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtext('skerry signing keys'))`); err != nil {
			return err
		}
		if err := t.load(ctx, tx, sealer); err != nil || t.kid != "" {
			return err
		}
		if err := makeSigningKey(ctx, tx, sealer); err != nil {
			return err
		}
		return t.load(ctx, tx, sealer)
	})
	if err != nil {
		return nil, fmt.Errorf("open signing keys: %w", err)
	}
	return t, t.render()
}

func makeSigningKey(ctx context.Context, tx pgx.Tx, sealer *seal.Sealer) error {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("generate key: %w", err)
	}
	sum := sha256.Sum256(public)
	kid := base64.RawURLEncoding.EncodeToString(sum[:12])
	_, err = tx.Exec(ctx, `INSERT INTO signing_keys (kid, sealed, public, created_at) VALUES ($1, $2, $3, now())`,
		kid, sealer.Seal(signingPurpose(kid), private.Seed()), []byte(public))
	return err
}

func signingPurpose(kid string) string { return "signing-key:" + kid }

// load reads all keys; the newest becomes the one that signs.
func (t *tokens) load(ctx context.Context, tx pgx.Tx, sealer *seal.Sealer) error {
	rows, err := tx.Query(ctx, `SELECT kid, sealed, public FROM signing_keys ORDER BY created_at, kid`)
	if err != nil {
		return err
	}
	var kid string
	var sealed, public []byte
	_, err = pgx.ForEachRow(rows, []any{&kid, &sealed, &public}, func() error {
		seed, err := sealer.Open(signingPurpose(kid), sealed)
		if err != nil {
			return fmt.Errorf("signing key %s: %w", kid, err)
		}
		if len(seed) != ed25519.SeedSize || len(public) != ed25519.PublicKeySize {
			return fmt.Errorf("signing key %s is damaged", kid)
		}
		t.kid, t.sign = kid, ed25519.NewKeyFromSeed(seed)
		t.verify[kid] = ed25519.PublicKey(append([]byte(nil), public...))
		return nil
	})
	return err
}

// render makes the body of GET /.well-known/jwks.json (RFC 7517, RFC 8037).
func (t *tokens) render() error {
	type jwk struct {
		Kty string `json:"kty"`
		Crv string `json:"crv"`
		X   string `json:"x"`
		Kid string `json:"kid"`
		Alg string `json:"alg"`
		Use string `json:"use"`
	}
	set := struct {
		Keys []jwk `json:"keys"`
	}{}
	for _, kid := range slices.Sorted(maps.Keys(t.verify)) { // every process gives the same text
		set.Keys = append(set.Keys, jwk{"OKP", "Ed25519", base64.RawURLEncoding.EncodeToString(t.verify[kid]), kid, "EdDSA", "sig"})
	}
	var err error
	t.jwks, err = json.Marshal(set)
	return err
}

// Grant is what a token is made to allow.
type Grant struct {
	TokenID        string // jti
	MemberID       string // sub
	Email          string
	OrganizationID string
	Role           Role
	ProjectID      string // empty: every project the member may see
	IssuedAt       time.Time
	ExpiresAt      time.Time
}

// mint signs a token. The same grant gives the same text, as Ed25519 is deterministic.
func (t *tokens) mint(g Grant) (string, error) {
	body := jwt.MapClaims{
		"iss": t.issuer, "aud": Audience, "sub": g.MemberID, "email": g.Email, "org": g.OrganizationID,
		"role": g.Role.String(), "iat": g.IssuedAt.Unix(), "exp": g.ExpiresAt.Unix(), "jti": g.TokenID,
	}
	if g.ProjectID != "" {
		body["project_id"] = g.ProjectID
	}
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, body)
	token.Header["kid"] = t.kid
	signed, err := token.SignedString(t.sign)
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	return signed, nil
}

// parse returns what a token says whose signature is ours and whose time is now.
func (t *tokens) parse(text string) (claims, error) {
	if c, known := t.seen.look(text); known {
		return c, t.times.Validate(c)
	}
	var c claims
	_, err := t.parser.ParseWithClaims(text, &c, func(token *jwt.Token) (any, error) {
		// Whoever does not know a critical member must not accept the token (RFC 7515,
		// section 4.1.11); we know none, and the parser passes over the list.
		if _, critical := token.Header["crit"]; critical {
			return nil, errors.New("critical header members are not understood")
		}
		kid, _ := token.Header["kid"].(string)
		public, known := t.verify[kid]
		if !known {
			return nil, fmt.Errorf("no key %q", kid)
		}
		return public, nil
	})
	if err == nil {
		t.seen.note(text, c)
	}
	return c, err
}

// Authenticate tells who calls by the Authorization header's value. The error is
// ErrNoToken, ErrBadToken, or one that means that it could not be found out.
//
// A signature alone admits nobody: the token's row and its member's are read at this
// moment, by one indexed query, so that a revocation holds at the next request.
func (s *Store) Authenticate(ctx context.Context, authorization string) (Caller, error) {
	if authorization == "" {
		return Caller{}, ErrNoToken
	}
	scheme, text, _ := strings.Cut(authorization, " ")
	text = strings.TrimSpace(text)
	if !strings.EqualFold(scheme, "Bearer") || text == "" || len(text) > maxCredential {
		return Caller{}, ErrBadToken
	}
	if issuer := s.issuerOf(text); issuer != nil {
		return s.authenticateExternal(ctx, issuer, text)
	}
	c, err := s.tokens.parse(text)
	if err != nil {
		return Caller{}, ErrBadToken
	}
	return s.callerOf(ctx, c)
}

const callerSQL = `
SELECT m.organization_id, m.email, m.role, m.project_ids, t.role, coalesce(t.project_id::text, '')
FROM api_tokens t
JOIN members m ON m.id = t.member_id
LEFT JOIN projects p ON p.id = t.project_id
WHERE t.id = $1 AND t.member_id = $2 AND t.revoked_at IS NULL AND m.removed_at IS NULL AND p.deleted_at IS NULL`

// callerOf is the caller that verified claims stand for now. A token never allows
// more than its member may at this moment.
func (s *Store) callerOf(ctx context.Context, c claims) (Caller, error) {
	if !id.Valid(c.ID) || !id.Valid(c.Subject) {
		return Caller{}, ErrBadToken
	}
	caller := Caller{Subject: c.Subject, TokenID: c.ID}
	var memberRole, tokenRole string
	var projects []string
	err := s.pool.QueryRow(ctx, callerSQL, c.ID, c.Subject).Scan(
		&caller.OrganizationID, &caller.Email, &memberRole, &projects, &tokenRole, &caller.ProjectID)
	if errors.Is(err, pgx.ErrNoRows) {
		return Caller{}, ErrBadToken
	}
	if err != nil {
		return Caller{}, fmt.Errorf("read token's member: %w", err)
	}
	if c.Org != caller.OrganizationID || c.Role != tokenRole || c.ProjectID != caller.ProjectID {
		return Caller{}, ErrBadToken
	}
	own, _ := ParseRole(memberRole)
	granted, _ := ParseRole(tokenRole)
	caller.Role = min(own, granted)
	caller.MemberProjects = boundTo(own, projects)
	return caller, nil
}

// boundTo is what a member of the role is bound to: never nil for one below
// OrgAdmin, who so sees nothing when the list is empty.
func boundTo(role Role, projects []string) []string {
	if role >= OrgAdmin {
		return nil
	}
	if projects == nil {
		projects = []string{}
	}
	return projects
}

// JWKS serves the public keys (GET /.well-known/jwks.json).
func (s *Store) JWKS(w http.ResponseWriter, _ *http.Request, _ *Call) error {
	w.Header().Set("Content-Type", "application/jwk-set+json")
	w.Header().Set("Cache-Control", "public, max-age=300")
	_, err := w.Write(s.tokens.jwks)
	return err
}
