package cluster_test

import (
	"regexp"
	"strings"
	"testing"

	"skerry/pkg/openapi"
	"skerry/pkg/openapi/openapitest"
)

// Nobody's answer to a known path is a 404 or a 405 before it has asked who calls.
func TestEdgeServesEveryOperationOfTheOpenAPIDocument(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	address := "http://" + c.edges[0].Addr().String()
	parameter := regexp.MustCompile(`\{\w+\}`)
	for _, o := range openapitest.Operations() {
		status, answer, _ := c.do(o.Method, address+parameter.ReplaceAllString(o.Path, "x"), "")
		if status == 0 || status == 404 || status == 405 || status >= 500 {
			t.Errorf("%s %s: %d %s", o.Method, o.Path, status, answer)
		}
	}
	if status, answer, _ := c.do("GET", address+openapi.Path, ""); status != 200 || !strings.HasPrefix(answer, "openapi:") {
		t.Errorf("the document itself: %d", status)
	}
}
