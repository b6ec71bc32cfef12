package writeplane

import (
	"slices"
	"strings"
	"testing"

	"skerry/pkg/openapi"
	"skerry/pkg/openapi/openapitest"
)

// That every operation is served is shown at an edge, in deploy/cluster.
func TestEveryRouteIsInTheOpenAPIDocument(t *testing.T) {
	t.Parallel()
	described := openapitest.Operations()
	for _, route := range newWhole(t).plane.table {
		if want := (openapitest.Operation{Method: route.Method, Path: strings.Replace(route.Path, "...}", "}", 1)}); !slices.Contains(described, want) {
			t.Errorf("%s %s is not in the document", route.Method, route.Path)
		}
	}
}

func TestDocumentIsServedToEverybody(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	server := p.serve(t, HandlerConfig{}, Routes(Modules{})...)
	got := call(t, server, "GET", openapi.Path, "")
	if got.status != 200 || got.body != openapi.Document() {
		t.Errorf("%d, %d bytes", got.status, len(got.body))
	}
	if got = call(t, server, "GET", openapi.Path, "", "If-None-Match", got.header.Get("ETag")); got.status != 304 {
		t.Errorf("with its tag: %d", got.status)
	}
	if got = call(t, server, "POST", openapi.Path, ""); got.status != 405 {
		t.Errorf("POST: %d", got.status)
	}
}
