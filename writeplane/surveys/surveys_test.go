package surveys_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"skerry/writeplane/postgres/dbtest"
	"skerry/writeplane/surveys"
	"skerry/writeplane/surveys/responses"
	"skerry/writeplane/surveys/surveystest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

const path = "/api/v1/pulse/surveys"

func world(t testing.TB) *surveystest.World { return surveystest.New(t, responses.Config{}) }

const small = `{"name":"How is it?","kind":"nps","questions":[{"id":"q1","kind":"nps","prompt":"Recommend?","required":true}]}`

func TestCreateAnswersTheBundle(t *testing.T) {
	t.Parallel()
	w := world(t)
	a := w.Must(http.StatusCreated, w.Editor, "POST", path, `{"name":"How is it?","kind":"csat","slug":"how","auto_show":true,
		"questions":[{"id":"q1","kind":"csat","prompt":"Happy?","required":true},{"kind":"text","prompt":"Why?","config":{"max_length":20}}],
		"targeting_rules":[{"predicate":"AND(event:paid, session_count >= 3)","weight_numerator":100}],
		"branching_rules":[{"from_question_id":"q1","predicate":"answer > 3","to_question_id":null}],
		"theme":{"primary_color":"#112233"},"translations":{"de":{"survey.name":"Wie ist es?"}}}`)
	body := a.JSON(t)
	s := body["survey"].(map[string]any)
	if !strings.HasPrefix(s["id"].(string), "psv_") || s["status"] != "draft" || s["slug"] != "how" || s["archived_at"] != nil ||
		s["project_id"] != w.Founding.ProjectID || s["organization_id"] != w.Founding.OrganizationID ||
		s["auto_show"] != true || s["display_cooldown_seconds"] != 604800.0 || s["display_delay_ms"] != 0.0 {
		t.Errorf("survey %v", s)
	}
	questions := body["questions"].([]any)
	second := questions[1].(map[string]any)
	if questions[0].(map[string]any)["id"] != "q1" || !strings.HasPrefix(second["id"].(string), "psq_") || second["survey_id"] != s["id"] || second["order_index"] != 1.0 {
		t.Errorf("questions %v", questions)
	}
	theme := body["theme"].(map[string]any)
	if theme["primary_color"] != "#112233" || theme["survey_id"] != s["id"] || theme["id"] == "" {
		t.Errorf("theme %v", theme)
	}
	read := w.Must(http.StatusOK, w.Viewer, "GET", path+"/"+s["id"].(string), "")
	if string(read.Body) != string(a.Body) || read.Header.Get("ETag") != a.Header.Get("ETag") || a.Header.Get("ETag") == "" {
		t.Errorf("read %s\nmade %s", read.Body, a.Body)
	}
	bySlug := w.Must(http.StatusOK, w.Viewer, "GET", path+"/how", "")
	if string(bySlug.Body) != string(a.Body) {
		t.Errorf("by slug %s", bySlug.Body)
	}
}

func TestBodiesAreRefusedByName(t *testing.T) {
	t.Parallel()
	w := world(t)
	for body, want := range map[string]string{
		``:                                     `"error":"invalid_body"`,
		`[]`:                                   `"message":"the body is not a JSON object"`,
		`{}`:                                   `"message":"name is required"`,
		`{"name":"n"}`:                         `"message":"kind is required"`,
		`{"name":1,"kind":"nps"}`:              `"message":"name must be a string, not number"`,
		`{"name":null,"kind":"nps"}`:           `"message":"name is required"`,
		`{"name":"n","kind":"nps","colour":1}`: `"message":"unknown member \"colour\""`,
		`{"name":"n","kind":"nps","status":"published"}`:          `"message":"unknown member \"status\""`,
		`{"name":"n","kind":"nps","questions":{}}`:                `"message":"questions must be an array, not object"`,
		`{"name":"n","kind":"nps","questions":[{"kind":"nps"}]}`:  `"message":"questions[0].prompt is required"`,
		`{"name":"n","kind":"nps","translations":{"de":{"k":1}}}`: `"message":"translations must be a string, not number"`,
	} {
		a := w.Must(http.StatusBadRequest, w.Editor, "POST", path, body)
		if !strings.Contains(string(a.Body), want) || a.JSON(t)["error"] != "invalid_body" {
			t.Errorf("%s: %s, want %s", body, a.Body, want)
		}
	}
}

