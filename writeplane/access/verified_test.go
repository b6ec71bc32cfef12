package access

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"skerry/writeplane/postgres/dbtest"
)

func TestTokenWhoseSignatureIsKnownStillExpires(t *testing.T) {
	t.Parallel()
	store, err := New(t.Context(), Config{}, dbtest.New(t).App)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	text, err := store.tokens.mint(Grant{TokenID: "t", MemberID: "m", IssuedAt: now, ExpiresAt: now.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if _, known := store.tokens.seen.look(text); known {
		t.Fatal("known before it was checked")
	}
	first, err := store.tokens.parse(text)
	if err != nil {
		t.Fatal(err)
	}
	c, known := store.tokens.seen.look(text)
	if !known || c.ID != first.ID || c.Subject != "m" {
		t.Fatalf("after it was checked: %v, %+v", known, c)
	}
	c.ExpiresAt = jwt.NewNumericDate(now.Add(-time.Second)) // an hour later
	store.tokens.seen.note(text, c)
	if _, err := store.tokens.parse(text); !errors.Is(err, jwt.ErrTokenExpired) {
		t.Errorf("past its time: %v", err)
	}

	forged := text[:len(text)-8] + "AAAAAAAA"
	if _, err := store.tokens.parse(forged); err == nil {
		t.Error("a forged signature passes")
	}
	if _, known := store.tokens.seen.look(forged); known {
		t.Error("a forged token is remembered")
	}
}

func TestVerifiedTokensAreBounded(t *testing.T) {
	t.Parallel()
	var v verified
	for n := range 3 * maxVerified {
		v.note(strconv.Itoa(n), claims{})
		if len(v.claims) > maxVerified {
			t.Fatalf("%d are held", len(v.claims))
		}
	}
	if _, known := v.look(strconv.Itoa(3*maxVerified - 1)); !known {
		t.Error("the newest is forgotten")
	}
}
