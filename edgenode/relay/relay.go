// Package relay passes requests on to the write plane, streaming bodies both ways, so
// that every path answers at every edge.
//
// It promises: no body is held in memory; what is passed on is framed anew, without
// hop-by-hop headers, so the two sides cannot be made to disagree where a request ends;
// the write plane is told the client's address and the request's id by headers that no
// client can write; a client that goes away ends its request. When the write plane is
// away and has certainly not got the request, the answer is 503; when nobody can tell
// what became of it, 502. What writes is not tried twice. A write plane that takes
// connections and answers nobody holds a request for a short while, one that is slow with
// this request alone for as long as it takes.
package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"skerry/edgenode/front"
	"skerry/edgenode/gate"
	"skerry/pkg/dial"
)

// Config says where requests go, and how. Zero values mean the defaults.
type Config struct {
	// WritePlane is the base address: "http://host:port", without a path.
	WritePlane string
	Connect    time.Duration // to connect; 0 means 2 s
	Answer     time.Duration // from the end of the request to the answer's header; 0 means 2 min
	Patience   time.Duration // without any answer, until the write plane is asked whether it lives, and for that answer; 0 means 10 s
	InFlight   int           // requests at once; 0 means 1024
	// ClientIP tells the client's address.
	ClientIP func(*fasthttp.RequestCtx) netip.Addr
	Log      *slog.Logger // nil means slog.Default()
}

// Validate names the field that is wrong.
func (c Config) Validate() error {
	u, err := url.Parse(c.WritePlane)
	switch {
	case err != nil: // its text would show the whole address, a password included
		return errors.New("--writeplane-url cannot be read")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.Path != "" && u.Path != "/", u.RawQuery != "":
		return fmt.Errorf("--writeplane-url %q is not http(s)://host[:port]", u.Redacted())
	}
	return nil
}

// goneAfter is how long the write plane's machine may confirm nothing of what is sent to
// it. Its name may lead to another one by then, which is asked by new connections and
// answers; whoever waits on an old one is to wait no longer.
const goneAfter = 15 * time.Second

// Relay passes requests on.
type Relay struct {
	config    Config
	base      *url.URL
	transport *http.Transport
	signs     *signs
	places    *places
}

// New makes a relay. The caller closes it.
func New(config Config) (*Relay, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if config.Connect == 0 {
		config.Connect = 2 * time.Second
	}
	if config.Answer == 0 {
		config.Answer = 2 * time.Minute
	}
	if config.Patience == 0 {
		config.Patience = 10 * time.Second
	}
	if config.InFlight == 0 {
		config.InFlight = 1024
	}
	if config.Log == nil {
		config.Log = slog.Default()
	}
	base, err := url.Parse(config.WritePlane)
	if err != nil {
		return nil, fmt.Errorf("write plane address: %w", err)
	}
	dialer := dial.GoneAfter(goneAfter)
	dialer.Timeout = config.Connect
	return &Relay{config: config, base: base, places: newPlaces(config.InFlight), signs: newSigns(base, config.Patience, dialer.DialContext), transport: &http.Transport{
		DialContext:            dialing(dialer.DialContext),
		TLSHandshakeTimeout:    5 * time.Second,
		MaxIdleConns:           128,
		MaxIdleConnsPerHost:    128,
		IdleConnTimeout:        20 * time.Second, // below the write plane's own, so that it rarely closes first
		ResponseHeaderTimeout:  config.Answer,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true, // bodies pass as they are
		WriteBufferSize:        32 << 10,
		ReadBufferSize:         32 << 10,
	}}, nil
}

// Close drops idle connections.
func (r *Relay) Close() {
	r.transport.CloseIdleConnections()
	r.signs.close()
}

// InFlight is how many requests are being passed on.
func (r *Relay) InFlight() int64 { return int64(r.places.inUse()) }

const (
	away     = `{"error":"Service temporarily unavailable"}`
	unknown  = `{"error":"bad_gateway","message":"the request was passed on and no answer came back: it may or may not have taken effect"}`
	refused  = `{"error":"bad_request"}`
	timedOut = `{"error":"request_timeout"}`
)

