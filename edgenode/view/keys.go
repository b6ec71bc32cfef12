package view

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"skerry/edgenode/store"
	"skerry/pkg/apikey"
	"skerry/pkg/state"
	"skerry/replication"
)

// Key finds the API key with this hash, if it is valid now. A found key costs no
// allocation. Finding by hash leaks nothing through time: who can measure how far two
// hashes agree cannot choose them.
func (s *Store) Key(hash apikey.Hash) (Key, bool) {
	key, ok := s.keys.get(hash)
	if !ok {
		if key, ok = s.loadKey(hash); !ok {
			return Key{}, false
		}
	}
	if !key.ExpiresAt.IsZero() && !time.Now().Before(key.ExpiresAt) {
		return Key{}, false
	}
	return *key, true
}

func (s *Store) loadKey(hash apikey.Hash) (*Key, bool) {
	name := hash.String()
	key, ok, err := s.keys.load(hash, name, func() (key *Key, ok bool, err error) {
		err = s.disk.Read(func(look *store.Snapshot) error {
			key, err = readKey(look, hash, name)
			return err
		})
		return key, key != nil, err
	})
	if err != nil {
		s.faults.Add(1)
		if !errors.Is(err, store.ErrNoState) {
			s.log.Error("read an API key", "error", err)
		}
	}
	return key, ok && err == nil
}

// readKey returns nil for a key that is absent or revoked.
func readKey(look *store.Snapshot, hash apikey.Hash, name string) (*Key, error) {
	entry, ok, err := look.Get(replication.KeySubject(name))
	if err != nil || !ok {
		return nil, err
	}
	if _, revoked, err := look.Get(replication.RevokedSubject(name)); err != nil || revoked {
		return nil, err
	}
	var body state.Key
	if err := json.Unmarshal(entry.Body, &body); err != nil {
		return nil, fmt.Errorf("document of an API key: %w", err)
	}
	key := &Key{Hash: hash, ID: body.ID, ProjectID: body.ProjectID, Environment: body.Environment}
	if body.ExpiresAt != nil {
		key.ExpiresAt = *body.ExpiresAt
	}
	return key, nil
}
