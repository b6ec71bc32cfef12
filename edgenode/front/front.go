// Package front is the edge's HTTP server: fasthttp with bounds on headers, bodies
// and time.
//
// It promises: nobody holds a connection by sending or reading slowly, beyond a generous
// rate; a request body that a handler has not read to its end is never taken for the next
// request, and its sender still gets the answer; what the server itself refuses is
// answered in JSON, with an id. It does not route.
package front

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/valyala/fasthttp"

	"skerry/pkg/serve"
)

// Limits bound what a client may cost. Zero values mean the defaults.
type Limits struct {
	Header      int           // bytes of request line and headers; 0 means 8 KiB. Every open connection holds as much.
	Answer      int           // bytes of an answer that leave together; 0 means 16 KiB. Every open connection holds as much.
	Connections int           // at once, streams of changes among them; 0 means 100,000, or this server's share of half of the files that the process may open
	Servers     int           // of the process, which share its files; 0 means this one alone
	Time        time.Duration // for the header and the first 8 KiB of a body, and for what the rest keeps its reader waiting; 0 means 30 s
	Idle        time.Duration // between requests of a connection; 0 means 75 s
	Stall       time.Duration // in which a client must take 64 KiB of an answer, or the rest; 0 means 60 s
	Drain       time.Duration // for running requests when the server stops; 0 means 5 s
}

func (l Limits) withDefaults() Limits {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&l.Time, 30*time.Second)
	set(&l.Idle, 75*time.Second)
	set(&l.Stall, time.Minute)
	set(&l.Drain, 5*time.Second)
	if l.Header == 0 {
		l.Header = 8 << 10
	}
	if l.Answer == 0 {
		// An answer of 100 decisions has 8 to 10 KB. Sent in pieces of 4 KiB, fasthttp's
		// default, it took 15 to 16 µs of a core; in one piece it takes 9 to 10.
		l.Answer = 16 << 10
	}
	if l.Connections == 0 {
		l.Connections = max(1, min(100_000, serve.OpenFiles()/2/max(l.Servers, 1)))
	}
	return l
}

const (
	// slowest is the rate in bytes per second below which the sender of a body is given up.
	slowest = 32 << 10
	// chunked is what fasthttp calls the length of a body that does not say it.
	chunked = -1
	// readAhead is how much of a body is read before its handler is called, in the time
	// that the header has.
	readAhead = 8 << 10
)

// Serve answers requests on ln with handler until ctx ends; then it lets running requests
// finish within Limits.Drain.
//
// Request bodies are streams: a handler reads them by Body or by ctx.RequestBodyStream,
// never by ctx.PostBody, which has no bound.
func Serve(ctx context.Context, ln net.Listener, handler fasthttp.RequestHandler, limits Limits) error {
	limits = limits.withDefaults()
	server := &fasthttp.Server{
		Handler:                      careful(handler),
		ErrorHandler:                 refuse,
		HeaderReceived:               expecting,
		ReadBufferSize:               limits.Header,
		WriteBufferSize:              limits.Answer,
		Concurrency:                  2 * limits.Connections, // the listener counts; a worker is free a little later than its connection
		MaxRequestBodySize:           64 << 10,               // what is larger than this is not waited for
		StreamRequestBody:            true,
		DisablePreParseMultipartForm: true,
		NoDefaultServerHeader:        true,
		NoDefaultContentType:         true,
		CloseOnShutdown:              true,
		SecureErrorLogMessage:        true,
		Logger:                       quiet{},
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(&listener{Listener: ln, limits: &limits}) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), limits.Drain)
	defer cancel()
	err := server.ShutdownWithContext(drain)
	_ = ln.Close() // a server that had not begun yet did not know of it
	<-served
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("stop serving: %w", err)
	}
	return nil
}

// careful wraps a handler so that a body has to come at a pace, and that one which was
// not read to its end ends the connection. fasthttp would take what is left of it for the
// next request, which is request smuggling by the front door.
func careful(handler fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		if ambiguous(&ctx.Request.Header) {
			refuse(ctx, errAmbiguous)
			ctx.SetConnectionClose()
			return
		}
		c, ok := ctx.Conn().(*conn)
		if length := ctx.Request.Header.ContentLength(); ok && (length > readAhead || length == chunked) {
			c.receive()
		}
		handler(ctx)
		if ok {
			c.answered(ctx.Time())
		}
		if asksToClose(&ctx.Request.Header) {
			ctx.SetConnectionClose()
		}
		if ctx.Request.IsBodyStream() && !consumed(ctx) {
			ctx.SetConnectionClose()
			linger(ctx)
		}
	}
}

var errAmbiguous = errors.New("a request that may end in two places")

// ambiguous tells whether a proxy in front of this edge may have seen another end of the
// request, or other headers in it, than fasthttp does: what follows on the connection is
// then perhaps nothing that the proxy's client was allowed to send. That is so when the
// length is given in two ways, or in one that the request's version of HTTP does not
// have, or when a line feed alone ends a line, which others take for a part of it.
func ambiguous(h *fasthttp.RequestHeader) bool {
	raw := h.RawHeaders()
	if bytes.Count(raw, lineFeed) != bytes.Count(raw, carriageReturn) { // one without the other is refused already
		return true
	}
	return h.ContentLength() == chunked && len(h.PeekAll("Transfer-Encoding")) > 0 && (!h.IsHTTP11() || hasField(raw, "content-length"))
}