// Handle passes one request on and answers it.
func (r *Relay) Handle(ctx *fasthttp.RequestCtx) {
	party := r.party(ctx)
	if !r.places.take(party) {
		answer(ctx, http.StatusServiceUnavailable, away)
		return
	}
	flight, cancel := context.WithCancelCause(context.Background())
	watch := r.watch(ctx.Conn(), cancel)
	done := func() {
		watch.stop()
		cancel(nil)
		r.places.give(party)
	}
	up := newUpload(ctx, watch.moved)
	req, err := r.request(flight, ctx, up)
	if err != nil {
		done()
		answer(ctx, http.StatusBadRequest, refused)
		return
	}
	resp, sent, err := r.send(req)
	if err == nil {
		watch.answered.Store(true)
	}
	switch {
	case err != nil:
		fault := up.fault()
		up.stop(ctx)
		done()
		if fault != nil {
			refuseBody(ctx, fault)
		} else {
			r.refuse(ctx, req, sent, err)
		}
	case up.ended():
		r.answer(ctx, resp, watch, done)
	default:
		// Answered before the body was read: most likely it was too large. Stopping the
		// upload ends the connection, so the answer is read first.
		r.answerWhole(ctx, resp)
		up.stop(ctx)
		done()
	}
	if up.ended() {
		front.Consumed(ctx)
	}
}

// request frames the request anew.
func (r *Relay) request(flight context.Context, ctx *fasthttp.RequestCtx, up *upload) (*http.Request, error) {
	target, err := url.ParseRequestURI(string(ctx.Request.Header.RequestURI()))
	if err != nil {
		return nil, fmt.Errorf("request target: %w", err)
	}
	target.Scheme, target.Host, target.User = r.base.Scheme, r.base.Host, nil
	req := (&http.Request{
		Method: string(ctx.Method()), URL: target, Host: r.base.Host, Header: make(http.Header, 16),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(flight)
	if up != nil {
		req.Body, req.ContentLength = up, int64(ctx.Request.Header.ContentLength())
		if req.ContentLength == 0 {
			req.Body = http.NoBody
		}
	}
	if err := copyRequestHeader(req.Header, &ctx.Request.Header); err != nil {
		return nil, err
	}
	req.Header.Set("X-Request-Id", string(gate.RequestID(ctx)))
	req.Header.Set("X-Forwarded-Host", string(ctx.Host()))
	if r.config.ClientIP != nil {
		req.Header.Set("X-Forwarded-For", r.config.ClientIP(ctx).String())
	}
	if req.Header.Get("User-Agent") == "" {
		req.Header["User-Agent"] = nil // no name of our own
	}
	return req, nil
}

// send passes the request on and returns the answer's header. sent tells whether the
// write plane may have got any of it.
func (r *Relay) send(req *http.Request) (*http.Response, bool, error) {
	var connected atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		connected.Store(true)
		begin(got.Conn)
	}}
	resp, err := r.transport.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
	if err == nil {
		r.signs.heard()
	}
	return resp, connected.Load(), err
}

// refuse answers a request that got no answer.
func (r *Relay) refuse(ctx *fasthttp.RequestCtx, req *http.Request, sent bool, err error) {
	if !errors.Is(err, context.Canceled) {
		r.config.Log.Warn("relay to the write plane", "method", req.Method, "path", req.URL.Path,
			"request_id", req.Header.Get("X-Request-Id"), "sent", sent, "error", err)
	}
	if !sent || req.Method == http.MethodGet || req.Method == http.MethodHead {
		answer(ctx, http.StatusServiceUnavailable, away) // a read has no fate to be unsure of
		return
	}
	answer(ctx, http.StatusBadGateway, unknown)
}

// refuseBody answers a request whose body could not be read. The write plane has received
// a part of it at most, and does not act on that.
func refuseBody(ctx *fasthttp.RequestCtx, fault error) {
	var late net.Error
	if errors.As(fault, &late) && late.Timeout() {
		answer(ctx, http.StatusRequestTimeout, timedOut)
		return
	}
	answer(ctx, http.StatusBadRequest, refused)
}

func answer(ctx *fasthttp.RequestCtx, status int, body string) {
	ctx.SetStatusCode(status)
	ctx.Response.Header.SetContentType("application/json")
	ctx.SetBodyString(body)
}

// small is how large an answer may be that is read whole before it is passed on.
const small = 64 << 10

