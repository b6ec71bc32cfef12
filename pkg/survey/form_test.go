package survey

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func number(n int) *int { return &n }

func to(id string) *string { return &id }

// oneOfEach is a survey with a question of every kind, written out of order.
func oneOfEach() *Bundle {
	b := &Bundle{Survey: Survey{ID: "psv_1"}, Questions: []Question{
		{ID: "text", Kind: Text, Prompt: "Say", OrderIndex: 80, Config: Config{MaxLength: number(5)}},
		{ID: "nps", Kind: NPS, Prompt: "Recommend?", Required: true, OrderIndex: 10},
		{ID: "rating", Kind: Rating, Prompt: "Stars", OrderIndex: 20, Config: Config{Max: number(4)}},
		{ID: "csat", Kind: CSAT, Prompt: "Happy?", OrderIndex: 30},
		{ID: "likert", Kind: Likert, Prompt: "Agree?", OrderIndex: 40, Config: Config{Min: number(-2), Max: number(2)}},
		{ID: "select", Kind: Select, Prompt: "One", OrderIndex: 50, Config: Config{Options: []string{"a", "b"}}},
		{ID: "multi", Kind: Multiselect, Prompt: "Some", Required: true, OrderIndex: 60, Config: Config{Options: []string{"x", "y"}}},
		{ID: "bool", Kind: Boolean, Prompt: "Yes?", OrderIndex: 70},
		{ID: "date", Kind: Date, Prompt: "When", OrderIndex: 90},
	}}
	for i := range b.Questions {
		b.Questions[i].SurveyID = "psv_1"
	}
	return b
}