var lineFeed, carriageReturn = []byte("\n"), []byte("\r")

// asksToClose tells whether Connection has the word among others or in capitals; fasthttp
// knows it alone and in small letters.
func asksToClose(h *fasthttp.RequestHeader) bool {
	words := h.Peek("Connection")
	if len(words) == 0 || string(words) == "keep-alive" {
		return false
	}
	for word := range bytes.SplitSeq(words, []byte(",")) {
		if bytes.EqualFold(bytes.TrimSpace(word), []byte("close")) {
			return true
		}
	}
	return false
}

// expecting makes of Expect what fasthttp understands: the word has no case, and a client
// of HTTP/1.0 cannot mean it (RFC 9110 section 10.1.1).
func expecting(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	if h.IsGet() || !bytes.EqualFold(h.Peek("Expect"), []byte("100-continue")) {
		return fasthttp.RequestConfig{}
	}
	if h.IsHTTP11() {
		h.Set("Expect", "100-continue")
	} else {
		h.Del("Expect")
	}
	return fasthttp.RequestConfig{}
}

// hasField looks for a header field, in lower case, in a block of raw header lines.
func hasField(raw []byte, name string) bool {
	for line := range bytes.Lines(raw) {
		field, _, ok := bytes.Cut(line, []byte(":"))
		if ok && string(bytes.ToLower(bytes.TrimSpace(field))) == name {
			return true
		}
	}
	return false
}

func linger(ctx *fasthttp.RequestCtx) {
	if c, ok := ctx.Conn().(*conn); ok {
		c.linger.Store(true)
	}
}

// consumed tells whether the request's body was read to its end. A stream of known length
// says so itself; reading one of unknown length once more would read into the next
// request, so that is Body's and Consumed's word.
func consumed(ctx *fasthttp.RequestCtx) bool {
	if ctx.Request.Header.ContentLength() >= 0 {
		_, err := ctx.RequestBodyStream().Read(nil)
		return err == io.EOF
	}
	done, _ := ctx.UserValue(consumedMark{}).(bool)
	return done
}

type consumedMark struct{}

// CutOff tells whether a body of unknown length, whose stream says io.EOF, has only ended
// because the connection did: fasthttp takes that for the last chunk. It is for who reads
// the stream.
func CutOff(ctx *fasthttp.RequestCtx) bool {
	c, ok := ctx.Conn().(*conn)
	return ok && c.ended && ctx.Request.Header.ContentLength() == chunked
}

// Consumed is to be called by a handler that has read ctx.RequestBodyStream until io.EOF,
// and was not cut off.
func Consumed(ctx *fasthttp.RequestCtx) {
	if ctx.Request.Header.ContentLength() < 0 { // else the stream itself knows
		ctx.SetUserValue(consumedMark{}, true)
	}
}

// ErrTooLarge means that a body is larger than its reader wants.
var ErrTooLarge = errors.New("request body is too large")

// Body appends a request's body to dst, if it is not larger than limit. Other errors are
// the connection's or the chunked coding's.
func Body(ctx *fasthttp.RequestCtx, dst []byte, limit int) ([]byte, error) {
	length := ctx.Request.Header.ContentLength()
	if length > limit {
		return dst, ErrTooLarge
	}
	stream := ctx.RequestBodyStream()
	if stream == nil {
		return append(dst, ctx.Request.Body()...), nil
	}
	start := len(dst)
	for {
		if len(dst) == cap(dst) {
			dst = append(dst, 0)[:len(dst)]
		}
		n, err := stream.Read(dst[len(dst):min(cap(dst), start+limit+1)])
		dst = dst[:len(dst)+n]
		switch {
		case len(dst)-start > limit:
			return dst[:start], ErrTooLarge
		case err == io.EOF && (CutOff(ctx) || len(dst)-start < length):
			return dst[:start], fmt.Errorf("read request body: %w", io.ErrUnexpectedEOF)
		case err == io.EOF:
			Consumed(ctx)
			return dst, nil
		case err != nil:
			return dst[:start], fmt.Errorf("read request body: %w", err)
		case n == 0 && length == len(dst)-start:
			return dst, nil
		}
	}
}

// refuse answers what the server cannot read as a request. No handler sees it, so the id
// that every answer has is set here: the caller's, if the header was read as far as that.
func refuse(ctx *fasthttp.RequestCtx, err error) {
	ctx.Response.Reset()
	linger(ctx)
	ctx.Response.Header.Set("X-Request-Id", serve.RequestID(string(ctx.Request.Header.Peek("X-Request-Id"))))
	ctx.Response.Header.SetContentType("application/json")
	var small *fasthttp.ErrSmallBuffer
	var timeout net.Error
	switch {
	case errors.As(err, &small):
		ctx.SetStatusCode(fasthttp.StatusRequestHeaderFieldsTooLarge)
		ctx.SetBodyString(`{"error":"header_too_large"}`)
	case errors.As(err, &timeout) && timeout.Timeout():
		ctx.SetStatusCode(fasthttp.StatusRequestTimeout)
		ctx.SetBodyString(`{"error":"request_timeout"}`)
	default:
		ctx.SetStatusCode(fasthttp.StatusBadRequest)
		ctx.SetBodyString(`{"error":"bad_request"}`)
	}
}

// quiet drops the server's own log: it speaks of clients' broken connections only.
type quiet struct{}

func (quiet) Printf(format string, args ...any) {
	slog.Debug("http", "message", fmt.Sprintf(format, args...))
}
