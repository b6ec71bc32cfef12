package tally

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
)

// KeyUse notes which API keys an edge was asked with, and tells the centre every few
// seconds. It is for people who want to know whether a key is still in use: a report
// that is lost is not repeated, and a key in use is in the next one.
type KeyUse struct {
	edge   string
	shards [shards]usedKeys
}

type usedKeys struct {
	mu   sync.RWMutex
	seen map[string]struct{} // key ids since the last report
}

const (
	keyUseEvery = 5 * time.Second
	// keysPerReport bounds a message to about 160 KB.
	keysPerReport = 4096
)

// KeyUseSubjects is where the centre hears of used keys from all edges.
const KeyUseSubjects = "tally.keys.*"

// NewKeyUse returns the notes of an edge.
func NewKeyUse(edge string) *KeyUse {
	u := &KeyUse{edge: edge}
	for i := range u.shards {
		u.shards[i].seen = map[string]struct{}{}
	}
	return u
}

// Mark notes a use. A key that was noted since the last report costs a read lock and
// no memory. keyID must not change afterwards.
func (u *KeyUse) Mark(keyID string) {
	if keyID == "" {
		return
	}
	s := &u.shards[keyID[len(keyID)-1]%shards]
	s.mu.RLock()
	_, noted := s.seen[keyID]
	s.mu.RUnlock()
	if noted {
		return
	}
	s.mu.Lock()
	s.seen[keyID] = struct{}{}
	s.mu.Unlock()
}

// Run reports until ctx ends, and once more then.
func (u *KeyUse) Run(ctx context.Context, nc *nats.Conn) error {
	tick := time.NewTicker(keyUseEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			u.report(nc)
		case <-ctx.Done():
			u.report(nc)
			return nil
		}
	}
}

func (u *KeyUse) report(nc *nats.Conn) {
	keys := u.take()
	for len(keys) > 0 {
		n := min(len(keys), keysPerReport)
		report := KeyUseReport{Edge: u.edge, At: time.Now().UTC(), Keys: keys[:n]}
		keys = keys[n:]
		if err := nc.Publish("tally.keys."+u.edge, report.Encode()); err != nil {
			slog.Debug("report of key use not sent", "error", err)
			return
		}
	}
}

func (u *KeyUse) take() []string {
	var keys []string
	for i := range u.shards {
		s := &u.shards[i]
		s.mu.Lock()
		for key := range s.seen {
			keys = append(keys, key)
		}
		clear(s.seen)
		s.mu.Unlock()
	}
	return keys
}

// KeyUseReport is what an edge says: these keys were used in the seconds before At.
// The wire form is its JSON.
type KeyUseReport struct {
	Edge string    `json:"edge"`
	At   time.Time `json:"at"`
	Keys []string  `json:"keys"`
}

// Encode is the report's message.
func (r KeyUseReport) Encode() []byte {
	data, err := json.Marshal(r)
	if err != nil {
		panic("BUG: a report does not marshal: " + err.Error())
	}
	return data
}

// DecodeKeyUse reads a message.
func DecodeKeyUse(data []byte) (KeyUseReport, error) {
	var r KeyUseReport
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("report of key use: %w", err)
	}
	if r.Edge == "" || r.At.IsZero() || len(r.Keys) > keysPerReport {
		return r, errors.New("report of key use without edge or time, or with too many keys")
	}
	for _, key := range r.Keys {
		if _, err := uuid.Parse(key); err != nil {
			return r, fmt.Errorf("report of key use: key: %w", err)
		}
	}
	return r, nil
}
