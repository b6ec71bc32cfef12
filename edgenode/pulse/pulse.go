// Package pulse serves surveys at the edge: the list of eligible ones and their
// bundles (specification, GET /api/pulse/surveys and …/:survey_id; supplement §5).
//
// It promises: the list and a bundle are sent as they were rendered when a survey
// changed, in the coding that the client likes; a 304 costs a lookup and no
// allocation; the tag is equal on every edge. A bundle asked for with an external_id
// waits at most Patience for the centre's partial response and comes without it, and
// with Skerry-Partial: unavailable, when the centre has none to tell.
//
// What respondents send is the write plane's: it is relayed, not handled here.
package pulse

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"unicode/utf8"

	"github.com/valyala/fasthttp"

	"skerry/edgenode/gate"
	"skerry/pkg/problem"
	"skerry/pkg/survey"
)

// Config says what a Handler works with.
type Config struct {
	Gate *gate.Gate
	// Partial asks the centre: see Centre.Partial.
	Partial func(apiKey, requestID, surveyID, externalID string) (json.RawMessage, error)
	Log     *slog.Logger // nil means slog.Default()
}

// Handler answers the paths of surveys. Its view.Store must compile with Compile.
type Handler struct{ config Config }

// New returns a Handler.
func New(config Config) *Handler {
	if config.Log == nil {
		config.Log = slog.Default()
	}
	return &Handler{config: config}
}

// What answers are made of, ready to be sent. None of it is ever changed.
var (
	headerTag          = []byte("Etag")
	headerCacheControl = []byte("Cache-Control")
	headerVary         = []byte("Vary")
	headerCoding       = []byte("Content-Encoding")
	headerType         = []byte("application/json")
	cacheList          = []byte("private, max-age=300")
	cacheBundle        = []byte("private, no-cache")
	varyCoding         = []byte("Accept-Encoding")

	bodyDisabled = problem.New(problem.Forbidden, "module_disabled").Body()
	bodyUnknown  = problem.Newf(problem.NotFound, "not_found", "survey not found for this project").Body()
)

// List serves GET /api/pulse/surveys.
func (h *Handler) List(ctx *fasthttp.RequestCtx, _ []byte) {
	pages := h.admit(ctx)
	if pages == nil {
		return
	}
	header := &ctx.Response.Header
	header.SetCanonical(headerTag, pages.tag)
	header.SetCanonical(headerCacheControl, cacheList)
	header.AddBytesKV(headerVary, varyCoding)
	if gate.HasTag(ctx, pages.tag) {
		ctx.SetStatusCode(fasthttp.StatusNotModified)
		return
	}
	send(ctx, pages.list)
}

// Bundle serves GET /api/pulse/surveys/:survey_id; wanted is the id or the slug.
func (h *Handler) Bundle(ctx *fasthttp.RequestCtx, wanted []byte) {
	pages := h.admit(ctx)
	if pages == nil {
		return
	}
	found := pages.surveys[string(wanted)]
	if found == nil {
		answer(ctx, fasthttp.StatusNotFound, bodyUnknown)
		return
	}
	if found.bundle == nil {
		answer(ctx, fasthttp.StatusUnprocessableEntity, found.refusal)
		return
	}
	header := &ctx.Response.Header
	header.SetCanonical(headerCacheControl, cacheBundle)
	header.AddBytesKV(headerVary, varyCoding)
	if externalID := ctx.QueryArgs().Peek("external_id"); len(externalID) > 0 {
		if partial := h.partial(ctx, found.id, externalID); partial != nil {
			answer(ctx, fasthttp.StatusOK, withPartial(found.bundle.body, partial))
			return
		}
	}
	send(ctx, found.bundle)
}

// admit lets the request in, or answers it and returns nil.
func (h *Handler) admit(ctx *fasthttp.RequestCtx) *Pages {
	pass := h.config.Gate.Admit(ctx, gate.Pulse)
	if pass.Refusal != gate.Admitted {
		gate.Pulse.Refuse(ctx, pass)
		return nil
	}
	if !pass.Env.Settings.Modules.Pulse {
		answer(ctx, fasthttp.StatusForbidden, bodyDisabled)
		return nil
	}
	return pass.Env.Pulse.(*Pages)
}

// partial asks the centre; nil when there is none, or none to be had, which the
// answer's header then says.
func (h *Handler) partial(ctx *fasthttp.RequestCtx, surveyID string, externalID []byte) json.RawMessage {
	if !utf8.Valid(externalID) || bytes.IndexByte(externalID, 0) >= 0 || utf8.RuneCount(externalID) > survey.MaxIdentity {
		return nil // no respondent has such an id
	}
	requestID := string(gate.RequestID(ctx))
	partial, err := h.config.Partial(string(ctx.Request.Header.Peek("X-Api-Key")), requestID, surveyID, string(externalID))
	if err != nil {
		h.config.Log.Debug("bundle without partial response", "request_id", requestID, "error", err)
		ctx.Response.Header.Set("Skerry-Partial", "unavailable")
		return nil
	}
	return partial
}

// withPartial is the bundle with one more member at its end.
func withPartial(bundle []byte, partial json.RawMessage) []byte {
	body := make([]byte, 0, len(bundle)+len(partial)+12)
	body = append(body, bundle[:len(bundle)-1]...)
	body = append(body, `,"partial":`...)
	return append(append(body, partial...), '}')
}

// send answers a page in the best coding that the client admits. The page's bytes are
// sent as they are, not copied: they never change.
func send(ctx *fasthttp.RequestCtx, p *page) {
	body, as := p.coded(accepted(ctx.Request.Header.Peek(fasthttp.HeaderAcceptEncoding)))
	if as != identity {
		ctx.Response.Header.SetCanonical(headerCoding, names[as])
	}
	answer(ctx, fasthttp.StatusOK, body)
}

func answer(ctx *fasthttp.RequestCtx, status int, body []byte) {
	ctx.SetStatusCode(status)
	ctx.Response.Header.SetContentTypeBytes(headerType)
	ctx.Response.SetBodyRaw(body)
}
