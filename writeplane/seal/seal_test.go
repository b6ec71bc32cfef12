package seal_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"strings"
	"sync"
	"testing"

	"skerry/writeplane/postgres/dbtest"
	"skerry/writeplane/seal"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

func TestBoxOpensOnlyItsOwnPurposeAndKey(t *testing.T) {
	t.Parallel()
	box, _ := seal.New(bytes.Repeat([]byte{1}, 32))
	other, _ := seal.New(bytes.Repeat([]byte{2}, 32))
	sealed := box.Seal("webhook", []byte("secret"))
	if bytes.Contains(sealed, []byte("secret")) {
		t.Fatal("the secret stands in its box in clear")
	}
	if plain, err := box.Open("webhook", sealed); err != nil || string(plain) != "secret" {
		t.Fatalf("%q %v", plain, err)
	}
	damaged := bytes.Clone(sealed)
	damaged[len(damaged)-1] ^= 1
	for name, open := range map[string]func() ([]byte, error){
		"other purpose": func() ([]byte, error) { return box.Open("signing", sealed) },
		"other key":     func() ([]byte, error) { return other.Open("webhook", sealed) },
		"damaged":       func() ([]byte, error) { return box.Open("webhook", damaged) },
		"cut off":       func() ([]byte, error) { return box.Open("webhook", sealed[:5]) },
	} {
		if _, err := open(); !errors.Is(err, seal.ErrSealed) {
			t.Errorf("%s: %v, want ErrSealed", name, err)
		}
	}
}

func TestProcessesShareTheInstallationsSecret(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	secrets := make([][]byte, 6)
	var group sync.WaitGroup
	for i := range secrets {
		group.Go(func() {
			var err error
			if secrets[i], err = seal.InstallationSecret(t.Context(), db.App, "x"); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, s := range secrets {
		if len(s) != 32 || !bytes.Equal(s, secrets[0]) {
			t.Fatalf("secrets differ or are short: %d bytes", len(s))
		}
	}
}

func TestConfiguredKeyIsCheckedByName(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"x", base64.StdEncoding.EncodeToString([]byte("short"))} {
		if _, err := seal.Open(t.Context(), nil, key); err == nil || !strings.Contains(err.Error(), "seal key") || strings.Contains(err.Error(), key+" ") {
			t.Errorf("seal key %q: %v", key, err)
		}
	}
	if _, err := seal.Open(t.Context(), nil, base64.StdEncoding.EncodeToString(make([]byte, 32))); err != nil {
		t.Error(err)
	}
}