func TestProblemsComeAllAtOnce(t *testing.T) {
	t.Parallel()
	w := world(t)
	w.Must(http.StatusCreated, w.Editor, "POST", path, `{"name":"n","kind":"nps","slug":"taken"}`)
	a := w.Must(http.StatusBadRequest, w.Editor, "POST", path, `{"name":"n","kind":"nps","slug":"taken",
		"questions":[{"id":"a","kind":"nps","prompt":"p","order_index":1},{"id":"b","kind":"select","prompt":"p","order_index":1}],
		"targeting_rules":[{"predicate":"nonsense"}],
		"branching_rules":[{"from_question_id":"b","predicate":"answered","to_question_id":"a"}]}`)
	body := a.JSON(t)
	var paths []string
	for _, p := range body["problems"].([]any) {
		paths = append(paths, p.(map[string]any)["path"].(string))
	}
	want := "questions[1].order_index questions[1].config.options targeting_rules[0].predicate branching_rules[0].to_question_id slug"
	if body["error"] != "invalid_survey" || strings.Join(paths, " ") != want {
		t.Errorf("%s", a.Body)
	}
	if n := w.Count(`SELECT count(*) FROM surveys`); n != 1 {
		t.Errorf("%d surveys stored", n)
	}
}

func TestLifeCycleAllowsOnlyItsOwnSteps(t *testing.T) {
	t.Parallel()
	w := world(t)
	id := w.Must(http.StatusCreated, w.Editor, "POST", path, small).JSON(t)["survey"].(map[string]any)["id"].(string)
	for _, step := range []struct {
		verb   string
		status int
		want   string
	}{
		{"close", 409, "draft"}, {"reopen", 409, "draft"}, {"archive", 409, "draft"},
		{"publish", 200, "published"}, {"publish", 409, "published"}, {"reopen", 409, "published"}, {"archive", 409, "published"},
		{"close", 200, "closed"}, {"close", 409, "closed"}, {"reopen", 200, "published"},
		{"close", 200, "closed"}, {"publish", 200, "published"}, {"close", 200, "closed"},
		{"archive", 200, "archived"},
		{"archive", 409, "archived"}, {"publish", 409, "archived"}, {"reopen", 409, "archived"}, {"close", 409, "archived"},
	} {
		a := w.Must(step.status, w.Editor, "POST", path+"/"+id+"/"+step.verb, "")
		if step.status == 409 && a.JSON(t)["error"] != "invalid_transition" {
			t.Errorf("%s: %s", step.verb, a.Body)
		}
		s := w.Must(http.StatusOK, w.Viewer, "GET", path+"/"+id, "").JSON(t)["survey"].(map[string]any)
		if s["status"] != step.want || (s["archived_at"] != nil) != (step.want == "archived") {
			t.Fatalf("after %s: %v", step.verb, s)
		}
	}
	var actions []string
	rows, _ := w.DB.Owner.Query(t.Context(), `SELECT action FROM audit_entries WHERE resource_id = $1 ORDER BY seq`, id)
	for rows.Next() {
		var action string
		_ = rows.Scan(&action)
		actions = append(actions, strings.TrimPrefix(action, "pulse.survey."))
	}
	if got := strings.Join(actions, " "); got != "created published closed reopened closed published closed archived" {
		t.Errorf("audited %s", got)
	}
}

