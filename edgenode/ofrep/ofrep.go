// Package ofrep answers the OpenFeature Remote Evaluation Protocol at the edge, for
// OpenFeature's own clients (supplement §4). Flags and config items share the space of
// keys; of two with one key the flag answers.
//
// It promises what package handshake promises: local state only, tags before evaluation,
// no allocation with warm buffers.
package ofrep

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync"
	"unicode/utf8"

	"github.com/twmb/murmur3"
	"github.com/valyala/fasthttp"

	"skerry/edgenode/front"
	"skerry/edgenode/gate"
	"skerry/edgenode/handshake"
	"skerry/edgenode/view"
	"skerry/pkg/decide"
)

// Config says what the answers name.
type Config struct {
	// PublicURL is where clients reach this edge ("https://edge.example.com"), for the
	// address of the change stream. Empty: what the request itself says, its Host and
	// X-Forwarded-Proto.
	PublicURL string
}

// Module serves the endpoints.
type Module struct {
	gate   *gate.Gate
	config Config
	works  sync.Pool // of *handshake.Work
}

// New returns the module.
func New(g *gate.Gate, config Config) *Module {
	return &Module{gate: g, config: config, works: sync.Pool{New: func() any { return new(handshake.Work) }}}
}

// begin admits a request and reads its context. What it refuses it answers, with the key
// that was asked for (nil: all), and then w is nil; else w goes back to m.works.
func (m *Module) begin(ctx *fasthttp.RequestCtx, key []byte) (w *handshake.Work, pass gate.Pass) {
	pass = m.gate.Admit(ctx, gate.OpenFeature)
	if pass.Refusal != gate.Admitted {
		gate.OpenFeature.Refuse(ctx, pass)
		return nil, pass
	}
	w = m.works.Get().(*handshake.Work)
	w.Reset()
	if fault := m.read(ctx, w); fault != nil {
		w.Out = fault.append(w.Out, key)
		answer(ctx, fault.status, w.Out)
		m.works.Put(w)
		return nil, pass
	}
	return w, pass
}

// Single serves POST /ofrep/v1/evaluate/flags/{key}.
func (m *Module) Single(ctx *fasthttp.RequestCtx, key []byte) {
	w, pass := m.begin(ctx, key)
	if w == nil {
		return
	}
	defer m.works.Put(w)
	if !single(ctx, w, pass.Env, key) {
		handshake.AnswerSettled(ctx, m.gate, pass, gate.OpenFeature, func(env *view.Environment) bool { return single(ctx, w, env, key) })
	}
}

// single answers from an environment. It reports false when members of its cohorts could
// not be told.
func single(ctx *fasthttp.RequestCtx, w *handshake.Work, env *view.Environment, key []byte) bool {
	set := handshake.Of(env)
	entry := set.Find(key)
	if entry == nil {
		w.Out = notFound.append(w.Out[:0], key)
		answer(ctx, notFound.status, w.Out)
		return true
	}
	w.Context.UseCohorts(set.Cohorts)
	outcome := entry.Decide(&w.Context)
	if w.Context.Unsure() {
		return false
	}
	status := fasthttp.StatusOK
	if outcome.Reason == decide.ReasonError {
		status = fasthttp.StatusInternalServerError
	}
	w.Out = entry.AppendOpenFeature(w.Out[:0], outcome)
	answer(ctx, status, w.Out)
	return true
}

// Bulk serves POST /ofrep/v1/evaluate/flags.
func (m *Module) Bulk(ctx *fasthttp.RequestCtx) {
	w, pass := m.begin(ctx, nil)
	if w == nil {
		return
	}
	defer m.works.Put(w)
	if !m.bulk(ctx, w, pass.Env) {
		handshake.AnswerSettled(ctx, m.gate, pass, gate.OpenFeature, func(env *view.Environment) bool { return m.bulk(ctx, w, env) })
	}
}

