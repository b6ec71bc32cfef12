package decide

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"skerry/pkg/predicate"
)

type decisionVector struct {
	Context     json.RawMessage
	Value       json.RawMessage
	Variant     *string
	Reason      string
	OpenFeature string
	Halted      bool
}

func vectorCohorts(t *testing.T, texts map[string]string) *CohortSet {
	t.Helper()
	var list []Cohort
	for name, text := range texts {
		p, err := predicate.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, Cohort{Name: name, Predicate: p})
	}
	return NewCohortSet(list)
}

func TestDecisionsAreThoseOfTheVectors(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/decisions.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cohorts map[string]string
		Flags   []struct {
			Definition FlagDefinition
			Halt       *HaltDefinition
			Version    int64
			Decisions  []decisionVector
		}
		Items []struct {
			Definition ItemDefinition
			Decisions  []decisionVector
		}
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	cohorts := vectorCohorts(t, file.Cohorts)
	for _, f := range file.Flags {
		entry, err := CompileFlag(&f.Definition, f.Halt)
		if (err != nil) != (f.Definition.Key == "unreadable") {
			t.Errorf("%s: %v", f.Definition.Key, err)
		}
		version := f.Version
		if version == 0 {
			version = f.Definition.Version
		}
		for _, d := range f.Decisions {
			checkDecision(t, entry, cohorts, d, version, `"variant":"`+*d.Variant+`"`)
		}
	}
	for _, i := range file.Items {
		entry, err := CompileItem(&i.Definition)
		if err != nil {
			t.Errorf("%s: %v", i.Definition.Key, err)
		}
		for _, d := range i.Decisions {
			checkDecision(t, entry, cohorts, d, i.Definition.Version, `"type":"`+string(i.Definition.Type)+`"`)
		}
	}
}

func checkDecision(t *testing.T, e *Entry, cohorts *CohortSet, d decisionVector, version int64, kind string) {
	t.Helper()
	var c Context
	c.Reset()
	if err := c.ReadHandshake(d.Context); err != nil {
		t.Fatalf("%s: %v", d.Context, err)
	}
	c.UseCohorts(cohorts)
	got := e.Decide(&c)
	value, err := compactJSON(string(d.Value))
	if err != nil {
		t.Fatal(err)
	}
	handshake := fmt.Sprintf(`"%s":{"value":%s,%s,"reason":"%s","version":%d}`, e.Key, value, kind, d.Reason, version)
	if string(e.AppendHandshake(nil, got)) != handshake {
		t.Errorf("%s for %s:\n%s, want\n%s", e.Key, d.Context, e.AppendHandshake(nil, got), handshake)
	}
	halted := ""
	if d.Halted {
		halted = `,"halted":true`
	}
	open := fmt.Sprintf(`{"key":"%s","reason":"%s",%s,"value":%s,"metadata":{"version":%d%s}}`, e.Key, d.OpenFeature, kind, value, version, halted)
	switch {
	case d.OpenFeature == "":
		open = fmt.Sprintf(`{"key":"%s","errorCode":"GENERAL","errorDetails":"the stored definition cannot be evaluated"}`, e.Key)
	case d.Variant == nil:
		open = strings.Replace(open, kind+",", "", 1)
	}
	if string(e.AppendOpenFeature(nil, got)) != open {
		t.Errorf("%s for %s:\n%s, want\n%s", e.Key, d.Context, e.AppendOpenFeature(nil, got), open)
	}
}

func TestDefinitionsNobodyCanMakeStillGiveTheDefault(t *testing.T) {
	t.Parallel()
	s := func(s string) *string { return &s }
	for name, r := range map[string]*Rule{
		"unknown variant":      {Overrides: []Override{{Predicate: "session_count >= 0", Variant: s("x")}}},
		"no variant":           {Overrides: []Override{{Predicate: "session_count >= 0"}}},
		"unreadable condition": {Rollout: &Rollout{Predicate: s("("), Buckets: []Range{}}},
		"unknown unit":         {Rollout: &Rollout{BucketBy: "device"}},
		"overlapping ranges":   {Rollout: &Rollout{Buckets: []Range{{Variant: s("on"), Start: 0, End: 10}, {Variant: s("on"), Start: 5, End: 20}}}},
		"range past the end":   {Rollout: &Rollout{Buckets: []Range{{Variant: s("on"), Start: 0, End: Buckets + 1}}}},
	} {
		e, err := CompileFlag(&FlagDefinition{Key: "k", Enabled: true, DefaultValue: "false", DefaultVariant: "off", Variants: []Variant{{"on", "true"}}, Rule: r}, nil)
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		var c Context
		if got := e.Decide(&c); got.Reason != ReasonError || !strings.Contains(string(e.AppendHandshake(nil, got)), `"value":false,"variant":"off","reason":"error"`) {
			t.Errorf("%s: %s", name, e.AppendHandshake(nil, got))
		}
	}
	e, _ := CompileItem(&ItemDefinition{Key: "k", Type: Int, DefaultValue: `1}, "x": {`})
	if got := e.Decide(&Context{}); !json.Valid([]byte("{" + string(e.AppendHandshake(nil, got)) + "}")) {
		t.Errorf("an unreadable value spoils the answer: %s", e.AppendHandshake(nil, got))
	}
}

