package responses_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"skerry/writeplane/postgres/dbtest"
	"skerry/writeplane/surveys/responses"
	"skerry/writeplane/surveys/surveystest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

const submit = "/api/pulse/responses"

func world(t testing.TB) *surveystest.World { return surveystest.New(t, responses.Config{}) }

// everyKind is a survey with a question of each kind.
const everyKind = `{"name":"Every kind","kind":"custom","slug":"every-kind","questions":[
	{"id":"text","kind":"text","prompt":"Say","config":{"max_length":5}},
	{"id":"nps","kind":"nps","prompt":"Recommend?","required":true},
	{"id":"rating","kind":"rating","prompt":"Stars","config":{"max":4}},
	{"id":"csat","kind":"csat","prompt":"Happy?"},
	{"id":"likert","kind":"likert","prompt":"Agree?"},
	{"id":"select","kind":"select","prompt":"One","config":{"options":["a","b"]}},
	{"id":"multi","kind":"multiselect","prompt":"Some","config":{"options":["x","y"]}},
	{"id":"bool","kind":"boolean","prompt":"Yes?"},
	{"id":"date","kind":"date","prompt":"When"}]}`

func TestSubmissionIsStoredWholeAndAnswered(t *testing.T) {
	t.Parallel()
	w := world(t)
	id := w.Published(everyKind)
	a := w.Must(http.StatusCreated, w.Test, "POST", submit, `{"survey_id":"every-kind",
		"respondent":{"user_id":"u1","external_id":"e1","email":"a@example.com"},
		"context":{"release_version":"1.2.3","device_model":"phone","os_version":"17","distribution_id":"mail-1"},
		"submitted_at":"2026-01-02T03:04:05.678+01:00","more":1,
		"answers":{"text":"a\u0000<ä","nps":9.0,"rating":4,"csat":1,"likert":7,"select":"b","multi":["y","x","y"],"bool":false,"date":"2024-02-29"}}`)
	var responseID string
	if n, err := fmt.Sscanf(string(a.Body), `{"id":"psr_%26s`, &responseID); n != 1 || err != nil {
		t.Fatalf("%s", a.Body)
	}
	responseID = "psr_" + responseID
	if want := `{"id":"` + responseID + `","score":9,"env":"test","survey":"` + id + `"}`; string(a.Body) != want {
		t.Errorf("got  %s\nwant %s", a.Body, want)
	}
	page := w.Must(http.StatusOK, w.Viewer, "GET", "/api/v1/pulse/surveys/"+id+"/responses", "").JSON(t)
	if page["has_more"] != false || len(page["responses"].([]any)) != 1 {
		t.Fatalf("%v", page)
	}
	got := page["responses"].([]any)[0].(map[string]any)
	questions := got["questions"].([]any)
	delete(got, "questions")
	delete(got, "received_at")
	text, _ := json.Marshal(got)
	want := `{"answers":{"bool":false,"csat":1,"date":"2024-02-29","likert":7,"multi":["y","x"],"nps":9,"rating":4,"select":"b","text":"a\u0000\u003cä"},` +
		`"context":{"device_model":"phone","distribution_id":"mail-1","os_version":"17","release_version":"1.2.3"},"env":"test","id":"` + responseID + `",` +
		`"respondent":{"email":"a@example.com","external_id":"e1","user_id":"u1"},"score":9,"submitted_at":"2026-01-02T02:04:05.678Z","survey_id":"` + id + `"}`
	if string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	first, _ := json.Marshal(questions[0])
	if len(questions) != 9 || string(first) != `{"config":{"max_length":5},"id":"text","kind":"text","order_index":0,"prompt":"Say"}` {
		t.Errorf("questions %d, first %s", len(questions), first)
	}
}

