package pulse_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
	"github.com/valyala/fasthttp"

	"skerry/edgenode/edgetest"
	"skerry/edgenode/pulse"
	"skerry/edgenode/view"
	"skerry/pkg/apikey"
	"skerry/pkg/instant"
	"skerry/pkg/state"
	"skerry/pkg/survey"
	"skerry/replication"
)

func TestMain(m *testing.M) { edgetest.Main(m) }

const project = edgetest.Project

var made = time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)

// edge is an edge's state and the handler over it.
type edge struct {
	*edgetest.World
	handler *pulse.Handler
	partial func(apiKey, requestID, surveyID, externalID string) (json.RawMessage, error)
}

func newEdge(t testing.TB, surveys ...state.Survey) *edge {
	t.Helper()
	e := &edge{World: edgetest.New(t, view.Hooks{Pulse: pulse.Compile})}
	for _, s := range surveys {
		e.save(s)
	}
	e.handler = pulse.New(pulse.Config{
		Gate: e.Gate, Log: slog.New(slog.DiscardHandler),
		Partial: func(apiKey, requestID, surveyID, externalID string) (json.RawMessage, error) {
			return e.partial(apiKey, requestID, surveyID, externalID)
		},
	})
	return e
}

func (e *edge) settings(on bool) {
	e.Settings.Modules.Pulse = on
	e.Put(replication.ProjectSubject(project), e.Settings)
}

func (e *edge) save(s state.Survey) {
	e.Put(replication.SurveySubject(project, s.Bundle.Survey.ID), s)
}

// get sends a request; headers are name, value, name, value. path is behind /api/pulse/surveys.
func (e *edge) get(path string, headers ...string) *fasthttp.Response {
	var ctx fasthttp.RequestCtx
	e.serve(&ctx, path, headers...)
	return &ctx.Response
}

func (e *edge) serve(ctx *fasthttp.RequestCtx, path string, headers ...string) {
	var request fasthttp.Request
	request.SetRequestURI("http://edge/api/pulse/surveys" + path)
	request.Header.Set("X-Api-Key", e.Live)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	ctx.Init(&request, &net.TCPAddr{}, nil)
	if wanted, ok := strings.CutPrefix(string(ctx.Path()), "/api/pulse/surveys/"); ok {
		e.handler.Bundle(ctx, []byte(wanted))
	} else {
		e.handler.List(ctx, nil)
	}
	e.Check(ctx)
}

func sample(id, status string) state.Survey {
	return state.Survey{
		Bundle: survey.Bundle{
			Survey: survey.Survey{
				ID: id, OrganizationID: "org", ProjectID: project, Name: "Name <" + id + ">", Kind: "nps", Status: status, Slug: "slug-" + id[4:],
				CreatedAt: instant.Of(made),
			},
			Questions:      []survey.Question{{ID: "q1", SurveyID: id, Kind: "nps", Prompt: "Recommend?", Required: true}},
			TargetingRules: []survey.TargetingRule{{Predicate: "event:x", WeightNumerator: 100}},
			BranchingRules: []survey.BranchingRule{},
			Translations:   map[string]map[string]string{"de": {"survey.name": "Name"}},
		},
		Display: survey.Display{AutoShow: true, CooldownSeconds: 604800}, UpdatedAt: made,
	}
}

const bundleOfA = `{"survey":{"id":"psv_a","organization_id":"org","project_id":"` + project + `","name":"Name <psv_a>","description":"","kind":"nps","status":"published","slug":"slug-a","archived_at":null,"created_at":"2026-01-02T03:04:05.678Z"},` +
	`"questions":[{"id":"q1","survey_id":"psv_a","kind":"nps","prompt":"Recommend?","required":true,"order_index":0,"config":{}}],` +
	`"targeting_rules":[{"predicate":"event:x","weight_numerator":100}],"branching_rules":[],"theme":null,"translations":{"de":{"survey.name":"Name"}}}`

