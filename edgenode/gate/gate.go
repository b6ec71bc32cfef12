// Package gate decides whether a request may come in: by its API key, the project's
// allowlist, rate limit and quota, from the edge's own state alone. It also does what
// every answer needs: request id, CORS, the mark of stale state.
//
// It promises: the order of checks of each family of endpoints, as the specification has
// it; an edge without state never says that a key is missing or unknown; admitting costs
// no allocation. It does not word refusals beyond the tables in words.go, and does not
// judge bodies.
package gate

import (
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"skerry/edgenode/view"
	"skerry/pkg/apikey"
	"skerry/pkg/etag"
	"skerry/pkg/forwarded"
	"skerry/pkg/serve"
	"skerry/pkg/state"
	"skerry/replication/tally"
)

// Limit is one of the counters of requests per minute.
type Limit uint8

// The limits. Each counts by the value of the API key.
const (
	NoLimit        Limit = iota
	IngestLimit          // one for track, people, alias and batch; by client address where no key is sent
	HandshakeLimit       // GET and POST of the handshake
	DecisionsLimit       // OFREP and the older decision endpoints; none unless the project sets one
)

// Scope is what a limit counts by: the hash of a key's text, or of a client's address.
type Scope = apikey.Hash

// Limiter counts requests in fixed minutes, over all edges.
type Limiter interface {
	// Allow counts one request and tells whether it is within the limit of its minute.
	Allow(at time.Time, limit uint8, scope [32]byte, perMinute int) bool
}

// Meter knows what a project has used of a month's quota.
type Meter interface {
	// Used is the month's count, this edge's share included; central is what the centre
	// last totalled.
	Used(now time.Time, project string, metric tally.Metric, central *state.Usage) int64
	// AddHandshakes counts decision calls. Events are counted by whoever accepts them.
	AddHandshakes(project string, n int64)
}

// Config says what a gate works with.
type Config struct {
	Views   *view.Store
	Limiter Limiter
	Meter   Meter
	// KeyUse, when set, hears of every known key that a request came with.
	KeyUse *tally.KeyUse
	// TrustedProxies may say in X-Forwarded-For whom they forward for. Nobody else is
	// believed.
	TrustedProxies []netip.Prefix
}

// defaultPerMinute holds for keys that the edge does not know and for requests without one.
const defaultPerMinute = 500

// Gate admits requests. Its methods may be called concurrently.
type Gate struct {
	config Config
	stale  atomic.Int64 // seconds; 0: fresh
}

// New makes a gate.
func New(config Config) *Gate { return &Gate{config: config} }

// SetStale says for how many seconds the edge has not heard from the centre; below a
// minute, 0.
func (g *Gate) SetStale(seconds int64) { g.stale.Store(seconds) }

// Refusal is why a request is not admitted.
type Refusal uint8

// The refusals.
const (
	Admitted Refusal = iota
	RateLimited
	NoKey
	UnknownKey // revoked and expired ones too
	NotAllowed // by the allowlist
	OverQuota
	NoState // this edge cannot tell
	refusals
)

// Pass is the gate's verdict, and what it learned on the way.
type Pass struct {
	Refusal        Refusal
	Key            view.Key          // when the key is known
	Env            *view.Environment // when the key is known
	Current, Limit int64             // of the quota, when OverQuota
}

// Admit judges a request by its family's rules.
func (g *Gate) Admit(ctx *fasthttp.RequestCtx, f *Family) Pass {
	secret := f.Secret(ctx)
	if len(secret) == 0 {
		return g.withoutKey(ctx, f)
	}
	hash := apikey.OfBytes(secret) // once: it is a tenth of what a single event costs
	pass := g.identify(hash)
	if f.limit != NoLimit && !g.withinLimit(ctx.Time(), f.limit, hash, pass.Env) {
		pass.Refusal = RateLimited
		return pass
	}
	if pass.Refusal != Admitted {
		return pass
	}
	if f.allowlist && !g.allowed(ctx, &pass.Env.Settings.Allowlist) {
		pass.Refusal = NotAllowed
		return pass
	}
	return g.meter(ctx.Time(), pass, f)
}

