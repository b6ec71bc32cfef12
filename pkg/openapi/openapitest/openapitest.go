// Package openapitest checks answers of the service against its OpenAPI document. Test
// set-ups call Check for every answer they get, so an answer with a member, a status or a
// content type that the document does not name fails its test.
//
// The schemas are judged by a JSON Schema 2020-12 validator, which is what OpenAPI 3.1
// schemas are, each compiled once per process.
package openapitest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"

	"skerry/pkg/openapi"
)

// methods are the members of a path item that are operations, in the document's case.
var methods = []string{"get", "post", "put", "patch", "delete"}

// Operation is a method and a path as the document writes it: /api/v1/projects/{id}.
type Operation struct{ Method, Path string }

// Check fails the test when the document does not allow the answer. path may carry a
// query. A path or a method that the document does not have must be answered as it says
// of unknown ones.
func Check(t testing.TB, method, path string, status int, header http.Header, body []byte) {
	t.Helper()
	if err := served().Check(method, path, status, header, body); err != nil {
		t.Errorf("openapi: %s %s: %d: %v\n%s", method, path, status, err, head(body))
	}
}

// Ours tells whether a path begins like one of the document's. Set-ups that also serve
// paths made up for a test, or that ask operators' listeners, skip the check for those.
func Ours(path string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	first, _, _ = strings.Cut(first, "?")
	return slices.ContainsFunc(served().paths, func(t template) bool { return t.segments[1] == first })
}

// Operations lists what the document describes.
func Operations() []Operation { return served().Operations() }

var served = sync.OnceValue(func() *Document {
	d, err := Parse(openapi.Document())
	if err != nil {
		panic(err)
	}
	return d
})

// Document is an OpenAPI document to check answers against. It is safe for concurrent
// use.
type Document struct {
	root  map[string]any
	paths []template

	mu       sync.Mutex // guards compiler and compiled
	compiler *jsonschema.Compiler
	compiled map[string]*jsonschema.Schema // by JSON pointer
}

type template struct {
	text     string
	segments []string
	rest     bool // the last parameter stands for all that follows (x-rest)
	item     map[string]any
}

// address is what the validator calls the document.
const address = "urn:openapi"

// Parse reads a document in YAML.
func Parse(text string) (*Document, error) {
	var tree map[string]any
	if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
		return nil, fmt.Errorf("read document: %w", err)
	}
	// The validator wants JSON's types, not YAML's.
	raw, err := json.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("read document: %w", err)
	}
	root, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("read document: %w", err)
	}
	d := &Document{root: root.(map[string]any), compiler: jsonschema.NewCompiler(), compiled: map[string]*jsonschema.Schema{}}
	d.compiler.DefaultDraft(jsonschema.Draft2020)
	d.compiler.AssertFormat()
	if err := d.compiler.AddResource(address, root); err != nil {
		return nil, fmt.Errorf("read document: %w", err)
	}
	for path, item := range object(d.root["paths"]) {
		rest, _ := object(item)["x-rest"].(bool)
		d.paths = append(d.paths, template{path, strings.Split(path, "/"), rest, object(item)})
	}
	// Of two templates that fit, the one with the later parameter is meant.
	slices.SortFunc(d.paths, func(a, b template) int {
		return slices.CompareFunc(a.segments, b.segments, func(x, y string) int {
			switch px, py := parameter(x), parameter(y); {
			case px == py:
				return strings.Compare(x, y)
			case py:
				return -1
			}
			return 1
		})
	})
	return d, nil
}

func object(v any) map[string]any { m, _ := v.(map[string]any); return m }

func parameter(segment string) bool { return strings.HasPrefix(segment, "{") }

// Operations lists what the document describes, in its order of paths.
func (d *Document) Operations() (list []Operation) {
	for _, t := range d.paths {
		for _, m := range methods {
			if t.item[m] != nil {
				list = append(list, Operation{strings.ToUpper(m), t.text})
			}
		}
	}
	return list
}

// Schemas compiles every schema of an answer and names what does not compile.
func (d *Document) Schemas() error {
	var faults []error
	for _, t := range d.paths {
		for _, m := range methods {
			for status, response := range object(object(t.item[m])["responses"]) {
				at, resolved, err := d.resolve(pointer("paths", t.text, m, "responses", status), response)
				if err != nil {
					faults = append(faults, err)
					continue
				}
				for kind := range object(resolved["content"]) {
					if _, err := d.schema(at + pointer("content", kind, "schema")); err != nil {
						faults = append(faults, fmt.Errorf("%s %s %s: %w", m, t.text, status, err))
					}
				}
			}
		}
	}
	return errors.Join(faults...)
}

func (t *template) fits(segments []string) bool {
	if len(segments) != len(t.segments) && (!t.rest || len(segments) < len(t.segments)) {
		return false
	}
	for i, want := range t.segments {
		if parameter(want) && segments[i] == "" || !parameter(want) && segments[i] != want {
			return false
		}
	}
	return true
}

