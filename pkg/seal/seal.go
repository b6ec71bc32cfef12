// Package seal keeps small secrets in a database in a form that the database alone
// cannot read: AES-256-GCM under a key that the operator configures.
//
// It promises that what was altered, or is opened for another purpose than it was
// sealed for, does not open. It does not hide how long a secret is.
//
//	offset  size
//	     0     1  version, 1
//	     1     4  which key: first bytes of its SHA-256
//	     5    12  nonce
//	    17     …  ciphertext and tag; the purpose is authenticated with it
package seal

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
)

// KeyLen is the length of a sealing key in bytes.
const KeyLen = 32

const (
	version  = 1
	idLen    = 4
	nonceLen = 12
	headLen  = 1 + idLen + nonceLen
)

// ErrOpen means that no key at hand opens the box, or that it was altered.
var ErrOpen = errors.New("sealed secret does not open: another sealing key, another purpose, or it was altered")

// Sealer seals under its first key and opens what any of its keys sealed.
type Sealer struct{ keys []key }

type key struct {
	id   [idLen]byte
	aead cipher.AEAD
}

// New returns a Sealer. Further keys are former ones, which still open.
func New(current []byte, former ...[]byte) (*Sealer, error) {
	s := &Sealer{}
	for _, raw := range append([][]byte{current}, former...) {
		if len(raw) != KeyLen {
			return nil, fmt.Errorf("a sealing key has %d bytes, not %d", KeyLen, len(raw))
		}
		block, err := aes.NewCipher(raw)
		if err != nil {
			return nil, fmt.Errorf("use sealing key: %w", err)
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			return nil, fmt.Errorf("use sealing key: %w", err)
		}
		sum := sha256.Sum256(raw)
		s.keys = append(s.keys, key{id: [idLen]byte(sum[:idLen]), aead: aead})
	}
	return s, nil
}

// Seal boxes a secret for a purpose, a constant such as "webhook-secret:" and the row's id.
func (s *Sealer) Seal(purpose string, secret []byte) []byte {
	k := s.keys[0]
	box := make([]byte, headLen, headLen+len(secret)+k.aead.Overhead())
	box[0] = version
	copy(box[1:], k.id[:])
	nonce := box[1+idLen : headLen]
	_, _ = rand.Read(nonce) // never fails, it ends the process instead
	return k.aead.Seal(box, nonce, secret, []byte(purpose))
}

// Open returns the secret that was sealed for the purpose.
func (s *Sealer) Open(purpose string, box []byte) ([]byte, error) {
	if len(box) < headLen || box[0] != version {
		return nil, ErrOpen
	}
	for _, k := range s.keys {
		if !bytes.Equal(k.id[:], box[1:1+idLen]) {
			continue
		}
		secret, err := k.aead.Open(nil, box[1+idLen:headLen], box[headLen:], []byte(purpose))
		if err != nil {
			return nil, ErrOpen
		}
		return secret, nil
	}
	return nil, ErrOpen
}
