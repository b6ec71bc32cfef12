// Package handshake answers decisions at the edge: the unified handshake and the older
// endpoint of each module (supplement §4).
//
// It promises: an answer comes from this edge's state alone; its tag is computed before
// anything is evaluated, so a client that has the newest answer costs no evaluation; with
// warm buffers a request is answered without allocation. It does not decide: that is
// pkg/decide. Who may ask is the gate's matter.
package handshake

import (
	"errors"
	"sync"
	"unicode/utf8"

	"github.com/valyala/fasthttp"

	"skerry/edgenode/front"
	"skerry/edgenode/gate"
	"skerry/edgenode/view"
	"skerry/pkg/decide"
)

// MaxBody is the largest body of a decision request in bytes.
const MaxBody = 1 << 20

// refreshSeconds is when a client should ask again (specification: within 30 seconds).
const refreshSeconds = "30"

// Module serves the endpoints.
type Module struct {
	gate     *gate.Gate
	pulseTag func(env *view.Environment) []byte
	works    sync.Pool // of *Work
}

// New returns the module. pulseTag gives the entity tag of an environment's survey list,
// quotes included.
func New(g *gate.Gate, pulseTag func(env *view.Environment) []byte) *Module {
	return &Module{gate: g, pulseTag: pulseTag, works: sync.Pool{New: func() any { return new(Work) }}}
}

// Work is the memory of one request. It goes from request to request.
type Work struct {
	Context decide.Context
	Body    []byte // of the request
	Out     []byte // of the answer
	Tag     []byte
	Stream  []byte // the address of the change stream, as an answer names it
	module  []byte // the tag of a part of the answer
}

// Reset makes the memory ready for another request, and lets unusually large pieces go.
func (w *Work) Reset() {
	const keep = 1 << 20
	w.Context.Reset()
	if cap(w.Body) > keep {
		w.Body = nil
	}
	if cap(w.Out) > keep {
		w.Out = nil
	}
	w.Body, w.Out, w.Tag = w.Body[:0], w.Out[:0], w.Tag[:0]
}

// Get serves GET /api/v1/handshake.
func (m *Module) Get(ctx *fasthttp.RequestCtx) { m.serve(ctx, gate.Handshake, Whole, fromQuery) }

// Post serves POST /api/v1/handshake: the same call with the members as JSON.
func (m *Module) Post(ctx *fasthttp.RequestCtx) { m.serve(ctx, gate.Handshake, Whole, fromBody) }

// Flags serves GET /api/switch/decisions, for older clients.
func (m *Module) Flags(ctx *fasthttp.RequestCtx) { m.serve(ctx, gate.Decisions, Switch, fromQuery) }

// Items serves GET /api/config/values, for older clients.
func (m *Module) Items(ctx *fasthttp.RequestCtx) { m.serve(ctx, gate.Decisions, Config, fromQuery) }

func (m *Module) serve(ctx *fasthttp.RequestCtx, family *gate.Family, scope Scope, read func(*fasthttp.RequestCtx, *Work) error) {
	pass := m.gate.Admit(ctx, family)
	if pass.Refusal != gate.Admitted {
		family.Refuse(ctx, pass)
		return
	}
	w := m.works.Get().(*Work)
	defer m.works.Put(w)
	w.Reset()
	if err := read(ctx, w); err != nil {
		refuse(ctx, err)
		return
	}
	if !m.answer(ctx, w, scope, pass.Env) {
		AnswerSettled(ctx, m.gate, pass, family, func(env *view.Environment) bool { return m.answer(ctx, w, scope, env) })
	}
}

// answer answers from an environment. It reports false when members of its cohorts could
// not be told.
func (m *Module) answer(ctx *fasthttp.RequestCtx, w *Work, scope Scope, env *view.Environment) bool {
	if scope == Switch && !env.Settings.Modules.Switch || scope == Config && !env.Settings.Modules.Config {
		fail(ctx, fasthttp.StatusForbidden, `{"error":"module_disabled"}`)
		return true
	}
	digest := w.Context.Digest()
	w.Tag = AppendTag(w.Tag[:0], scope, env, digest)
	if Revalidate(ctx, w.Tag) {
		return true
	}
	set := Of(env)
	w.Context.UseCohorts(set.Cohorts)
	w.Out = w.Out[:0]
	switch scope {
	case Whole:
		w.Out = m.whole(w.Out, w, env, set, digest)
	case Switch:
		w.Out = append(appendEntries(append(w.Out, `{"flags":{`...), &w.Context, set.Flags), `}}`...)
	default:
		w.Out = append(appendEntries(append(w.Out, `{"items":{`...), &w.Context, set.Items), `}}`...)
	}
	if w.Context.Unsure() {
		return false
	}
	ctx.SetBody(w.Out)
	return true
}

// AnswerSettled answers a request once more when members of a cohort could not be told:
// most likely they had changed since the request was admitted, and members of one state
// under the tag of another are no answer. This time nothing changes meanwhile. If they
// cannot be told even so, they cannot be read, and the answer is 503.
func AnswerSettled(ctx *fasthttp.RequestCtx, g *gate.Gate, pass gate.Pass, family *gate.Family, answer func(*view.Environment) (sure bool)) {
	h := &ctx.Response.Header
	h.DelBytes(nameETag)
	h.DelBytes(nameCacheControl)
	sure := false
	if g.Settled(pass, func(env *view.Environment) { sure = answer(env) }) && sure {
		return
	}
	h.DelBytes(nameETag)
	h.SetCanonical(nameCacheControl, []byte("no-store"))
	h.Set("Retry-After", "1")
	family.Refuse(ctx, gate.Pass{Refusal: gate.NoState})
}

