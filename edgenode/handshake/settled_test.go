package handshake_test

import (
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"skerry/edgenode/edgetest"
	"skerry/edgenode/handshake"
	"skerry/pkg/state"
	"skerry/replication"
)

// Members that change while a request is on its way give the answer of before or of after, with its own tag.
func TestAnswerAndTagAreOfOneState(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	e.fill()
	m := handshake.New(e.Gate, pulseTag)
	listed := replication.CohortShardSubject(edgetest.Project, "listed", 0)
	post := func(do func()) answer {
		var ctx fasthttp.RequestCtx
		ctx.Init(&fasthttp.Request{}, nil, nil)
		ctx.Request.Header.SetMethod("POST")
		ctx.Request.SetRequestURI("/api/v1/handshake")
		ctx.Request.Header.Set("X-Api-Key", e.Live)
		const body = `{"distinct_id":"eve"}`
		ctx.Request.SetBodyStream(&edgetest.Meanwhile{Do: do, Body: strings.NewReader(body)}, len(body))
		m.Post(&ctx)
		e.Check(&ctx)
		return answer{ctx.Response.StatusCode(), string(ctx.Response.Header.Peek("Etag")), string(ctx.Response.Body())}
	}
	first := post(nil)
	for n, members := range [][]string{{"bob", "eve"}, {"bob"}, {"eve"}} {
		if n == 1 {
			post(nil) // so that the members are in memory
		}
		got := post(func() { e.Put(listed, state.CohortShard{Members: members}) })
		after := post(nil)
		if got != first && got != after {
			t.Errorf("change %d:\n%v, where it was\n%v\nbefore and is\n%v\nafter it", n, got, first, after)
		}
		if in := strings.Contains(after.body, `"cohorts":["listed"]`); in != (n != 1) {
			t.Errorf("change %d: %s", n, after.body)
		}
		first = after
	}
}
