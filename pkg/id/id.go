// Package id makes the identifiers of the service (supplement §1).
//
// Resources have UUIDv7 ids; surveys, questions and responses have a prefix and
// the 26 characters of a ULID. Both sort by the time of their making.
package id

import (
	"crypto/rand"

	"github.com/google/uuid"
	"github.com/oklog/ulid/v2"
)

// The prefixes of ULID-based ids.
const (
	Survey   = "psv_"
	Question = "psq_"
	Response = "psr_"
)

// New returns a fresh UUIDv7 in its canonical lower-case text form.
func New() string { return uuid.Must(uuid.NewV7()).String() }

// Valid reports whether s is a UUID in canonical text form, in either case.
// A malformed id in a path is answered like the id of something absent.
func Valid(s string) bool {
	if len(s) != 36 {
		return false
	}
	_, err := uuid.Parse(s)
	return err == nil
}

// NewPrefixed returns prefix and the 26 characters of a fresh ULID.
func NewPrefixed(prefix string) string {
	return prefix + ulid.MustNew(ulid.Now(), rand.Reader).String()
}
