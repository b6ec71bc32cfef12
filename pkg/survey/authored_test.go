package survey

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"skerry/pkg/instant"
)

func authored(t testing.TB, raw string) *Authored {
	t.Helper()
	var a Authored
	if err := json.Unmarshal([]byte(raw), &a); err != nil {
		t.Fatal(err)
	}
	return &a
}

// faulty is a survey in which nearly everything is wrong.
const faulty = `{
		"name":" ","kind":"quiz","slug":"No Spaces","display_cooldown_seconds":-1,"display_delay_ms":-5,
		"questions":[
			{"id":"a b","kind":"text","prompt":"","order_index":1},
			{"id":"q1","kind":"select","prompt":"p","order_index":1},
			{"id":"q1","kind":"multiselect","prompt":"p","order_index":3,"config":{"options":["a","","a"]}},
			{"id":"q3","kind":"slider","prompt":"p","order_index":-1},
			{"id":"q4","kind":"likert","prompt":"p","config":{"min":3,"max":3}},
			{"id":"q5","kind":"rating","prompt":"p","order_index":9,"config":{"max":0,"options":["a"],"max_length":3}},
			{"id":"q6","kind":"text","prompt":"p","order_index":10,"config":{"max_length":0,"min":1}},
			{"id":"q7","kind":"nps","prompt":"p","order_index":11,"config":{"min":0,"max":10}},
			{"id":"q8","kind":"nps","prompt":"p","order_index":12,"config":{"max":5}}],
		"targeting_rules":[{"predicate":"event:paid","weight_numerator":1001},{"predicate":"AND(event:x)"}],
		"branching_rules":[
			{"from_question_id":"q7","predicate":"answer = 3","to_question_id":"q6"},
			{"from_question_id":"q6","predicate":"answer ~ 3","to_question_id":"none"},
			{"from_question_id":"none","predicate":"answered","to_question_id":null},
			{"from_question_id":"q6","predicate":"answered","to_question_id":"q6"},
			{"from_question_id":"q6","predicate":"answered","to_question_id":"q8"}],
		"theme":{"primary_color":"red"},
		"translations":{"d":{},"de":{"survey.name":"Name"},"pt-BR":{"":"x"}}}`

func TestCheckFindsEveryProblemWithItsPath(t *testing.T) {
	t.Parallel()
	a := authored(t, faulty)
	want := []Problem{
		{"name", "empty"},
		{"kind", "unknown_kind"},
		{"slug", "invalid_slug"},
		{"display_cooldown_seconds", "out_of_range"},
		{"display_delay_ms", "out_of_range"},
		{"questions[0].id", "invalid_id"},
		{"questions[0].prompt", "empty"},
		{"questions[1].order_index", "duplicate_order_index"},
		{"questions[1].config.options", "required"},
		{"questions[2].id", "duplicate_id"},
		{"questions[2].config.options[1]", "empty"},
		{"questions[2].config.options[2]", "duplicate"},
		{"questions[3].order_index", "out_of_range"},
		{"questions[3].kind", "unknown_kind"},
		{"questions[4].config.max", "min_not_below_max"},
		{"questions[5].config.options", "not_for_kind"},
		{"questions[5].config.max_length", "not_for_kind"},
		{"questions[5].config.max", "out_of_range"},
		{"questions[6].config.max_length", "out_of_range"},
		{"questions[6].config.min", "not_for_kind"},
		{"questions[8].config.max", "not_for_kind"},
		{"targeting_rules[0].weight_numerator", "out_of_range"},
		{"targeting_rules[1].predicate", "invalid_predicate"},
		{"branching_rules[0].to_question_id", "not_forward"},
		{"branching_rules[1].predicate", "invalid_predicate"},
		{"branching_rules[1].to_question_id", "unknown_question"},
		{"branching_rules[2].from_question_id", "unknown_question"},
		{"branching_rules[3].to_question_id", "not_forward"},
		{"theme.primary_color", "invalid_color"},
		{"translations.d", "invalid_language"},
		{"translations.pt-BR", "empty"},
	}
	if missing := a.MissingMember(); missing != "" {
		t.Fatal(missing)
	}
	got := a.Check()
	for i := range got { // the parsers' own words and positions have tests of their own
		got[i].Reason, _, _ = strings.Cut(got[i].Reason, ": ")
	}
	if !reflect.DeepEqual(got, want) {
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || got[i] != want[i] {
				t.Fatalf("problem %d differs:\ngot  %v\nwant %v", i, got[min(i, len(got)):], want[min(i, len(want)):])
			}
		}
	}
}

