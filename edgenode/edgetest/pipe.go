package edgetest

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"skerry/pkg/decide"
	"skerry/pkg/state"
)

// pipe is a connection whose client sends n requests and takes every answer: what is left
// to measure is the server's own work, without a system call to hide it.
type pipe struct {
	next func(i int) []byte
	i, n int
	rest []byte
}

func (p *pipe) Read(b []byte) (n int, err error) {
	for n < len(b) {
		if len(p.rest) == 0 {
			if p.i == p.n {
				break
			}
			p.rest = p.next(p.i)
			p.i++
		}
		copied := copy(b[n:], p.rest)
		n, p.rest = n+copied, p.rest[copied:]
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (*pipe) Write(b []byte) (int, error)      { return len(b), nil }
func (*pipe) Close() error                     { return nil }
func (*pipe) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (*pipe) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (*pipe) SetDeadline(time.Time) error      { return nil }
func (*pipe) SetReadDeadline(time.Time) error  { return nil }
func (*pipe) SetWriteDeadline(time.Time) error { return nil }

func exchange(b *testing.B, n int, next func(i int) []byte, handler fasthttp.RequestHandler) time.Duration {
	b.Helper()
	server := &fasthttp.Server{Handler: handler, NoDefaultServerHeader: true, NoDefaultContentType: true, StreamRequestBody: true}
	begun := time.Now()
	if err := server.ServeConn(&pipe{next: next, n: n}); err != nil {
		b.Fatal(err)
	}
	return time.Since(begun)
}

// HundredFlags adds the flags that decisions are measured with: flag-000 to flag-099,
// each with one predicate and a two-way split.
func (w *World) HundredFlags() {
	on, off := "on", "off"
	for i := range 100 {
		w.Flag(state.Flag{
			Key: fmt.Sprintf("flag-%03d", i), Kind: decide.Boolean, Enabled: true, DefaultValue: "false", DefaultVariant: off, Version: 1,
			Variants: []decide.Variant{{Key: on, Value: "true"}, {Key: off, Value: "false"}},
			Rule: &decide.Rule{
				Overrides: []decide.Override{{Predicate: fmt.Sprintf(`props.plan = "plan-%d"`, i), Variant: &on}},
				Rollout: &decide.Rollout{BucketBy: "distinct_id", Salt: fmt.Sprintf("k3JxQ0vWm7Tz%03d", i), Buckets: []decide.Range{
					{Variant: &on, Start: 0, End: 50_000}, {Variant: &off, Start: 50_000, End: 100_000}}},
			}})
	}
}

// Compare measures a handler beside one that sends the same status, headers and body and
// knows nothing else, on the same requests. It reports ns/op and allocations of the
// handler, "added-ns" (what an answer costs beyond the bare one), and "req/s-socket":
// what that comes to on one core when a bare answer takes 9 µs of it, as it does with a
// socket here.
func Compare(b *testing.B, next func(i int) []byte, handler fasthttp.RequestHandler) {
	b.Helper()
	var like fasthttp.Response
	exchange(b, 1, next, func(ctx *fasthttp.RequestCtx) {
		handler(ctx)
		ctx.Response.CopyTo(&like)
	})
	type header struct{ name, value string }
	var headers []header
	for name, value := range like.Header.All() {
		if n := string(name); n != "Content-Length" && n != "Content-Type" && n != "Date" {
			headers = append(headers, header{n, string(value)})
		}
	}
	bare := func(ctx *fasthttp.RequestCtx) {
		ctx.SetStatusCode(like.StatusCode())
		ctx.SetContentType("application/json")
		for _, h := range headers {
			ctx.Response.Header.Set(h.name, h.value)
		}
		_ = ctx.Request.Body() // a server has to take what it is sent
		ctx.SetBody(like.Body())
	}
	exchange(b, 1000, next, handler) // warm
	b.ReportAllocs()
	b.ResetTimer()
	own := exchange(b, b.N, next, handler)
	b.StopTimer()
	yardstick := exchange(b, b.N, next, bare)
	added := float64(own.Nanoseconds()-yardstick.Nanoseconds()) / float64(b.N)
	b.ReportMetric(added, "added-ns")
	b.ReportMetric(1e9/(9000+added), "req/s-socket")
}
