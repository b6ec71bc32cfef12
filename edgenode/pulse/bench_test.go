package pulse_test

import (
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"skerry/edgenode/edgetest"
)

// BenchmarkPages asks for the survey list and a bundle, whole, compressed and not modified.
func BenchmarkPages(b *testing.B) {
	long := sample("psv_a", "published")
	long.Bundle.Survey.Description = strings.Repeat("d", 1700)
	e := newEdge(b, long)
	tag := string(e.get("").Header.Peek("ETag"))
	for name, of := range map[string]struct{ path, headers string }{
		"list304": {"", "If-None-Match: " + tag + "\r\n"},
		"list200": {"", ""},
		"listbr":  {"", "Accept-Encoding: gzip, br\r\n"},
		"bundle":  {"/psv_a", ""},
	} {
		b.Run(name, func(b *testing.B) {
			request := []byte("GET /api/pulse/surveys" + of.path + " HTTP/1.1\r\nHost: edge\r\nX-Api-Key: " + e.Live + "\r\nX-Request-Id: 1\r\n" + of.headers + "\r\n")
			wanted := []byte(strings.TrimPrefix(of.path, "/"))
			handle := func(ctx *fasthttp.RequestCtx) {
				e.Gate.Begin(ctx)
				if len(wanted) > 0 {
					e.handler.Bundle(ctx, wanted)
				} else {
					e.handler.List(ctx, nil)
				}
			}
			edgetest.Compare(b, func(int) []byte { return request }, handle)
		})
	}
}
