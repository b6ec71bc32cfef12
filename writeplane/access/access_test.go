package access_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/jackc/pgx/v5"

	"skerry/pkg/openapi/openapitest"
	"skerry/pkg/seal"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// plane is access on a database of its own, with one founded organization.
type plane struct {
	db       *postgres.DB
	store    *access.Store
	commits  *commit.Store
	founding access.Founding
	tokens   map[string]string

	mu      sync.Mutex
	entries []commit.Entry
}

func newPlane(t testing.TB) *plane { return newPlaneWith(t, access.Config{}) }

func newPlaneWith(t testing.TB, config access.Config) *plane {
	t.Helper()
	p := &plane{db: dbtest.New(t)}
	p.commits = commit.New(p.db.App, commit.Sinks{
		Audit: func(_ *postgres.Pipeline, _ commit.Origin, entries []commit.Entry) (func(context.Context) ([]commit.StoredEntry, error), error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.entries = append(p.entries, entries...)
			return func(context.Context) ([]commit.StoredEntry, error) { return nil, nil }, nil
		},
		Deliveries: func(ctx context.Context, tx *postgres.Pipeline, _ []commit.Event, _ []commit.Entry) (func([]commit.StoredEntry) error, error) {
			return func([]commit.StoredEntry) error { return nil }, tx.Settle(ctx)
		},
	})
	var err error
	if p.store, err = access.New(t.Context(), config, p.db.App); err != nil {
		t.Fatal(err)
	}
	p.founding = access.NewFounding("Example", "Demo", access.Pro)
	if p.tokens, err = p.store.Bootstrap(t.Context(), p.commits, p.founding); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *plane) caller(t testing.TB, token string) (access.Caller, error) {
	t.Helper()
	return p.store.Authenticate(t.Context(), "Bearer "+token)
}

func TestBootstrapMakesWhatItsTokensAndKeysSay(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	for name, want := range map[string]struct {
		role    access.Role
		project string
	}{
		"viewer": {access.Viewer, p.founding.ProjectID},
		"editor": {access.Editor, p.founding.ProjectID},
		"admin":  {access.OrgAdmin, ""},
		"owner":  {access.Owner, ""},
	} {
		caller, err := p.caller(t, p.tokens[name])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if caller.Role != want.role || caller.ProjectID != want.project || caller.OrganizationID != p.founding.OrganizationID || caller.Email != name+"@example.com" {
			t.Errorf("%s: %+v", name, caller)
		}
		if !caller.Sees(access.Project{ID: p.founding.ProjectID, OrganizationID: p.founding.OrganizationID}) {
			t.Errorf("%s does not see the project", name)
		}
	}
	for environment, key := range p.founding.Keys {
		identity, ok, err := p.store.ByKey(t.Context(), key.Secret)
		if err != nil || !ok || identity.Environment != environment || identity.ProjectID != p.founding.ProjectID || identity.Tier != "pro" {
			t.Errorf("%s key: %+v, %v, %v", environment, identity, ok, err)
		}
		if *identity.Quotas.Events != 5_000_000 || *identity.Quotas.Handshakes != 10_000_000 || *identity.Quotas.Responses != 50_000 {
			t.Errorf("quotas of pro: %+v", identity.Quotas)
		}
	}
}

func TestBootstrapAgainChangesNothing(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	before := len(p.entries)
	again, err := p.store.Bootstrap(t.Context(), p.commits, p.founding)
	if err != nil {
		t.Fatal(err)
	}
	for name := range p.tokens {
		if again[name] != p.tokens[name] {
			t.Errorf("%s has another token", name)
		}
	}
	if len(p.entries) != before {
		t.Errorf("%d more audit entries", len(p.entries)-before)
	}
}

func TestSecondProcessVerifiesTheFirstsTokens(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	second, err := access.New(t.Context(), access.Config{}, p.db.App)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := second.Authenticate(t.Context(), "Bearer "+p.tokens["owner"]); err != nil {
		t.Fatal(err)
	}
}

func TestFormerSealingKeyOpensUntilItIsTakenAway(t *testing.T) {
	t.Parallel()
	former, current := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	p := newPlaneWith(t, access.Config{SealingKeys: [][]byte{former}})
	both, err := access.New(t.Context(), access.Config{SealingKeys: [][]byte{current, former}}, p.db.App)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := both.Authenticate(t.Context(), "Bearer "+p.tokens["owner"]); err != nil {
		t.Error(err)
	}
	if _, err := access.New(t.Context(), access.Config{SealingKeys: [][]byte{current}}, p.db.App); !errors.Is(err, seal.ErrOpen) {
		t.Errorf("without the former key: %v, want %v", err, seal.ErrOpen)
	}

	// A new signing key is sealed by the current one, and the owner gets a token that it signs.
	if _, err := p.db.Owner.Exec(t.Context(), `DELETE FROM signing_keys`); err != nil {
		t.Fatal(err)
	}
	alone, err := access.New(t.Context(), access.Config{SealingKeys: [][]byte{current}}, p.db.App)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := alone.Authenticate(t.Context(), "Bearer "+p.tokens["owner"]); err == nil {
		t.Error("a token of the signing key that is gone holds")
	}
	again, err := alone.Bootstrap(t.Context(), p.commits, p.founding)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := alone.Authenticate(t.Context(), "Bearer "+again["owner"]); err != nil {
		t.Error(err)
	}
}

