package edgenode

import (
	"bytes"
	"strings"

	"github.com/valyala/fasthttp"

	"skerry/edgenode/gate"
)

// handler answers one request. param is what stands in the place of the path's "*",
// decoded; it dies with the handler, like everything of ctx.
type handler func(ctx *fasthttp.RequestCtx, param []byte)

// route is a path that this edge answers itself. "*" stands for one segment, and ends
// the path.
type route struct {
	path    string
	methods map[string]handler
}

// router finds handlers. What it does not know is relayed.
type router struct {
	exact    map[string]*entry
	prefixes []prefix // of paths with a parameter
	relay    fasthttp.RequestHandler
}

type entry struct {
	methods map[string]handler
	allow   string // "GET, HEAD, POST"
}

type prefix struct {
	text string
	*entry
}

func newRouter(routes []route, relay fasthttp.RequestHandler) *router {
	r := &router{exact: make(map[string]*entry), relay: relay}
	for _, one := range routes {
		e := &entry{methods: one.methods, allow: allow(one.methods)}
		if text, ok := strings.CutSuffix(one.path, "*"); ok {
			r.prefixes = append(r.prefixes, prefix{text, e})
		} else {
			r.exact[one.path] = e
		}
	}
	return r
}

// allow lists methods as the Allow header does; HEAD works where GET does.
func allow(methods map[string]handler) string {
	var names []string
	for _, m := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
		if methods[m] == nil {
			continue
		}
		if names = append(names, m); m == "GET" {
			names = append(names, "HEAD")
		}
	}
	return strings.Join(names, ", ")
}

// serve answers one request. It goes by the path as it was sent, but for needless
// percent-coding: resolving dots would make another key of "..".
func (r *router) serve(ctx *fasthttp.RequestCtx) {
	path := plain(ctx.URI().PathOriginal())
	e, param := r.find(path)
	if e == nil {
		if calledByPages(path) {
			gate.CORS(ctx)
			if gate.Preflight(ctx, "GET, POST, PUT, DELETE") {
				return
			}
		}
		r.relay(ctx)
		return
	}
	gate.CORS(ctx)
	method := ctx.Method()
	if h := e.methods[string(method)]; h != nil {
		h(ctx, param)
		return
	}
	if h := e.methods["GET"]; h != nil && ctx.IsHead() {
		h(ctx, param)
		return
	}
	if gate.Preflight(ctx, e.allow) {
		return
	}
	ctx.Response.Header.Set("Allow", e.allow)
	ctx.Response.Header.SetContentType("application/json")
	ctx.SetStatusCode(fasthttp.StatusMethodNotAllowed)
	ctx.SetBodyString(`{"error":"method_not_allowed"}`)
}

func (r *router) find(path []byte) (*entry, []byte) {
	if e := r.exact[string(path)]; e != nil {
		return e, nil
	}
	for i := range r.prefixes {
		p := &r.prefixes[i]
		if len(path) > len(p.text) && string(path[:len(p.text)]) == p.text {
			if rest := path[len(p.text):]; bytes.IndexByte(rest, '/') < 0 {
				return p.entry, unescape(rest)
			}
		}
	}
	return nil, nil
}

// plain decodes the percent-coding of letters, digits and "-._~", which need none: a path
// with it is the same path (RFC 3986 section 6.2.2.2). Any other character means
// something else plain than coded, so it stays as it is.
func plain(path []byte) []byte { return decode(path, unreserved) }

// unescape decodes percent-coding; what is not valid stays as it is.
func unescape(segment []byte) []byte { return decode(segment, func(byte) bool { return true }) }

// decode decodes the percent-coding of the wanted bytes. A text that has none is
// not copied.
func decode(text []byte, wanted func(byte) bool) []byte {
	at := bytes.IndexByte(text, '%')
	if at < 0 {
		return text
	}
	out := append(make([]byte, 0, len(text)), text[:at]...)
	for i := at; i < len(text); i++ {
		if c, ok := coded(text[i:]); ok && wanted(c) {
			out = append(out, c)
			i += 2
			continue
		}
		out = append(out, text[i])
	}
	return out
}

func unreserved(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z' || c == '-' || c == '.' || c == '_' || c == '~'
}

// coded is the byte that the text begins with, if it begins with a percent-coded one.
func coded(text []byte) (byte, bool) {
	if len(text) < 3 || text[0] != '%' || hexDigit(text[1]) < 0 || hexDigit(text[2]) < 0 {
		return 0, false
	}
	return byte(hexDigit(text[1])<<4 | hexDigit(text[2])), true
}

func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

// calledByPages tells whether client libraries in web pages call a relayed path.
func calledByPages(path []byte) bool {
	for _, p := range []string{"/api/pulse/", "/api/catch/", "/api/switch/"} {
		if len(path) > len(p) && string(path[:len(p)]) == p {
			return true
		}
	}
	return false
}

// routes are the paths that this edge answers itself (specification, Endpoints;
// supplement sections 3 to 5).
func (e *Edge) routes() []route {
	return []route{
		{"/api/v1/track", map[string]handler{"POST": e.intake.Track}},
		{"/api/v1/people", map[string]handler{"POST": e.intake.People}},
		{"/api/v1/alias", map[string]handler{"POST": e.intake.Alias}},
		{"/api/v1/batch", map[string]handler{"POST": e.intake.Batch}},
		{"/api/catch/events", map[string]handler{"POST": e.intake.Crash}},

		{"/api/pulse/surveys", map[string]handler{"GET": e.pulse.List}},
		{"/api/pulse/surveys/*", map[string]handler{"GET": e.pulse.Bundle}},

		{"/api/v1/handshake", map[string]handler{"GET": alone(e.handshake.Get), "POST": alone(e.handshake.Post)}},
		{"/api/switch/decisions", map[string]handler{"GET": alone(e.handshake.Flags)}},
		{"/api/config/values", map[string]handler{"GET": alone(e.handshake.Items)}},
		{"/ofrep/v1/evaluate/flags", map[string]handler{"POST": alone(e.ofrep.Bulk)}},
		{"/ofrep/v1/evaluate/flags/*", map[string]handler{"POST": e.ofrep.Single}},
		{"/api/v1/stream", map[string]handler{"GET": alone(e.stream.Serve)}},
	}
}

// alone is the handler of a path without a parameter.
func alone(h fasthttp.RequestHandler) handler {
	return func(ctx *fasthttp.RequestCtx, _ []byte) { h(ctx) }
}
