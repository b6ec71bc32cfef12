// Package openapi holds the service's OpenAPI 3.1 document: every path that an edge or
// the write plane answers, what it takes and what it gives. The schemas of answers are
// closed, and the tests of both planes check every answer against them (openapitest).
// Nothing reads the document at run time but the people and programs that ask for it.
package openapi

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"

	"skerry/pkg/etag"
)

// Path is where the document is served.
const Path = "/openapi.yaml"

//go:embed openapi.yaml
var document string

// Document is the text, in YAML.
func Document() string { return document }

// Handler answers GET with the document, and 304 to a client that has it already.
func Handler() http.Handler {
	sum := sha256.Sum256([]byte(document))
	tag := `"` + base64.RawURLEncoding.EncodeToString(sum[:15]) + `"`
	body := []byte(document)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("ETag", tag)
		header.Set("Cache-Control", "public, max-age=300")
		if etag.NoneMatch([]byte(strings.Join(r.Header.Values("If-None-Match"), ",")), []byte(tag)) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		header.Set("Content-Type", "application/yaml")
		header.Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body) // a client that has gone hears nothing, and nothing else is owed
	})
}