func compiled(t testing.TB, b *Bundle) *Form {
	t.Helper()
	f, err := Compile(b)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func given(t testing.TB, raw string) Answers {
	t.Helper()
	var a Answers
	if err := json.Unmarshal([]byte(raw), &a); err != nil {
		t.Fatal(err)
	}
	return a
}

// singleAnswers are answers to the questions of oneOfEach: what is stored of each, or why it
// is refused.
var singleAnswers = []struct{ question, answer, stored, reason string }{
	{"text", `"abcde"`, `"abcde"`, ""},
	{"text", `"äöü<>"`, `"äöü<>"`, ""},
	{"text", `"😀😀😀😀😀"`, `"😀😀😀😀😀"`, ""},
	{"text", `"a\u0000b"`, `"a\u0000b"`, ""},
	{"text", `" "`, `" "`, ""},
	{"text", `"abcdef"`, "", ReasonTooLong},
	{"text", `5`, "", ReasonWrongType},
	{"text", `["a"]`, "", ReasonWrongType},
	{"text", `[]`, "", ReasonWrongType},
	{"text", `{}`, "", ReasonWrongType},
	{"text", `true`, "", ReasonWrongType},
	{"nps", `0`, `0`, ""},
	{"nps", `10`, `10`, ""},
	{"nps", `7.0`, `7`, ""},
	{"nps", `70e-1`, `7`, ""},
	{"nps", `-0`, `0`, ""},
	{"nps", `11`, "", ReasonOutOfRange},
	{"nps", `-1`, "", ReasonOutOfRange},
	{"nps", `1e999`, "", ReasonOutOfRange},
	{"nps", `-1e999`, "", ReasonOutOfRange},
	{"nps", `7.5`, "", ReasonWrongType},
	{"nps", `1e-999`, "", ReasonWrongType},
	{"nps", `"7"`, "", ReasonWrongType},
	{"nps", `true`, "", ReasonWrongType},
	{"nps", `[7]`, "", ReasonWrongType},
	{"nps", `[]`, "", ReasonWrongType},
	{"rating", `1`, `1`, ""},
	{"rating", `4`, `4`, ""},
	{"rating", `0`, "", ReasonOutOfRange},
	{"rating", `5`, "", ReasonOutOfRange},
	{"csat", `1`, `1`, ""},
	{"csat", `5`, `5`, ""},
	{"csat", `6`, "", ReasonOutOfRange},
	{"csat", `0`, "", ReasonOutOfRange},
	{"likert", `-2`, `-2`, ""},
	{"likert", `2`, `2`, ""},
	{"likert", `3`, "", ReasonOutOfRange},
	{"select", `"a"`, `"a"`, ""},
	{"select", `"A"`, "", ReasonNotAllowed},
	{"select", `"c"`, "", ReasonNotAllowed},
	{"select", `1`, "", ReasonWrongType},
	{"select", `["a"]`, "", ReasonWrongType},
	{"multi", `["y","x"]`, `["y","x"]`, ""},
	{"multi", `["x","x"]`, `["x"]`, ""},
	{"multi", `["x","z"]`, "", ReasonNotAllowed},
	{"multi", `["x",""]`, "", ReasonNotAllowed},
	{"multi", `["z",1]`, "", ReasonWrongType},
	{"multi", `["x",null]`, "", ReasonWrongType},
	{"multi", `"x"`, "", ReasonWrongType},
	{"multi", `{"0":"x"}`, "", ReasonWrongType},
	{"bool", `true`, `true`, ""},
	{"bool", `false`, `false`, ""},
	{"bool", `"true"`, "", ReasonWrongType},
	{"bool", `1`, "", ReasonWrongType},
	{"date", `"2024-02-29"`, `"2024-02-29"`, ""},
	{"date", `"2025-02-29"`, "", ReasonWrongType},
	{"date", `"29.02.2024"`, "", ReasonWrongType},
	{"date", `"2024-2-9"`, "", ReasonWrongType},
	{"date", `20240229`, "", ReasonWrongType},
}

func TestEveryKindAcceptsAndRefusesWhatTheSpecificationSays(t *testing.T) {
	t.Parallel()
	form := compiled(t, oneOfEach())
	for _, c := range singleAnswers {
		answers := given(t, fmt.Sprintf(`{"nps":1,"multi":["x"],%q:%s}`, c.question, c.answer))
		got, faults := form.Check(answers)
		if c.reason != "" {
			want := []InvalidAnswer{{c.question, prompt(form, c.question), c.reason}}
			if !reflect.DeepEqual(faults.Invalid, want) || len(faults.Missing) > 0 {
				t.Errorf("%s = %s: %+v, want %+v", c.question, c.answer, faults, want)
			}
			continue
		}
		if faults.Any() {
			t.Errorf("%s = %s: %+v, want it accepted", c.question, c.answer, faults)
			continue
		}
		at := slices.IndexFunc(got, func(g Given) bool { return g.Question.ID == c.question })
		if at < 0 || string(got[at].Value) != c.stored {
			t.Errorf("%s = %s: stored %v, want %s", c.question, c.answer, got, c.stored)
		}
	}
}

func prompt(f *Form, id string) string { return f.questions[f.byID[id]].Prompt }

func TestNullEmptyTextAndEmptyMultiselectAreUnanswered(t *testing.T) {
	t.Parallel()
	form := compiled(t, oneOfEach())
	for _, answers := range []string{
		`{}`, `{"nps":null,"multi":null}`, `{"nps":"","multi":""}`, `{"nps":null,"multi":[]}`, `{"nps":null,"multi":[ ]}`,
	} {
		got, faults := form.Check(given(t, answers))
		want := []MissingAnswer{{"nps", "Recommend?"}, {"multi", "Some"}}
		if len(faults.Invalid) != 0 || !reflect.DeepEqual(faults.Missing, want) || len(got) != 0 {
			t.Errorf("%s: %v %+v, want missing %v", answers, got, faults, want)
		}
	}
}

func TestEveryFaultIsReportedAtOnceInOrder(t *testing.T) {
	t.Parallel()
	form := compiled(t, oneOfEach())
	answers := given(t, `{"zz":1,"date":"no","csat":9,"text":"too long","aa":null,"ab":"x","select":"q","rating":1.5}`)
	want := Faults{
		Invalid: []InvalidAnswer{
			{"rating", "Stars", ReasonWrongType},
			{"csat", "Happy?", ReasonOutOfRange},
			{"select", "One", ReasonNotAllowed},
			{"text", "Say", ReasonTooLong},
			{"date", "When", ReasonWrongType},
			{"ab", "", ReasonUnknown},
			{"zz", "", ReasonUnknown},
		},
		Missing: []MissingAnswer{{"nps", "Recommend?"}, {"multi", "Some"}},
	}
	for range 50 { // map order must not show
		if _, got := form.Check(answers); !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v\nwant %+v", got, want)
		}
	}
	if got := want.Message(); got != "7 answers invalid, 2 required answers missing" {
		t.Error(got)
	}
}

