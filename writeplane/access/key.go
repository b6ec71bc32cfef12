package access

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/apikey"
	"skerry/pkg/id"
	"skerry/pkg/instant"
	"skerry/pkg/state"
	"skerry/replication"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

// keyRow is an API key; its secrets are known by their hashes alone.
type keyRow struct {
	ID             string
	ProjectID      string
	OrganizationID string
	Environment    string
	Name           string
	Prefix         string
	CreatedAt      time.Time
	LastUsedAt     *time.Time
	RevokedAt      *time.Time
}

// keyView is the key as the API shows it (supplement §2).
type keyView struct {
	ID          string        `json:"id"`
	Name        string        `json:"name"`
	Environment string        `json:"environment"`
	Prefix      string        `json:"prefix"`
	CreatedAt   instant.Time  `json:"created_at"`
	LastUsedAt  *instant.Time `json:"last_used_at"`
	RevokedAt   *instant.Time `json:"revoked_at"`
}

func (k keyRow) view() keyView {
	return keyView{k.ID, k.Name, k.Environment, k.Prefix, instant.Of(k.CreatedAt), instant.OfPtr(k.LastUsedAt), instant.OfPtr(k.RevokedAt)}
}

func (k keyRow) entry(action string, before, after any) commit.Entry {
	return commit.Entry{OrganizationID: k.OrganizationID, ProjectID: k.ProjectID, Action: action,
		ResourceType: "api_key", ResourceID: k.ID, Before: before, After: after}
}

func (k keyRow) document(expires *time.Time) state.Key {
	return state.Key{ID: k.ID, ProjectID: k.ProjectID, Environment: k.Environment, ExpiresAt: expires}
}

// keySQL finds keys of projects that are not deleted, anyKeySQL keys of all projects.
const (
	keySQL    = anyKeySQL + `p.deleted_at IS NULL AND `
	anyKeySQL = `
SELECT k.id, k.project_id, p.organization_id, k.environment, k.name, k.prefix, k.created_at, k.last_used_at, k.revoked_at
FROM api_keys k JOIN projects p ON p.id = k.project_id WHERE `
)

func scanKey(row pgx.CollectableRow) (k keyRow, err error) {
	err = row.Scan(&k.ID, &k.ProjectID, &k.OrganizationID, &k.Environment, &k.Name, &k.Prefix, &k.CreatedAt, &k.LastUsedAt, &k.RevokedAt)
	return k, err
}

// newKey is a key for the project with its first secret.
func newKey(p ProjectRow, name, environment string) (keyRow, string) {
	secret := apikey.New(environment)
	return keyRow{ID: id.New(), ProjectID: p.ID, OrganizationID: p.OrganizationID, Environment: environment, Name: name,
		Prefix: apikey.Display(secret), CreatedAt: time.Now().UTC().Truncate(time.Microsecond)}, secret
}

// insertKey stores a new key with its first secret.
func insertKey(ctx context.Context, tx *commit.Tx, k keyRow, secret string) error {
	_, err := tx.Exec(ctx, `INSERT INTO api_keys (id, project_id, environment, name, prefix, created_at) VALUES ($1, $2, $3, $4, $5, $6)`,
		k.ID, k.ProjectID, k.Environment, k.Name, k.Prefix, k.CreatedAt)
	if err != nil {
		return fmt.Errorf("insert api key: %w", err)
	}
	record(tx, k.entry("api_key.created", nil, k.view()))
	return insertSecret(ctx, tx, k, secret)
}

func insertSecret(ctx context.Context, tx *commit.Tx, k keyRow, secret string) error {
	hash := apikey.Of(secret)
	if _, err := tx.Exec(ctx, `INSERT INTO api_key_secrets (hash, key_id) VALUES ($1, $2)`, hash[:], k.ID); err != nil {
		return fmt.Errorf("insert api key secret: %w", err)
	}
	return tx.Put(replication.KeySubject(hash.String()), k.document(nil))
}

