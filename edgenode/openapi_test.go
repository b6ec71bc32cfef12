package edgenode

import (
	"slices"
	"strings"
	"testing"

	"skerry/pkg/openapi/openapitest"
)

func TestEveryRouteIsInTheOpenAPIDocument(t *testing.T) {
	t.Parallel()
	described := openapitest.Operations()
	for _, r := range (&Edge{}).routes() {
		for method := range r.methods {
			if !slices.ContainsFunc(described, func(o openapitest.Operation) bool {
				prefix, parameter := strings.CutSuffix(r.path, "*")
				return o.Method == method && (o.Path == r.path || parameter && strings.HasPrefix(o.Path, prefix+"{") && strings.HasSuffix(o.Path, "}"))
			}) {
				t.Errorf("%s %s is not in the document", method, r.path)
			}
		}
	}
}