// answer passes the write plane's answer on: small ones at once, others as they come.
func (r *Relay) answer(ctx *fasthttp.RequestCtx, resp *http.Response, watch *watch, done func()) {
	unknown := resp.ContentLength < 0
	whole := !unknown && resp.ContentLength <= small ||
		ctx.IsHead() || // there is nothing to come, and fasthttp would end its chunks
		unknown && !ctx.Request.Header.IsHTTP11() // which knows no chunks
	if whole {
		defer done()
		r.answerWhole(ctx, resp)
		return
	}
	copyResponseHeader(ctx, resp)
	ctx.SetBodyStream(&download{from: resp.Body, moved: watch.moved, close: func() {
		done()
		_ = resp.Body.Close() // the request is over either way
	}}, int(resp.ContentLength))
}

// answerWhole reads the answer whole, up to a bound, and passes it on.
func (r *Relay) answerWhole(ctx *fasthttp.RequestCtx, resp *http.Response) {
	defer func() { _ = resp.Body.Close() }()
	const most = 1 << 20
	body, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	if err == nil && len(body) > most {
		err = errors.New("too long an answer to be read whole")
	}
	if err != nil {
		r.refuse(ctx, resp.Request, true, fmt.Errorf("the answer broke off: %w", err))
		return
	}
	copyResponseHeader(ctx, resp)
	if ctx.IsHead() {
		if resp.ContentLength >= 0 {
			ctx.Response.Header.SetContentLength(int(resp.ContentLength)) // of the body that GET would bring
		}
		return
	}
	ctx.SetBody(body)
}

// download ends the request when fasthttp is through with the answer, or when the client
// no longer takes it.
type download struct {
	from  io.Reader
	moved func() // is told when a part has passed
	close func()
}

func (d *download) Read(p []byte) (int, error) {
	n, err := d.from.Read(p)
	d.moved()
	return n, err
}

func (d *download) Close() error {
	d.close()
	return nil
}

// hopByHop are the headers that belong to one connection and are not passed on (RFC 9110
// section 7.6.1); those that the header Connection names come on top: see
// connectionTokens. The client's own statements about forwarding are dropped with them:
// this edge states what it knows itself.
func hopByHop(name string) bool {
	switch strings.ToLower(name) {
	case "connection", "proxy-connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
		"transfer-encoding", "upgrade", "expect", "content-length", "host",
		"forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "x-request-id":
		return true
	}
	return false
}

func copyRequestHeader(to http.Header, from *fasthttp.RequestHeader) error {
	var connection []string
	for _, v := range from.PeekAll("Connection") {
		connection = append(connection, string(v))
	}
	dropped := connectionTokens(connection)
	for name, value := range from.All() {
		n := string(name)
		if hopByHop(n) || dropped[strings.ToLower(n)] {
			continue
		}
		if strings.ContainsRune(n, ' ') { // fasthttp takes it, nobody else does
			return fmt.Errorf("header field %q is not one", n)
		}
		to.Add(n, string(value))
	}
	// A POST without a body that has one of these headers net/http may send twice. It
	// knows them by this spelling only, and on the wire the case of names does not
	// matter.
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values := to[name]; values != nil {
			delete(to, name)
			to[strings.ToLower(name)] = values
		}
	}
	return nil
}

// connectionTokens are the headers that Connection names.
func connectionTokens(values []string) map[string]bool {
	var tokens map[string]bool
	for _, v := range values {
		for t := range strings.SplitSeq(v, ",") {
			if tokens == nil {
				tokens = make(map[string]bool)
			}
			tokens[strings.ToLower(strings.TrimSpace(t))] = true
		}
	}
	return tokens
}

func copyResponseHeader(ctx *fasthttp.RequestCtx, resp *http.Response) {
	ctx.SetStatusCode(resp.StatusCode)
	h := &ctx.Response.Header
	dropped := connectionTokens(resp.Header.Values("Connection"))
	own := len(h.Peek("Access-Control-Allow-Origin")) > 0
	for name, values := range resp.Header {
		lower := strings.ToLower(name)
		if hopByHop(name) || dropped[lower] || lower == "date" || (own && strings.HasPrefix(lower, "access-control-")) {
			continue
		}
		for _, v := range values {
			h.Add(name, v)
		}
	}
}
