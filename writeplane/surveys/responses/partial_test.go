package responses_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"skerry/writeplane/postgres/dbtest"
	"skerry/writeplane/surveys/surveystest"
)

const partial = "/api/pulse/surveys/every-kind/partial"

func saved(w *surveystest.World, key, externalID string) string {
	return string(w.Do(key, "GET", partial+"?external_id="+externalID, "").Body)
}

func TestPartialIsMergedAndResumed(t *testing.T) {
	t.Parallel()
	w := world(t)
	id := w.Published(everyKind)
	if got := saved(w, w.Live, "e"); got != `{"partial":null}` {
		t.Errorf("before any save: %s", got)
	}
	a := w.Must(http.StatusOK, w.Live, "PUT", partial, `{"external_id":"e","answers":{"nps":7.0,"text":"hi"},"current_question_id":"csat"}`)
	expires, err := time.Parse(time.RFC3339, a.JSON(t)["expires_at"].(string))
	if left := time.Until(expires); err != nil || left < 7*24*time.Hour-time.Minute || left > 7*24*time.Hour {
		t.Errorf("%s: expires in %v", a.Body, left)
	}
	for _, step := range [][2]string{
		{`{"external_id":"e","answers":{"multi":["x","x"]}}`, `{"partial":{"answers":{"multi":["x"],"nps":7,"text":"hi"},"current_question_id":"csat"}}`},
		{`{"external_id":"e","answers":{"text":null,"nps":8},"current_question_id":"date"}`, `{"partial":{"answers":{"multi":["x"],"nps":8},"current_question_id":"date"}}`},
		{`{"external_id":"e","current_question_id":null}`, `{"partial":{"answers":{"multi":["x"],"nps":8},"current_question_id":null}}`},
		{`{"external_id":"e","answers":{"multi":[],"nps":null}}`, `{"partial":{"answers":{},"current_question_id":null}}`},
	} {
		w.Must(http.StatusOK, w.Live, "PUT", "/api/pulse/surveys/"+id+"/partial", step[0])
		if got := saved(w, w.Live, "e"); got != step[1] {
			t.Errorf("after %s: %s, want %s", step[0], got, step[1])
		}
	}
	if got := saved(w, w.Test, "e") + saved(w, w.Live, "f"); got != `{"partial":null}{"partial":null}` {
		t.Errorf("another environment or respondent sees %s", got)
	}
}

func TestPartialIsCheckedLikeASubmission(t *testing.T) {
	t.Parallel()
	w := world(t)
	id := w.Published(everyKind)
	for _, c := range []struct {
		body   string
		status int
		want   string
	}{
		{`{`, 400, `"error":"invalid_body"`},
		{`{"answers":{}}`, 400, `"message":"external_id is required"`},
		{`{"external_id":"e","answers":[]}`, 400, `"error":"invalid_answers"`},
		{`{"external_id":"e","answers":{"nps":11,"q":1,"text":"123456"}}`, 400, `"invalid":[{"question_id":"text","prompt":"Say","reason":"length_too_long"},{"question_id":"nps","prompt":"Recommend?","reason":"value_out_of_range"},{"question_id":"q","prompt":"","reason":"unknown_question"}],"missing":[]`},
		{`{"external_id":"e","current_question_id":"q"}`, 400, `"invalid":[{"question_id":"q","prompt":"","reason":"unknown_question"}]`},
		{`{"external_id":"e","answers":{}}`, 200, `expires_at`}, // nothing is required
	} {
		if a := w.Do(w.Live, "PUT", partial, c.body); a.Status != c.status || !strings.Contains(string(a.Body), c.want) {
			t.Errorf("%s: %d %s, want %d with %s", c.body, a.Status, a.Body, c.status, c.want)
		}
	}
	w.Must(http.StatusNotFound, w.Live, "PUT", "/api/pulse/surveys/none/partial", `{"external_id":"e"}`)
	w.Must(http.StatusOK, w.Editor, "POST", "/api/v1/pulse/surveys/"+id+"/close", "")
	if a := w.Must(http.StatusUnprocessableEntity, w.Live, "PUT", partial, `{"external_id":"e"}`); string(a.Body) != `{"error":"not_accepting_responses","message":"the survey is closed"}` {
		t.Errorf("%s", a.Body)
	}
}