func TestChecksOfASubmissionComeInOrder(t *testing.T) {
	t.Parallel()
	w := world(t)
	w.Published(everyKind)
	w.Published(`{"name":"Empty","kind":"custom","slug":"empty"}`)
	w.Must(http.StatusCreated, w.Editor, "POST", "/api/v1/pulse/surveys", `{"name":"Draft","kind":"custom","slug":"draft"}`)
	closed := w.Published(strings.Replace(everyKind, "every-kind", "closed", 1))
	w.Must(http.StatusOK, w.Editor, "POST", "/api/v1/pulse/surveys/"+closed+"/close", "")
	archived := w.Published(strings.Replace(everyKind, "every-kind", "archived", 1))
	w.Must(http.StatusOK, w.Editor, "POST", "/api/v1/pulse/surveys/"+archived+"/close", "")
	w.Must(http.StatusOK, w.Editor, "POST", "/api/v1/pulse/surveys/"+archived+"/archive", "")
	for _, c := range []struct {
		key, body string
		status    int
		want      string
	}{
		{"", `{}`, 401, `{"error":"missing_api_key"}`},
		{"sk_live_" + strings.Repeat("0", 32), `{`, 401, `{"error":"invalid_api_key"}`},
		{"nonsense", `{`, 401, `{"error":"invalid_api_key"}`},
		{w.Live, `{`, 400, `{"error":"invalid_body","message":"the body is not valid JSON"}`},
		{w.Live, `{"survey_id":"none","answers":NaN}`, 400, `{"error":"invalid_body","message":"the body is not valid JSON"}`},
		{w.Live, `{"answers":[]}`, 400, `{"error":"invalid_body","message":"survey_id is required"}`},
		{w.Live, `{"survey_id":"none","answers":[]}`, 400, `{"error":"invalid_answers","message":"answers must be an object"}`},
		{w.Live, `{"survey_id":"none","answers":{}}`, 404, `{"error":"not_found","message":"survey not found for this project"}`},
		{w.Live, `{"survey_id":"\u0001","answers":{}}`, 404, `{"error":"not_found","message":"survey not found for this project"}`},
		{w.Live, `{"survey_id":"draft","answers":{"x":1}}`, 422, `{"error":"not_accepting_responses","message":"the survey is draft"}`},
		{w.Live, `{"survey_id":"closed","answers":{"x":1}}`, 422, `{"error":"not_accepting_responses","message":"the survey is closed"}`},
		{w.Live, `{"survey_id":"` + archived + `","answers":{"x":1}}`, 422, `{"error":"not_accepting_responses","message":"the survey is archived"}`},
		{w.Live, `{"survey_id":"empty","answers":{"x":1}}`, 422, `{"error":"no_questions","message":"the survey has no questions"}`},
		{w.Live, `{"survey_id":"every-kind","answers":{"date":"x","zz":1,"nps":"","csat":1e999}}`, 400,
			`{"error":"validation","message":"3 answers invalid, 1 required answer missing","invalid":[` +
				`{"question_id":"csat","prompt":"Happy?","reason":"value_out_of_range"},{"question_id":"date","prompt":"When","reason":"wrong_type"},` +
				`{"question_id":"zz","prompt":"","reason":"unknown_question"}],"missing":[{"question_id":"nps","prompt":"Recommend?"}]}`},
	} {
		for range 2 { // once from the store, once from memory
			if a := w.Do(c.key, "POST", submit, c.body); a.Status != c.status || string(a.Body) != c.want {
				t.Errorf("%s: %d %s\nwant %d %s", c.body, a.Status, a.Body, c.status, c.want)
			}
		}
	}
	if n := w.Count(`SELECT count(*) FROM survey_responses`) + w.Count(`SELECT coalesce(sum(responses), 0) FROM survey_usage`); n != 0 {
		t.Errorf("refused submissions left %d traces", n)
	}
}

func (o outcomes) String() string { return fmt.Sprint(map[int]int(o)) }

type outcomes map[int]int

// twoPlanes are the world, and the same world served by a second process.
func twoPlanes(w *surveystest.World) [2]*surveystest.World {
	first := *w
	w.Another(responses.Config{})
	return [2]*surveystest.World{&first, w}
}

// together sends n requests at once and counts their statuses.
func together(n int, send func(i int) surveystest.Answer) (statuses outcomes, answers []surveystest.Answer) {
	statuses, answers = outcomes{}, make([]surveystest.Answer, n)
	var group sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		group.Go(func() {
			<-start
			answers[i] = send(i)
		})
	}
	close(start)
	group.Wait()
	for _, a := range answers {
		statuses[a.Status]++
	}
	return statuses, answers
}

func setQuota(t *testing.T, w *surveystest.World, limit int) {
	t.Helper()
	dbtest.Exec(t, w.DB.Owner, `UPDATE projects SET quotas = quotas || jsonb_build_object('responses', $1::int)`, limit)
}

