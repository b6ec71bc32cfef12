package decide

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func decoded(t testing.TB, text string) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

func onOff() RuleContext {
	return RuleContext{
		Path: "rule", Variants: []Variant{{"on", "true"}, {"off", "false"}, {"blue", `"b"`}},
		Salt: "fresh", HasCohort: func(n string) bool { return n == "beta" },
	}
}

func ints() RuleContext {
	c := onOff()
	c.Type, c.Variants = Int, nil
	return c
}

func kept(t *testing.T, text string, c RuleContext) *Rule {
	t.Helper()
	r, problems := CheckRule(decoded(t, text), c)
	if len(problems) > 0 {
		t.Fatalf("%s: %v", text, problems)
	}
	return r
}

func TestRuleIsKeptInItsWrittenForm(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{
			`{"overrides":[{"predicate":"cohort:beta","value":" 12 "}],"rollout":{"predicate":null,"salt":"fresh","buckets":[{"value":"11","percentage":25}]}}`,
			`{"overrides":[{"predicate":"cohort:beta","value":"12"}],"rollout":{"predicate":null,"bucket_by":"distinct_id","salt":"fresh","buckets":[{"value":"11","start":0,"end":25000}]}}`,
		},
		{
			`{"rollout":{"predicate":"session_count >= 2","bucket_by":"props.team","buckets":[{"value":"1","start":50000,"end":100000},{"value":"2","start":0,"end":1}]}}`,
			`{"rollout":{"predicate":"session_count >= 2","bucket_by":"props.team","salt":"fresh","buckets":[{"value":"2","start":0,"end":1},{"value":"1","start":50000,"end":100000}]}}`,
		},
		{
			`{"rollout":{"bucket_by":"anon_id","buckets":[{"value":"1","percentage":33.333},{"value":"2","percentage":0.001},{"value":"3","percentage":0},{"value":"4","percentage":1e1}]}}`,
			`{"rollout":{"predicate":null,"bucket_by":"anon_id","salt":"fresh","buckets":[{"value":"3","start":0,"end":0},{"value":"1","start":0,"end":33333},{"value":"2","start":33333,"end":33334},{"value":"4","start":33334,"end":43334}]}}`,
		},
		{`{"overrides":[]}`, "none"},
		{`{}`, "none"},
		{`null`, "none"},
		{`{"overrides":null,"rollout":null}`, "none"},
	} {
		got := "none"
		if s := kept(t, c.in, ints()).Serialize(); s != nil {
			got = *s
		}
		if got != c.want {
			t.Errorf("%s\n is kept as %s\n       want %s", c.in, got, c.want)
		}
	}
}

