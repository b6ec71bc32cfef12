package decide

import (
	"fmt"
	"strings"
	"testing"
)

func answers(e *Entry, c *Context) string {
	o := e.Decide(c)
	return string(e.AppendHandshake(nil, o)) + " " + string(e.AppendOpenFeature(nil, o))
}

// Either of the two documents may be ahead of the other; resuming gives the flag as it was.
func TestHaltComesAndGoesWithoutTheDefinition(t *testing.T) {
	t.Parallel()
	on := "on"
	d := FlagDefinition{Key: "k", Enabled: true, DefaultValue: "false", DefaultVariant: "off", Version: 7, Variants: []Variant{{"on", "true"}},
		Rule: &Rule{Overrides: []Override{{Predicate: `props.plan = "pro"`, Variant: &on}}}}
	var c Context
	c.Reset()
	if err := c.ReadHandshake([]byte(`{"distinct_id":"ada","props":{"plan":"pro"}}`)); err != nil {
		t.Fatal(err)
	}
	e, err := CompileFlag(&d, nil)
	if err != nil {
		t.Fatal(err)
	}
	const (
		matched = `"k":{"value":true,"variant":"on","reason":"override","version":7} {"key":"k","reason":"TARGETING_MATCH","variant":"on","value":true,"metadata":{"version":7}}`
		newer   = `"k":{"value":1,"variant":"x","reason":"halted","version":8} {"key":"k","reason":"STATIC","variant":"x","value":1,"metadata":{"version":8,"halted":true}}`
		older   = `"k":{"value":false,"variant":"off","reason":"halted","version":7} {"key":"k","reason":"STATIC","variant":"off","value":false,"metadata":{"version":7,"halted":true}}`
	)
	for i, step := range []struct {
		halt *HaltDefinition
		want string
	}{
		{nil, matched},
		{&HaltDefinition{Key: "k", Version: 8, DefaultValue: "1", DefaultVariant: "x"}, newer},
		{&HaltDefinition{Key: "k", Version: 6, DefaultValue: "1", DefaultVariant: "x"}, older},
		{&HaltDefinition{Key: "k", Version: 8, DefaultValue: "1", DefaultVariant: "x"}, newer},
		{nil, matched},
	} {
		if e = e.Halted(step.halt); answers(e, &c) != step.want {
			t.Errorf("step %d:\n%s, want\n%s", i, answers(e, &c), step.want)
		}
		if at, _ := CompileFlag(&d, step.halt); answers(at, &c) != step.want {
			t.Errorf("step %d, compiled with the halt:\n%s, want\n%s", i, answers(at, &c), step.want)
		}
	}
}

// Answers are put together in steps of sixteen bytes: neither their lengths nor the room they find may show.
func TestAnswersAreWholeWhateverTheirLength(t *testing.T) {
	t.Parallel()
	for n := range 70 {
		value := `"` + strings.Repeat("v", n) + `"`
		e, err := CompileItem(&ItemDefinition{Key: "k" + strings.Repeat("e", n/3), Type: String, DefaultValue: value, Version: int64(n) << (n % 50)})
		if err != nil {
			t.Fatal(err)
		}
		want := answers(e, &Context{})
		if !strings.Contains(want, `{"value":`+value+`,"type":"string","reason":"default","version":`) || strings.Count(want, value) != 2 {
			t.Fatalf("%s", want)
		}
		for room := range 300 {
			dst := append(make([]byte, 0, 3+room), "abc"...)
			o := e.Decide(&Context{})
			got := e.AppendHandshake(dst, o)
			got = e.AppendOpenFeature(append(got, ' '), o)
			if string(got) != "abc"+want {
				t.Fatalf("with room for %d: %s, want %s", room, got, want)
			}
		}
	}
}

func TestRangesAreFoundHoweverManyThereAre(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 3, 8, 9, 200} {
		stretch := uint32(Buckets / n)
		r := rollout{}
		for i := range uint32(n) { // the second half of each stretch is nobody's
			r.ranges = append(r.ranges, choiceRange{i * stretch, i*stretch + stretch/2, uint16(i)})
		}
		e := Entry{rollout: &r}
		in := 0
		for i := range 20_000 {
			id := fmt.Appendf(nil, "user-%d", i)
			bucket := r.salt.bucket(id)
			choice, ok := e.roll(&r, &Context{distinctID: id})
			if want := bucket/stretch < uint32(n) && bucket%stretch < stretch/2; ok != want || ok && uint32(choice) != bucket/stretch {
				t.Fatalf("%d ranges: bucket %d gives %d, %v", n, bucket, choice, ok)
			}
			if ok {
				in++
			}
		}
		if in < 9_000 || in > 11_000 {
			t.Errorf("%d ranges: %d of 20,000 units in one, want about half", n, in)
		}
	}
}