// withoutKey counts a request without a key by its client's address, where the family's
// limit says so. An edge without state says 503 here too: it answers 401 to nobody.
func (g *Gate) withoutKey(ctx *fasthttp.RequestCtx, f *Family) Pass {
	if f.limit == IngestLimit {
		address := g.ClientIP(ctx).As16()
		if !g.config.Limiter.Allow(ctx.Time(), uint8(f.limit), apikey.OfBytes(address[:]), defaultPerMinute) {
			return Pass{Refusal: RateLimited}
		}
	}
	if !g.config.Views.Ready() {
		return Pass{Refusal: NoState}
	}
	return Pass{Refusal: NoKey}
}

func (g *Gate) identify(hash apikey.Hash) Pass {
	// Asked first: if state comes in between, the worst is one more 503.
	ready, faults := g.config.Views.Ready(), g.config.Views.Faults()
	key, known := g.config.Views.Key(hash)
	if known {
		if env, ok := g.config.Views.Environment(key.ProjectID, key.Environment); ok {
			if g.config.KeyUse != nil {
				g.config.KeyUse.Mark(key.ID)
			}
			return Pass{Key: key, Env: env}
		}
	}
	// A key that could not be read is not unknown: a valid one must never hear 401 or 403.
	if !ready || g.config.Views.Faults() != faults {
		return Pass{Refusal: NoState}
	}
	return Pass{Refusal: UnknownKey}
}

func (g *Gate) withinLimit(at time.Time, limit Limit, scope Scope, env *view.Environment) bool {
	perMinute := defaultPerMinute
	if env != nil {
		switch set := &env.Settings.RateLimits; limit {
		case IngestLimit:
			perMinute = set.IngestPerMinute
		case HandshakeLimit:
			perMinute = set.HandshakePerMinute
		case DecisionsLimit:
			if set.DecisionsPerMinute == nil {
				return true
			}
			perMinute = *set.DecisionsPerMinute
		}
	} else if limit == DecisionsLimit {
		return true
	}
	return g.config.Limiter.Allow(at, uint8(limit), scope, perMinute)
}

// meter checks the family's monthly quota, and counts a decision call.
func (g *Gate) meter(now time.Time, pass Pass, f *Family) Pass {
	if !f.metered {
		return pass
	}
	limit := pass.Env.Settings.Quotas.Events
	if f.metric == tally.Handshakes {
		limit = pass.Env.Settings.Quotas.Handshakes
	}
	if limit != nil {
		if used := g.config.Meter.Used(now, pass.Key.ProjectID, f.metric, &pass.Env.Usage); used >= *limit {
			pass.Refusal, pass.Current, pass.Limit = OverQuota, used, *limit
			return pass
		}
	}
	if f.metric == tally.Handshakes {
		g.config.Meter.AddHandshakes(pass.Key.ProjectID, 1)
	}
	return pass
}

// allowed judges by the origin, if the request names one, else by the client's address.
func (g *Gate) allowed(ctx *fasthttp.RequestCtx, list *state.Allowlist) bool {
	if origin := ctx.Request.Header.Peek("Origin"); len(origin) > 0 {
		return originAllowed(string(origin), list.Origins)
	}
	if len(list.CIDRs) == 0 {
		return true
	}
	client := g.ClientIP(ctx)
	for _, text := range list.CIDRs {
		if network, err := netip.ParsePrefix(text); err == nil && forwarded.Network(network).Contains(client) {
			return true
		}
		if address, err := netip.ParseAddr(text); err == nil && address.Unmap() == client {
			return true
		}
	}
	return false
}

// originAllowed compares whole origins, without regard to case: scheme and host have none.
func originAllowed(origin string, list []string) bool {
	for _, o := range list {
		if o == "*" || strings.EqualFold(strings.TrimSuffix(o, "/"), origin) {
			return true
		}
	}
	return len(list) == 0
}

