package responses_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestSummaryAddsUp(t *testing.T) {
	t.Parallel()
	w := world(t)
	id := w.Published(`{"name":"n","kind":"nps","questions":[{"id":"n","kind":"nps","prompt":"N","order_index":2},{"id":"c","kind":"csat","prompt":"C","order_index":1},
		{"id":"m","kind":"multiselect","prompt":"M","order_index":3,"config":{"options":["x","y"]}},{"id":"t","kind":"text","prompt":"T","order_index":4}]}`)
	for _, answers := range []string{`{"n":10,"c":5,"m":["x","y"],"t":"a"}`, `{"n":9,"m":["y"]}`, `{"n":7,"c":2,"t":""}`, `{"n":0,"c":4}`, `{"n":null}`} {
		w.Must(http.StatusCreated, w.Live, "POST", submit, `{"survey_id":"`+id+`","answers":`+answers+`}`)
	}
	a := w.Must(http.StatusOK, w.Viewer, "GET", "/api/v1/pulse/surveys/"+id+"/summary", "")
	want := `{"questions":[` +
		`{"question_id":"c","kind":"csat","answered":3,"distribution":{"2":1,"4":1,"5":1},"mean":3.6666666666666665,"nps":null,"csat":66.66666666666667},` +
		`{"question_id":"n","kind":"nps","answered":4,"distribution":{"0":1,"10":1,"7":1,"9":1},"mean":6.5,"nps":{"score":25,"promoters":2,"passives":1,"detractors":1},"csat":null},` +
		`{"question_id":"m","kind":"multiselect","answered":2,"distribution":{"x":1,"y":2},"mean":null,"nps":null,"csat":null},` +
		`{"question_id":"t","kind":"text","answered":1,"distribution":{},"mean":null,"nps":null,"csat":null}],"responses":5,"survey_id":"` + id + `"}`
	if string(a.Body) != want {
		t.Errorf("got  %s\nwant %s", a.Body, want)
	}
}

func TestSummaryOfAnUnansweredSurveyIsAllZero(t *testing.T) {
	t.Parallel()
	w := world(t)
	id := w.Published(`{"name":"n","kind":"nps","questions":[{"id":"n","kind":"nps","prompt":"N"}]}`)
	want := `{"questions":[{"question_id":"n","kind":"nps","answered":0,"distribution":{},"mean":null,"nps":null,"csat":null}],"responses":0,"survey_id":"` + id + `"}`
	if a := w.Must(http.StatusOK, w.Viewer, "GET", "/api/v1/pulse/surveys/"+id+"/summary", ""); string(a.Body) != want {
		t.Errorf("%s", a.Body)
	}
}

func TestSummaryByReleaseDayAndDistribution(t *testing.T) {
	t.Parallel()
	w := world(t)
	id := w.Published(`{"name":"n","kind":"nps","questions":[{"id":"n","kind":"nps","prompt":"N"}]}`)
	for _, r := range [][4]string{
		{"1.0", "mail", "2026-01-01T23:59:59Z", "10"}, {"1.0", "push", "2026-01-02T01:30:00+02:00", "9"}, {"2.0", "mail", "2026-01-02T00:00:00Z", "0"}, {"", "", "2026-01-03T00:00:00Z", "8"},
	} {
		w.Must(http.StatusCreated, w.Live, "POST", submit, fmt.Sprintf(`{"survey_id":%q,"context":{"release_version":%q,"distribution_id":%q},"submitted_at":%q,"answers":{"n":%s}}`, id, r[0], r[1], r[2], r[3]))
	}
	for query, want := range map[string]string{
		"group_by=release_version":                       `"1.0" 2 100; "2.0" 1 -100; null 1 0`,
		"group_by=distribution_id":                       `"mail" 2 0; "push" 1 100; null 1 0`,
		"group_by=day":                                   `"2026-01-01" 2 100; "2026-01-02" 1 -100; "2026-01-03" 1 0`,
		"group_by=day&release_version=2.0":               `"2026-01-02" 1 -100`,
		"group_by=day&since=2026-01-02&until=2026-01-03": `"2026-01-02" 1 -100`,
		"group_by=day&environment=test":                  ``,
		"group_by=release_version&distribution_id=mail":  `"1.0" 1 100; "2.0" 1 -100`,
	} {
		var body struct {
			Groups []struct {
				Key       *string
				Responses int
				Questions []struct{ NPS struct{ Score float64 } }
			}
		}
		a := w.Must(http.StatusOK, w.Viewer, "GET", "/api/v1/pulse/surveys/"+id+"/summary?"+query, "")
		if err := json.Unmarshal(a.Body, &body); err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, g := range body.Groups {
			key, _ := json.Marshal(g.Key)
			lines = append(lines, fmt.Sprintf("%s %d %v", key, g.Responses, g.Questions[0].NPS.Score))
		}
		if got := strings.Join(lines, "; "); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	for _, query := range []string{"group_by=moon", "environment=prod", "since=soon", "until=1"} {
		w.Must(http.StatusBadRequest, w.Viewer, "GET", "/api/v1/pulse/surveys/"+id+"/summary?"+query, "")
	}
}

func TestEditedQuestionsKeepTheirAnswersReadable(t *testing.T) {
	t.Parallel()
	w := world(t)
	id := w.Published(`{"name":"n","kind":"nps","slug":"s","questions":[{"id":"a","kind":"nps","prompt":"Old?"},{"id":"b","kind":"text","prompt":"Gone"}]}`)
	w.Must(http.StatusCreated, w.Live, "POST", submit, `{"survey_id":"s","answers":{"a":10,"b":"kept"}}`)
	w.Must(http.StatusOK, w.Editor, "PATCH", "/api/v1/pulse/surveys/"+id, `{"questions":[{"id":"a","kind":"csat","prompt":"New?"}]}`)
	w.Must(http.StatusCreated, w.Live, "POST", submit, `{"survey_id":"s","answers":{"a":5}}`)
	page := w.Must(http.StatusOK, w.Viewer, "GET", "/api/v1/pulse/surveys/s/responses", "").JSON(t)["responses"].([]any)
	var got []string
	for _, r := range page {
		text, _ := json.Marshal([]any{r.(map[string]any)["answers"], r.(map[string]any)["questions"]})
		got = append(got, string(text))
	}
	want := `[{"a":5},[{"config":{},"id":"a","kind":"csat","order_index":0,"prompt":"New?"}]]` + "\n" +
		`[{"a":10,"b":"kept"},[{"config":{},"id":"a","kind":"nps","order_index":0,"prompt":"Old?"},{"config":{},"id":"b","kind":"text","order_index":1,"prompt":"Gone"}]]`
	if strings.Join(got, "\n") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, "\n"), want)
	}
	a := w.Must(http.StatusOK, w.Viewer, "GET", "/api/v1/pulse/surveys/s/summary", "")
	var summary struct {
		Questions []struct {
			QuestionID string `json:"question_id"`
			Kind       string
			Answered   int
		}
	}
	_ = json.Unmarshal(a.Body, &summary)
	if got := fmt.Sprint(summary.Questions); got != `[{a csat 1} {a nps 1} {b text 1}]` {
		t.Errorf("%s", got)
	}
}

