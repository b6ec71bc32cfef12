package seal

import (
	"bytes"
	"errors"
	"testing"
)

func keyOf(b byte) []byte { return bytes.Repeat([]byte{b}, KeyLen) }

func mustNew(t testing.TB, current []byte, former ...[]byte) *Sealer {
	t.Helper()
	s, err := New(current, former...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestOpensWhatItSealed(t *testing.T) {
	t.Parallel()
	s := mustNew(t, keyOf(1))
	box := s.Seal("purpose", []byte("secret"))
	if bytes.Contains(box, []byte("secret")) {
		t.Error("the box shows the secret")
	}
	got, err := s.Open("purpose", box)
	if err != nil || string(got) != "secret" {
		t.Fatalf("Open = %q, %v", got, err)
	}
}

func TestFormerKeyStillOpens(t *testing.T) {
	t.Parallel()
	box := mustNew(t, keyOf(1)).Seal("p", []byte("secret"))
	if got, err := mustNew(t, keyOf(2), keyOf(1)).Open("p", box); err != nil || string(got) != "secret" {
		t.Fatalf("Open = %q, %v", got, err)
	}
	if _, err := mustNew(t, keyOf(2)).Open("p", box); !errors.Is(err, ErrOpen) {
		t.Fatalf("another key: %v", err)
	}
}

func TestAlteredOrMisplacedBoxDoesNotOpen(t *testing.T) {
	t.Parallel()
	s := mustNew(t, keyOf(1))
	box := s.Seal("p", []byte("secret"))
	if _, err := s.Open("q", box); !errors.Is(err, ErrOpen) {
		t.Errorf("another purpose: %v", err)
	}
	for i := range box {
		altered := bytes.Clone(box)
		altered[i] ^= 1
		if _, err := s.Open("p", altered); !errors.Is(err, ErrOpen) {
			t.Errorf("byte %d altered: %v", i, err)
		}
	}
}

func TestShortKeyIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := New(make([]byte, 16)); err == nil {
		t.Error("16 bytes were taken")
	}
}

func FuzzOpen(f *testing.F) {
	s := mustNew(f, keyOf(1))
	f.Add(s.Seal("p", []byte("x")))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, box []byte) {
		_, _ = s.Open("other", box)
	})
}