// branched asks 1; a low answer leads to 3, a high one ends, any other goes to 2.
func branched() *Bundle {
	return &Bundle{
		Survey: Survey{ID: "psv_2"},
		Questions: []Question{
			{ID: "1", Kind: NPS, Required: true, OrderIndex: 1},
			{ID: "2", Kind: Text, Required: true, OrderIndex: 2},
			{ID: "3", Kind: Text, Required: true, OrderIndex: 3},
			{ID: "4", Kind: Boolean, Required: true, OrderIndex: 4},
		},
		BranchingRules: []BranchingRule{
			{"1", `answer < 7`, to("3")},
			{"1", `answer >= 9`, nil},
			{"1", `answer < 3`, nil}, // never reached: the first match wins
			{"3", `answer = "done"`, nil},
		},
	}
}

func TestRequiredQuestionsThatBranchingSkipsAreNotMissing(t *testing.T) {
	t.Parallel()
	form := compiled(t, branched())
	for answers, missing := range map[string][]string{
		`{}`:                                 {"1", "2", "3", "4"},
		`{"1":8}`:                            {"2", "3", "4"},
		`{"1":8,"2":"a","3":"b"}`:            {"4"},
		`{"1":8,"2":"a","3":"done"}`:         {},
		`{"1":2}`:                            {"3", "4"},
		`{"1":2,"3":"done"}`:                 {},
		`{"1":2,"3":"b","4":false}`:          {},
		`{"1":9}`:                            {},
		`{"1":10,"2":"kept though skipped"}`: {},
	} {
		_, faults := form.Check(given(t, answers))
		got := []string{}
		for _, m := range faults.Missing {
			got = append(got, m.QuestionID)
		}
		if !reflect.DeepEqual(got, missing) {
			t.Errorf("%s: missing %v, want %v", answers, got, missing)
		}
	}
}

func TestAnswersToSkippedQuestionsAreStoredAndScored(t *testing.T) {
	t.Parallel()
	b := branched()
	b.Questions[0].Kind = Boolean
	b.Questions[1].Kind, b.Questions[1].Required = CSAT, false
	b.BranchingRules = []BranchingRule{{"1", `answer = true`, nil}}
	got, faults := compiled(t, b).Check(given(t, `{"1":true,"2":4,"3":"x"}`))
	if faults.Any() || len(got) != 3 {
		t.Fatalf("%v %+v", got, faults)
	}
	if score := Score(got); score == nil || *score != 4 {
		t.Errorf("score %v, want 4", score)
	}
}

func TestInvalidAnswersToSkippedQuestionsAreStillFaults(t *testing.T) {
	t.Parallel()
	_, faults := compiled(t, branched()).Check(given(t, `{"1":9,"4":"no"}`))
	if len(faults.Invalid) != 1 || faults.Invalid[0].QuestionID != "4" {
		t.Errorf("%+v", faults)
	}
}

