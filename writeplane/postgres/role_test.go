package postgres_test

import (
	"net/url"
	"strings"
	"testing"

	"skerry/pkg/id"
	"skerry/pkg/pgserver/pgtest"
	"skerry/writeplane/postgres"
)

// ownedBy is an empty database of a new login role that is no superuser, as
// hosted databases give it: the owner's URL, its name, and a superuser's hands.
func ownedBy(t *testing.T, rights string) (ownersURL, owner string, superuser func(sql string)) {
	t.Helper()
	db := pgtest.NewEmpty(t)
	pool := db.Pool(t)
	superuser = func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	owner = "owner_" + strings.ReplaceAll(id.New(), "-", "")
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	superuser("CREATE ROLE " + owner + " LOGIN " + rights + " PASSWORD 'secret'")
	superuser("GRANT ALL ON DATABASE " + strings.TrimPrefix(u.Path, "/") + " TO " + owner)
	superuser("ALTER SCHEMA public OWNER TO " + owner)
	u.User = url.UserPassword(owner, "secret")
	return u.String(), owner, superuser
}

func TestOwnerWhoMayMakeRolesNeedsNoSuperuser(t *testing.T) {
	t.Parallel()
	ownersURL, _, _ := ownedBy(t, "CREATEROLE")
	if err := postgres.Migrate(t.Context(), ownersURL); err != nil {
		t.Fatal(err)
	}
	db, err := postgres.Open(t.Context(), postgres.Config{URL: ownersURL, MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	db.Close()
}

func TestOwnerWithoutRightsIsToldWhatASuperuserRuns(t *testing.T) {
	t.Parallel()
	ownersURL, owner, superuser := ownedBy(t, "NOCREATEROLE")
	superuser(`DO $$ BEGIN CREATE ROLE skerry_app NOLOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$`)
	err := postgres.Migrate(t.Context(), ownersURL)
	said := `GRANT skerry_app TO "` + owner + `"`
	if err == nil || !strings.HasSuffix(err.Error(), "have a superuser run: "+said) {
		t.Fatalf("Migrate: %v, want one that ends with %q", err, said)
	}
	superuser(said)
	if err := postgres.Migrate(t.Context(), ownersURL); err != nil {
		t.Errorf("Migrate after that: %v", err)
	}
}
