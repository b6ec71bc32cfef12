package writeplane

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"skerry/pkg/forwarded"
	"skerry/pkg/jsonbody"
	"skerry/pkg/problem"
	"skerry/pkg/reply"
	"skerry/pkg/serve"
	"skerry/writeplane/access"
	"skerry/writeplane/postgres"
)

// HandlerConfig says how requests reach the plane.
type HandlerConfig struct {
	// TrustedProxies are the peers whose X-Forwarded-For is believed: edges and load
	// balancers. Every other peer counts as the client itself.
	TrustedProxies []netip.Prefix
	// Database, when set, ends requests that a silent database would keep waiting.
	Database *postgres.Watch
	// AdmittedFor is how long a caller whose body is still on its way counts as admitted
	// before it is asked again who that is; 0 means a second.
	AdmittedFor time.Duration
	// LongCalls is how many calls of Long routes may be at work at once, and half as
	// many of one organization; 0 means 8. Each may keep a connection to the database
	// for long.
	LongCalls int
	// LongPatience is how long such a call waits for its turn before it is refused; 0
	// means 10 s.
	LongPatience time.Duration
	// Observe, when set, hears of every answer: the route's path ("" for an unknown
	// one), its method, the status and how long it took.
	Observe func(method, path string, status int, took time.Duration)
}

// errUnavailable is the 503 of a plane whose database is away.
var errUnavailable = problem.New(problem.Unavailable, "Service temporarily unavailable")

// errUnknownFate is the 502 of a change whose commit was sent and not answered.
var errUnknownFate = problem.Newf(problem.BadGateway, "bad_gateway",
	"the database went away while the change was being stored: it may or may not have taken effect")

// handler is the outermost layer of the plane: it gives every request an id, finds
// its route, knows its caller, bounds its body and words whatever goes wrong.
type handler struct {
	config HandlerConfig
	access *access.Store
	mux    *http.ServeMux
	long   *longCalls
}

// NewHandler serves the routes. Unknown paths are 404, known paths with another
// method 405 with Allow; a panic is answered as 500 and ends only its own request.
func NewHandler(config HandlerConfig, store *access.Store, routes []Route) http.Handler {
	if config.AdmittedFor == 0 {
		config.AdmittedFor = time.Second
	}
	if config.LongCalls == 0 {
		config.LongCalls = 8
	}
	if config.LongPatience == 0 {
		config.LongPatience = 10 * time.Second
	}
	h := &handler{config: config, access: store, mux: http.NewServeMux(), long: newLongCalls(config.LongCalls, config.LongPatience)}
	byPath := map[string]map[string]Route{}
	for _, route := range routes {
		if byPath[route.Path] == nil {
			byPath[route.Path] = map[string]Route{}
		}
		if _, twice := byPath[route.Path][route.Method]; twice {
			panic("BUG: two routes for " + route.Method + " " + route.Path)
		}
		byPath[route.Path][route.Method] = route
	}
	// One pattern per path, without a method: patterns with methods would conflict as
	// soon as one path is more specific than another.
	for path, methods := range byPath {
		h.mux.Handle(path, h.methods(path, methods))
	}
	h.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { reply.Error(w, r, access.ErrNotFound) })
	return serve.Linger(h)
}

func (h *handler) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w := &answer{ResponseWriter: rw}
	requestID := serve.RequestID(r.Header.Get(reply.RequestIDHeader))
	r = r.WithContext(serve.WithRequestID(r.Context(), requestID)) // every log line of the request carries it
	w.Header().Set(reply.RequestIDHeader, requestID)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	begun := time.Now()
	defer func() {
		h.recovered(w, r, recover())
		took := time.Since(begun)
		if h.config.Observe != nil {
			h.config.Observe(observed(r.Method), w.route, w.status, took)
		}
		// The query is not logged: it may hold a key.
		slog.DebugContext(r.Context(), "request", "method", r.Method, "path", r.URL.Path, "status", w.status, "took", took)
	}()
	if !clean(r.URL.EscapedPath()) {
		// The mux would redirect to the cleaned path; such a path is simply unknown.
		reply.Error(w, r, access.ErrNotFound)
		return
	}
	r.URL.RawQuery = readable(r.URL.RawQuery)
	h.mux.ServeHTTP(w, r)
}

// observed bounds the methods that a metric can have.
func observed(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	}
	return "other"
}

// clean reports whether the mux takes the path as it is.
func clean(path string) bool {
	if !strings.HasPrefix(path, "/") || strings.Contains(path, "//") {
		return false
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return false
		}
	}
	return true
}

