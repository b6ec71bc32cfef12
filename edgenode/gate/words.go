package gate

import (
	"strconv"

	"github.com/valyala/fasthttp"

	"skerry/replication/tally"
)

// Family is a group of endpoints that check alike and word their refusals alike.
type Family struct {
	limit     Limit
	metered   bool // against the monthly quota of metric
	metric    tally.Metric
	allowlist bool
	bearer    bool // the key may come as a bearer token
	query     bool // the key may come as ?key=
	words     words
}

type words struct{ noKey, unknownKey answer }

type answer struct {
	status int
	body   string
}

// The answers that all families share.
const (
	rateLimited  = `{"error":"Rate limit exceeded. Please wait a moment."}`
	notAllowed   = `{"error":"Origin not allowed"}`
	noState      = `{"error":"Service temporarily unavailable"}`
	contentType  = "application/json"
	bearerPrefix = "Bearer "
)

// The families, by the specification's tables of errors and the supplement's sections 3
// to 5. They are never changed.
var (
	// Ingestion is for track and batch.
	Ingestion = &Family{limit: IngestLimit, metered: true, metric: tally.Events, allowlist: true, words: ingestionWords}
	// Profiles is for people and alias: they share the limiter of ingestion, and no quota
	// counts them.
	Profiles = &Family{limit: IngestLimit, allowlist: true, words: ingestionWords}
	// Crashes is for crash reports, which no limiter counts.
	Crashes = &Family{allowlist: true, words: ingestionWords}
	// Handshake is for GET and POST of the handshake.
	Handshake = &Family{limit: HandshakeLimit, metered: true, metric: tally.Handshakes, words: decisionWords}
	// Decisions is for the older decision endpoints.
	Decisions = &Family{limit: DecisionsLimit, metered: true, metric: tally.Handshakes, words: decisionWords}
	// OpenFeature is for OFREP.
	OpenFeature = &Family{limit: DecisionsLimit, metered: true, metric: tally.Handshakes, bearer: true, words: decisionWords}
	// Changes is for the stream of changes.
	Changes = &Family{query: true, bearer: true, words: decisionWords}
	// Pulse is for what the edge itself serves of surveys.
	Pulse = &Family{words: words{
		noKey:      answer{401, `{"error":"missing_api_key"}`},
		unknownKey: answer{401, `{"error":"invalid_api_key"}`},
	}}
)

var ingestionWords = words{
	noKey:      answer{401, `{"error":"Missing API key"}`},
	unknownKey: answer{403, `{"error":"Unknown API key"}`},
}

var decisionWords = words{
	noKey:      answer{401, `{"error":"missing x-api-key"}`},
	unknownKey: answer{401, `{"error":"invalid api key"}`},
}

// Refuse answers a request that was not admitted in the family's words.
func (f *Family) Refuse(ctx *fasthttp.RequestCtx, pass Pass) {
	ctx.Response.Header.SetContentType(contentType)
	switch pass.Refusal {
	case NoKey:
		reply(ctx, f.words.noKey)
	case UnknownKey:
		reply(ctx, f.words.unknownKey)
	case RateLimited:
		reply(ctx, answer{429, rateLimited})
	case NotAllowed:
		reply(ctx, answer{403, notAllowed})
	case OverQuota:
		ctx.SetStatusCode(429)
		b := append(ctx.Response.Body()[:0], `{"error":"quota_exceeded","current":`...)
		b = strconv.AppendInt(b, pass.Current, 10)
		b = append(b, `,"limit":`...)
		b = strconv.AppendInt(b, pass.Limit, 10)
		ctx.SetBody(append(b, '}'))
	case NoState:
		reply(ctx, answer{503, noState})
	default:
		panic("BUG: an admitted request is refused")
	}
}

func reply(ctx *fasthttp.RequestCtx, a answer) {
	ctx.SetStatusCode(a.status)
	ctx.SetBodyString(a.body)
}

// Secret is the key's text as the request carries it; empty: none. It dies with
// the handler.
func (f *Family) Secret(ctx *fasthttp.RequestCtx) []byte {
	if key := ctx.Request.Header.Peek("X-Api-Key"); len(key) > 0 {
		return key
	}
	if f.bearer {
		h := ctx.Request.Header.Peek("Authorization")
		if len(h) > len(bearerPrefix) && equalFold(h[:len(bearerPrefix)], bearerPrefix) {
			return h[len(bearerPrefix):]
		}
	}
	if f.query {
		return ctx.QueryArgs().Peek("key")
	}
	return nil
}

// equalFold compares ASCII without regard to case.
func equalFold(b []byte, s string) bool {
	for i := range b {
		if b[i]|0x20 != s[i]|0x20 {
			return false
		}
	}
	return len(b) == len(s)
}