func TestResponsesPageNewestFirst(t *testing.T) {
	t.Parallel()
	w := world(t)
	id := w.Published(everyKind)
	for i := range 5 {
		w.Must(http.StatusCreated, []string{w.Live, w.Test}[i%2], "POST", submit, fmt.Sprintf(`{"survey_id":"every-kind","answers":{"nps":%d}}`, i))
	}
	at := "/api/v1/pulse/surveys/" + id + "/responses?limit=2"
	var scores []string
	for cursor := ""; ; {
		page := w.Must(http.StatusOK, w.Viewer, "GET", at+"&environment=live"+cursor, "").JSON(t)
		for _, r := range page["responses"].([]any) {
			scores = append(scores, fmt.Sprint(r.(map[string]any)["score"]))
		}
		if page["has_more"] != true {
			break
		}
		cursor = "&cursor=" + page["next_cursor"].(string)
		w.Must(http.StatusBadRequest, w.Viewer, "GET", at+"&environment=test"+cursor, "")
	}
	if got := strings.Join(scores, " "); got != "4 2 0" {
		t.Errorf("%s", got)
	}
	w.Must(http.StatusNotFound, w.Viewer, "GET", "/api/v1/pulse/surveys/none/responses", "")
	w.Must(http.StatusUnauthorized, w.Live, "GET", at, "")
}

// Responses and their answers are counted one after the other; what is stored between the
// two counts belongs to neither.
func TestSummaryIsOfOneMoment(t *testing.T) {
	t.Parallel()
	w := world(t)
	id := w.Published(everyKind)
	w.Must(http.StatusCreated, w.Live, "POST", submit, oneAnswer)
	behindLock(t, w, "LOCK TABLE survey_answers IN ACCESS EXCLUSIVE MODE", `
		WITH another AS (
			INSERT INTO survey_responses (survey_id, id, project_id, environment, submitted_at, received_at)
			SELECT survey_id, 'psr_another', project_id, environment, submitted_at, received_at FROM survey_responses RETURNING id
		)
		INSERT INTO survey_answers (survey_id, response_id, question_id, order_index, kind, digest, value)
		SELECT survey_id, another.id, question_id, order_index, kind, digest, value FROM survey_answers, another`,
		func() {
			var body struct {
				Responses int
				Questions []struct{ Answered int }
			}
			a := w.Must(http.StatusOK, w.Viewer, "GET", "/api/v1/pulse/surveys/"+id+"/summary", "")
			if err := json.Unmarshal(a.Body, &body); err != nil {
				t.Error(err)
			}
			answered := 0
			for _, q := range body.Questions {
				answered += q.Answered
			}
			if body.Responses != 1 || answered != 1 {
				t.Errorf("%d answers of %d responses, want one of one: %s", answered, body.Responses, a.Body)
			}
		})
}