func TestEveryProblemOfARuleIsNamedWithItsPath(t *testing.T) {
	t.Parallel()
	in := `{"extra":1,
		"overrides":[
			{"predicate":"event:x","variant":"on"},
			{"predicate":"cohort:nobody","variant":"green"},
			{"variant":"on"},
			{"predicate":7,"variant":8,"value":"1"},
			"text"],
		"rollout":{"predicate":"AND(","bucket_by":"device","salt":"a b","buckets":[
			{"variant":"on","percentage":"10"},
			{"variant":"on","percentage":0.0001},
			{"variant":"on","percentage":101},
			{"variant":"on","percentage":1,"start":0,"end":2},
			{"variant":"on"},
			{"variant":"on","start":5,"end":3},
			{"variant":"on","start":-1,"end":100001},
			{"variant":"on","start":0.5},
			{"percentage":1e999999999},
			{"variant":"on","percentage":1e-999999999}]}}`
	_, problems := CheckRule(decoded(t, in), onOff())
	var got []string
	for _, p := range problems {
		got = append(got, p.Code+" "+p.Path+": "+p.Reason)
	}
	want := []string{
		`invalid_body rule.extra: unknown member`,
		`invalid_predicate rule.overrides[0].predicate: event: is known to the client only and cannot be used here at position 1`,
		`invalid_predicate rule.overrides[1].predicate: unknown cohort "nobody" at position 1`,
		`invalid_rule rule.overrides[1].variant: names no variant of the flag`,
		`invalid_body rule.overrides[2].predicate: is required`,
		`invalid_body rule.overrides[3].value: unknown member`,
		`invalid_body rule.overrides[3].predicate: must be a string`,
		`invalid_body rule.overrides[3].variant: must be a string`,
		`invalid_body rule.overrides[4]: must be an object`,
		`invalid_predicate rule.rollout.predicate: expected event:, session_count, cohort:, screen:, props., AND( or OR(, found the end at position 5`,
		`invalid_rule rule.rollout.bucket_by: must be distinct_id, anon_id or props.<key>`,
		`invalid_rule rule.rollout.salt: must be 1 to 64 visible ASCII characters`,
		`invalid_body rule.rollout.buckets[0].percentage: must be a number`,
		`invalid_rule rule.rollout.buckets[1].percentage: has more than three decimals`,
		`invalid_rule rule.rollout.buckets[2].percentage: must be from 0 to 100`,
		`invalid_rule rule.rollout.buckets[3]: has both a percentage and a range`,
		`invalid_body rule.rollout.buckets[4].percentage: is required, or start and end`,
		`invalid_rule rule.rollout.buckets[5]: starts behind its end`,
		`invalid_rule rule.rollout.buckets[6].start: must be a whole number from 0 to 100000`,
		`invalid_rule rule.rollout.buckets[6].end: must be a whole number from 0 to 100000`,
		`invalid_rule rule.rollout.buckets[7].start: must be a whole number from 0 to 100000`,
		`invalid_body rule.rollout.buckets[7].end: is required`,
		`invalid_body rule.rollout.buckets[8].variant: is required`,
		`invalid_rule rule.rollout.buckets[8].percentage: must be from 0 to 100`,
		`invalid_rule rule.rollout.buckets[9].percentage: has more than three decimals`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestRangesMustFitTogether(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`[{"variant":"on","percentage":60},{"variant":"off","percentage":40.001}]`:             "invalid_rule rule.rollout.buckets: adds up to 100.001%, more than 100%",
		`[{"variant":"on","start":0,"end":60000},{"variant":"off","start":59999,"end":70000}]`: "invalid_rule rule.rollout.buckets[1]: overlaps buckets[0]",
		`[{"variant":"on","start":0,"end":100000},{"variant":"off","start":0,"end":100000}]`:   "invalid_rule rule.rollout.buckets: adds up to 200%, more than 100%",
		`[{"variant":"on","percentage":10},{"variant":"off","start":50000,"end":60000}]`:       "invalid_rule rule.rollout.buckets: mixes percentages and ranges",
		`"half"`: "invalid_body rule.rollout.buckets: must be an array",
		`null`:   "invalid_body rule.rollout.buckets: is required",
	} {
		_, problems := CheckRule(decoded(t, `{"rollout":{"buckets":`+in+`}}`), onOff())
		if len(problems) != 1 || problems[0].Code+" "+problems[0].Path+": "+problems[0].Reason != want {
			t.Errorf("%s: %v, want %s", in, problems, want)
		}
	}
}

func TestSaltStaysOnceSet(t *testing.T) {
	t.Parallel()
	c := ints()
	c.Salt = "first"
	for in, want := range map[string]string{
		`{"rollout":{"buckets":[]}}`:                "first",
		`{"rollout":{"salt":"first","buckets":[]}}`: "first",
		`{"rollout":{"salt":"","buckets":[]}}`:      "first",
	} {
		if got := kept(t, in, c).Rollout.Salt; got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
	if _, problems := CheckRule(decoded(t, `{"rollout":{"salt":"other","buckets":[]}}`), c); len(problems) != 1 || problems[0].Reason != "cannot change once it is set" {
		t.Errorf("another salt: %v", problems)
	}
}

func TestFirstSaltIsTheGivenOneOrRandom(t *testing.T) {
	t.Parallel()
	c := ints()
	c.Salt = ""
	if got := kept(t, `{"rollout":{"salt":"of-another-item","buckets":[]}}`, c).Rollout.Salt; got != "of-another-item" {
		t.Errorf("salt %q", got)
	}
	a, b := kept(t, `{"rollout":{"buckets":[]}}`, c).Rollout.Salt, kept(t, `{"rollout":{"buckets":[]}}`, c).Rollout.Salt
	if len(a) != 15 || a == b {
		t.Errorf("salts %q and %q", a, b)
	}
}

func percentages(t testing.TB, before *Rule, shares map[string]float64, order ...string) *Rule {
	t.Helper()
	c := onOff()
	c.Before = before
	if before != nil {
		c.Salt = before.Rollout.Salt
	}
	c.Variants = nil
	var buckets []string
	for _, v := range order {
		c.Variants = append(c.Variants, Variant{v, "1"})
		buckets = append(buckets, fmt.Sprintf(`{"variant":%q,"percentage":%v}`, v, shares[v]))
	}
	r, problems := CheckRule(decoded(t, `{"rollout":{"buckets":[`+strings.Join(buckets, ",")+`]}}`), c)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return r
}

func ranges(r *Rule) string {
	var out []string
	for _, b := range r.Rollout.Buckets {
		out = append(out, fmt.Sprintf("%s %d-%d", b.choice(), b.Start, b.End))
	}
	return strings.Join(out, ", ")
}

func TestChangedPercentagesMoveTheLeastAndStayInOnePiece(t *testing.T) {
	t.Parallel()
	start := percentages(t, nil, map[string]float64{"a": 50, "b": 50}, "a", "b")
	for _, c := range []struct {
		name   string
		before *Rule
		shares map[string]float64
		order  []string
		want   string
	}{
		{"widen one", percentages(t, nil, map[string]float64{"a": 10}, "a"), map[string]float64{"a": 20}, []string{"a"}, "a 0-20000"},
		{"from b to a", start, map[string]float64{"a": 60, "b": 40}, []string{"a", "b"}, "a 0-60000, b 60000-100000"},
		{"from a to b", start, map[string]float64{"a": 40, "b": 60}, []string{"a", "b"}, "a 0-40000, b 40000-100000"},
		{"reordered", start, map[string]float64{"a": 50, "b": 50}, []string{"b", "a"}, "a 0-50000, b 50000-100000"},
		{"a third at 0%", start, map[string]float64{"a": 50, "b": 50, "c": 0}, []string{"c", "a", "b"}, "c 0-0, a 0-50000, b 50000-100000"},
		{"a third out of both", start, map[string]float64{"a": 40, "b": 40, "c": 20}, []string{"a", "b", "c"}, "a 0-40000, c 40000-60000, b 60000-100000"},
		{"b leaves", start, map[string]float64{"a": 50}, []string{"a"}, "a 0-50000"},
		{"b replaced by c", start, map[string]float64{"a": 50, "c": 50}, []string{"a", "c"}, "a 0-50000, c 50000-100000"},
		{"both shrink", start, map[string]float64{"a": 30, "b": 30}, []string{"a", "b"}, "a 0-30000, b 70000-100000"},
	} {
		if got := ranges(percentages(t, c.before, c.shares, c.order...)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// owners gives each bucket's choice, "" for none.
func owners(t rapid.TB, r *Rule) []string {
	out := make([]string, Buckets)
	for _, b := range r.Rollout.Buckets {
		for i := b.Start; i < b.End; i++ {
			if out[i] != "" {
				t.Fatalf("bucket %d belongs to two", i)
			}
			out[i] = b.choice()
		}
	}
	return out
}

// Whatever the history of percentages: each choice has exactly its share, and an edit moves exactly as many buckets as
// the choices that shrink have to lose, which is the least possible.
func TestAnyHistoryOfPercentagesMovesTheLeast(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		names := []string{"a", "b", "c", "d"}
		var before *Rule
		old := make([]string, Buckets)
		for range rapid.IntRange(1, 6).Draw(rt, "edits") {
			left := Buckets
			shares := map[string]float64{}
			want := map[string]int{}
			var order []string
			for _, n := range rapid.Permutation(names).Draw(rt, "order")[:rapid.IntRange(1, 4).Draw(rt, "choices")] {
				count := rapid.IntRange(0, left).Draw(rt, "buckets")
				left -= count
				want[n], shares[n] = count, float64(count)/1000
				order = append(order, n)
			}
			want[""] = left
			rule := percentages(t, before, shares, order...)
			now := owners(rt, rule)
			have, moved, least := map[string]int{}, 0, 0
			for i := range now {
				have[now[i]]++
				if now[i] != old[i] {
					moved++
				}
			}
			was := map[string]int{}
			for _, o := range old {
				was[o]++
			}
			for _, n := range append(names, "") {
				if have[n] != want[n] {
					rt.Fatalf("%q has %d buckets, want %d", n, have[n], want[n])
				}
				least += max(0, was[n]-want[n])
			}
			if moved != least {
				rt.Fatalf("%d buckets moved, %d had to", moved, least)
			}
			before, old = rule, now
		}
	})
}

func FuzzCheckRule(f *testing.F) {
	f.Add(`{"overrides":[{"predicate":"cohort:beta","variant":"on"}],"rollout":{"buckets":[{"variant":"on","percentage":10.5}]}}`)
	f.Add(`{"rollout":{"buckets":[{"variant":"on","start":0,"end":5},{"variant":"off","start":5,"end":5}]}}`)
	f.Add(`{"rollout":{"predicate":"OR(","bucket_by":"props.","salt":"\u0000","buckets":{}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		var v any
		if d.Decode(&v) != nil {
			return
		}
		r, problems := CheckRule(v, onOff())
		if r == nil {
			return
		}
		if len(problems) > 0 {
			t.Fatalf("a rule and problems: %v", problems)
		}
		// What is kept compiles, and is kept as it is when it comes again.
		flag := FlagDefinition{Key: "k", Enabled: true, DefaultValue: "true", Variants: onOff().Variants, Rule: r}
		if _, err := CompileFlag(&flag, nil); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		c := onOff()
		c.Salt = "other"
		if r.Rollout != nil {
			c.Salt = r.Rollout.Salt
		}
		again, problems := CheckRule(decoded(t, *r.Serialize()), c)
		if len(problems) > 0 || *again.Serialize() != *r.Serialize() {
			t.Fatalf("%s is kept as %s, then as %v %v", text, *r.Serialize(), again, problems)
		}
	})
}