// bulk answers from an environment. It reports false when members of its cohorts could
// not be told.
func (m *Module) bulk(ctx *fasthttp.RequestCtx, w *handshake.Work, env *view.Environment) bool {
	w.Stream = m.appendStream(w.Stream[:0], ctx)
	w.Tag = handshake.AppendTag(w.Tag[:0], handshake.OpenFeature, env, digest(w))
	if handshake.Revalidate(ctx, w.Tag) {
		return true
	}
	set := handshake.Of(env)
	w.Context.UseCohorts(set.Cohorts)
	b := append(w.Out[:0], `{"flags":[`...)
	for i, e := range set.OpenFeature() {
		if i > 0 {
			b = append(b, ',')
		}
		b = e.AppendOpenFeature(b, e.Decide(&w.Context))
	}
	w.Out = b
	if w.Context.Unsure() {
		return false
	}
	b = decide.AppendString(append(b, `],"eventStreams":[{"type":"sse","url":`...), w.Stream)
	w.Out = append(b, `}]}`...)
	ctx.SetBody(w.Out)
	return true
}

// digest is over all of a request that its answer depends on: the context, and the
// address of the change stream, which has the key.
func digest(w *handshake.Work) (d [16]byte) {
	c := w.Context.Digest()
	h1, h2 := murmur3.SeedSum128(binary.BigEndian.Uint64(c[:8]), binary.BigEndian.Uint64(c[8:]), w.Stream)
	binary.BigEndian.PutUint64(d[:8], h1)
	binary.BigEndian.PutUint64(d[8:], h2)
	return d
}

// appendStream appends the address of the change stream, with the key that the request
// itself came with: pages cannot send headers with an event source.
func (m *Module) appendStream(u []byte, ctx *fasthttp.RequestCtx) []byte {
	if m.config.PublicURL != "" {
		u = append(u, m.config.PublicURL...)
	} else {
		scheme := "http://"
		if ctx.IsTLS() || bytes.EqualFold(ctx.Request.Header.Peek("X-Forwarded-Proto"), []byte("https")) {
			scheme = "https://"
		}
		u = append(u, scheme...)
		if host := ctx.Host(); utf8.Valid(host) {
			u = append(u, host...)
		}
	}
	return append(append(u, "/api/v1/stream?key="...), gate.OpenFeature.Secret(ctx)...)
}

// read fills the context from the body. If that fails, the fault is what to answer.
func (m *Module) read(ctx *fasthttp.RequestCtx, w *handshake.Work) *fault {
	var err error
	if w.Body, err = front.Body(ctx, w.Body, handshake.MaxBody); err == nil {
		err = w.Context.ReadOpenFeature(w.Body)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, front.ErrTooLarge):
		return &tooLarge
	case errors.Is(err, decide.ErrDistinctID):
		return &noTargetingKey
	case errors.Is(err, decide.ErrContext), errors.Is(err, decide.ErrAnonID), errors.Is(err, decide.ErrSession):
		return &invalidContext
	}
	return &malformed
}

// fault is one failure in the protocol's words.
type fault struct {
	status        int
	code, details string
}

// The failures. They are never changed.
var (
	malformed      = fault{400, "PARSE_ERROR", "the body is not a JSON object"}
	noTargetingKey = fault{400, "TARGETING_KEY_MISSING", "context.targetingKey is required"}
	invalidContext = fault{400, "INVALID_CONTEXT", "context must be an object with targetingKey and anon_id as strings and session_count as a whole number"}
	notFound       = fault{404, "FLAG_NOT_FOUND", "no flag and no config item has this key"}
	tooLarge       = fault{413, "GENERAL", "the body is too large"}
)

func (f *fault) append(b, key []byte) []byte {
	b = append(b, '{')
	if key != nil {
		b = append(b, `"key":`...)
		b = append(decide.AppendString(b, bytes.ToValidUTF8(key, []byte("\uFFFD"))), ',')
	}
	b = append(append(b, `"errorCode":"`...), f.code...)
	b = append(append(b, `","errorDetails":"`...), f.details...)
	return append(b, `"}`...)
}

func answer(ctx *fasthttp.RequestCtx, status int, body []byte) {
	ctx.Response.Header.SetContentType("application/json")
	ctx.SetStatusCode(status)
	ctx.SetBody(body)
}