// signer makes tokens with the installation's own private key, to be wrong in one way each.
type signer struct {
	kid     string
	private ed25519.PrivateKey
	claims  jwt.MapClaims
}

func (p *plane) signer(t testing.TB) signer {
	t.Helper()
	var s signer
	var sealed []byte
	if err := p.db.App.QueryRow(t.Context(), `SELECT kid, sealed FROM signing_keys`).Scan(&s.kid, &sealed); err != nil {
		t.Fatal(err)
	}
	seed, err := p.store.Sealer().Open("signing-key:"+s.kid, sealed)
	if err != nil {
		t.Fatal(err)
	}
	s.private = ed25519.NewKeyFromSeed(seed)
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(p.tokens["owner"], ".")[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(payload, &s.claims); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s signer) sign(t testing.TB, method jwt.SigningMethod, key any, kid string, change func(jwt.MapClaims)) string {
	t.Helper()
	body := jwt.MapClaims{}
	for name, value := range s.claims {
		body[name] = value
	}
	if change != nil {
		change(body)
	}
	token := jwt.NewWithClaims(method, body)
	if kid != "" {
		token.Header["kid"] = kid
	}
	text, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// critical signs a token that may be accepted only by who understands the header member.
func (s signer) critical(t testing.TB, member string) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, s.claims)
	token.Header["kid"] = s.kid
	token.Header["crit"] = []string{member}
	if strings.HasPrefix(member, "https:") {
		token.Header[member] = true
	}
	text, err := token.SignedString(s.private)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestTokenTricksAreRefused(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	s := p.signer(t)
	eddsa := jwt.SigningMethodEdDSA
	_, stranger, _ := ed25519.GenerateKey(nil)
	public := s.private.Public().(ed25519.PublicKey)

	if _, err := p.caller(t, s.sign(t, eddsa, s.private, s.kid, nil)); err != nil {
		t.Fatalf("the unchanged token is refused: %v", err)
	}
	good := strings.Split(p.tokens["viewer"], ".")
	owner := strings.Split(p.tokens["owner"], ".")
	tricks := map[string]string{
		"algorithm none":                s.sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, s.kid, nil),
		"HS256 with the public key":     s.sign(t, jwt.SigningMethodHS256, []byte(public), s.kid, nil),
		"HS512 with the key set's text": s.sign(t, jwt.SigningMethodHS512, []byte(base64.RawURLEncoding.EncodeToString(public)), s.kid, nil),
		"another key under our kid":     s.sign(t, eddsa, stranger, s.kid, nil),
		"our key under another kid":     s.sign(t, eddsa, s.private, "other", nil),
		"no kid":                        s.sign(t, eddsa, s.private, "", nil),
		"kid of a path":                 s.sign(t, eddsa, s.private, "../../etc/passwd", nil),
		"wrong audience":                s.sign(t, eddsa, s.private, s.kid, func(c jwt.MapClaims) { c["aud"] = "other" }),
		"no audience":                   s.sign(t, eddsa, s.private, s.kid, func(c jwt.MapClaims) { delete(c, "aud") }),
		"wrong issuer":                  s.sign(t, eddsa, s.private, s.kid, func(c jwt.MapClaims) { c["iss"] = "https://elsewhere.example" }),
		"no issuer":                     s.sign(t, eddsa, s.private, s.kid, func(c jwt.MapClaims) { delete(c, "iss") }),
		"no expiry":                     s.sign(t, eddsa, s.private, s.kid, func(c jwt.MapClaims) { delete(c, "exp") }),
		"expired by a second":           s.sign(t, eddsa, s.private, s.kid, func(c jwt.MapClaims) { c["exp"] = time.Now().Add(-time.Second).Unix() }),
		"not valid yet":                 s.sign(t, eddsa, s.private, s.kid, func(c jwt.MapClaims) { c["nbf"] = time.Now().Add(time.Hour).Unix() }),
		"no jti":                        s.sign(t, eddsa, s.private, s.kid, func(c jwt.MapClaims) { delete(c, "jti") }),
		"jti that was never given out":  s.sign(t, eddsa, s.private, s.kid, func(c jwt.MapClaims) { c["jti"] = "01890000-0000-7000-8000-000000000000" }),
		"another member's jti":          s.sign(t, eddsa, s.private, s.kid, func(c jwt.MapClaims) { c["sub"] = p.founding.Members["viewer"].ID }),
		"another role than was given": s.sign(t, eddsa, s.private, s.kid, func(c jwt.MapClaims) {
			c["jti"], c["sub"] = p.founding.Members["viewer"].TokenID, p.founding.Members["viewer"].ID
		}),
		"another organization":             s.sign(t, eddsa, s.private, s.kid, func(c jwt.MapClaims) { c["org"] = p.founding.ProjectID }),
		"a critical header member":         s.critical(t, "https://example.com/only-on-weekdays"),
		"a critical member that is absent": s.critical(t, "exp"),
		"owner's claims, viewer's sign":    strings.Join([]string{good[0], owner[1], good[2]}, "."),
		"no signature":                     owner[0] + "." + owner[1] + ".",
		"two parts":                        owner[0] + "." + owner[1],
		"signature with a stray final bit": flipLastBits(p.tokens["owner"]),
		"an api key":                       p.founding.Keys["live"].Secret,
		"a deploy token":                   "sk_deploy_" + strings.Repeat("a", 32),
		"a megabyte":                       strings.Repeat("a", 1<<20),
		"nothing":                          "",
	}
	for name, token := range tricks {
		if caller, err := p.caller(t, token); !errors.Is(err, access.ErrBadToken) {
			t.Errorf("%s: %+v, %v", name, caller, err)
		}
	}
	for header, want := range map[string]error{
		"": access.ErrNoToken, "Basic dTpw": access.ErrBadToken, p.tokens["owner"]: access.ErrBadToken, "Bearer": access.ErrBadToken,
	} {
		if _, err := p.store.Authenticate(t.Context(), header); !errors.Is(err, want) {
			t.Errorf("header %.10q: %v", header, err)
		}
	}
	if _, err := p.store.Authenticate(t.Context(), "bearer  "+p.tokens["owner"]); err != nil {
		t.Errorf("the scheme's name has no case: %v", err)
	}
}

