package openapitest

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

const document = `
openapi: 3.1.0
paths:
  /things/{id}:
    get:
      responses:
        '200':
          headers:
            ETag: {required: true, schema: {type: string, pattern: '^"'}}
            Age: {schema: {type: integer}}
          content:
            application/json:
              schema: {$ref: '#/components/schemas/Thing'}
        '204': {}
        '304': {headers: {ETag: {required: true, schema: {type: string}}}}
  /things/mine:
    get: {responses: {'204': {}}}
  /files/{key}:
    x-rest: true
    get: {responses: {'204': {}}}
components:
  responses:
    UnknownPath: {content: {application/json: {schema: {const: {error: not_found}}}}}
    UnknownMethod:
      headers: {Allow: {required: true, schema: {type: string}}}
      content: {application/json: {schema: {const: {error: method_not_allowed}}}}
  schemas:
    Thing:
      type: object
      additionalProperties: false
      required: [id, at]
      properties: {id: {type: string, format: uuid}, at: {type: [string, 'null'], format: date-time}, free: {type: object}}
`

type answer struct {
	method, path string
	status       int
	header, body string
}

func (a answer) check(t *testing.T) error {
	t.Helper()
	d, err := Parse(document)
	if err != nil {
		t.Fatal(err)
	}
	header := http.Header{"Content-Type": {"application/json; charset=utf-8"}}
	for line := range strings.FieldsSeq(a.header) {
		name, value, _ := strings.Cut(line, ":")
		header.Set(name, value)
	}
	return d.Check(a.method, a.path, a.status, header, []byte(a.body))
}

const thing = `{"id":"0198c000-0000-7000-8000-000000000001","at":"2026-01-02T03:04:05.678Z"}`

func TestAnswerThatIsDescribedPasses(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]answer{
		"whole":                       {"GET", "/things/1?a=b", 200, `ETag:"x"`, thing},
		"null":                        {"GET", "/things/1", 200, `ETag:"x" Age:7`, strings.Replace(thing, `"2026-01-02T03:04:05.678Z"`, "null", 1)},
		"anything where it is free":   {"GET", "/things/1", 200, `ETag:"x"`, strings.Replace(thing, "}", `,"free":{"a":[1e999]}}`, 1)},
		"no body":                     {"GET", "/things/1", 304, `ETag:"x"`, ""},
		"head":                        {"HEAD", "/things/1", 200, `ETag:"x"`, ""},
		"a literal before a template": {"GET", "/things/mine", 204, "", ""},
		"a parameter with slashes":    {"GET", "/files/a/b/c", 204, "", ""},
		"preflight":                   {"OPTIONS", "/things/1", 204, "", ""},
		"unknown path":                {"GET", "/nothing", 404, "", `{"error":"not_found"}`},
		"unknown method":              {"PUT", "/things/1", 405, "Allow:GET", `{"error":"method_not_allowed"}`},
	} {
		if err := a.check(t); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnswerThatIsNotDescribedFails(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]answer{
		"a member too much":         {"GET", "/things/1", 200, `ETag:"x"`, strings.Replace(thing, "}", `,"more":1}`, 1)},
		"a member too few":          {"GET", "/things/1", 200, `ETag:"x"`, `{"id":"0198c000-0000-7000-8000-000000000001"}`},
		"a wrong type":              {"GET", "/things/1", 200, `ETag:"x"`, strings.Replace(thing, `"2026-01-02T03:04:05.678Z"`, "7", 1)},
		"a wrong format":            {"GET", "/things/1", 200, `ETag:"x"`, strings.Replace(thing, "0198c000", "x", 1)},
		"no JSON":                   {"GET", "/things/1", 200, `ETag:"x"`, thing[:20]},
		"two texts":                 {"GET", "/things/1", 200, `ETag:"x"`, thing + thing},
		"a missing header":          {"GET", "/things/1", 200, "", thing},
		"a wrong header":            {"GET", "/things/1", 200, "ETag:x", thing},
		"a header of another type":  {"GET", "/things/1", 200, `ETag:"x" Age:old`, thing},
		"another content type":      {"GET", "/things/1", 200, `ETag:"x" Content-Type:text/plain`, thing},
		"a body where none is":      {"GET", "/things/1", 304, `ETag:"x"`, thing},
		"an unknown status":         {"GET", "/things/1", 201, `ETag:"x"`, thing},
		"an unknown path served":    {"GET", "/nothing", 200, "", `{}`},
		"an empty parameter served": {"GET", "/things/", 200, `ETag:"x"`, thing},
		"an unknown path's words":   {"GET", "/nothing", 404, "", `{"error":"gone"}`},
		"an unknown method served":  {"PUT", "/things/1", 200, `ETag:"x"`, thing},
		"a 405 without Allow":       {"PUT", "/things/1", 405, "", `{"error":"method_not_allowed"}`},
	} {
		if a.check(t) == nil {
			t.Errorf("%s passed", name)
		}
	}
}

func TestUnreadableDocumentIsNoticed(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"no YAML": "a: [", "no object": "[]", "a number": "7"} {
		if _, err := Parse(text); err == nil {
			t.Errorf("%s: read", name)
		}
	}
	d, err := Parse(strings.Replace(document, "/schemas/Thing'", "/schemas/Other'", 1))
	if err != nil {
		t.Fatal(err)
	}
	if d.Schemas() == nil {
		t.Error("a reference to nothing compiles")
	}
}

func TestEverySchemaOfTheDocumentCompiles(t *testing.T) {
	t.Parallel()
	if err := served().Schemas(); err != nil {
		t.Error(err)
	}
	if got := Operations(); len(got) < 90 || !slices.Contains(got, Operation{"POST", "/api/v1/track"}) {
		t.Errorf("%d operations", len(got))
	}
}