func TestPatchMergesObjectsAndReplacesArrays(t *testing.T) {
	t.Parallel()
	w := world(t)
	made := w.Must(http.StatusCreated, w.Editor, "POST", path, `{"name":"N","kind":"nps","slug":"n","description":"d","auto_show":true,"display_delay_ms":5,
		"questions":[{"id":"a","kind":"nps","prompt":"A"},{"id":"b","kind":"text","prompt":"B"}],
		"theme":{"primary_color":"#111111"},"translations":{"de":{"x":"1","y":"2"},"fr":{"x":"3"}}}`).JSON(t)
	id := made["survey"].(map[string]any)["id"].(string)
	patched := w.Must(http.StatusOK, w.Editor, "PATCH", path+"/"+id, `{"name":"M","description":null,"display_cooldown_seconds":0,
		"questions":[{"id":"b","kind":"text","prompt":"B2","order_index":0},{"kind":"boolean","prompt":"C"}],
		"translations":{"de":{"y":null,"z":"4"},"fr":null}}`).JSON(t)
	s := patched["survey"].(map[string]any)
	if s["name"] != "M" || s["description"] != "" || s["slug"] != "n" || s["auto_show"] != true || s["display_delay_ms"] != 5.0 || s["display_cooldown_seconds"] != 0.0 {
		t.Errorf("survey %v", s)
	}
	if s["created_at"] != made["survey"].(map[string]any)["created_at"] || s["updated_at"].(string) <= s["created_at"].(string) {
		t.Errorf("times %v", s)
	}
	got, _ := json.Marshal([]any{patched["translations"], patched["theme"].(map[string]any)["id"] == made["theme"].(map[string]any)["id"]})
	if string(got) != `[{"de":{"x":"1","z":"4"}},true]` {
		t.Errorf("%s", got)
	}
	questions := patched["questions"].([]any)
	if len(questions) != 2 || questions[0].(map[string]any)["prompt"] != "B2" || questions[1].(map[string]any)["order_index"] != 1.0 {
		t.Errorf("questions %v", questions)
	}
	// What was read can be sent back.
	sent, _ := json.Marshal(map[string]any{"questions": questions, "theme": patched["theme"]})
	again := w.Must(http.StatusOK, w.Editor, "PATCH", path+"/"+id, string(sent)).JSON(t)
	if fmt.Sprint(again["questions"]) != fmt.Sprint(questions) {
		t.Errorf("sent back %v, got %v", questions, again["questions"])
	}
	for body, want := range map[string]string{
		`{"nmae":"x"}`:                     `invalid_body`,
		`{"survey":{"name":"x"}}`:          `invalid_body`,
		`{"name":null}`:                    `invalid_body`,
		`{"slug":"UP"}`:                    `invalid_survey`,
		`[`:                                `invalid_body`,
		`{"theme":{"primary_color":null}}`: `invalid_body`,
	} {
		if a := w.Must(http.StatusBadRequest, w.Editor, "PATCH", path+"/"+id, body); a.JSON(t)["error"] != want {
			t.Errorf("%s: %s, want %s", body, a.Body, want)
		}
	}
}

func TestIfMatchGuardsAgainstLostUpdates(t *testing.T) {
	t.Parallel()
	w := world(t)
	made := w.Must(http.StatusCreated, w.Editor, "POST", path, small)
	at := path + "/" + made.JSON(t)["survey"].(map[string]any)["id"].(string)
	first := made.Header.Get("ETag")
	second := w.Must(http.StatusOK, w.Editor, "PATCH", at, `{"name":"B"}`, "If-Match", first).Header.Get("ETag")
	if a := w.Must(http.StatusPreconditionFailed, w.Editor, "PATCH", at, `{"name":"C"}`, "If-Match", first); a.JSON(t)["error"] != "precondition_failed" {
		t.Errorf("%s", a.Body)
	}
	w.Must(http.StatusOK, w.Editor, "PATCH", at, `{"name":"C"}`, "If-Match", `"x", `+second)
}