func TestScoreIsTheFirstScorableAnswerInOrder(t *testing.T) {
	t.Parallel()
	form := compiled(t, oneOfEach())
	for answers, want := range map[string]*int{
		`{"multi":["x"],"nps":0,"rating":3}`:               number(0),
		`{"multi":["x"],"nps":3.0,"csat":5}`:               number(3),
		`{"nps":10,"multi":["x"],"text":"hi","likert":-2}`: number(10),
		`{"nps":1,"multi":["x"],"date":"2026-01-01"}`:      number(1),
	} {
		got, faults := form.Check(given(t, answers))
		if faults.Any() {
			t.Fatalf("%s: %+v", answers, faults)
		}
		if score := Score(got); !reflect.DeepEqual(score, want) {
			t.Errorf("%s: %v, want %d", answers, score, *want)
		}
	}
	b := oneOfEach()
	b.Questions[1].Required = false
	for answers, want := range map[string]*int{
		`{"multi":["x"],"likert":-2,"text":"a"}`: number(-2),
		`{"multi":["x"],"text":"a","bool":true}`: nil,
	} {
		got, _ := compiled(t, b).Check(given(t, answers))
		if score := Score(got); !reflect.DeepEqual(score, want) {
			t.Errorf("%s: %v", answers, score)
		}
	}
}

func TestTextWithoutMaxLengthHasAnUpperBound(t *testing.T) {
	t.Parallel()
	b := oneOfEach()
	b.Questions[0].Config.MaxLength = nil
	form := compiled(t, b)
	for length, want := range map[int]string{MaxText: "", MaxText + 1: ReasonTooLong} {
		answers := Answers{"nps": []byte(`1`), "multi": []byte(`["x"]`), "text": quote(strings.Repeat("ä", length))}
		_, faults := form.Check(answers)
		if got := len(faults.Invalid) == 1 && faults.Invalid[0].Reason == ReasonTooLong; got != (want != "") {
			t.Errorf("%d code points: %+v", length, faults)
		}
	}
}

func TestHugeArraysAreJudgedWithoutBeingKept(t *testing.T) {
	t.Parallel()
	var list strings.Builder
	list.WriteString(`["x"`)
	for i := range 100_000 {
		fmt.Fprintf(&list, `,"%d"`, i)
	}
	a := ReadAnswer([]byte(list.String() + `]`))
	if a.kind != listAnswer || len(a.list) != maxListed {
		t.Errorf("kind %d, %d entries kept", a.kind, len(a.list))
	}
	if a = ReadAnswer([]byte(list.String() + `,7]`)); a.kind != otherAnswer {
		t.Error("a number behind 100,000 strings was overlooked")
	}
}

func TestMergeKeepsReplacesAndRemoves(t *testing.T) {
	t.Parallel()
	form := compiled(t, oneOfEach())
	p := &Partial{}
	for _, step := range []struct{ save, want string }{
		{`{"nps":7.0,"multi":["x","x"]}`, `{"multi":["x"],"nps":7}`},
		{`{"text":"hi"}`, `{"multi":["x"],"nps":7,"text":"hi"}`},
		{`{"nps":null,"gone":null}`, `{"multi":["x"],"text":"hi"}`},
		{`{"multi":[],"text":""}`, `{}`},
		{`{}`, `{}`},
	} {
		if faults := form.Merge(p, given(t, step.save)); faults.Any() {
			t.Fatalf("%s: %+v", step.save, faults)
		}
		got, _ := json.Marshal(p.Answers)
		if string(got) != step.want {
			t.Errorf("after %s: %s, want %s", step.save, got, step.want)
		}
	}
}

func TestFaultyMergeChangesNothing(t *testing.T) {
	t.Parallel()
	form := compiled(t, oneOfEach())
	p := &Partial{Answers: map[string]json.RawMessage{"nps": []byte(`3`)}}
	faults := form.Merge(p, given(t, `{"nps":11,"text":"ok","what":1}`))
	want := []InvalidAnswer{{"nps", "Recommend?", ReasonOutOfRange}, {"what", "", ReasonUnknown}}
	if !reflect.DeepEqual(faults.Invalid, want) || len(faults.Missing) != 0 {
		t.Errorf("%+v", faults)
	}
	if got, _ := json.Marshal(p.Answers); string(got) != `{"nps":3}` {
		t.Errorf("changed to %s", got)
	}
}

