package relay

import (
	"hash/maphash"
	"sync"

	"github.com/valyala/fasthttp"
)

// places are the requests that may be passed on at once. The first half is for whoever
// comes. In the second half nobody has more than an eighth of all: a key that stands in web
// pages is everybody's, and who sends a thousand bodies slowly must not keep a halt out.
type places struct {
	most int
	seed maphash.Seed

	mu    sync.Mutex
	taken int
	by    map[uint64]int // taken, by the hash of a party
}

func newPlaces(most int) *places {
	return &places{most: most, seed: maphash.MakeSeed(), by: map[uint64]int{}}
}

// party is whose request it is: the credential's that it came with or, without one, the
// client's address. A credential that is none is refused before it can hold a place for long.
func (r *Relay) party(ctx *fasthttp.RequestCtx) uint64 {
	h := &ctx.Request.Header
	for _, name := range []string{fasthttp.HeaderAuthorization, "X-Api-Key"} {
		if credential := h.Peek(name); len(credential) > 0 {
			return maphash.Bytes(r.places.seed, credential)
		}
	}
	if r.config.ClientIP == nil {
		return 0
	}
	address := r.config.ClientIP(ctx).As16()
	return maphash.Bytes(r.places.seed, address[:])
}

// take takes a place for a party; false when there is none for it.
func (p *places) take(party uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken >= p.most || p.taken >= p.most/2 && p.by[party] >= max(p.most/8, 1) {
		return false
	}
	p.taken++
	p.by[party]++
	return true
}

// give gives a party's place back.
func (p *places) give(party uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.by[party]--; p.by[party] == 0 {
		delete(p.by, party)
	}
}

func (p *places) inUse() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}
