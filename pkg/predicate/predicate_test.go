package predicate

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// user is a set of facts written down by hand.
type user struct {
	session int64
	props   map[string]string
	cohorts []string
	events  []string
	screens []string
}

func (u user) SessionAtLeast(n int64) bool { return u.session > 0 && u.session >= n }
func (u user) PropIs(k, v string) bool     { got, ok := u.props[k]; return ok && got == v }
func (u user) InCohort(n string) bool      { return slices.Contains(u.cohorts, n) }
func (u user) SawEvent(n string) bool      { return slices.Contains(u.events, n) }
func (u user) SawScreen(n string) bool     { return slices.Contains(u.screens, n) }

func TestEachFormMatchesWhatTheSpecificationSays(t *testing.T) {
	t.Parallel()
	ada := user{
		session: 3,
		props:   map[string]string{"plan": "pro", "a key": "x", "städte": "Köln, Bonn", "quote": `say "hi"`},
		cohorts: []string{"beta", "v1.0_x-y"},
		events:  []string{"checkout_completed", "Added (twice)"},
		screens: []string{"Settings/Billing", "Home Screen"},
	}
	for text, want := range map[string]bool{
		`event:checkout_completed`:                   true,
		`event:checkout`:                             false,
		`event:"Added (twice)"`:                      true,
		`session_count >= 3`:                         true,
		`session_count>=4`:                           false,
		`session_count >= 0`:                         true,
		`cohort:beta`:                                true,
		`cohort:v1.0_x-y`:                            true,
		`cohort:Beta`:                                false,
		`screen:Settings/Billing`:                    true,
		`screen:Home Screen`:                         true,
		`screen:  Home Screen  `:                     true,
		`props.plan = "pro"`:                         true,
		`props.plan="free"`:                          false,
		`props.none = ""`:                            false,
		`props."a key" = "x"`:                        true,
		`props.städte = "Köln, Bonn"`:                true,
		`props.quote = "say \"hi\""`:                 true,
		`props.plan = "\u0070ro"`:                    true,
		`AND(cohort:beta, session_count >= 3)`:       true,
		`AND(cohort:beta,session_count >= 9)`:        false,
		`OR(cohort:none, props.plan = "pro")`:        true,
		`OR(cohort:none, cohort:other)`:              false,
		`AND(cohort:beta, cohort:beta, cohort:none)`: false,
		` AND ( OR( cohort:none , cohort:beta ) , props.plan = "pro" ) `: true,
	} {
		p, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := p.Eval(ada); got != want {
			t.Errorf("%s is %v, want %v", text, got, want)
		}
		if got := EvalProgram(string(p.AppendProgram(nil)), ada); got != want {
			t.Errorf("the program of %s is %v, want %v", text, got, want)
		}
	}
}

func TestUnknownSessionMatchesNoSessionCount(t *testing.T) {
	t.Parallel()
	p, err := Parse("session_count >= 0")
	if err != nil {
		t.Fatal(err)
	}
	if p.Eval(user{}) {
		t.Error("an unknown session is taken for a session")
	}
}

func TestErrorsNameTheirPosition(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		pos  int
		want string
	}{
		{``, 1, "found the end"},
		{`   `, 4, "found the end"},
		{`plan = "pro"`, 1, `found 'p'`},
		{`event:`, 7, "the event's name"},
		{`event:,x`, 7, `found ','`},
		{`screen:""`, 8, "empty screen name"},
		{`event:a, event:b`, 8, "unexpected ','"},
		{`cohort:`, 8, "cohort's name"},
		{`cohort:be ta`, 11, "unexpected 't'"},
		{`cohort:` + strings.Repeat("x", 129), 8, "longer than 128"},
		{`session_count > 3`, 15, `expected ">="`},
		{`session_count >= x`, 18, "whole number"},
		{`session_count >= -1`, 18, "whole number"},
		{`session_count >= 1.5`, 19, "unexpected '.'"},
		{`session_count >= 9223372036854775808`, 18, "too large"},
		{`props. = "x"`, 7, "property's key"},
		{`props."" = "x"`, 7, "property's key"},
		{`props.plan "x"`, 12, `expected "="`},
		{`props.plan = pro`, 14, "double quotes"},
		{`props.plan = 'pro'`, 14, "double quotes"},
		{`props.plan = "pro`, 14, "closing quote"},
		{`props.plan = "p\x"`, 14, "bad escape"},
		{`props.plan = "a\ud800b"`, 16, "surrogate"},
		{"props.plan = \"a\nb\"", 16, "control character"},
		{`props.plan = "pro" x`, 20, "unexpected 'x'"},
		{`AND(cohort:a)`, 1, "two or more"},
		{`OR()`, 4, "found ')'"},
		{`AND(cohort:a, )`, 15, "found ')'"},
		{`AND(cohort:a, cohort:b`, 23, `expected "," or ")"`},
		{`AND(cohort:a, cohort:b))`, 24, "unexpected ')'"},
		{`and(cohort:a, cohort:b)`, 1, "found 'a'"},
		{`AND cohort:a`, 1, "found 'A'"},
		{`OR(cohort:a, AND(cohort:b, köhort:c))`, 28, `found 'k'`},
		{"event:a\xff", 8, "invalid UTF-8"},
		{"event:äö\x01", 9, `unexpected '\x01'`},
	} {
		_, err := Parse(c.text)
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%q: accepted or of another type: %v", c.text, err)
			continue
		}
		if e.Pos != c.pos || !strings.Contains(e.Reason, c.want) {
			t.Errorf("%q: %v; want %q at position %d", c.text, err, c.want, c.pos)
		}
	}
}