// Check says what the document does not allow in an answer.
func (d *Document) Check(method, path string, status int, header http.Header, body []byte) error {
	path, _, _ = strings.Cut(path, "?")
	if method == http.MethodOptions && status == http.StatusNoContent {
		return nil // CORS preflight; no path describes it
	}
	segments := strings.Split(path, "/")
	at := slices.IndexFunc(d.paths, func(t template) bool { return t.fits(segments) })
	if at < 0 {
		if status != http.StatusNotFound {
			return errors.New("path is not in the document, so its status must be 404")
		}
		return d.answer(pointer("components", "responses", "UnknownPath"), method, header, body)
	}
	t, name := d.paths[at], strings.ToLower(method)
	if method == http.MethodHead {
		name = "get"
	}
	operation := object(t.item[name])
	if operation == nil {
		if status != http.StatusMethodNotAllowed {
			return fmt.Errorf("method is not in the document for %s, so its status must be 405", t.text)
		}
		return d.answer(pointer("components", "responses", "UnknownMethod"), method, header, body)
	}
	code := strconv.Itoa(status)
	if object(operation["responses"])[code] == nil {
		return fmt.Errorf("status is not in the document for %s", t.text)
	}
	return d.answer(pointer("paths", t.text, name, "responses", code), method, header, body)
}

// answer checks one answer against the response at a pointer.
func (d *Document) answer(at, method string, header http.Header, body []byte) error {
	response, err := d.at(at)
	if err != nil {
		return err
	}
	at, resolved, err := d.resolve(at, response)
	if err != nil {
		return err
	}
	if err := d.headers(at, resolved, header); err != nil {
		return err
	}
	if method == http.MethodHead {
		return nil // net/http lets nobody send a body with it
	}
	content := object(resolved["content"])
	if content == nil {
		if len(body) > 0 {
			return errors.New("a body where the document has none")
		}
		return nil
	}
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil {
		return fmt.Errorf("Content-Type %q: %w", header.Get("Content-Type"), err)
	}
	if content[kind] == nil {
		return fmt.Errorf("Content-Type %s is not in the document", kind)
	}
	if kind != "application/json" && !strings.HasSuffix(kind, "+json") {
		return nil
	}
	if header.Get("Content-Encoding") != "" {
		return nil // the same body, coded; the plain one is checked elsewhere
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("body is not JSON: %w", err)
	}
	return d.valid(at+pointer("content", kind, "schema"), value)
}

func (d *Document) headers(at string, response map[string]any, header http.Header) error {
	for name, described := range object(response["headers"]) {
		at, resolved, err := d.resolve(at+pointer("headers", name), described)
		if err != nil {
			return err
		}
		value := header.Get(name)
		if required, _ := resolved["required"].(bool); value == "" && required {
			return fmt.Errorf("header %s is missing", name)
		}
		if value == "" {
			continue
		}
		var typed any = value
		if object(resolved["schema"])["type"] == "integer" {
			typed = json.Number(value)
		}
		if err := d.valid(at+"/schema", typed); err != nil {
			return fmt.Errorf("header %s: %w", name, err)
		}
	}
	return nil
}

func (d *Document) valid(at string, value any) error {
	schema, err := d.schema(at)
	if err != nil {
		return err
	}
	return schema.Validate(value)
}

func (d *Document) schema(at string) (*jsonschema.Schema, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.compiled[at]; s != nil {
		return s, nil
	}
	s, err := d.compiler.Compile(address + "#" + at)
	if err != nil {
		return nil, fmt.Errorf("the document's schema at %s: %w", at, err)
	}
	d.compiled[at] = s
	return s, nil
}

// resolve follows $ref and says where it led.
func (d *Document) resolve(at string, v any) (string, map[string]any, error) {
	m := object(v)
	for m != nil {
		ref, is := m["$ref"].(string)
		if !is {
			return at, m, nil
		}
		at = strings.TrimPrefix(ref, "#")
		target, err := d.at(at)
		if err != nil {
			return at, nil, err
		}
		m = object(target)
	}
	return at, nil, fmt.Errorf("the document has no object at %s", at)
}

func (d *Document) at(at string) (any, error) {
	var v any = d.root
	for token := range strings.SplitSeq(strings.TrimPrefix(at, "/"), "/") {
		next, ok := object(v)[unescape.Replace(token)]
		if !ok {
			return nil, fmt.Errorf("the document has nothing at %s", at)
		}
		v = next
	}
	return v, nil
}

var (
	// A pointer stands in a URL's fragment, so braces and percent signs are coded too.
	escape   = strings.NewReplacer("~", "~0", "/", "~1", "%", "%25", "{", "%7B", "}", "%7D")
	unescape = strings.NewReplacer("~1", "/", "~0", "~", "%7B", "{", "%7D", "}", "%25", "%")
)

// pointer is a JSON pointer of tokens, as it stands in a URL.
func pointer(tokens ...string) string {
	var b strings.Builder
	for _, t := range tokens {
		b.WriteString("/" + escape.Replace(t))
	}
	return b.String()
}

// head is the beginning of a body, for messages.
func head(body []byte) string {
	if len(body) > 2000 {
		return string(body[:2000]) + "…"
	}
	return string(body)
}