func (h *handler) recovered(w *answer, r *http.Request, fault any) {
	if fault == nil {
		return
	}
	if fault == http.ErrAbortHandler {
		panic(fault) // the server's own way to break a connection off
	}
	slog.ErrorContext(r.Context(), "request panicked", "method", r.Method, "path", r.URL.Path, "panic", fault, "stack", string(debug.Stack()))
	if w.status != 0 {
		panic(http.ErrAbortHandler) // half an answer is out: only breaking off tells the client
	}
	w.Header().Del("Content-Length")
	w.Header().Del("ETag")
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusInternalServerError)
	_, _ = w.Write(problem.Internal(w.Header().Get(reply.RequestIDHeader)))
}

// methods serves one path.
func (h *handler) methods(path string, routes map[string]Route) http.Handler {
	allowed := make([]string, 0, len(routes)+1)
	for method := range routes {
		allowed = append(allowed, method)
	}
	if _, get := routes[http.MethodGet]; get {
		allowed = append(allowed, http.MethodHead)
	}
	slices.Sort(allowed)
	allow := strings.Join(allowed, ", ")
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w := rw.(*answer)
		w.route = path
		method := r.Method
		if method == http.MethodHead {
			method = http.MethodGet
		}
		route, known := routes[method]
		if !known {
			w.Header().Set("Allow", allow)
			reply.Error(w, r, problem.New(problem.MethodUnknown, "method_not_allowed"))
			return
		}
		if h.config.Database != nil && route.Needs != Public {
			ctx, release := h.config.Database.Context(r.Context())
			defer release()
			r = r.WithContext(ctx)
		}
		if err := h.serve(w, r, route); err != nil {
			reply.Error(w, r, worded(r.Context(), err))
		}
	})
}

func (h *handler) serve(w http.ResponseWriter, r *http.Request, route Route) error {
	call := &access.Call{
		RequestID: w.Header().Get(reply.RequestIDHeader), IP: clientAddress(r, h.config.TrustedProxies),
		UserAgent: bounded(r.UserAgent(), maxUserAgent),
	}
	if err := h.admit(r, route, call); err != nil {
		return err
	}
	if limit := route.MaxBody; limit >= 0 {
		if limit == 0 {
			limit = jsonbody.Limit
		}
		if r.ContentLength > limit {
			return problem.Newf(problem.TooLarge, "payload_too_large", "the body is larger than %d bytes", limit)
		}
		// One byte more than the limit shows the reader that there is more.
		r.Body = http.MaxBytesReader(w, r.Body, limit+1)
	}
	return h.handle(w, r, route, call)
}

// handle lets the route's handler work. A call that may take long needs a place first; one
// with a body, when all of that is there: the route reads it to its end before all else.
func (h *handler) handle(w http.ResponseWriter, r *http.Request, route Route, call *access.Call) error {
	leave, admitted := func() {}, time.Now()
	defer func() { leave() }()
	enter := func() error {
		if !route.Long {
			return nil
		}
		left, err := h.long.enter(r.Context(), call.Caller.OrganizationID)
		if err == nil {
			leave = left
		}
		return err
	}
	if route.Needs == Public || r.ContentLength == 0 || route.Method == http.MethodGet || route.Method == http.MethodDelete {
		if err := enter(); err != nil {
			return err
		}
		if route.Long && time.Since(admitted) >= h.config.AdmittedFor {
			if err := h.admitAgain(r, route, call); err != nil {
				return err
			}
		}
		return route.Handle(w, r, call)
	}
	body := &heldBody{ReadCloser: r.Body, lasts: h.config.AdmittedFor, since: admitted, whole: enter,
		again: func() error { return h.admitAgain(r, route, call) }}
	r.Body = body
	err := route.Handle(w, r, call)
	if err != nil && body.refused != nil {
		return body.refused // the handler has only seen the body end
	}
	return err
}

// admitAgain is admit for a call that is under way. A caller who has become another, be
// it by a higher role, has to begin anew: the handler may have judged the former one
// already.
func (h *handler) admitAgain(r *http.Request, route Route, call *access.Call) error {
	fresh := *call
	if err := h.admit(r, route, &fresh); err != nil {
		return err
	}
	if !reflect.DeepEqual(fresh.Caller, call.Caller) {
		return refusals[route.Family].forbidden
	}
	call.Key = fresh.Key
	return nil
}