// rotateKey gives the key a new secret; those it has end after the grace period, or
// at once when there is none. A secret in its grace already never gains time.
func rotateKey(ctx context.Context, tx *commit.Tx, k keyRow, grace time.Duration) (keyRow, string, error) {
	before := k.view()
	now := time.Now()
	ends := now.Add(grace)
	secrets, err := secretsOf(ctx, tx, k.ID)
	if err != nil {
		return k, "", err
	}
	for _, old := range secrets {
		switch {
		case grace == 0 || (old.expires != nil && !old.expires.After(now)):
			err = endSecret(ctx, tx, old, now)
		case old.expires == nil || old.expires.After(ends):
			err = expireSecret(ctx, tx, k, old, ends)
		}
		if err != nil {
			return k, "", err
		}
	}
	secret := apikey.New(k.Environment)
	k.Prefix = apikey.Display(secret)
	if _, err := tx.Exec(ctx, `UPDATE api_keys SET prefix = $2, rotated_at = $3 WHERE id = $1`, k.ID, k.Prefix, now); err != nil {
		return k, "", fmt.Errorf("update api key: %w", err)
	}
	entry := k.entry("api_key.rotated", before, k.view())
	entry.Metadata = map[string]any{"grace_period_seconds": int64(grace / time.Second)}
	record(tx, entry)
	return k, secret, insertSecret(ctx, tx, k, secret)
}

func expireSecret(ctx context.Context, tx *commit.Tx, k keyRow, old secretRow, ends time.Time) error {
	if _, err := tx.Exec(ctx, `UPDATE api_key_secrets SET expires_at = $2 WHERE hash = $1`, old.hash[:], ends); err != nil {
		return fmt.Errorf("expire api key secret: %w", err)
	}
	return tx.Put(replication.KeySubject(old.hash.String()), k.document(&ends))
}

// endSecret closes a secret for good. The urgent document closes it at every edge
// whatever waits in the normal lane; the tombstone cleans up behind it.
func endSecret(ctx context.Context, tx *commit.Tx, old secretRow, now time.Time) error {
	if _, err := tx.Exec(ctx, `DELETE FROM api_key_secrets WHERE hash = $1`, old.hash[:]); err != nil {
		return fmt.Errorf("end api key secret: %w", err)
	}
	tx.Delete(replication.KeySubject(old.hash.String()))
	return tx.Put(replication.RevokedSubject(old.hash.String()), state.Revoked{At: now})
}

// revokeKey ends the key with all its secrets. Revoking it again changes nothing.
func revokeKey(ctx context.Context, tx *commit.Tx, k keyRow) error {
	if k.RevokedAt != nil {
		return nil
	}
	before := k.view()
	now := time.Now()
	secrets, err := secretsOf(ctx, tx, k.ID)
	if err != nil {
		return err
	}
	for _, secret := range secrets {
		if err := endSecret(ctx, tx, secret, now); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, `UPDATE api_keys SET revoked_at = $2 WHERE id = $1`, k.ID, now); err != nil {
		return fmt.Errorf("revoke api key: %w", err)
	}
	k.RevokedAt = &now
	record(tx, k.entry("api_key.revoked", before, k.view()))
	return nil
}

type secretRow struct {
	hash    apikey.Hash
	expires *time.Time
}

func secretsOf(ctx context.Context, tx *commit.Tx, keyID string) ([]secretRow, error) {
	scan := func(row pgx.CollectableRow) (secretRow, error) {
		var hash []byte
		var s secretRow
		err := row.Scan(&hash, &s.expires)
		copy(s.hash[:], hash)
		return s, err
	}
	return postgres.All(ctx, tx, "read api key secrets", scan,
		`SELECT hash, expires_at FROM api_key_secrets WHERE key_id = $1 ORDER BY hash FOR NO KEY UPDATE`, keyID)
}