// whole renders the handshake.
func (m *Module) whole(b []byte, w *Work, env *view.Environment, set *Set, digest [16]byte) []byte {
	b = append(b, set.head...)
	b = decide.AppendString(b, w.Context.DistinctID())
	b = append(b, `,"modules":{`...)
	modules := &env.Settings.Modules
	if modules.Switch {
		w.module = AppendTag(w.module[:0], Switch, env, digest)
		b = appendEtag(append(b, `"switch":{"etag":`...), w.module)
		b = appendEntries(append(b, `,"flags":{`...), &w.Context, set.Flags)
		b = append(b, `}},`...)
	}
	if modules.Config {
		w.module = AppendTag(w.module[:0], Config, env, digest)
		b = appendEtag(append(b, `"config":{"etag":`...), w.module)
		b = appendEntries(append(b, `,"items":{`...), &w.Context, set.Items)
		b = append(b, `}},`...)
	}
	if modules.Pulse {
		b = appendEtag(append(b, `"pulse":{"etag":`...), m.pulseTag(env))
		b = append(b, `},`...)
	}
	if b[len(b)-1] == ',' {
		b = b[:len(b)-1]
	}
	b = w.Context.AppendCohorts(append(b, `},"cohorts":`...))
	return append(b, `,"refresh_after_seconds":`+refreshSeconds+`}`...)
}

// appendEtag writes a tag as it stands in a header, so its quotes are escaped.
func appendEtag(b, tag []byte) []byte { return decide.AppendString(b, tag) }

func appendEntries(b []byte, c *decide.Context, entries []*decide.Entry) []byte {
	for i, e := range entries {
		if i > 0 {
			b = append(b, ',')
		}
		b = e.AppendHandshake(b, e.Decide(c))
	}
	return b
}

// Names in the form that the server would make of them at every request.
var (
	nameETag         = []byte("Etag")
	nameCacheControl = []byte("Cache-Control")
	ownAndRevalidate = []byte("private, no-cache")
)

// Revalidate sets the headers of an answer with the tag, and answers 304 if the client
// has it. It reports whether it did.
func Revalidate(ctx *fasthttp.RequestCtx, tag []byte) bool {
	h := &ctx.Response.Header
	h.SetCanonical(nameETag, tag)
	h.SetCanonical(nameCacheControl, ownAndRevalidate)
	if gate.HasTag(ctx, tag) {
		ctx.SetStatusCode(fasthttp.StatusNotModified)
		return true
	}
	h.SetContentType("application/json")
	return false
}

// fromQuery reads the context out of the query.
func fromQuery(ctx *fasthttp.RequestCtx, w *Work) error {
	query := ctx.QueryArgs()
	id := query.Peek("distinct_id")
	if !utf8.Valid(id) {
		return decide.ErrDistinctID
	}
	if err := w.Context.SetDistinctID(id); err != nil {
		return err
	}
	if err := w.Context.SetProps(query.Peek("props")); err != nil {
		return err
	}
	anon := query.Peek("anon_id")
	if !utf8.Valid(anon) {
		return decide.ErrAnonID
	}
	w.Context.SetAnonID(anon)
	return w.Context.SetSession(query.Peek("session_count"))
}

// fromBody reads the context out of the body.
func fromBody(ctx *fasthttp.RequestCtx, w *Work) error {
	var err error
	if w.Body, err = front.Body(ctx, w.Body, MaxBody); err != nil {
		return err
	}
	return w.Context.ReadHandshake(w.Body)
}

func refuse(ctx *fasthttp.RequestCtx, err error) {
	switch {
	case errors.Is(err, front.ErrTooLarge):
		fail(ctx, fasthttp.StatusRequestEntityTooLarge, `{"error":"payload_too_large"}`)
	case errors.Is(err, decide.ErrDistinctID), errors.Is(err, decide.ErrSyntax):
		fail(ctx, fasthttp.StatusBadRequest, `{"error":"distinct_id is required"}`)
	case errors.Is(err, decide.ErrProps):
		fail(ctx, fasthttp.StatusBadRequest, `{"error":"invalid_props"}`)
	case errors.Is(err, decide.ErrSession):
		fail(ctx, fasthttp.StatusBadRequest, `{"error":"invalid_session_count","message":"session_count must be a whole number from 0"}`)
	case errors.Is(err, decide.ErrAnonID):
		fail(ctx, fasthttp.StatusBadRequest, `{"error":"invalid_body","message":"anon_id must be a string"}`)
	default: // the connection or its coding broke off
		fail(ctx, fasthttp.StatusBadRequest, `{"error":"invalid_body"}`)
	}
}

func fail(ctx *fasthttp.RequestCtx, status int, body string) {
	ctx.Response.Header.SetContentType("application/json")
	ctx.SetStatusCode(status)
	ctx.SetBodyString(body)
}