func TestPruneDropsWhatAnEditedSurveyRefuses(t *testing.T) {
	t.Parallel()
	p := &Partial{CurrentQuestionID: to("gone"), Answers: map[string]json.RawMessage{
		"gone": []byte(`1`), "rating": []byte(`5`), "select": []byte(`"a"`),
	}}
	compiled(t, oneOfEach()).Prune(p)
	if got, _ := json.Marshal(p); string(got) != `{"answers":{"select":"a"},"current_question_id":null}` {
		t.Errorf("%s", got)
	}
}

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func TestSubmissionBodiesAreCheckedInOrder(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		``:                                 "invalid_body: the body is not valid JSON",
		`{`:                                "invalid_body: the body is not valid JSON",
		`{"survey_id":NaN}`:                "invalid_body: the body is not valid JSON",
		"{\"a\":\"\xff\"}":                 "invalid_body: the body is not UTF-8",
		`[]`:                               "invalid_body: the body is not a JSON object",
		`null`:                             "invalid_body: the body is not a JSON object",
		`{"answers":[]}`:                   "invalid_body: survey_id is required",
		`{"survey_id":""}`:                 "invalid_body: survey_id is required",
		`{"survey_id":null}`:               "invalid_body: survey_id is required",
		`{"survey_id":7}`:                  "invalid_body: survey_id must be a string",
		`{"Survey_ID":"x"}`:                "invalid_body: survey_id is required",
		`{"survey_id":"x"}`:                "invalid_answers: answers is required",
		`{"survey_id":"x","answers":null}`: "invalid_answers: answers is required",
		`{"survey_id":"x","answers":[]}`:   "invalid_answers: answers must be an object",
		`{"survey_id":"x","answers":"{}"}`: "invalid_answers: answers must be an object",
		`{"survey_id":"x","answers":[],"respondent":[]}`:                              "invalid_body: respondent must be an object",
		`{"survey_id":"x","answers":{},"respondent":{"email":1}}`:                     "invalid_body: respondent.email must be a string",
		`{"survey_id":"x","answers":{},"respondent":{"email":"\u0000"}}`:              "invalid_body: respondent.email contains NUL",
		`{"survey_id":"x","answers":{},"context":{"os_version":1,"device_model":{}}}`: "invalid_body: context.device_model must be a string",
		`{"survey_id":"x","answers":{},"submitted_at":"today"}`:                       "invalid_body: submitted_at is not an ISO 8601 time",
		`{"survey_id":"x","answers":{},"submitted_at":""}`:                            "invalid_body: submitted_at is not an ISO 8601 time",
		`{"survey_id":"x","answers":{},"submitted_at":5}`:                             "invalid_body: submitted_at must be a string",
		`{"survey_id":"x","answers":[],"submitted_at":"2026-03-05T12:00:00.001Z"}`:    "invalid_body: submitted_at is more than 24 hours ahead",
		`{"survey_id":"x","answers":` + strings.Repeat("[", 20000) + `}`:              "invalid_body: the body is not valid JSON",
	} {
		if _, err := ParseSubmission([]byte(body), noon); err == nil || err.Error() != want {
			t.Errorf("%.80s: %v, want %s", body, err, want)
		}
	}
}

