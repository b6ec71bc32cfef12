// Package seal keeps secrets that have to be used again (signing keys, webhook
// secrets) unreadable in the database and its backups: AES-256-GCM under a key that
// the operator configures. API keys and tokens are not sealed but hashed.
package seal

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// KeyLen is the length of a sealing key in bytes.
const KeyLen = 32

// Box seals and opens under one key.
type Box struct{ aead cipher.AEAD }

// New returns a Box with a key of KeyLen bytes.
func New(key []byte) (*Box, error) {
	if len(key) != KeyLen {
		return nil, fmt.Errorf("a sealing key has %d bytes, not %d", KeyLen, len(key))
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("use sealing key: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("use sealing key: %w", err)
	}
	return &Box{aead}, nil
}

// Open returns the Box of an installation: under the configured key (base64 of
// KeyLen bytes), or, where none is configured, under one kept in the database
// itself, which then guards against a leaked table but not a leaked database.
func Open(ctx context.Context, pool *pgxpool.Pool, configured string) (*Box, error) {
	if configured != "" {
		key, err := base64.StdEncoding.DecodeString(configured)
		if err != nil || len(key) != KeyLen {
			return nil, fmt.Errorf("seal key: want the base64 of %d bytes, such as `openssl rand -base64 %d` prints", KeyLen, KeyLen)
		}
		return New(key)
	}
	key, err := InstallationSecret(ctx, pool, "seal")
	if err != nil {
		return nil, err
	}
	return New(key)
}

// InstallationSecret returns the KeyLen random bytes that all processes of the
// installation share under the name; the first to ask makes them.
func InstallationSecret(ctx context.Context, pool *pgxpool.Pool, name string) ([]byte, error) {
	fresh := make([]byte, KeyLen)
	_, _ = rand.Read(fresh) // never fails, it ends the process instead
	_, err := pool.Exec(ctx, "INSERT INTO installation (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING", name, fresh)
	if err != nil {
		return nil, fmt.Errorf("make installation secret %s: %w", name, err)
	}
	var value []byte
	if err := pool.QueryRow(ctx, "SELECT value FROM installation WHERE name = $1", name).Scan(&value); err != nil {
		return nil, fmt.Errorf("read installation secret %s: %w", name, err)
	}
	return value, nil
}

// Seal encrypts plain. purpose is bound to it: what was sealed as one thing does not
// open as another, so that rows cannot be swapped.
func (b *Box) Seal(purpose string, plain []byte) []byte {
	nonce := make([]byte, b.aead.NonceSize())
	_, _ = rand.Read(nonce)
	return b.aead.Seal(nonce, nonce, plain, []byte(purpose))
}

// ErrSealed means that a box does not open: another key, another purpose, or damage.
var ErrSealed = errors.New("a sealed secret does not open under the configured seal key")

// Open decrypts what Seal made.
func (b *Box) Open(purpose string, sealed []byte) ([]byte, error) {
	n := b.aead.NonceSize()
	if len(sealed) < n {
		return nil, ErrSealed
	}
	plain, err := b.aead.Open(nil, sealed[:n], sealed[n:], []byte(purpose))
	if err != nil {
		return nil, ErrSealed
	}
	return plain, nil
}
