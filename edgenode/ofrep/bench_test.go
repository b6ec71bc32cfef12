package ofrep_test

import (
	"strconv"
	"testing"

	"github.com/valyala/fasthttp"

	"skerry/edgenode/edgetest"
	"skerry/edgenode/handshake"
	"skerry/edgenode/ofrep"
	"skerry/edgenode/view"
)

// BenchmarkOpenFeature answers for fresh users out of 100 flags, each with one predicate and a two-way split.
func BenchmarkOpenFeature(b *testing.B) {
	w := edgetest.New(b, view.Hooks{Decisions: handshake.Compile})
	w.HundredFlags()
	m := ofrep.New(w.Gate, ofrep.Config{})
	request, body := make([]byte, 0, 512), make([]byte, 0, 512)
	of := func(path string, i int) []byte {
		body = append(body[:0], `{"context":{"targetingKey":"6f1c2d1e-9f0a-4d5b-8c3e-`...)
		body = strconv.AppendInt(body, 100_000_000_000+int64(i), 10)
		body = append(body, `","plan":"plan-7"}}`...)
		request = append(append(request[:0], "POST /ofrep/v1/evaluate/flags"...), path...)
		request = append(append(append(request, " HTTP/1.1\r\nHost: edge\r\nX-Request-Id: 1\r\nX-Api-Key: "...), w.Live...), "\r\nContent-Length: "...)
		request = strconv.AppendInt(request, int64(len(body)), 10)
		return append(append(request, "\r\n\r\n"...), body...)
	}
	b.Run("Bulk", func(b *testing.B) {
		edgetest.Compare(b, func(i int) []byte { return of("", i) }, func(ctx *fasthttp.RequestCtx) {
			w.Gate.Begin(ctx)
			m.Bulk(ctx)
		})
	})
	key := []byte("flag-042")
	b.Run("Single", func(b *testing.B) {
		edgetest.Compare(b, func(i int) []byte { return of("/flag-042", i) }, func(ctx *fasthttp.RequestCtx) {
			w.Gate.Begin(ctx)
			m.Single(ctx, key)
		})
	})
}