const oneAnswer = `{"survey_id":"every-kind","answers":{"nps":7}}`

func TestOf200ConcurrentSubmissionsWithOneLeftExactlyOneIsStored(t *testing.T) {
	t.Parallel()
	w := world(t)
	w.Published(everyKind)
	setQuota(t, w, 3)
	for range 2 {
		w.Must(http.StatusCreated, w.Live, "POST", submit, oneAnswer)
	}
	planes := twoPlanes(w)
	statuses, answers := together(200, func(i int) surveystest.Answer {
		return planes[i%2].Do([2]string{w.Live, w.Test}[i/2%2], "POST", submit, oneAnswer)
	})
	if statuses[201] != 1 || statuses[402] != 199 {
		t.Errorf("%v, want one 201 and 199 times 402", statuses)
	}
	for _, a := range answers {
		if a.Status == 402 {
			if want := `{"error":"quota_exceeded","message":"the project's monthly quota of 3 survey responses is used up","current":3,"limit":3}`; string(a.Body) != want {
				t.Fatalf("%s, want %s", a.Body, want)
			}
		}
	}
	if n := w.Count(`SELECT count(*) FROM survey_responses`); n != 3 {
		t.Errorf("%d responses stored, want 3", n)
	}
	if n := w.Count(`SELECT responses FROM survey_usage`); n != 3 {
		t.Errorf("%d responses counted, want 3", n)
	}
}

func TestConcurrentSubmissionsAreAllCounted(t *testing.T) {
	t.Parallel()
	w := world(t)
	w.Published(everyKind)
	planes := twoPlanes(w)
	statuses, _ := together(300, func(i int) surveystest.Answer {
		return planes[i%2].Do(w.Live, "POST", submit, fmt.Sprintf(`{"survey_id":"every-kind","respondent":{"external_id":"e%d"},"answers":{"nps":7}}`, i%7), "Idempotency-Key", fmt.Sprint(i))
	})
	stored, counted := w.Count(`SELECT count(*) FROM survey_responses`), w.Count(`SELECT responses FROM survey_usage`)
	if statuses[201] != 300 || stored != 300 || counted != 300 {
		t.Errorf("%v, %d stored, %d counted, want 300 of each", statuses, stored, counted)
	}
}

func TestRepetitionWithTheSameKeyGetsTheFirstAnswer(t *testing.T) {
	t.Parallel()
	w := world(t)
	id := w.Published(everyKind)
	again := func(status int, body string) []byte {
		t.Helper()
		return w.Must(status, w.Live, "POST", submit, body, "Idempotency-Key", "k-1").Body
	}
	first := again(201, oneAnswer)
	if second := again(201, oneAnswer); string(second) != string(first) {
		t.Errorf("first %s, then %s", first, second)
	}
	conflict := `{"error":"idempotency_conflict","message":"the Idempotency-Key was used with another body"}`
	if other := again(409, oneAnswer+" "); string(other) != conflict {
		t.Errorf("%s", other)
	}
	if faulty := again(409, `{"survey_id":"every-kind","answers":{}}`); string(faulty) != conflict {
		t.Errorf("%s", faulty)
	}
	if elsewhere := w.Must(201, w.Test, "POST", submit, oneAnswer, "Idempotency-Key", "k-1"); string(elsewhere.Body) == string(first) {
		t.Error("the other environment got this one's answer")
	}
	// Whatever becomes of survey and quota, a retry after a lost answer gets it.
	setQuota(t, w, 0)
	if third := again(201, oneAnswer); string(third) != string(first) {
		t.Errorf("quota used up: %s", third)
	}
	w.Must(http.StatusOK, w.Editor, "POST", "/api/v1/pulse/surveys/"+id+"/close", "")
	if fourth := again(201, oneAnswer); string(fourth) != string(first) {
		t.Errorf("survey closed: %s", fourth)
	}
	if n := w.Count(`SELECT count(*) FROM survey_responses WHERE environment = 'live'`); n != 1 {
		t.Errorf("%d stored", n)
	}
	for _, key := range []string{strings.Repeat("k", 256), "k\x01", "kä", "k k"} {
		if a := w.Do(w.Live, "POST", submit, oneAnswer, "Idempotency-Key", key); a.Status != 400 || a.JSON(t)["error"] != "invalid_idempotency_key" {
			t.Errorf("key %q: %d %s", key, a.Status, a.Body)
		}
	}
}