// population decides for 100,000 users and gives each one's variant.
func population(t *testing.T, r *Rule) []string {
	t.Helper()
	e, err := CompileFlag(&FlagDefinition{Key: "k", Enabled: true, DefaultValue: "0", Rule: r,
		Variants: []Variant{{"a", "1"}, {"b", "2"}, {"c", "3"}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]string, 100_000)
	var c Context
	for i := range out {
		c.Reset()
		_ = c.SetDistinctID(fmt.Appendf(nil, "user-%d", i))
		for _, v := range []string{"a", "b", "c"} {
			if strings.Contains(string(e.AppendHandshake(nil, e.Decide(&c))), `"variant":"`+v+`"`) {
				out[i] = v
			}
		}
	}
	return out
}

func moved(before, after []string) (all int, lost int) {
	for i := range before {
		if before[i] != after[i] {
			all++
			if before[i] != "" {
				lost++
			}
		}
	}
	return all, lost
}

func TestWideningARolloutOnlyAddsUsers(t *testing.T) {
	t.Parallel()
	ten := percentages(t, nil, map[string]float64{"a": 10}, "a")
	twenty := percentages(t, ten, map[string]float64{"a": 20}, "a")
	all, lost := moved(population(t, ten), population(t, twenty))
	if lost > 0 {
		t.Errorf("%d users lost their variant", lost)
	}
	if points := float64(all) / 1000; math.Abs(points-10) > 0.5 {
		t.Errorf("10%% to 20%% moved %.2f points of users", points)
	}
}

func TestReorderingAndAddingAtZeroMovesNobody(t *testing.T) {
	t.Parallel()
	start := percentages(t, nil, map[string]float64{"a": 30, "b": 30}, "a", "b")
	was := population(t, start)
	for _, order := range [][]string{{"b", "a"}, {"c", "b", "a"}} {
		if all, _ := moved(was, population(t, percentages(t, start, map[string]float64{"a": 30, "b": 30, "c": 0}, order...))); all > 0 {
			t.Errorf("order %v moved %d users", order, all)
		}
	}
}

func TestRenamingMovesNobody(t *testing.T) {
	t.Parallel()
	r := percentages(t, nil, map[string]float64{"a": 50}, "a")
	for _, key := range []string{"old", "new"} {
		e, err := CompileFlag(&FlagDefinition{Key: key, Enabled: true, DefaultValue: "0", Rule: r, Variants: []Variant{{"a", "1"}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var c Context
		for i := range 1000 {
			c.Reset()
			_ = c.SetDistinctID(fmt.Appendf(nil, "user-%d", i))
			in := e.Decide(&c).Reason == ReasonRollout
			if want := Bucket("fresh", c.DistinctID()) < 50_000; in != want {
				t.Fatalf("key %s, user %d: %v", key, i, in)
			}
		}
	}
}

// hundredFlags are what the speed to reach is measured with: one predicate and a two-way split each.
func hundredFlags(tb testing.TB) []*Entry {
	tb.Helper()
	s := func(s string) *string { return &s }
	var out []*Entry
	for i := range 100 {
		e, err := CompileFlag(&FlagDefinition{
			Key: fmt.Sprintf("flag-%03d", i), Kind: Boolean, Enabled: true, DefaultValue: "false", DefaultVariant: "off", Version: int64(i),
			Variants: []Variant{{"on", "true"}, {"off", "false"}},
			Rule: &Rule{
				Overrides: []Override{{Predicate: fmt.Sprintf(`props.plan = "plan-%d"`, i), Variant: s("on")}},
				Rollout: &Rollout{BucketBy: "distinct_id", Salt: fmt.Sprintf("k3JxQ0vWm7Tz%03d", i), Buckets: []Range{
					{Variant: s("on"), Start: 0, End: 50_000}, {Variant: s("off"), Start: 50_000, End: 100_000}}},
			}}, nil)
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

func decideAll(c *Context, dst []byte, flags []*Entry) []byte {
	for i, e := range flags {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = e.AppendHandshake(dst, e.Decide(c))
	}
	return dst
}

func TestDecidingDoesNotAllocate(t *testing.T) {
	flags := hundredFlags(t)
	body := []byte(`{"distinct_id":"6f1c2d1e-9f0a-4d5b-8c3e-2b7a1f0e9d8c","session_count":7,"props":{"plan":"plan-7","country":"D\u0045","a":[1,{"b":null}]}}`)
	cohorts := vectorCohorts(t, map[string]string{"beta": `props.plan = "pro"`})
	var c Context
	dst := make([]byte, 0, 32<<10)
	work := func() {
		c.Reset()
		if err := c.ReadHandshake(body); err != nil {
			t.Fatal(err)
		}
		c.UseCohorts(cohorts)
		_ = c.Digest()
		dst = c.AppendCohorts(decideAll(&c, dst[:0], flags))
	}
	work()
	if n := testing.AllocsPerRun(100, work); n > 0 {
		t.Errorf("%.0f allocations", n)
	}
}

func BenchmarkHundredFlags(b *testing.B) {
	flags := hundredFlags(b)
	body := []byte(`{"distinct_id":"6f1c2d1e-9f0a-4d5b-8c3e-2b7a1f0e9d8c","session_count":7,"props":{"plan":"plan-7","country":"DE"}}`)
	var c Context
	dst := make([]byte, 0, 32<<10)
	b.ReportAllocs()
	for b.Loop() {
		c.Reset()
		if err := c.ReadHandshake(body); err != nil {
			b.Fatal(err)
		}
		_ = c.Digest()
		dst = decideAll(&c, dst[:0], flags)
	}
	b.SetBytes(int64(len(dst)))
}
