package ofrep_test

import (
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"skerry/edgenode/edgetest"
	"skerry/edgenode/ofrep"
	"skerry/pkg/decide"
	"skerry/pkg/state"
	"skerry/replication"
)

// Members that change while a request is on its way give the answer of before or of after, with its own tag: here, two
// cohorts that change together, of which one is looked into more than the other.
func TestAnswersAreOfOneState(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	m := ofrep.New(e.Gate, ofrep.Config{})
	e.Put(replication.CohortSubject(edgetest.Project, "beta"), state.Cohort{Name: "beta", Shards: 1})
	beta := replication.CohortShardSubject(edgetest.Project, "beta", 0)
	e.Put(beta, state.CohortShard{})
	e.Flag(state.Flag{Key: "checkout", Kind: decide.Boolean, Enabled: true, DefaultValue: "false", DefaultVariant: "off", Version: 1,
		Variants: []decide.Variant{{Key: "on", Value: "true"}, {Key: "off", Value: "false"}},
		Rule:     &decide.Rule{Overrides: []decide.Override{{Predicate: "cohort:beta", Variant: text("on")}}}})
	type answer struct {
		status     int
		etag, body string
	}
	for _, path := range []string{"/ofrep/v1/evaluate/flags", "/ofrep/v1/evaluate/flags/checkout"} {
		post := func(do func()) answer {
			var ctx fasthttp.RequestCtx
			ctx.Init(&fasthttp.Request{}, nil, nil)
			ctx.Request.Header.SetMethod("POST")
			ctx.Request.SetRequestURI(path)
			ctx.Request.Header.Set("X-Api-Key", e.Live)
			const body = `{"context":{"targetingKey":"eve"}}`
			ctx.Request.SetBodyStream(&edgetest.Meanwhile{Do: do, Body: strings.NewReader(body)}, len(body))
			if _, key, single := strings.Cut(path, "flags/"); single {
				m.Single(&ctx, []byte(key))
			} else {
				m.Bulk(&ctx)
			}
			e.Check(&ctx)
			return answer{ctx.Response.StatusCode(), string(ctx.Response.Header.Peek("Etag")), string(ctx.Response.Body())}
		}
		before := post(nil)
		for n, members := range [][]string{{"eve"}, {}, {"eve"}, {}} {
			got := post(func() {
				e.Put(beta, state.CohortShard{Members: members})
				e.Flag(state.Flag{Key: "other", Kind: decide.Boolean, Enabled: true, DefaultValue: "false", Version: int64(n)})
			})
			after := post(nil)
			if got != before && got != after {
				t.Errorf("%s, change %d:\n%v, where it was\n%v\nbefore and is\n%v\nafter it", path, n, got, before, after)
			}
			if on := strings.Contains(after.body, `"value":true`); on != (len(members) == 1) {
				t.Errorf("%s, change %d: %s", path, n, after.body)
			}
			before = after
		}
	}
}
