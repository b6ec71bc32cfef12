package openapi_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"gopkg.in/yaml.v3"

	"skerry/pkg/openapi"
)

func load(text string) error {
	loader := openapi3.NewLoader()
	document, err := loader.LoadFromData([]byte(text))
	if err != nil {
		return err
	}
	return document.Validate(loader.Context)
}

func parsed(t *testing.T) *openapi3.T {
	t.Helper()
	document, err := openapi3.NewLoader().LoadFromData([]byte(openapi.Document()))
	if err != nil {
		t.Fatal(err)
	}
	return document
}

// Validate also holds every example against its schema.
func TestDocumentIsOpenAPI(t *testing.T) {
	t.Parallel()
	if err := load(openapi.Document()); err != nil {
		t.Fatal(err)
	}
}

// An example says more to a newcomer than a schema. One for each body is enough.
func TestEveryJSONBodyOfClientsHasAnExample(t *testing.T) {
	t.Parallel()
	document := parsed(t)
	for path, item := range document.Paths.Map() {
		for method, operation := range item.Operations() {
			if operation.RequestBody == nil || strings.HasPrefix(path, "/internal/") {
				continue
			}
			content := operation.RequestBody.Value.Content
			has := content["application/json"] == nil
			for _, media := range content {
				has = has || media.Example != nil || len(media.Examples) > 0
			}
			if !has {
				t.Errorf("%s %s: the body has no example", method, path)
			}
		}
	}
}

func TestDamagedDocumentIsNoticed(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string][2]string{
		"a reference to nothing":       {"'#/components/schemas/TrackEvent'", "'#/components/schemas/TrackEvents'"},
		"an example of another shape":  {"example: {event_name: tour_taken, distinct_id: user-1, properties", "example: {event_name: 7, distinct_id: user-1, properties"},
		"two operations of one name":   {"operationId: people", "operationId: track"},
		"an undeclared path parameter": {"/api/v1/projects/{id}/usage:", "/api/v1/projects/{other}/usage:"},
		"an unknown scheme":            {"security: [{key: []}]", "security: [{keys: []}]"},
	} {
		text := strings.Replace(openapi.Document(), damage[0], damage[1], 1)
		if text == openapi.Document() {
			t.Errorf("%s: the document does not have %q", name, damage[0])
		} else if load(text) == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
}

// A closed schema is what makes a member that nobody described a failure.
func TestSchemasOfAnswersAreClosed(t *testing.T) {
	t.Parallel()
	var root map[string]any
	if err := yaml.Unmarshal([]byte(openapi.Document()), &root); err != nil {
		t.Fatal(err)
	}
	components := root["components"].(map[string]any)
	seen := map[string]bool{}
	var walk func(at string, v any)
	walk = func(at string, v any) {
		switch v := v.(type) {
		case []any:
			for _, one := range v {
				walk(at, one)
			}
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok && !seen[ref] {
				seen[ref] = true
				part := strings.Split(ref, "/")
				walk(ref, components[part[2]].(map[string]any)[part[3]])
			}
			if v["properties"] != nil && v["type"] != nil && v["additionalProperties"] != false {
				t.Errorf("%s: an object with members is open: %v", at, v)
			}
			for name, one := range v {
				walk(at+"/"+name, one)
			}
		}
	}
	for path, item := range root["paths"].(map[string]any) {
		for method, operation := range item.(map[string]any) {
			if operation, ok := operation.(map[string]any); ok {
				walk(method+" "+path, operation["responses"])
			}
		}
	}
	if len(seen) < 50 {
		t.Errorf("only %d components seen", len(seen))
	}
}

// A default response would hide a status that nobody described.
func TestEveryStatusIsNamed(t *testing.T) {
	t.Parallel()
	document := parsed(t)
	for path, item := range document.Paths.Map() {
		for method, operation := range item.Operations() {
			if operation.Responses.Default() != nil {
				t.Errorf("%s %s has a default response", method, path)
			}
			if operation.Security == nil {
				t.Errorf("%s %s does not say who may call", method, path)
			}
			if len(operation.Tags) != 1 || !slices.ContainsFunc(document.Tags, func(tag *openapi3.Tag) bool { return tag.Name == operation.Tags[0] }) {
				t.Errorf("%s %s: tags %v", method, path, operation.Tags)
			}
			if operation.Summary == "" {
				t.Errorf("%s %s has no summary", method, path)
			}
		}
	}
}

func TestDocumentIsServedWithItsTag(t *testing.T) {
	t.Parallel()
	get := func(tag string) *httptest.ResponseRecorder {
		request := httptest.NewRequest("GET", openapi.Path, nil)
		if tag != "" {
			request.Header.Set("If-None-Match", tag)
		}
		w := httptest.NewRecorder()
		openapi.Handler().ServeHTTP(w, request)
		return w
	}
	first := get("")
	if first.Code != 200 || first.Header().Get("Content-Type") != "application/yaml" || !strings.HasPrefix(first.Body.String(), "openapi: ") {
		t.Errorf("%d %s %.40q", first.Code, first.Header().Get("Content-Type"), first.Body.String())
	}
	if again := get(first.Header().Get("ETag")); again.Code != http.StatusNotModified || again.Body.Len() != 0 {
		t.Errorf("with its tag: %d, %d bytes", again.Code, again.Body.Len())
	}
}