func expect(t *testing.T, r *fasthttp.Response, status int, body string) {
	t.Helper()
	if r.StatusCode() != status || string(r.Body()) != body {
		t.Errorf("%d %s\nwant %d %s", r.StatusCode(), r.Body(), status, body)
	}
}

func TestListHoldsPublishedSurveysOnly(t *testing.T) {
	t.Parallel()
	e := newEdge(t, sample("psv_c", "closed"), sample("psv_b", "published"), sample("psv_a", "published"), sample("psv_d", "draft"), sample("psv_e", "archived"))
	r := e.get("")
	entry := func(id string) string {
		return `{"id":"psv_` + id + `","name":"Name <psv_` + id + `>","description":"","kind":"nps","status":"published","slug":"slug-` + id + `","auto_show":true,"display_cooldown_seconds":604800,"display_delay_ms":0,"targeting_rules":[{"predicate":"event:x","weight_numerator":100}]}`
	}
	expect(t, r, 200, "["+entry("a")+","+entry("b")+"]")
	if r.Header.Peek("ETag") == nil || string(r.Header.Peek("Cache-Control")) != "private, max-age=300" || string(r.Header.ContentType()) != "application/json" {
		t.Errorf("%s", &r.Header)
	}
	again := e.get("", "If-None-Match", string(r.Header.Peek("ETag")))
	expect(t, again, 304, "")
	if !bytes.Equal(again.Header.Peek("ETag"), r.Header.Peek("ETag")) || string(again.Header.Peek("Cache-Control")) != "private, max-age=300" {
		t.Errorf("%s", &again.Header)
	}
	expect(t, e.get("", "If-None-Match", `"other"`), 200, string(r.Body()))
}

func TestListWithoutSurveysIsEmpty(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	r := e.get("")
	expect(t, r, 200, `[]`)
	expect(t, e.get("", "If-None-Match", string(r.Header.Peek("ETag"))), 304, "")
}

func TestTagChangesWithEverySaveOfAnySurvey(t *testing.T) {
	t.Parallel()
	e := newEdge(t, sample("psv_a", "published"), sample("psv_d", "draft"))
	tag := func() string { return string(e.get("").Header.Peek("ETag")) }
	seen := map[string]bool{tag(): true}
	changed := func(what string) {
		t.Helper()
		now := tag()
		if seen[now] {
			t.Errorf("%s: the tag repeats", what)
		}
		seen[now] = true
	}
	draft := sample("psv_d", "draft")
	draft.UpdatedAt = made.Add(time.Millisecond)
	e.save(draft)
	changed("a draft saved")
	first := sample("psv_a", "published")
	first.UpdatedAt = made.Add(time.Second)
	e.save(first)
	changed("a published one saved")
	e.save(sample("psv_f", "draft"))
	changed("one more")

	before := tag()
	e.settings(true)
	if tag() != before {
		t.Error("a change of something else changed the tag")
	}
	twin := newEdge(t, sample("psv_f", "draft"), first, draft) // another edge, another order
	if got := string(twin.get("").Header.Peek("ETag")); got != before {
		t.Errorf("another edge has %s, not %s", got, before)
	}
}

func TestBundleByIDAndSlug(t *testing.T) {
	t.Parallel()
	e := newEdge(t, sample("psv_a", "published"), sample("psv_c", "closed"), sample("psv_d", "draft"), sample("psv_e", "archived"))
	for _, at := range []string{"/psv_a", "/slug-a", "/slug-a?external_id=", "/psv_a?other=1"} {
		expect(t, e.get(at), 200, bundleOfA)
	}
	for _, at := range []string{"/psv_x", "/slug-x", "/PSV_A"} {
		expect(t, e.get(at), 404, `{"error":"not_found","message":"survey not found for this project"}`)
	}
	for at, status := range map[string]string{"/psv_c": "closed", "/slug-d": "draft", "/psv_e": "archived"} {
		expect(t, e.get(at), 422, `{"error":"not_accepting_responses","message":"the survey is `+status+`"}`)
	}
}