func nested(depth int) string {
	return strings.Repeat("AND(cohort:a,", depth) + "cohort:b" + strings.Repeat(")", depth)
}

func TestNestingStopsAt32(t *testing.T) {
	t.Parallel()
	if _, err := Parse(nested(32)); err != nil {
		t.Errorf("32 deep: %v", err)
	}
	if _, err := Parse(nested(33)); err == nil || !strings.Contains(err.Error(), "nested deeper than 32") {
		t.Errorf("33 deep: %v", err)
	}
}

func TestTextStopsAt4096Bytes(t *testing.T) {
	t.Parallel()
	fits := "event:" + strings.Repeat("x", 4090)
	if _, err := Parse(fits); err != nil {
		t.Errorf("4096 bytes: %v", err)
	}
	if _, err := Parse(fits + "x"); err == nil || !strings.Contains(err.Error(), "longer than 4096 bytes at position 4097") {
		t.Errorf("4097 bytes: %v", err)
	}
}

func TestOnlyClientFormsAreRefusedForTheServer(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`AND(cohort:a, OR(props.b = "c", session_count >= 2))`: "",
		`event:a`:                               "event: is known to the client only and cannot be used here at position 1",
		`AND(cohort:a, OR(cohort:b, screen:c))`: "screen: is known to the client only and cannot be used here at position 28",
	} {
		p, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := p.CheckServer(); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestCanonicalFormIsSpacedAsInTheSpecification(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		` AND( cohort:a ,OR(props.b="c",session_count>=02))`: `AND(cohort:a, OR(props.b = "c", session_count >= 2))`,
		`event: "plain name" `:                               `event:plain name`,
		`event:" padded"`:                                    `event:" padded"`,
		`screen:"a,b"`:                                       `screen:"a,b"`,
		`props."k=v" = "\u00e4\/\u0001"`:                     `props."k=v" = "ä/\u0001"`,
	} {
		p, err := Parse(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if got := p.String(); got != want {
			t.Errorf("%s prints as %s, want %s", text, got, want)
		}
	}
}

func TestCanonicalFormOfALongTextStaysWithinTheLimit(t *testing.T) {
	t.Parallel()
	text := "OR(" + strings.TrimSuffix(strings.Repeat(`props.a="b",`, 340), ",") + ")"
	p, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := p.String(); got != text {
		t.Errorf("%d bytes became %d", len(text), len(got))
	}
}

func equal(a, b *Node) bool {
	return a.Kind == b.Kind && a.Name == b.Name && a.Value == b.Value && a.Count == b.Count &&
		slices.EqualFunc(a.Args, b.Args, func(x, y Node) bool { return equal(&x, &y) })
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`event:a`, `session_count >= 3`, `cohort:b`, `screen:"x y"`, `props.k = "v\u00e4\n"`, `AND(cohort:a, OR(event:b, screen:c))`,
		nested(33), `props."\ud83d\ude00"="\ud800"`, "event:\x00", `session_count >= 99999999999999999999`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse(text)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Pos < 1 || e.Pos > len(text)+1 {
				t.Fatalf("%q: error without a position inside: %v", text, err)
			}
			return
		}
		program := string(p.AppendProgram(nil))
		if len(program) > len(text) {
			t.Fatalf("%q: its program is longer", text)
		}
		for _, u := range []user{{}, {session: 3, props: map[string]string{"k": "v"}, cohorts: []string{"a"}, events: []string{"b"}, screens: []string{"c"}}} {
			if p.Eval(u) != EvalProgram(program, u) {
				t.Fatalf("%q: its program says otherwise of %+v", text, u)
			}
		}
		printed := p.String()
		again, err := Parse(printed)
		if err != nil {
			t.Fatalf("%q prints as %q, which does not parse: %v", text, printed, err)
		}
		if !equal(p.Root(), again.Root()) || again.String() != printed {
			t.Fatalf("%q prints as %q, which is another tree (%q)", text, printed, again.String())
		}
	})
}

func BenchmarkEval(b *testing.B) {
	p, err := Parse(`AND(props.plan = "pro", OR(cohort:beta, session_count >= 3))`)
	if err != nil {
		b.Fatal(err)
	}
	u := user{session: 3, props: map[string]string{"plan": "pro"}}
	b.ReportAllocs()
	for b.Loop() {
		p.Eval(&u)
	}
}
