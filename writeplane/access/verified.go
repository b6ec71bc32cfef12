package access

import (
	"crypto/sha256"
	"sync"
)

// verified remembers what tokens say whose signature was found good, because checking it
// is the most expensive step of an authentication and always has the same outcome:
// signing keys are never taken back while the process runs. Nothing else of a token is
// remembered; its times are checked at every use, its row and its member's are read.
// Tokens are known by their hash: their text is a secret. The zero value is ready.
type verified struct {
	mu     sync.Mutex
	claims map[[sha256.Size]byte]claims // guarded by mu
}

// maxVerified bounds the memory; past it all is forgotten, which costs a check each.
const maxVerified = 4096

func (v *verified) look(text string) (c claims, known bool) {
	hash := sha256.Sum256([]byte(text))
	v.mu.Lock()
	defer v.mu.Unlock()
	c, known = v.claims[hash]
	return c, known
}

func (v *verified) note(text string, c claims) {
	hash := sha256.Sum256([]byte(text))
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.claims == nil || len(v.claims) >= maxVerified {
		v.claims = map[[sha256.Size]byte]claims{}
	}
	v.claims[hash] = c
}
