package handshake_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/valyala/fasthttp"

	"skerry/edgenode/edgetest"
	"skerry/edgenode/handshake"
	"skerry/edgenode/view"
	"skerry/pkg/decide"
	"skerry/pkg/state"
)

// BenchmarkHandshake answers 100 flags, each with one predicate and a two-way split.
func BenchmarkHandshake(b *testing.B) {
	w := edgetest.New(b, view.Hooks{Decisions: handshake.Compile})
	w.HundredFlags()
	m := handshake.New(w.Gate, pulseTag)
	get := func(ctx *fasthttp.RequestCtx) {
		w.Gate.Begin(ctx)
		m.Get(ctx)
	}
	request := make([]byte, 0, 512)
	of := func(i int, header string) []byte {
		request = append(request[:0], "GET /api/v1/handshake?distinct_id=6f1c2d1e-9f0a-4d5b-8c3e-"...)
		request = strconv.AppendInt(request, 100_000_000_000+int64(i), 10)
		request = append(request, "&session_count=7&props=%7B%22plan%22:%22plan-7%22%7D HTTP/1.1\r\nHost: edge\r\nX-Request-Id: 1\r\nX-Api-Key: "...)
		request = append(append(request, w.Live...), "\r\n"...)
		return append(append(request, header...), "\r\n"...)
	}
	b.Run("FreshUsers", func(b *testing.B) {
		edgetest.Compare(b, func(i int) []byte { return of(i, "") }, get)
	})
	b.Run("NotModified", func(b *testing.B) {
		edgetest.Compare(b, func(int) []byte { return of(1, "If-None-Match: *\r\n") }, get)
	})
	b.Run("Post", func(b *testing.B) {
		body := make([]byte, 0, 512)
		edgetest.Compare(b, func(i int) []byte {
			body = append(body[:0], `{"distinct_id":"6f1c2d1e-9f0a-4d5b-8c3e-`...)
			body = strconv.AppendInt(body, 100_000_000_000+int64(i), 10)
			body = append(body, `","session_count":7,"props":{"plan":"plan-7"}}`...)
			request = append(request[:0], "POST /api/v1/handshake HTTP/1.1\r\nHost: edge\r\nX-Request-Id: 1\r\nX-Api-Key: "...)
			request = append(append(request, w.Live...), "\r\nContent-Length: "...)
			request = strconv.AppendInt(request, int64(len(body)), 10)
			return append(append(request, "\r\n\r\n"...), body...)
		}, func(ctx *fasthttp.RequestCtx) {
			w.Gate.Begin(ctx)
			m.Post(ctx)
		})
	})
}

// BenchmarkOneChange recompiles an environment of 10,000 flags of which one has changed.
func BenchmarkOneChange(b *testing.B) {
	w := edgetest.New(b, view.Hooks{Decisions: handshake.Compile})
	for i := range 10_000 {
		w.Flag(state.Flag{Key: fmt.Sprintf("flag-%05d", i), Kind: decide.Boolean, Enabled: true, DefaultValue: "false", Version: 1})
	}
	if _, ok := w.Views.Environment(edgetest.Project, "live"); !ok {
		b.Fatal("no environment")
	}
	for i := 0; b.Loop(); i++ {
		w.Flag(state.Flag{Key: "flag-05000", Kind: decide.Boolean, Enabled: true, DefaultValue: "false", Version: int64(i)})
		if _, ok := w.Views.Environment(edgetest.Project, "live"); !ok {
			b.Fatal("no environment")
		}
	}
}