func TestBundleFollowsItsSurvey(t *testing.T) {
	t.Parallel()
	e := newEdge(t, sample("psv_a", "draft"))
	expect(t, e.get("/slug-a"), 422, `{"error":"not_accepting_responses","message":"the survey is draft"}`)
	e.save(sample("psv_a", "published"))
	expect(t, e.get("/slug-a"), 200, bundleOfA)
	moved := sample("psv_a", "published")
	moved.Bundle.Survey.Slug = "elsewhere"
	e.save(moved)
	expect(t, e.get("/slug-a"), 404, `{"error":"not_found","message":"survey not found for this project"}`)
	expect(t, e.get("/elsewhere"), 200, strings.Replace(bundleOfA, "slug-a", "elsewhere", 1))
}

func TestKeysAndModuleAreChecked(t *testing.T) {
	t.Parallel()
	e := newEdge(t, sample("psv_a", "published"))
	for _, at := range []string{"", "/psv_a"} {
		expect(t, e.get(at, "X-Api-Key", ""), 401, `{"error":"missing_api_key"}`)
		expect(t, e.get(at, "X-Api-Key", apikey.New(apikey.Live)), 401, `{"error":"invalid_api_key"}`)
	}
	e.settings(false)
	for _, at := range []string{"", "/psv_a", "/none"} {
		expect(t, e.get(at), 403, `{"error":"module_disabled"}`)
	}
}

func TestPagesComeInTheCodingTheClientLikes(t *testing.T) {
	t.Parallel()
	long := sample("psv_a", "published")
	long.Bundle.Survey.Description = strings.Repeat("much to say, ", 200)
	e := newEdge(t, long)
	plain := map[string]string{"": string(e.get("").Body()), "/psv_a": string(e.get("/psv_a").Body())}
	decode := map[string]func(io.Reader) (io.Reader, error){
		"":     func(r io.Reader) (io.Reader, error) { return r, nil },
		"br":   func(r io.Reader) (io.Reader, error) { return brotli.NewReader(r), nil },
		"gzip": func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
		"zstd": func(r io.Reader) (io.Reader, error) {
			decoder, err := zstd.NewReader(nil)
			if err != nil {
				return nil, err
			}
			defer decoder.Close()
			whole, err := io.ReadAll(r)
			if err != nil {
				return nil, err
			}
			out, err := decoder.DecodeAll(whole, nil)
			return bytes.NewReader(out), err
		},
	}
	for header, want := range map[string]string{
		"": "", "identity": "", "deflate": "", "gzip": "gzip", "GZIP": "gzip", "zstd": "zstd", "br": "br", "gzip, deflate, br, zstd": "br",
		"gzip;q=0.5, zstd; q=1.0": "zstd", "br;q=0, gzip": "gzip", "br;q=0.0,zstd;q=0.000,gzip;q=0": "", " gzip , x": "gzip", "brx": "", ",,;=": "",
	} {
		for path, body := range plain {
			for range 2 { // made, then kept
				r := e.get(path, "Accept-Encoding", header)
				reader, err := decode[want](bytes.NewReader(r.Body()))
				if err != nil {
					t.Fatalf("%q: %v", header, err)
				}
				got, err := io.ReadAll(reader)
				if err != nil || string(got) != body || string(r.Header.Peek("Content-Encoding")) != want || string(r.Header.Peek("Vary")) != "Accept-Encoding" {
					t.Errorf("%q: %v, coding %s, %d bytes, want %s and %d", header, err, r.Header.Peek("Content-Encoding"), len(got), want, len(body))
				}
			}
		}
	}
}