func TestSubmissionEndsThePartialOfItsRespondent(t *testing.T) {
	t.Parallel()
	w := world(t)
	w.Published(everyKind)
	for _, who := range []string{"e", "f"} {
		w.Must(http.StatusOK, w.Live, "PUT", partial, `{"external_id":"`+who+`","answers":{"nps":7}}`)
	}
	w.Must(http.StatusBadRequest, w.Live, "POST", submit, `{"survey_id":"every-kind","respondent":{"external_id":"e"},"answers":{}}`)
	w.Must(http.StatusCreated, w.Test, "POST", submit, `{"survey_id":"every-kind","respondent":{"external_id":"e"},"answers":{"nps":1}}`)
	if got := saved(w, w.Live, "e"); got == `{"partial":null}` {
		t.Error("a refused submission, or one of the other environment, ended it")
	}
	w.Must(http.StatusCreated, w.Live, "POST", submit, `{"survey_id":"every-kind","respondent":{"external_id":"e"},"answers":{"nps":1}}`)
	if got := saved(w, w.Live, "e"); got != `{"partial":null}` {
		t.Errorf("still there: %s", got)
	}
	if got := saved(w, w.Live, "f"); got == `{"partial":null}` {
		t.Error("another respondent's is gone")
	}
}

func TestPartialIsDeletedOnce(t *testing.T) {
	t.Parallel()
	w := world(t)
	w.Published(everyKind)
	w.Must(http.StatusOK, w.Live, "PUT", partial, `{"external_id":"e","answers":{"nps":7}}`)
	for range 2 {
		if a := w.Must(http.StatusOK, w.Live, "DELETE", partial+"?external_id=e", ""); string(a.Body) != `{"deleted":true}` {
			t.Errorf("%s", a.Body)
		}
	}
	if got := saved(w, w.Live, "e"); got != `{"partial":null}` {
		t.Errorf("%s", got)
	}
	for _, query := range []string{"", "?external_id=", "?external_id=%00", "?external_id=%ff"} {
		w.Must(http.StatusBadRequest, w.Live, "DELETE", partial+query, "")
	}
}

func TestExpiredPartialIsNotContinued(t *testing.T) {
	t.Parallel()
	w := world(t)
	w.Published(everyKind)
	w.Must(http.StatusOK, w.Live, "PUT", partial, `{"external_id":"e","answers":{"nps":7},"current_question_id":"csat"}`)
	dbtest.Exec(t, w.DB.Owner, `UPDATE survey_partials SET expires_at = now()`)
	if got := saved(w, w.Live, "e"); got != `{"partial":null}` {
		t.Errorf("%s", got)
	}
	w.Must(http.StatusOK, w.Live, "PUT", partial, `{"external_id":"e","answers":{"csat":1}}`)
	if got := saved(w, w.Live, "e"); got != `{"partial":{"answers":{"csat":1},"current_question_id":null}}` {
		t.Errorf("%s", got)
	}
}

func TestConcurrentSavesOfOneRespondentAllCount(t *testing.T) {
	t.Parallel()
	w := world(t)
	w.Published(everyKind)
	parts := []string{`"nps":7`, `"csat":2`, `"bool":true`, `"select":"a"`, `"rating":1`, `"likert":2`, `"multi":["x"]`, `"date":"2026-01-01"`}
	statuses, _ := together(len(parts), func(i int) surveystest.Answer {
		return w.Do(w.Live, "PUT", partial, `{"external_id":"e","answers":{`+parts[i]+`}}`)
	})
	want := `{"partial":{"answers":{"bool":true,"csat":2,"date":"2026-01-01","likert":2,"multi":["x"],"nps":7,"rating":1,"select":"a"},"current_question_id":null}}`
	if got := saved(w, w.Live, "e"); statuses[200] != len(parts) || got != want {
		t.Errorf("%v %s", statuses, got)
	}
}

func TestPartialOfAnEditedSurveyShowsOnlyWhatStillFits(t *testing.T) {
	t.Parallel()
	w := world(t)
	id := w.Published(everyKind)
	w.Must(http.StatusOK, w.Live, "PUT", partial, `{"external_id":"e","answers":{"nps":7,"csat":2},"current_question_id":"csat"}`)
	w.Must(http.StatusOK, w.Editor, "PATCH", "/api/v1/pulse/surveys/"+id, `{"questions":[{"id":"nps","kind":"nps","prompt":"N"}]}`)
	if got := saved(w, w.Live, "e"); got != `{"partial":{"answers":{"nps":7},"current_question_id":null}}` {
		t.Errorf("%s", got)
	}
	w.Must(http.StatusOK, w.Live, "PUT", partial, `{"external_id":"e","answers":{"csat":null}}`)
}