func TestConcurrentRepetitionsAreStoredOnce(t *testing.T) {
	t.Parallel()
	w := world(t)
	w.Published(everyKind)
	planes := twoPlanes(w)
	statuses, answers := together(60, func(i int) surveystest.Answer {
		return planes[i%2].Do(w.Live, "POST", submit, oneAnswer, "Idempotency-Key", fmt.Sprint("key-", i%3))
	})
	if statuses[201] != 60 {
		t.Fatalf("%v", statuses)
	}
	for i := 3; i < 60; i++ {
		if string(answers[i].Body) != string(answers[i%3].Body) {
			t.Fatalf("one key, two answers: %s and %s", answers[i].Body, answers[i%3].Body)
		}
	}
	if n := w.Count(`SELECT count(*) FROM survey_responses`); n != 3 {
		t.Errorf("%d stored, want 3", n)
	}
	if n := w.Count(`SELECT responses FROM survey_usage`); n != 3 {
		t.Errorf("%d counted, want 3", n)
	}
}

func TestRefusedSubmissionDoesNotUseUpItsKey(t *testing.T) {
	t.Parallel()
	w := world(t)
	w.Published(everyKind)
	setQuota(t, w, 0)
	w.Must(http.StatusPaymentRequired, w.Live, "POST", submit, oneAnswer, "Idempotency-Key", "k")
	setQuota(t, w, 1)
	w.Must(http.StatusCreated, w.Live, "POST", submit, oneAnswer, "Idempotency-Key", "k")
}

func TestIdempotencyKeyEndsAfter24Hours(t *testing.T) {
	t.Parallel()
	w := world(t)
	w.Published(everyKind)
	first := w.Must(201, w.Live, "POST", submit, oneAnswer, "Idempotency-Key", "k").Body
	dbtest.Exec(t, w.DB.Owner, `UPDATE survey_idempotency SET created_at = created_at - interval '24 hours'`)
	second := w.Must(201, w.Live, "POST", submit, oneAnswer+" ", "Idempotency-Key", "k").Body
	if string(first) == string(second) {
		t.Error("an expired key was honoured")
	}
	if third := w.Must(201, w.Live, "POST", submit, oneAnswer+" ", "Idempotency-Key", "k").Body; string(third) != string(second) {
		t.Error("the key was not taken over")
	}
}

func TestSubmissionMeetsTheSurveyAsItIsNow(t *testing.T) {
	t.Parallel()
	w := world(t)
	id := w.Published(`{"name":"n","kind":"custom","slug":"s","questions":[{"id":"a","kind":"text","prompt":"A"},{"id":"b","kind":"text","prompt":"B"}]}`)
	at := "/api/v1/pulse/surveys/" + id
	both := `{"survey_id":"s","answers":{"a":"1","b":"2"}}`
	w.Must(http.StatusCreated, w.Live, "POST", submit, both)
	// The survey is held in memory now. A question is removed:
	w.Must(http.StatusOK, w.Editor, "PATCH", at, `{"questions":[{"id":"a","kind":"nps","prompt":"A2"}]}`)
	a := w.Must(http.StatusBadRequest, w.Live, "POST", submit, both)
	if !strings.Contains(string(a.Body), `"invalid":[{"question_id":"a","prompt":"A2","reason":"wrong_type"},{"question_id":"b","prompt":"","reason":"unknown_question"}]`) {
		t.Errorf("%s", a.Body)
	}
	w.Must(http.StatusCreated, w.Live, "POST", submit, `{"survey_id":"s","answers":{"a":10}}`)
	// Its slug goes to another survey:
	w.Must(http.StatusOK, w.Editor, "PATCH", at, `{"slug":"old"}`)
	w.Must(http.StatusNotFound, w.Live, "POST", submit, `{"survey_id":"s","answers":{"a":10}}`)
	other := w.Published(`{"name":"m","kind":"custom","slug":"s","questions":[{"id":"a","kind":"nps","prompt":"A"}]}`)
	if a := w.Must(http.StatusCreated, w.Live, "POST", submit, `{"survey_id":"s","answers":{"a":10}}`); a.JSON(t)["survey"] != other {
		t.Errorf("%s, want %s", a.Body, other)
	}
	// It is closed and opened again:
	w.Must(http.StatusCreated, w.Live, "POST", submit, `{"survey_id":"old","answers":{"a":10}}`)
	w.Must(http.StatusOK, w.Editor, "POST", at+"/close", "")
	w.Must(http.StatusUnprocessableEntity, w.Live, "POST", submit, `{"survey_id":"old","answers":{"a":10}}`)
	w.Must(http.StatusOK, w.Editor, "POST", at+"/reopen", "")
	w.Must(http.StatusCreated, w.Live, "POST", submit, `{"survey_id":"old","answers":{"a":10}}`)
}

