package access_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"

	"skerry/pkg/id"
	"skerry/writeplane/access"
	"skerry/writeplane/postgres/dbtest"
)

// realIssuer serves discovery and its keys over HTTP and signs tokens with them.
type realIssuer struct {
	server *httptest.Server
	keys   atomic.Pointer[map[string]crypto.Signer]
	down   atomic.Bool
}

func newRealIssuer(t *testing.T) *realIssuer {
	t.Helper()
	i := &realIssuer{}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i.keys.Store(&map[string]crypto.Signer{"rsa": rsaKey, "ec": ecKey})
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		if i.down.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": i.server.URL, "jwks_uri": i.server.URL + "/keys",
			"authorization_endpoint": i.server.URL + "/authorize", "token_endpoint": i.server.URL + "/token",
			"id_token_signing_alg_values_supported": []string{"RS256", "ES256", "EdDSA", "HS256", "none"}})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		if i.down.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		var set jose.JSONWebKeySet
		for kid, key := range *i.keys.Load() {
			set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: kid, Use: "sig"})
		}
		_ = json.NewEncoder(w).Encode(set)
	})
	i.server = httptest.NewServer(mux)
	t.Cleanup(i.server.Close)
	return i
}

func (i *realIssuer) sign(t *testing.T, method jwt.SigningMethod, kid string, key any, change func(jwt.MapClaims)) string {
	t.Helper()
	body := jwt.MapClaims{"iss": i.server.URL, "aud": "skerry-console", "sub": "ext-1", "email": "Editor@Example.com", "email_verified": true,
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(), "skerry_role": "owner"}
	if change != nil {
		change(body)
	}
	token := jwt.NewWithClaims(method, body)
	token.Header["kid"] = kid
	text, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// foreign is a plane whose members may also come with tokens of an external issuer.
type foreign struct {
	*plane
	t      *testing.T
	issuer *realIssuer
	store  *access.Store // that accepts the issuer, without its claims
}

func newForeign(t *testing.T) *foreign {
	t.Helper()
	f := &foreign{plane: newPlane(t), t: t, issuer: newRealIssuer(t)}
	f.store = f.open(func(*access.IssuerConfig) {})
	return f
}

// open is another store, whose configuration of the issuer is changed.
func (f *foreign) open(change func(*access.IssuerConfig)) *access.Store {
	f.t.Helper()
	config := access.IssuerConfig{Issuer: f.issuer.server.URL, Audience: "skerry-console", OrganizationID: f.founding.OrganizationID}
	change(&config)
	store, err := access.New(f.t.Context(), access.Config{Issuers: []access.IssuerConfig{config}}, f.db.App)
	if err != nil {
		f.t.Fatal(err)
	}
	return store
}

// sign is a token with changed claims, by the issuer's RSA key.
func (f *foreign) sign(change func(jwt.MapClaims)) string {
	f.t.Helper()
	return f.issuer.sign(f.t, jwt.SigningMethodRS256, "rsa", (*f.issuer.keys.Load())["rsa"], change)
}

func (f *foreign) auth(s *access.Store, token string) (access.Caller, error) {
	return s.Authenticate(f.t.Context(), "Bearer "+token)
}

func TestExternalIssuersTokenStandsForAMember(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	editor := f.founding.Members["editor"]
	elliptic := f.issuer.sign(t, jwt.SigningMethodES256, "ec", (*f.issuer.keys.Load())["ec"], nil)
	for name, token := range map[string]string{"RS256": f.sign(nil), "ES256": elliptic} {
		caller, err := f.auth(f.store, token)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if caller.Subject != editor.ID || caller.Role != access.Editor || caller.Email != editor.Email || caller.OrganizationID != f.founding.OrganizationID {
			t.Errorf("%s: %+v", name, caller)
		}
		// The member is bound to the demo project and sees it without a project in the token.
		if !caller.Sees(access.Project{ID: f.founding.ProjectID, OrganizationID: f.founding.OrganizationID}) || caller.Sees(access.Project{ID: id.New(), OrganizationID: f.founding.OrganizationID}) {
			t.Errorf("%s sees other projects than the member's", name)
		}
	}
	if _, err := f.auth(f.store, f.tokens["owner"]); err != nil {
		t.Errorf("our own tokens beside an external issuer: %v", err)
	}

	// The issuer's keys rotate; ours need not be told.
	fresh, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	f.issuer.keys.Store(&map[string]crypto.Signer{"fresh": fresh})
	if _, err := f.auth(f.store, f.issuer.sign(t, jwt.SigningMethodRS256, "fresh", fresh, nil)); err != nil {
		t.Errorf("after rotation: %v", err)
	}

	// A removed member is out at once, whatever the issuer signs.
	dbtest.Exec(t, f.db.App, `UPDATE members SET removed_at = now() WHERE id = $1`, editor.ID)
	if _, err := f.auth(f.store, f.issuer.sign(t, jwt.SigningMethodRS256, "fresh", fresh, nil)); !errors.Is(err, access.ErrBadToken) {
		t.Errorf("removed member: %v", err)
	}
}

func TestExternalTokensThatDoNotHoldAreRefused(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	_, stranger, _ := ed25519.GenerateKey(nil)
	for name, token := range map[string]string{
		"another audience":    f.sign(func(c jwt.MapClaims) { c["aud"] = "other" }),
		"expired by a second": f.sign(func(c jwt.MapClaims) { c["exp"] = time.Now().Add(-time.Second).Unix() }),
		"no expiry":           f.sign(func(c jwt.MapClaims) { delete(c, "exp") }),
		"unverified email":    f.sign(func(c jwt.MapClaims) { c["email_verified"] = false }),
		"email_verified gone": f.sign(func(c jwt.MapClaims) { delete(c, "email_verified") }),
		"nobody's email":      f.sign(func(c jwt.MapClaims) { c["email"] = "stranger@example.com" }),
		"no email":            f.sign(func(c jwt.MapClaims) { delete(c, "email") }),
		"unknown key":         f.issuer.sign(t, jwt.SigningMethodEdDSA, "other", stranger, nil),
		"another key's kid":   f.issuer.sign(t, jwt.SigningMethodEdDSA, "rsa", stranger, nil),
		"none":                f.issuer.sign(t, jwt.SigningMethodNone, "rsa", jwt.UnsafeAllowNoneSignatureType, nil),
		"HMAC with anything":  f.issuer.sign(t, jwt.SigningMethodHS256, "rsa", []byte("x"), nil),
	} {
		if caller, err := f.auth(f.store, token); !errors.Is(err, access.ErrBadToken) {
			t.Errorf("%s: %+v, %v", name, caller, err)
		}
	}
	if _, err := f.auth(f.store, f.sign(nil)); err != nil {
		t.Errorf("a token that holds: %v", err)
	}
}

func TestClaimsMayLowerWhatAMemberMayAndNeverRaiseIt(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	mapped := f.open(func(c *access.IssuerConfig) { c.RoleClaim, c.ProjectClaim = "skerry_role", "skerry_project" })
	if caller, err := f.auth(mapped, f.sign(nil)); err != nil || caller.Role != access.Editor {
		t.Errorf("role owner in the claim: %+v, %v", caller, err)
	}
	if caller, err := f.auth(mapped, f.sign(func(c jwt.MapClaims) { c["skerry_role"] = "viewer" })); err != nil || caller.Role != access.Viewer {
		t.Errorf("role viewer in the claim: %+v, %v", caller, err)
	}
	if _, err := f.auth(mapped, f.sign(func(c jwt.MapClaims) { delete(c, "skerry_role") })); !errors.Is(err, access.ErrBadToken) {
		t.Errorf("no role in the claim: %v", err)
	}
	bound, err := f.auth(mapped, f.sign(func(c jwt.MapClaims) { c["email"], c["skerry_project"] = "owner@example.com", f.founding.ProjectID }))
	if err != nil || bound.ProjectID != f.founding.ProjectID || bound.Role != access.Owner {
		t.Errorf("%+v, %v", bound, err)
	}
}

func TestOneIssuerSpeaksForSeveralOrganizations(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	other := access.NewFounding("Other", "Demo", access.Pro)
	if _, err := p.store.Bootstrap(t.Context(), p.commits, other); err != nil {
		t.Fatal(err)
	}
	external := newRealIssuer(t)
	store, err := access.New(t.Context(), access.Config{Issuers: []access.IssuerConfig{
		{Issuer: external.server.URL, Audience: "skerry-console", OrganizationID: p.founding.OrganizationID},
		{Issuer: external.server.URL, Audience: "other-console", OrganizationID: other.OrganizationID},
	}}, p.db.App)
	if err != nil {
		t.Fatal(err)
	}
	for audience, want := range map[string]string{"skerry-console": p.founding.OrganizationID, "other-console": other.OrganizationID, "nobody": ""} {
		token := external.sign(t, jwt.SigningMethodRS256, "rsa", (*external.keys.Load())["rsa"], func(c jwt.MapClaims) { c["aud"] = []string{"x", audience} })
		caller, err := store.Authenticate(t.Context(), "Bearer "+token)
		if caller.OrganizationID != want || (err == nil) != (want != "") || err != nil && !errors.Is(err, access.ErrBadToken) {
			t.Errorf("%s: organization %q, %v; want %q", audience, caller.OrganizationID, err, want)
		}
	}
}

func TestIssuerThatIsAwayIsNoVerdictOnItsTokens(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	external := newRealIssuer(t)
	external.down.Store(true)
	store, err := access.New(t.Context(), access.Config{Issuers: []access.IssuerConfig{{Issuer: external.server.URL, Audience: "skerry-console", OrganizationID: p.founding.OrganizationID}}}, p.db.App)
	if err != nil {
		t.Fatal(err)
	}
	token := external.sign(t, jwt.SigningMethodRS256, "rsa", (*external.keys.Load())["rsa"], nil)
	if _, err := store.Authenticate(t.Context(), "Bearer "+token); err == nil || errors.Is(err, access.ErrBadToken) || errors.Is(err, access.ErrNoToken) {
		t.Errorf("%v", err)
	}
	if _, err := store.Authenticate(t.Context(), "Bearer "+p.tokens["owner"]); err != nil {
		t.Errorf("our own token meanwhile: %v", err)
	}
}

// go-oidc has no type for keys that it could not fetch, so the error is known by its text, which may change with a version.
func TestIssuerWhoseKeysAreAwayIsNoVerdictOnItsTokens(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	external := newRealIssuer(t)
	store, err := access.New(t.Context(), access.Config{Issuers: []access.IssuerConfig{{Issuer: external.server.URL, Audience: "skerry-console", OrganizationID: p.founding.OrganizationID}}}, p.db.App)
	if err != nil {
		t.Fatal(err)
	}
	auth := func(kid string, key crypto.Signer) error {
		_, err := store.Authenticate(t.Context(), "Bearer "+external.sign(t, jwt.SigningMethodRS256, kid, key, nil))
		return err
	}
	known := (*external.keys.Load())["rsa"]
	if err := auth("rsa", known); err != nil {
		t.Fatal(err)
	}
	external.down.Store(true)
	if err := auth("rsa", known); err != nil {
		t.Errorf("a key that is known already: %v", err)
	}
	if err := auth("unseen", known); err == nil || errors.Is(err, access.ErrBadToken) || errors.Is(err, access.ErrNoToken) {
		t.Errorf("a key that would have to be fetched: %v", err)
	}
}

func TestIssuerConfigNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	good := access.IssuerConfig{Issuer: "https://id.example.com", Audience: "a", OrganizationID: id.New()}
	if err := (access.Config{Issuers: []access.IssuerConfig{good}}).Validate(); err != nil {
		t.Error(err)
	}
	other := good
	other.Audience = "b"
	if err := (access.Config{Issuers: []access.IssuerConfig{good, other}}).Validate(); err != nil {
		t.Error(err)
	}
	if (access.Config{Issuers: []access.IssuerConfig{good, other, good}}).Validate() == nil {
		t.Error("the same issuer and audience twice was taken")
	}
	if (access.Config{Issuer: good.Issuer, Issuers: []access.IssuerConfig{good}}).Validate() == nil {
		t.Error("our own issuer was taken for an external one")
	}
	for name, change := range map[string]func(*access.IssuerConfig){
		"Issuer":         func(c *access.IssuerConfig) { c.Issuer = "ftp://x" },
		"Audience":       func(c *access.IssuerConfig) { c.Audience = "" },
		"OrganizationID": func(c *access.IssuerConfig) { c.OrganizationID = "x" },
		"Algorithms":     func(c *access.IssuerConfig) { c.Algorithms = []string{"HS256"} },
	} {
		bad := good
		change(&bad)
		if err := (access.Config{Issuers: []access.IssuerConfig{bad}}).Validate(); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}