func TestEverySaveRaisesUpdatedAt(t *testing.T) {
	t.Parallel()
	w := world(t)
	made := w.Must(http.StatusCreated, w.Editor, "POST", path, small).JSON(t)["survey"].(map[string]any)
	last := made["updated_at"].(string)
	for range 5 {
		now := w.Must(http.StatusOK, w.Editor, "PATCH", path+"/"+made["id"].(string), `{}`).JSON(t)["survey"].(map[string]any)["updated_at"].(string)
		if now <= last {
			t.Fatalf("%s after %s", now, last)
		}
		last = now
	}
}

func TestSlugsAreDerivedAndUniqueInTheProject(t *testing.T) {
	t.Parallel()
	w := world(t)
	var mu sync.Mutex
	slugs := make(map[any]bool)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			a := w.Do(w.Editor, "POST", path, small)
			if a.Status != http.StatusCreated {
				t.Errorf("%d %s", a.Status, a.Body)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			slugs[a.JSON(t)["survey"].(map[string]any)["slug"]] = true
		})
	}
	group.Wait()
	if len(slugs) != 8 || !slugs["how-is-it"] || !slugs["how-is-it-2"] {
		t.Errorf("%v", slugs)
	}
	other := w.Must(http.StatusCreated, w.Editor, "POST", path, `{"name":"n","kind":"nps"}`).JSON(t)["survey"].(map[string]any)["id"].(string)
	a := w.Must(http.StatusBadRequest, w.Editor, "PATCH", path+"/"+other, `{"slug":"how-is-it"}`)
	if !strings.Contains(string(a.Body), `"problems":[{"path":"slug","reason":"slug_taken"}]`) {
		t.Errorf("%s", a.Body)
	}
}

func TestWhatTheCallerMayNotSeeIsAbsent(t *testing.T) {
	t.Parallel()
	w := world(t)
	id := w.Must(http.StatusCreated, w.Editor, "POST", path, small).JSON(t)["survey"].(map[string]any)["id"].(string)
	w.Must(http.StatusForbidden, w.Viewer, "POST", path, small)
	w.Must(http.StatusUnauthorized, "", "GET", path, "")
	w.Must(http.StatusUnauthorized, w.Live, "GET", path, "")
	w.Must(http.StatusOK, w.Owner, "GET", path+"/"+id, "")
	for _, at := range []string{"/psv_01ARZ3NDEKTSV4RRFFQ69G5FAV", "/nothing", "/%00", "/psv_%00", "/psv_" + strings.Repeat("x", 4000)} {
		if a := w.Must(http.StatusNotFound, w.Viewer, "GET", path+at, ""); a.JSON(t)["error"] != "not_found" {
			t.Errorf("%s: %s", at, a.Body)
		}
	}
	if a := w.Must(http.StatusBadRequest, w.Owner, "GET", path+"/how-is-it", ""); a.JSON(t)["error"] != "project_id is required" {
		t.Errorf("%s", a.Body)
	}
	// The survey becomes one of another organization's project.
	dbtest.Exec(t, w.DB.Owner, `
		INSERT INTO organizations (id, name, tier) VALUES ('019a0000-0000-7000-8000-000000000001', 'Other', 'pro');
		INSERT INTO projects (id, organization_id, name, modules, allowlist, rate_limits, quotas)
		SELECT '019a0000-0000-7000-8000-000000000002', '019a0000-0000-7000-8000-000000000001', 'Other', modules, allowlist, rate_limits, quotas FROM projects LIMIT 1;
		UPDATE surveys SET project_id = '019a0000-0000-7000-8000-000000000002'`)
	for _, verb := range []string{"GET", "PATCH"} {
		w.Must(http.StatusNotFound, w.Owner, verb, path+"/"+id, `{"name":"stolen"}`)
	}
	w.Must(http.StatusNotFound, w.Owner, "POST", path+"/"+id+"/publish", "")
}