// flipLastBits changes the unused bits of the last base64 character: the same bytes
// to a lax decoder, another text.
func flipLastBits(token string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(alphabet, token[len(token)-1])
	return token[:len(token)-1] + string(alphabet[last^1])
}

func TestKeySetHoldsThePublicKeyAlone(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	recorder := httptest.NewRecorder()
	if err := p.store.JWKS(recorder, httptest.NewRequest("GET", "/.well-known/jwks.json", nil), nil); err != nil {
		t.Fatal(err)
	}
	openapitest.Check(t, "GET", "/.well-known/jwks.json", recorder.Code, recorder.Header(), recorder.Body.Bytes())
	var set struct{ Keys []map[string]string }
	if err := json.Unmarshal(recorder.Body.Bytes(), &set); err != nil || len(set.Keys) != 1 {
		t.Fatalf("%s: %v", recorder.Body, err)
	}
	key := set.Keys[0]
	if key["kty"] != "OKP" || key["crv"] != "Ed25519" || key["alg"] != "EdDSA" || key["d"] != "" || key["kid"] != p.signer(t).kid {
		t.Errorf("%v", key)
	}
	public, err := base64.RawURLEncoding.DecodeString(key["x"])
	if err != nil {
		t.Fatal(err)
	}
	// A verifier that knows the set alone accepts our token.
	_, err = jwt.Parse(p.tokens["viewer"], func(*jwt.Token) (any, error) { return ed25519.PublicKey(public), nil }, jwt.WithValidMethods([]string{"EdDSA"}))
	if err != nil {
		t.Error(err)
	}
}

func TestRemovedMemberIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	dbtest.Exec(t, p.db.App, `UPDATE members SET removed_at = now() WHERE id = $1`, p.founding.Members["viewer"].ID)
	if _, err := p.caller(t, p.tokens["viewer"]); !errors.Is(err, access.ErrBadToken) {
		t.Fatal(err)
	}
}

func TestTokenAllowsNoMoreThanItsMemberNow(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	dbtest.Exec(t, p.db.App, `UPDATE members SET role = 'viewer' WHERE id = $1`, p.founding.Members["admin"].ID)
	caller, err := p.caller(t, p.tokens["admin"])
	if err != nil || caller.Role != access.Viewer {
		t.Fatalf("%+v, %v", caller, err)
	}
	if caller.Sees(access.Project{ID: p.founding.ProjectID, OrganizationID: p.founding.OrganizationID}) {
		t.Error("a member bound to no project sees one")
	}
}

func TestSecretsInTheDatabaseAreNotReadable(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	rows, err := p.db.Owner.Query(t.Context(), `
		SELECT to_jsonb(k)::text FROM api_keys k UNION ALL SELECT to_jsonb(s)::text FROM api_key_secrets s
		UNION ALL SELECT to_jsonb(t)::text FROM api_tokens t UNION ALL SELECT to_jsonb(d)::text FROM documents d`)
	if err != nil {
		t.Fatal(err)
	}
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(texts, "\n")
	for _, entry := range p.entries {
		text, _ := json.Marshal(entry)
		all += string(text)
	}
	for _, key := range p.founding.Keys {
		if strings.Contains(all, key.Secret[13:]) {
			t.Error("an api key's secret is stored or audited")
		}
	}
	for _, token := range p.tokens {
		if strings.Contains(all, strings.Split(token, ".")[2]) {
			t.Error("a token is stored or audited")
		}
	}
}