func TestAbsentMembersAreNamed(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		`{}`:           "name",
		`{"name":"n"}`: "kind",
		`{"name":"n","kind":"nps","questions":[{"kind":"nps","prompt":"p"},{"prompt":"p"}]}`: "questions[1].kind",
		`{"name":"n","kind":"nps","questions":[{"kind":"nps"}]}`:                             "questions[0].prompt",
		`{"name":"n","kind":"nps","targeting_rules":[{}]}`:                                   "targeting_rules[0].predicate",
		`{"name":"n","kind":"nps","theme":{}}`:                                               "theme.primary_color",
		`{"name":"n","kind":"nps"}`:                                                          "",
	} {
		if got := authored(t, raw).MissingMember(); got != want {
			t.Errorf("%s: %q, want %q", raw, got, want)
		}
	}
}

var identity = Identity{
	ID: "psv_1", OrganizationID: "org", ProjectID: "prj", ThemeID: "theme-1", Status: Published,
	CreatedAt: instant.Of(time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)),
}

func TestBundleHasTheSpecificationsMembersInItsOrder(t *testing.T) {
	t.Parallel()
	a := authored(t, `{"name":"N","kind":"nps","slug":"n","auto_show":true,"display_delay_ms":10,
		"questions":[{"kind":"nps","prompt":"P","required":true},{"id":"mine","kind":"select","prompt":"S","config":{"options":["<a>"]}}],
		"targeting_rules":[{"predicate":"event:x"}],
		"branching_rules":[{"from_question_id":"mine","predicate":"answered","to_question_id":null}],
		"theme":{"primary_color":"#aBc123"},"translations":{"de":{"survey.name":"N2"},"fr":null}}`)
	if problems := a.Check(); len(problems) > 0 {
		t.Fatal(problems)
	}
	b, display := a.Build(identity, func() string { return "psq_new" })
	got, _ := json.Marshal(b)
	want := `{"survey":{"id":"psv_1","organization_id":"org","project_id":"prj","name":"N","description":"","kind":"nps","status":"published","slug":"n","archived_at":null,"created_at":"2026-01-02T03:04:05.678Z"},` +
		`"questions":[{"id":"psq_new","survey_id":"psv_1","kind":"nps","prompt":"P","required":true,"order_index":0,"config":{}},` +
		`{"id":"mine","survey_id":"psv_1","kind":"select","prompt":"S","required":false,"order_index":1,"config":{"options":["\u003ca\u003e"]}}],` +
		`"targeting_rules":[{"predicate":"event:x","weight_numerator":1000}],` +
		`"branching_rules":[{"from_question_id":"mine","predicate":"answered","to_question_id":null}],` +
		`"theme":{"id":"theme-1","survey_id":"psv_1","primary_color":"#aBc123"},"translations":{"de":{"survey.name":"N2"}}}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	got, _ = json.Marshal(b.Entry(display))
	want = `{"id":"psv_1","name":"N","description":"","kind":"nps","status":"published","slug":"n","auto_show":true,"display_cooldown_seconds":604800,"display_delay_ms":10,"targeting_rules":[{"predicate":"event:x","weight_numerator":1000}]}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestQuestionsStandInOrder(t *testing.T) {
	t.Parallel()
	a := authored(t, `{"name":"N","kind":"nps","questions":[{"id":"c","kind":"nps","prompt":"P","order_index":30},{"id":"a","kind":"nps","prompt":"P","order_index":10},{"id":"b","kind":"nps","prompt":"P","order_index":20}]}`)
	b, _ := a.Build(identity, nil)
	if b.Questions[0].ID != "a" || b.Questions[1].ID != "b" || b.Questions[2].ID != "c" {
		t.Errorf("%+v", b.Questions)
	}
}

func TestWhatWasBuiltAuthorsItselfAgain(t *testing.T) {
	t.Parallel()
	a := authored(t, `{"name":"N","kind":"nps","slug":"n","questions":[{"kind":"likert","prompt":"P","order_index":4,"config":{"min":0,"max":4}}],
		"targeting_rules":[{"predicate":"event:x","weight_numerator":0}],"theme":{"primary_color":"#fff"},"translations":{"de":{"a":"b"}}}`)
	first, display := a.Build(identity, func() string { return "psq_1" })
	raw, err := json.Marshal(AuthoredOf(&first, display))
	if err != nil {
		t.Fatal(err)
	}
	second, again := authored(t, string(raw)).Build(identity, func() string { t.Error("a new id"); return "" })
	if !reflect.DeepEqual(first, second) || display != again {
		t.Errorf("%+v became %+v", first, second)
	}
}

func TestSlugIsMadeOfTheNamesLettersAndDigits(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"How do you like 2.0?":    "how-do-you-like-2-0",
		"  ---  ":                 "survey",
		"Ünïcode über":            "n-code-ber",
		"日本":                      "survey",
		strings.Repeat("ab ", 40): "ab-ab-ab-ab-ab-ab-ab-ab-ab-ab-ab-ab-ab-ab-ab-ab-ab-ab-ab",
	} {
		if got := SlugOf(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestTagChangesWithEveryPairAndOnlyThen(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	tag := func(project string, pairs ...any) string {
		made := NewTag(project)
		for i := 0; i < len(pairs); i += 2 {
			made.Add(pairs[i].(string), pairs[i+1].(time.Time))
		}
		return made.String()
	}
	base := tag("p", "a", at, "b", at)
	if base != tag("p", "a", at.In(time.FixedZone("", 3600)), "b", at) {
		t.Error("the same pairs make another tag")
	}
	seen := map[string]bool{base: true}
	for name, other := range map[string]string{
		"one saved":     tag("p", "a", at.Add(time.Millisecond), "b", at),
		"one more":      tag("p", "a", at, "b", at, "c", at),
		"one less":      tag("p", "a", at),
		"none":          tag("p"),
		"other project": tag("q", "a", at, "b", at),
	} {
		if seen[other] {
			t.Errorf("%s: the tag repeats", name)
		}
		seen[other] = true
	}
}

func TestSummaryCountsEachKindOfQuestionItsOwnWay(t *testing.T) {
	t.Parallel()
	add := func(kind string, values ...string) string {
		tally := Tally{QuestionID: "q", Kind: kind}
		for _, v := range values {
			tally.Add([]byte(v), 1)
		}
		out, err := json.Marshal(tally.Summary())
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	for _, c := range [][2]string{
		{add(NPS), `{"question_id":"q","kind":"nps","answered":0,"distribution":{},"mean":null,"nps":null,"csat":null}`},
		{add(NPS, "10", "9", "8", "7", "6", "0", "0", "9"), `{"question_id":"q","kind":"nps","answered":8,"distribution":{"0":2,"10":1,"6":1,"7":1,"8":1,"9":2},"mean":6.125,"nps":{"score":0,"promoters":3,"passives":2,"detractors":3},"csat":null}`},
		{add(CSAT, "5", "4", "3", "1"), `{"question_id":"q","kind":"csat","answered":4,"distribution":{"1":1,"3":1,"4":1,"5":1},"mean":3.25,"nps":null,"csat":50}`},
		{add(Rating, "2", "3"), `{"question_id":"q","kind":"rating","answered":2,"distribution":{"2":1,"3":1},"mean":2.5,"nps":null,"csat":null}`},
		{add(Likert, "-1", "1"), `{"question_id":"q","kind":"likert","answered":2,"distribution":{"-1":1,"1":1},"mean":0,"nps":null,"csat":null}`},
		{add(Boolean, "true", "true", "false"), `{"question_id":"q","kind":"boolean","answered":3,"distribution":{"false":1,"true":2},"mean":null,"nps":null,"csat":null}`},
		{add(Select, `"a"`), `{"question_id":"q","kind":"select","answered":1,"distribution":{"a":1},"mean":null,"nps":null,"csat":null}`},
		{add(Multiselect, `["a","b"]`, `["b"]`), `{"question_id":"q","kind":"multiselect","answered":2,"distribution":{"a":1,"b":2},"mean":null,"nps":null,"csat":null}`},
		{add(Date, `"2026-01-01"`), `{"question_id":"q","kind":"date","answered":1,"distribution":{"2026-01-01":1},"mean":null,"nps":null,"csat":null}`},
		{add(Text, `"long"`, `"words"`), `{"question_id":"q","kind":"text","answered":2,"distribution":{},"mean":null,"nps":null,"csat":null}`},
	} {
		if c[0] != c[1] {
			t.Errorf("got  %s\nwant %s", c[0], c[1])
		}
	}
}

func FuzzAuthored(f *testing.F) {
	f.Add([]byte(`{"name":"n","kind":"nps","questions":[{"id":"a","kind":"nps","prompt":"p"},{"id":"b","kind":"text","prompt":"p"}],"branching_rules":[{"from_question_id":"a","predicate":"answer<7","to_question_id":"b"}]}`))
	f.Add([]byte(`{"name":"n","kind":"csat","slug":"x","theme":{"primary_color":"#fff"},"translations":{"de":{"k":"v"}},"targeting_rules":[{"predicate":"event:x"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var a Authored
		if json.Unmarshal(raw, &a) != nil || a.MissingMember() != "" {
			return
		}
		if first := a.Check(); len(first) > 0 {
			if !reflect.DeepEqual(first, a.Check()) {
				t.Fatal("two runs differ")
			}
			return
		}
		n := 0
		b, _ := a.Build(identity, func() string { n++; return strings.Repeat("z", 60) + string(rune('a'+n%20)) })
		if n > 1 {
			return // ids made here may repeat
		}
		if _, err := Compile(&b); err != nil {
			t.Fatalf("no problem found, yet %v", err)
		}
	})
}