func TestListPagesNewestFirst(t *testing.T) {
	t.Parallel()
	w := world(t)
	for i := range 5 {
		w.Must(http.StatusCreated, w.Editor, "POST", path, fmt.Sprintf(`{"name":"n%d","kind":"nps"}`, i))
	}
	var names []string
	cursor := ""
	for {
		page := w.Must(http.StatusOK, w.Viewer, "GET", path+"?status=draft&limit=2"+cursor, "").JSON(t)
		for _, s := range page["surveys"].([]any) {
			names = append(names, s.(map[string]any)["name"].(string))
		}
		if page["has_more"] != true {
			if page["next_cursor"] != nil {
				t.Errorf("a cursor behind the end: %v", page["next_cursor"])
			}
			break
		}
		cursor = "&cursor=" + page["next_cursor"].(string)
	}
	if got := strings.Join(names, " "); got != "n4 n3 n2 n1 n0" {
		t.Errorf("%s", got)
	}
	w.Must(http.StatusBadRequest, w.Viewer, "GET", path+"?status=published&limit=2"+cursor, "")
	w.Must(http.StatusBadRequest, w.Viewer, "GET", path+"?limit=201", "")
	w.Must(http.StatusBadRequest, w.Viewer, "GET", path+"?status=lost", "")
}

func TestDocumentsGoToEdgesWithEverySave(t *testing.T) {
	t.Parallel()
	w := world(t)
	id := w.Published(small)
	var body map[string]any
	read := func() int64 {
		var position int64
		if err := w.DB.Owner.QueryRow(t.Context(), `SELECT position, convert_from(body, 'UTF8')::json FROM documents WHERE subject LIKE '%.survey.%'`).Scan(&position, &body); err != nil {
			t.Fatal(err)
		}
		return position
	}
	first := read()
	s := body["survey"].(map[string]any)
	if s["id"] != id || s["status"] != "published" || body["display_cooldown_seconds"] != 604800.0 || body["updated_at"] == nil {
		t.Errorf("%v", body)
	}
	w.Must(http.StatusOK, w.Editor, "PATCH", path+"/"+id, `{"name":"other"}`)
	if second := read(); second <= first || body["survey"].(map[string]any)["name"] != "other" {
		t.Errorf("position %d after %d: %v", second, first, body)
	}
}

func TestSurveyTooLargeForEdgesIsRefused(t *testing.T) {
	t.Parallel()
	w := world(t)
	var options []string
	for i := range 100 {
		options = append(options, fmt.Sprintf(`"%04d%s"`, i, strings.Repeat("x", 8000)))
	}
	body := `{"name":"n","kind":"nps","questions":[{"kind":"select","prompt":"p","config":{"options":[` + strings.Join(options, ",") + `]}}]}`
	if a := w.Must(http.StatusBadRequest, w.Editor, "POST", path, body); a.JSON(t)["error"] != "too_large" {
		t.Errorf("%.200s", a.Body)
	}
	if n := w.Count(`SELECT count(*) FROM surveys`); n != 0 {
		t.Errorf("%d stored", n)
	}
}

func TestDemoSurveysHaveNoProblems(t *testing.T) {
	t.Parallel()
	w := world(t)
	for _, authored := range surveys.Demo() {
		body, err := json.Marshal(authored)
		if err != nil {
			t.Fatal(err)
		}
		w.Published(string(body))
		if a := w.Do(w.Viewer, "GET", path+"/"+*authored.Slug, ""); a.Status != http.StatusOK {
			t.Errorf("%s: %d", *authored.Slug, a.Status)
		}
	}
	if n := w.Count(`SELECT count(*) FROM surveys WHERE status = 'published'`); n != len(surveys.Demo()) {
		t.Errorf("%d published of %d", n, len(surveys.Demo()))
	}
	if n := w.Count(`SELECT count(DISTINCT kind) FROM survey_questions`); n != 9 {
		t.Errorf("%d question kinds, want all 9", n)
	}
	if n := w.Count(`SELECT count(DISTINCT bundle->'survey'->>'kind') FROM surveys`); n != 6 {
		t.Errorf("%d survey kinds, want all 6", n)
	}
}