func TestSubmissionReadsEveryMember(t *testing.T) {
	t.Parallel()
	s, err := ParseSubmission([]byte(`{"survey_id":"old","survey_id":"psv_1","more":[{}],
		"respondent":{"user_id":"u","external_id":"e","email":null,"x":1},
		"context":{"release_version":"1.2","device_model":"d","os_version":"","distribution_id":"dist"},
		"submitted_at":"2026-03-05T13:00:00+01:00","answers":{"q":1,"q":[2]}}`), noon)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := json.Marshal(s)
	want := `{"Survey":"psv_1","Respondent":{"user_id":"u","external_id":"e","email":null},` +
		`"Context":{"release_version":"1.2","device_model":"d","os_version":null,"distribution_id":"dist"},` +
		`"SubmittedAt":"2026-03-05T12:00:00Z","Answers":{"q":[2]}}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestPartialSaveNamesWhatIsWrongAndTellsNullFromAbsence(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{}`:                               "invalid_body: external_id is required",
		`{"external_id":5}`:                "invalid_body: external_id must be a string",
		`{"external_id":"e","answers":[]}`: "invalid_answers: answers must be an object",
		`{"external_id":"e","current_question_id":[]}`: "invalid_body: current_question_id must be a string",
	} {
		if _, err := ParsePartialSave([]byte(body)); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
	s, err := ParsePartialSave([]byte(`{"external_id":"e","answers":{"q":1}}`))
	if err != nil || s.ExternalID != "e" || string(s.Answers["q"]) != "1" || s.CurrentSet {
		t.Errorf("%+v %v", s, err)
	}
	if s, err = ParsePartialSave([]byte(`{"external_id":"e","current_question_id":null}`)); err != nil || !s.CurrentSet || s.CurrentQuestionID != nil {
		t.Errorf("%+v %v", s, err)
	}
}

func TestMoreThan10000AnswersAreRefused(t *testing.T) {
	t.Parallel()
	body := func(n int) []byte {
		var b strings.Builder
		b.WriteString(`{"survey_id":"x","answers":{"0":1,"0":1`)
		for i := 1; i < n; i++ {
			fmt.Fprintf(&b, `,"%d":1`, i)
		}
		return []byte(b.String() + `}}`)
	}
	if _, err := ParseSubmission(body(10_000), noon); err != nil {
		t.Errorf("10,000: %v", err)
	}
	if _, err := ParseSubmission(body(10_001), noon); err == nil || err.Error() != "invalid_answers: more than 10000 answers" {
		t.Errorf("10,001: %v", err)
	}
}

func FuzzSubmission(f *testing.F) {
	f.Add([]byte(`{"survey_id":"x","answers":{"nps":7.5,"multi":["x",null],"text":"\ud800","what":{}},"submitted_at":"2026-01-01"}`))
	f.Add([]byte(`{"survey_id":"x","respondent":{},"context":null,"answers":{"nps":1e999,"date":"2026-02-30","select":"","bool":[]}}`))
	form := compiled(f, oneOfEach())
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := ParseSubmission(body, noon)
		if err != nil {
			return
		}
		got, faults := form.Check(s.Answers)
		again, faultsAgain := form.Check(s.Answers)
		if !reflect.DeepEqual(got, again) || !reflect.DeepEqual(faults, faultsAgain) {
			t.Fatal("two runs differ")
		}
		// What was accepted is valid JSON and is accepted again, unchanged.
		stored := Answers{}
		for _, g := range got {
			if !json.Valid(g.Value) {
				t.Fatalf("%s stored as %s", g.Question.ID, g.Value)
			}
			stored[g.Question.ID] = g.Value
		}
		settled, faults := form.Check(stored)
		if len(faults.Invalid) > 0 || !reflect.DeepEqual(settled, got) {
			t.Fatalf("%v became %v, %+v", got, settled, faults)
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	form := compiled(b, oneOfEach())
	body := []byte(`{"survey_id":"psv_1","respondent":{"external_id":"e"},"answers":{"nps":9,"rating":3,"csat":4,"likert":1,"select":"a","multi":["x","y"],"bool":true,"text":"fine","date":"2026-01-02"}}`)
	b.ReportAllocs()
	for b.Loop() {
		s, err := ParseSubmission(body, noon)
		if err != nil {
			b.Fatal(err)
		}
		if _, faults := form.Check(s.Answers); faults.Any() {
			b.Fatal(faults)
		}
	}
}