// ClientIP is the client's address: the connection's, or what trusted proxies say of it.
// See package forwarded.
func (g *Gate) ClientIP(ctx *fasthttp.RequestCtx) netip.Addr {
	peer, _ := netip.AddrFromSlice(ctx.RemoteIP())
	if len(g.config.TrustedProxies) == 0 {
		return peer.Unmap()
	}
	return forwarded.Client(peer, ctx.Request.Header.PeekAll("X-Forwarded-For"), g.config.TrustedProxies)
}

// Begin does what every answer needs, before anything else: its X-Request-Id (the
// caller's, if it sent a usable one) and Skerry-Stale once the edge has not heard from
// the centre for a minute.
func (g *Gate) Begin(ctx *fasthttp.RequestCtx) {
	id := ctx.Request.Header.Peek("X-Request-Id")
	var fresh [32]byte
	if !serve.UsableRequestID(id) {
		id = appendHex(appendHex(fresh[:0], rand.Uint64()), rand.Uint64())
	}
	ctx.Response.Header.SetCanonical(nameRequestID, id)
	if stale := g.stale.Load(); stale > 0 {
		var text [20]byte
		ctx.Response.Header.SetBytesV("Skerry-Stale", strconv.AppendInt(text[:0], stale, 10))
	}
}

// nameRequestID is in the form that the server would make of it at every request.
var nameRequestID = []byte("X-Request-Id")

// RequestID is the request's id, after Begin. It dies with the handler.
func RequestID(ctx *fasthttp.RequestCtx) []byte { return ctx.Response.Header.Peek("X-Request-Id") }

func appendHex(b []byte, v uint64) []byte {
	const digits = "0123456789abcdef"
	for shift := 60; shift >= 0; shift -= 4 {
		b = append(b, digits[v>>shift&15])
	}
	return b
}

// HasTag reports whether the client has the answer with the tag already: its
// If-None-Match names it. The first of its lines is looked at before all of them are:
// hardly any request has several.
func HasTag(ctx *fasthttp.RequestCtx, tag []byte) bool {
	known := ctx.Request.Header.Peek(fasthttp.HeaderIfNoneMatch)
	if len(known) == 0 || etag.NoneMatch(known, tag) {
		return len(known) > 0
	}
	for _, line := range ctx.Request.Header.PeekAll(fasthttp.HeaderIfNoneMatch) {
		if etag.NoneMatch(line, tag) {
			return true
		}
	}
	return false
}

// CORS lets pages of any origin read the answer (whether the request itself is admitted
// is Admit's matter). It is for endpoints that client libraries call.
func CORS(ctx *fasthttp.RequestCtx) {
	origin := ctx.Request.Header.Peek("Origin")
	if len(origin) == 0 {
		return
	}
	h := &ctx.Response.Header
	h.SetBytesV("Access-Control-Allow-Origin", origin)
	h.Add("Vary", "Origin")
	h.Set("Access-Control-Expose-Headers", "ETag, Retry-After, X-Request-Id, Skerry-Stale, Skerry-Partial")
}

// Preflight answers a CORS preflight for a path that knows these methods ("GET, POST").
// It carries no key and is always admitted. It returns false for anything else.
func Preflight(ctx *fasthttp.RequestCtx, methods string) bool {
	asked := &ctx.Request.Header
	if !ctx.IsOptions() || len(asked.Peek("Origin")) == 0 || len(asked.Peek("Access-Control-Request-Method")) == 0 {
		return false
	}
	h := &ctx.Response.Header
	h.Set("Access-Control-Allow-Methods", methods)
	if headers := asked.Peek("Access-Control-Request-Headers"); len(headers) > 0 {
		h.SetBytesV("Access-Control-Allow-Headers", headers)
	}
	h.Set("Access-Control-Max-Age", "86400")
	h.Add("Vary", "Access-Control-Request-Headers")
	ctx.SetStatusCode(fasthttp.StatusNoContent)
	return true
}
