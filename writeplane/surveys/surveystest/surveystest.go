// Package surveystest serves the survey modules as the write plane does, on a real
// database with real audit and webhooks, for tests.
package surveystest

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"skerry/pkg/openapi/openapitest"
	"skerry/writeplane"
	"skerry/writeplane/access"
	"skerry/writeplane/audit"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
	"skerry/writeplane/surveys"
	"skerry/writeplane/surveys/responses"
	"skerry/writeplane/webhooks"
)

// World is one organization (tier pro) with one project, and the modules over it.
type World struct {
	DB        *postgres.DB
	Store     *commit.Store
	Access    *access.Store
	Surveys   *surveys.Module
	Responses *responses.Module
	Handler   http.Handler
	Founding  access.Founding
	// Stop ends the newest modules' Run and waits for it; more calls do nothing.
	Stop func()
	// Viewer, Editor and Owner are values of Authorization; Live and Test of x-api-key.
	Viewer, Editor, Owner, Live, Test string

	t        testing.TB
	registry *prometheus.Registry
}

// New makes a world; the modules run until the test ends.
func New(t testing.TB, config responses.Config) *World {
	t.Helper()
	return On(t, dbtest.New(t), config)
}

// On is New on a migrated database.
func On(t testing.TB, db *postgres.DB, config responses.Config) *World {
	t.Helper()
	w := &World{t: t, DB: db, Founding: access.NewFounding("Acme", "Shop", access.Pro)}
	w.Store = commit.New(w.DB.App, commit.Sinks{Audit: audit.Append, Deliveries: webhooks.Enqueue})
	var err error
	if w.Access, err = access.New(t.Context(), access.Config{}, w.DB.App); err != nil {
		t.Fatal(err)
	}
	tokens, err := w.Access.Bootstrap(t.Context(), w.Store, w.Founding)
	if err != nil {
		t.Fatal(err)
	}
	w.Viewer, w.Editor, w.Owner = "Bearer "+tokens["viewer"], "Bearer "+tokens["editor"], "Bearer "+tokens["owner"]
	w.Live, w.Test = w.Founding.Keys["live"].Secret, w.Founding.Keys["test"].Secret
	w.Another(config)
	return w
}

// Another starts a further process' worth of modules on the same database and makes
// them the world's.
func (w *World) Another(config responses.Config) {
	w.t.Helper()
	var err error
	w.registry = prometheus.NewRegistry()
	w.Surveys = surveys.New(w.Store, w.Access)
	if w.Responses, err = responses.New(config, w.Store, w.Access, w.Surveys, w.registry); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	module := w.Responses
	go func() { ended <- module.Run(ctx) }()
	w.Stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("responses ended: %v", err)
		}
	})
	w.t.Cleanup(w.Stop)
	w.Handler = writeplane.NewHandler(writeplane.HandlerConfig{}, w.Access,
		writeplane.Routes(writeplane.Modules{Surveys: w.Surveys, Responses: w.Responses}))
}

// Answer is what came back.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// JSON decodes the body.
func (a Answer) JSON(t testing.TB) map[string]any {
	t.Helper()
	var body map[string]any
	if err := json.Unmarshal(a.Body, &body); err != nil {
		t.Fatalf("%d %s: %v", a.Status, a.Body, err)
	}
	return body
}

// Do sends a request. who is a value of Authorization when it starts with Bearer,
// else of x-api-key; headers are name, value, name, value.
func (w *World) Do(who, method, path, body string, headers ...string) Answer {
	w.t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if strings.HasPrefix(who, "Bearer ") {
		r.Header.Set("Authorization", who)
	} else if who != "" {
		r.Header.Set("X-Api-Key", who)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	recorder := httptest.NewRecorder()
	w.Handler.ServeHTTP(recorder, r)
	openapitest.Check(w.t, method, path, recorder.Code, recorder.Header(), recorder.Body.Bytes())
	return Answer{recorder.Code, recorder.Header(), bytes.Clone(recorder.Body.Bytes())}
}

// Must is Do that fails the test on another status.
func (w *World) Must(status int, who, method, path, body string, headers ...string) Answer {
	w.t.Helper()
	a := w.Do(who, method, path, body, headers...)
	if a.Status != status {
		w.t.Fatalf("%s %s: %d %s, want %d", method, path, a.Status, a.Body, status)
	}
	return a
}

// Published creates and publishes a survey from its flat bundle and returns its id.
func (w *World) Published(body string) string {
	w.t.Helper()
	id := w.Must(http.StatusCreated, w.Editor, "POST", "/api/v1/pulse/surveys", body).JSON(w.t)["survey"].(map[string]any)["id"].(string)
	w.Must(http.StatusOK, w.Editor, "POST", "/api/v1/pulse/surveys/"+id+"/publish", "")
	return id
}

// Count is the result of a query for one number.
func (w *World) Count(sql string, args ...any) int {
	w.t.Helper()
	var n int
	if err := w.DB.Owner.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// Metric is the value of a counter of the newest modules.
func (w *World) Metric(name string) float64 {
	w.t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetCounter().GetValue()
		}
	}
	w.t.Fatalf("no metric %s", name)
	return 0
}
