// Package apikey makes, recognises and hashes project API keys (supplement §2).
//
// A key is `sk_live_` or `sk_test_` and 32 base62 characters (190 bits). Only its
// SHA-256 is stored: at that entropy a slow hash protects nothing more and would
// cost every request.
package apikey

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Environments by name.
const (
	Live = "live"
	Test = "test"
)

const (
	livePrefix = "sk_live_"
	testPrefix = "sk_test_"

	alphabet   = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	randomLen  = 32
	displayLen = 12
)

// Hash is the SHA-256 of a key's text: what databases and documents hold.
type Hash [sha256.Size]byte

// String is the lower-case hex form.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// Of hashes the text of a key.
func Of(key string) Hash { return sha256.Sum256([]byte(key)) }

// OfBytes hashes the text of a key without copying it.
func OfBytes(key []byte) Hash { return sha256.Sum256(key) }

// New returns a fresh key of the environment, "live" or "test".
func New(environment string) string {
	if environment != Live && environment != Test {
		panic("BUG: unknown environment " + environment)
	}
	return "sk_" + environment + "_" + random()
}

// Display is the part of a key that is kept for people to recognise it by.
func Display(key string) string {
	if len(key) < displayLen {
		return key
	}
	return key[:displayLen]
}

// Environment tells the environment that a key's prefix names; ok is false for
// anything that does not have the form of a project key.
func Environment(key string) (environment string, ok bool) {
	switch {
	case len(key) != len(livePrefix)+randomLen:
		return "", false
	case strings.HasPrefix(key, livePrefix):
		return Live, true
	case strings.HasPrefix(key, testPrefix):
		return Test, true
	}
	return "", false
}

// random draws base62 characters without the bias of a plain modulus.
func random() string {
	const unbiased = 256 - 256%len(alphabet)
	out := make([]byte, 0, randomLen)
	var draw [randomLen * 2]byte
	for len(out) < randomLen {
		_, _ = rand.Read(draw[:]) // never fails, it ends the process instead
		for _, b := range draw {
			if int(b) < unbiased && len(out) < randomLen {
				out = append(out, alphabet[int(b)%len(alphabet)])
			}
		}
	}
	return string(out)
}