func TestSurveyThatIsSavedAllTheTimeTakesNothingForNow(t *testing.T) {
	t.Parallel()
	w := world(t)
	w.Published(everyKind)
	// Whoever looks at a survey finds it saved since the look before.
	dbtest.Exec(t, w.DB.Owner, `
		ALTER TABLE surveys RENAME COLUMN updated_at TO kept_at;
		ALTER TABLE surveys RENAME TO surveys_kept;
		CREATE VIEW surveys AS SELECT *, clock_timestamp() AS updated_at FROM surveys_kept;
		GRANT SELECT ON surveys TO PUBLIC`)
	a := w.Must(http.StatusServiceUnavailable, w.Live, "POST", submit, oneAnswer)
	if string(a.Body) != `{"error":"Service temporarily unavailable"}` {
		t.Errorf("%s", a.Body)
	}
	if stored := dbtest.One[int](t, w.DB.Owner, `SELECT count(*) FROM survey_responses`); stored != 0 {
		t.Errorf("%d responses are stored", stored)
	}
}

func TestSurveysOfAnotherProjectAreAbsent(t *testing.T) {
	t.Parallel()
	w := world(t)
	id := w.Published(everyKind)
	w.Must(http.StatusCreated, w.Live, "POST", submit, oneAnswer)
	dbtest.Exec(t, w.DB.Owner, `
		INSERT INTO projects (id, organization_id, name, modules, allowlist, rate_limits, quotas)
		SELECT '019a0000-0000-7000-8000-000000000002', organization_id, 'Other', modules, allowlist, rate_limits, quotas FROM projects LIMIT 1;
		UPDATE surveys SET project_id = '019a0000-0000-7000-8000-000000000002', updated_at = updated_at + interval '1 second'`)
	for _, survey := range []string{id, "every-kind"} {
		w.Must(http.StatusNotFound, w.Live, "POST", submit, strings.Replace(oneAnswer, "every-kind", survey, 1))
		w.Must(http.StatusNotFound, w.Live, "GET", "/api/pulse/surveys/"+survey+"/partial?external_id=e", "")
	}
}

func TestModuleThatIsOffRefuses(t *testing.T) {
	t.Parallel()
	w := world(t)
	w.Published(everyKind)
	dbtest.Exec(t, w.DB.Owner, `UPDATE projects SET modules = modules || '{"pulse":false}'`)
	for _, c := range [][3]string{
		{"POST", submit, oneAnswer},
		{"PUT", "/api/pulse/surveys/every-kind/partial", `{"external_id":"e"}`},
		{"GET", "/api/pulse/surveys/every-kind/partial?external_id=e", ""},
		{"DELETE", "/api/pulse/surveys/every-kind/partial?external_id=e", ""},
	} {
		if a := w.Must(http.StatusForbidden, w.Live, c[0], c[1], c[2]); string(a.Body) != `{"error":"module_disabled"}` {
			t.Errorf("%s", a.Body)
		}
	}
	w.Must(http.StatusOK, w.Editor, "GET", "/api/v1/pulse/surveys/every-kind", "")
}