// admit finds out who calls and whether they may.
func (h *handler) admit(r *http.Request, route Route, call *access.Call) (err error) {
	words := refusals[route.Family]
	switch route.Needs {
	case Public:
		return nil
	case Key:
		key := r.Header.Get("X-Api-Key")
		if key == "" {
			return words.noKey
		}
		identity, ok, err := h.access.ByKey(r.Context(), key)
		if err != nil {
			return err
		}
		if !ok {
			return words.unknownKey
		}
		call.Key = identity
		return nil
	}
	call.Caller, err = h.access.Authenticate(r.Context(), r.Header.Get("Authorization"))
	switch {
	case errors.Is(err, access.ErrNoToken):
		return words.noToken
	case errors.Is(err, access.ErrBadToken):
		return words.badToken
	case err != nil:
		return err
	case call.Caller.Role < permissionRoles[route.Needs],
		route.Needs >= OrgAdmin && call.Caller.ProjectID != "":
		return words.forbidden
	}
	return nil
}

// refusal is how one family words who may not pass.
type refusal struct{ noToken, badToken, forbidden, noKey, unknownKey *problem.Error }

func tokens(noToken, badToken, forbidden string) refusal {
	return refusal{noToken: problem.New(problem.Unauthorized, noToken), badToken: problem.New(problem.Unauthorized, badToken),
		forbidden: problem.New(problem.Forbidden, forbidden),
		noKey:     problem.New(problem.Unauthorized, "missing x-api-key"), unknownKey: problem.New(problem.Unauthorized, "invalid api key")}
}

func keys(noKey, unknownKey *problem.Error) refusal {
	words := tokens("Invalid token", "Invalid token", "Permission denied")
	words.noKey, words.unknownKey = noKey, unknownKey
	return words
}

var refusals = [...]refusal{
	Management: tokens("Invalid token", "Invalid token", "Permission denied"),
	Symbols:    tokens("missing_authorization", "invalid_token", "permission_denied"),
	Audit:      tokens("missing_authorization", "invalid_token", "permission_denied"),
	Pulse:      keys(problem.New(problem.Unauthorized, "missing_api_key"), problem.New(problem.Unauthorized, "invalid_api_key")),
	Halt:       keys(problem.New(problem.Unauthorized, "missing x-api-key"), problem.New(problem.Unauthorized, "invalid api key")),
	Ingestion:  keys(problem.New(problem.Unauthorized, "Missing API key"), problem.New(problem.Forbidden, "Unknown API key")),
}

// worded turns what a database that is away does into a 503, or a 502 where a change may
// have been stored; everything else is for reply.Error.
func worded(ctx context.Context, err error) error {
	var p *problem.Error
	silent := errors.Is(context.Cause(ctx), postgres.ErrSilent)
	if errors.As(err, &p) || ctx.Err() != nil && !silent {
		return err
	}
	if unstorable(err) {
		return errUnstorable
	}
	if !silent && !postgres.Unavailable(err) {
		return err
	}
	fate := postgres.FateUnknown(err)
	slog.WarnContext(ctx, "database away", "fate_unknown", fate, "error", err)
	if fate {
		return errUnknownFate
	}
	return errUnavailable
}

// errUnstorable is the 400 of a text with NUL or bytes that are not UTF-8, wherever in
// a request it stood: Postgres keeps no such text, so nothing has it either.
var errUnstorable = problem.Newf(problem.Invalid, "invalid_body", "a text has NUL or bytes that are not UTF-8")

// unstorable reports whether Postgres refused a text for its characters.
func unstorable(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == "22021" || pgErr.Code == "22P05")
}

const maxUserAgent = 512

func bounded(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.ToValidUTF8(s, "")
}

// clientAddress is whom the request comes from, by package forwarded; "" for a peer
// without an address.
func clientAddress(r *http.Request, trusted []netip.Prefix) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return forwarded.Client(peer.Addr(), r.Header.Values("X-Forwarded-For"), trusted).String()
}

// answer remembers whether and how a request was answered.
type answer struct {
	http.ResponseWriter
	status int
	route  string
}

func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= http.StatusOK {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return a.ResponseWriter.Write(b)
}

// ReadFrom keeps the copy of a file within the kernel where the server can.
func (a *answer) ReadFrom(from io.Reader) (int64, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return io.Copy(a.ResponseWriter, from)
}

// Flush sends what was written so far; http.ResponseController uses Unwrap for the rest.
func (a *answer) Flush() {
	if f, ok := a.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// Unwrap lets http.ResponseController reach the server's own writer.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

var _ interface {
	http.ResponseWriter
	http.Flusher
	io.ReaderFrom
} = (*answer)(nil)