func TestPartialIsLaidIntoTheBundle(t *testing.T) {
	t.Parallel()
	e := newEdge(t, sample("psv_a", "published"))
	asked := ""
	e.partial = func(apiKey, _, surveyID, externalID string) (json.RawMessage, error) {
		asked = fmt.Sprint(apiKey == e.Live, surveyID, externalID)
		return json.RawMessage(`{"answers":{"q1":7},"current_question_id":"q1"}`), nil
	}
	r := e.get("/slug-a?external_id=e%201")
	expect(t, r, 200, strings.TrimSuffix(bundleOfA, "}")+`,"partial":{"answers":{"q1":7},"current_question_id":"q1"}}`)
	if asked != "truepsv_ae 1" || r.Header.Peek("Skerry-Partial") != nil {
		t.Errorf("asked %s; %s", asked, &r.Header)
	}
	e.partial = func(string, string, string, string) (json.RawMessage, error) { return nil, nil }
	expect(t, e.get("/psv_a?external_id=e"), 200, bundleOfA)
	e.partial = func(string, string, string, string) (json.RawMessage, error) { return nil, errors.New("away") }
	r = e.get("/psv_a?external_id=e")
	expect(t, r, 200, bundleOfA)
	if string(r.Header.Peek("Skerry-Partial")) != "unavailable" {
		t.Errorf("%s", &r.Header)
	}
	e.partial = nil // nobody has such an id, so nobody is asked
	for _, id := range []string{"%00", "%ff", strings.Repeat("x", 513)} {
		expect(t, e.get("/psv_a?external_id="+id), 200, bundleOfA)
	}
}

func TestNothingIsAllocatedForA304(t *testing.T) {
	e := newEdge(t, sample("psv_a", "published"))
	tag := string(e.get("").Header.Peek("ETag"))
	var ctx fasthttp.RequestCtx
	e.serve(&ctx, "", "If-None-Match", tag)
	if n := testing.AllocsPerRun(1000, func() {
		ctx.Response.Reset()
		e.handler.List(&ctx, nil)
	}); n != 0 || ctx.Response.StatusCode() != 304 {
		t.Errorf("%v allocations, status %d", n, ctx.Response.StatusCode())
	}
	ctx.Request.Header.Del("If-None-Match")
	if n := testing.AllocsPerRun(1000, func() {
		ctx.Response.Reset()
		e.handler.List(&ctx, nil)
	}); n != 0 || ctx.Response.StatusCode() != 200 {
		t.Errorf("200: %v allocations, status %d", n, ctx.Response.StatusCode())
	}
}

// centre answers as the write plane does, or as the test wants.
func centre(t *testing.T, handle http.HandlerFunc) *pulse.Centre {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	c, err := pulse.NewCentre(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestCentreIsAskedWithTheClientsKey(t *testing.T) {
	t.Parallel()
	c := centre(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/pulse/surveys/psv_a/partial" || r.URL.Query().Get("external_id") != "a&b=ü" || r.Header.Get("X-Api-Key") != "key" || r.Header.Get("X-Request-Id") != "id" {
			w.WriteHeader(http.StatusTeapot)
		}
		_, _ = io.WriteString(w, `{"partial":{"answers":{},"current_question_id":null}}`)
	})
	if got, err := c.Partial("key", "id", "psv_a", "a&b=ü"); err != nil || string(got) != `{"answers":{},"current_question_id":null}` {
		t.Errorf("%s %v", got, err)
	}
}

func TestCentreThatFailsIsAnError(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"not JSON": `{"partial":`, "too large": `{"partial":"` + strings.Repeat("x", 2<<20) + `"}`} {
		c := centre(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
		if _, err := c.Partial("key", "id", "psv_a", "e"); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	c := centre(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	if _, err := c.Partial("key", "id", "psv_a", "secret-person"); err == nil || strings.Contains(err.Error(), "secret-person") {
		t.Errorf("%v", err)
	}
	gone, err := pulse.NewCentre("http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gone.Partial("key", "id", "psv_a", "secret-person"); err == nil || strings.Contains(err.Error(), "secret-person") {
		t.Errorf("%v", err)
	}
}

func TestCentreThatHangsCostsPatienceAtMost(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	c := centre(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	begun := time.Now()
	_, err := c.Partial("key", "id", "psv_a", "e")
	if took := time.Since(begun); err == nil || took > 5*time.Second {
		t.Errorf("%v after %v", err, took)
	}
	close(release)
}