func TestHostileBodiesAreAnsweredWithinBounds(t *testing.T) {
	w := world(t)
	w.Published(everyKind)
	long := `{"survey_id":"every-kind","answers":{"nps":1,"text":"` + strings.Repeat("x", 50<<20) + `"}}`
	a := w.Must(http.StatusBadRequest, w.Live, "POST", submit, long)
	if !strings.Contains(string(a.Body), `"reason":"length_too_long"`) {
		t.Errorf("%.300s", a.Body)
	}
	over := `{"survey_id":"every-kind","answers":{"text":"` + strings.Repeat("x", 64<<20) + `"}}`
	if a := w.Must(http.StatusRequestEntityTooLarge, w.Live, "POST", submit, over); string(a.Body[:28]) != `{"error":"payload_too_large"` {
		t.Errorf("%.300s", a.Body)
	}
	deep := `{"survey_id":"every-kind","answers":{"nps":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}}`
	if a := w.Must(http.StatusBadRequest, w.Live, "POST", submit, deep); !strings.Contains(string(a.Body), `"reason":"wrong_type"`) {
		t.Errorf("%.300s", a.Body)
	}
	deeper := `{"survey_id":"every-kind","answers":{"nps":` + strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20) + `}}`
	if a := w.Must(http.StatusBadRequest, w.Live, "POST", submit, deeper); a.JSON(t)["error"] != "invalid_body" {
		t.Errorf("%.300s", a.Body)
	}
}

func TestLargeBodiesTakeTurns(t *testing.T) {
	t.Parallel()
	w := surveystest.New(t, responses.Config{MaxBody: 1 << 20, Bodies: 1 << 20})
	w.Published(everyKind)
	large := `{"survey_id":"every-kind","answers":{"nps":1,"text":"` + strings.Repeat("x", 1<<20-100) + `"}}`
	for range 2 { // all room is given back
		statuses, _ := together(20, func(i int) surveystest.Answer {
			return w.Do(w.Live, "POST", submit, []string{large, large + strings.Repeat(" ", 200), large[:1<<19], oneAnswer}[i%4])
		})
		if statuses[400] != 10 || statuses[413] != 5 || statuses[201] != 5 {
			t.Errorf("%v, want 5 too long, 5 too large, 5 cut off, 5 stored", statuses)
		}
	}
}

func TestWebhookEventCarriesTheResponse(t *testing.T) {
	t.Parallel()
	w := world(t)
	id := w.Published(everyKind)
	dbtest.Exec(t, w.DB.Owner, `
		INSERT INTO webhook_subscriptions (id, organization_id, url, events, description, enabled, created_at, updated_at, secret)
		VALUES (gen_random_uuid(), $1, 'https://example.com', '{pulse.*}', '', true, now(), now(), '\x00')`, w.Founding.OrganizationID)
	a := w.Must(http.StatusCreated, w.Live, "POST", submit, `{"survey_id":"every-kind","respondent":{"email":"a@example.com"},"submitted_at":"2026-01-02T03:04:05Z","answers":{"nps":7,"text":null}}`)
	body := dbtest.One[string](t, w.DB.Owner, `SELECT convert_from(m.body, 'UTF8') FROM webhook_messages m JOIN webhook_deliveries d ON d.message_id = m.id WHERE m.event = 'pulse.response.submitted'`)
	var envelope struct {
		Environment string          `json:"environment"`
		Data        json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal([]byte(body), &envelope); err != nil {
		t.Fatal(err)
	}
	want := `{"id":"` + a.JSON(t)["id"].(string) + `","survey_id":"` + id + `","score":7,"env":"live","respondent":{"user_id":null,"external_id":null,"email":"a@example.com"},` +
		`"context":{"release_version":null,"device_model":null,"os_version":null,"distribution_id":null},"answers":{"nps":7},"submitted_at":"2026-01-02T03:04:05.000Z"}`
	if envelope.Environment != "live" || string(envelope.Data) != want {
		t.Errorf("got  %s\nwant %s", envelope.Data, want)
	}
}

func TestResponsesAreAuditedOnlyWhenTheProjectWants(t *testing.T) {
	t.Parallel()
	w := world(t)
	w.Published(everyKind)
	audited := func() int {
		return w.Count(`SELECT count(*) FROM audit_entries WHERE action = 'pulse.response.submitted'`)
	}
	w.Must(http.StatusCreated, w.Live, "POST", submit, oneAnswer)
	if audited() != 0 {
		t.Error("audited without being asked")
	}
	dbtest.Exec(t, w.DB.Owner, `UPDATE projects SET audit_responses = true`)
	w.Must(http.StatusCreated, w.Live, "POST", submit, oneAnswer)
	if audited() != 1 {
		t.Error("not audited")
	}
}

func TestBusHearsOfStoredResponsesOnly(t *testing.T) {
	t.Parallel()
	w := world(t)
	id := w.Published(everyKind)
	heard, stop := w.Responses.Bus().Subscribe(1)
	w.Do(w.Live, "POST", submit, `{"survey_id":"every-kind","answers":{}}`)
	a := w.Must(http.StatusCreated, w.Live, "POST", submit, oneAnswer, "Idempotency-Key", "k").JSON(t)
	s := <-heard
	if s.ID != a["id"] || s.SurveyID != id || *s.Score != 7 || s.ProjectID != w.Founding.ProjectID || string(s.Answers["nps"]) != "7" {
		t.Errorf("%+v", s)
	}
	w.Must(http.StatusCreated, w.Live, "POST", submit, oneAnswer, "Idempotency-Key", "k")
	next := w.Must(http.StatusCreated, w.Live, "POST", submit, oneAnswer).JSON(t)
	if s := <-heard; s.ID != next["id"] {
		t.Errorf("heard of %s, want %s", s.ID, next["id"])
	}
	stop()
	w.Must(http.StatusCreated, w.Live, "POST", submit, oneAnswer)
	select {
	case s := <-heard:
		t.Errorf("heard of %s behind the end", s.ID)
	default:
	}
}

func TestMirrorFailureHarmsNobodyAndIsCounted(t *testing.T) {
	t.Parallel()
	failed := make(chan int, 1)
	w := surveystest.New(t, responses.Config{Mirror: func(_ context.Context, rows []responses.MirrorRow) error {
		failed <- len(rows)
		return errors.New("the analytics store is away")
	}})
	w.Published(everyKind)
	w.Must(http.StatusCreated, w.Live, "POST", submit, `{"survey_id":"every-kind","answers":{"nps":7,"bool":true}}`)
	if rows := <-failed; rows != 2 {
		t.Errorf("%d rows, want 2", rows)
	}
	w.Must(http.StatusCreated, w.Live, "POST", submit, oneAnswer)
	<-failed // the second write shows that the first was done with
	if n := w.Metric("skerry_survey_responses_mirror_failed_total"); n < 1 {
		t.Errorf("%v failures counted", n)
	}
	if n := w.Count(`SELECT count(*) FROM survey_responses`); n != 2 {
		t.Errorf("%d stored", n)
	}
}

func TestMirrorTableGetsARowPerAnswer(t *testing.T) {
	t.Parallel()
	w := world(t)
	w.Published(everyKind)
	w.Must(http.StatusCreated, w.Live, "POST", submit, `{"survey_id":"every-kind","context":{"release_version":"2.0"},"answers":{"nps":7,"text":"a\u0000"}}`)
	mirrored := func() int {
		return w.Count(`SELECT count(*) FROM survey_mirror WHERE release_version = '2.0' AND score = 7 AND prompt IN ('Say', 'Recommend?')`)
	}
	for mirrored() != 2 { // written behind everybody's back: nobody is told
	}
}

func TestOneBadRowHarmsNoOtherOfItsGroup(t *testing.T) {
	t.Parallel()
	w := world(t)
	w.Published(everyKind)
	dbtest.Exec(t, w.DB.Owner, `ALTER TABLE survey_responses ADD CHECK (user_id <> 'poison')`)
	statuses, _ := together(40, func(i int) surveystest.Answer {
		user := "fine"
		if i == 20 {
			user = "poison"
		}
		return w.Do(w.Live, "POST", submit, `{"survey_id":"every-kind","respondent":{"user_id":"`+user+`"},"answers":{"nps":7}}`)
	})
	if statuses[201] != 39 || statuses[500] != 1 {
		t.Errorf("%v, want 39 stored and one refused", statuses)
	}
	if n := w.Count(`SELECT responses FROM survey_usage`); n != 39 {
		t.Errorf("%d counted", n)
	}
}

func TestDatabaseGoneMeans503AndNothingStored(t *testing.T) {
	t.Parallel()
	w := world(t)
	w.Published(everyKind)
	w.Must(http.StatusCreated, w.Live, "POST", submit, oneAnswer)
	// Somebody holds the project's counter; the writer waits for it and is cut off.
	tx, err := w.DB.Owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	dbtest.Exec(t, tx, `SELECT 1 FROM survey_usage FOR UPDATE`)
	answered := make(chan surveystest.Answer)
	go func() { answered <- w.Do(w.Live, "POST", submit, oneAnswer) }()
	for {
		cut := dbtest.One[int](t, w.DB.Owner, `
			SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`)
		if cut > 0 {
			break
		}
	}
	if a := <-answered; a.Status != http.StatusServiceUnavailable || string(a.Body) != `{"error":"Service temporarily unavailable"}` {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	_ = tx.Rollback(t.Context())
	w.Must(http.StatusCreated, w.Live, "POST", submit, oneAnswer)
	if n := w.Count(`SELECT count(*) FROM survey_responses`); n != 2 {
		t.Errorf("%d stored, want 2", n)
	}
}

func TestWhatIsRefusedAtTheEndIsNotStored(t *testing.T) {
	t.Parallel()
	w := world(t)
	w.Published(everyKind)
	stopped := make(chan struct{})
	statuses, _ := together(80, func(i int) surveystest.Answer {
		if i == 40 {
			w.Stop()
			close(stopped)
		}
		if i > 60 {
			<-stopped
		}
		return w.Do(w.Live, "POST", submit, oneAnswer)
	})
	stored := w.Count(`SELECT count(*) FROM survey_responses`)
	if statuses[201] != stored || statuses[201]+statuses[503] != 80 || statuses[503] < 20 {
		t.Errorf("%v, %d stored", statuses, stored)
	}
}

// What is flushed behind the writer's own statements can be refused too. Nothing is stored
// then, which is known, and lost races are run again.
func TestWhatTheFlushMeetsLeavesNoDoubt(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]int{"40P01": http.StatusCreated, "55P03": http.StatusServiceUnavailable} {
		w := world(t)
		w.Published(everyKind)
		dbtest.Exec(t, w.DB.Owner, `
			UPDATE projects SET audit_responses = true;
			CREATE SEQUENCE refusals;
			GRANT USAGE ON refusals TO skerry_app;
			CREATE FUNCTION refuse_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				IF nextval('refusals') = 1 THEN RAISE EXCEPTION 'refused' USING ERRCODE = '`+code+`'; END IF;
				RETURN NEW;
			END $$;
			CREATE TRIGGER refuse_once BEFORE INSERT ON audit_entries FOR EACH ROW EXECUTE FUNCTION refuse_once()`)
		if a := w.Do(w.Live, "POST", submit, oneAnswer); a.Status != want {
			t.Errorf("%s: %d %s, want %d", code, a.Status, a.Body, want)
		}
		if stored, want := w.Count(`SELECT count(*) FROM survey_responses`), map[int]int{http.StatusCreated: 1}[want]; stored != want {
			t.Errorf("%s: %d stored, want %d", code, stored, want)
		}
	}
}

func TestRetriesThroughLostConnectionsStoreEachOnce(t *testing.T) {
	t.Parallel()
	w := world(t)
	w.Published(everyKind)
	done := make(chan struct{})
	var cutter sync.WaitGroup
	cutter.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				// Whoever is about to commit a response is cut off.
				w.Count(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
					WHERE datname = current_database() AND pid <> pg_backend_pid() AND state LIKE '%transaction%' AND query LIKE '%survey%'`)
			}
		}
	})
	lost := 0
	var mu sync.Mutex
	together(60, func(i int) (a surveystest.Answer) {
		for a.Status != http.StatusCreated && t.Context().Err() == nil {
			a = w.Do(w.Live, "POST", submit, oneAnswer, "Idempotency-Key", fmt.Sprint(i))
			if a.Status != http.StatusCreated {
				mu.Lock()
				lost++
				mu.Unlock()
				if a.Status == http.StatusConflict || a.Status == http.StatusInternalServerError {
					t.Errorf("%d %s", a.Status, a.Body)
					return a
				}
			}
		}
		return a
	})
	close(done)
	cutter.Wait()
	stored, counted := w.Count(`SELECT count(*) FROM survey_responses`), w.Count(`SELECT responses FROM survey_usage`)
	if stored != 60 || counted != 60 {
		t.Errorf("%d stored, %d counted, want 60; %d attempts were lost", stored, counted, lost)
	}
	t.Logf("%d attempts were lost", lost)
}
