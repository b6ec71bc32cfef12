package decide

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"skerry/pkg/predicate"
)

func handshakeContext(t testing.TB, body string) *Context {
	t.Helper()
	c := new(Context)
	c.Reset()
	if err := c.ReadHandshake([]byte(body)); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return c
}

func TestHandshakeBodiesAreReadStrictly(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]error{
		`{"distinct_id":"u"}`: nil,
		`{"distinct_id":"u","anon_id":null,"session_count":null,"props":null,"other":[1,{}]}`: nil,
		`{"distinct_id":"u","session_count":3.0}`:                                             nil,
		`{"distinct_id":1,"distinct_id":"u"}`:                                                 nil,
		`{"props":7,"distinct_id":"u","props":{}}`:                                            nil,
		``:                                          ErrSyntax,
		`[]`:                                        ErrSyntax,
		`{"distinct_id":"u"`:                        ErrSyntax,
		`{"distinct_id":"u"} {}`:                    ErrSyntax,
		`{"distinct_id":"u","props":{"a":01}}`:      ErrSyntax,
		"{\"distinct_id\":\"\xff\"}":                ErrSyntax,
		`{}`:                                        ErrDistinctID,
		`{"distinct_id":""}`:                        ErrDistinctID,
		`{"distinct_id":null}`:                      ErrDistinctID,
		`{"distinct_id":7}`:                         ErrDistinctID,
		`{"distinct_id":"u","distinct_id":{}}`:      ErrDistinctID,
		`{"props":7}`:                               ErrDistinctID,
		`{"distinct_id":"u","props":7}`:             ErrProps,
		`{"distinct_id":"u","props":[]}`:            ErrProps,
		`{"distinct_id":"u","props":"{}"}`:          ErrProps,
		`{"distinct_id":"u","anon_id":7}`:           ErrAnonID,
		`{"distinct_id":"u","session_count":-1}`:    ErrSession,
		`{"distinct_id":"u","session_count":1.5}`:   ErrSession,
		`{"distinct_id":"u","session_count":"3"}`:   ErrSession,
		`{"distinct_id":"u","session_count":1e999}`: ErrSession,
		`{"distinct_id":"u","props":` + strings.Repeat(`{"a":`, 600) + `1` + strings.Repeat(`}`, 601): ErrSyntax,
	} {
		var c Context
		c.Reset()
		err := c.ReadHandshake([]byte(body))
		if first := firstOf(err); first != want {
			t.Errorf("%.80s: %v, want %v", body, err, want)
		}
	}
}

func firstOf(err error) error {
	for _, e := range []error{ErrSyntax, ErrDistinctID, ErrProps, ErrAnonID, ErrSession, ErrContext} {
		if errors.Is(err, e) {
			return e
		}
	}
	return err
}

func TestOpenFeatureBodiesAreReadStrictly(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]error{
		`{"context":{"targetingKey":"u"}}`:                   nil,
		`{"context":{"targetingKey":"u","session_count":2}}`: nil,
		`{"context":null,"context":{"targetingKey":"u"}}`:    nil,
		`{}`:                              ErrDistinctID,
		`{"context":null}`:                ErrDistinctID,
		`{"context":{}}`:                  ErrDistinctID,
		`{"context":{"targetingKey":""}}`: ErrDistinctID,
		`{"context":{"targetingKey":7}}`:  ErrContext,
		`{"context":[]}`:                  ErrContext,
		`{"context":{"targetingKey":"u","anon_id":7}}`: ErrAnonID,
		`{"context":{"targetingKey":"u"}`:              ErrSyntax,
		`null`:                                         ErrSyntax,
	} {
		var c Context
		c.Reset()
		if err := c.ReadOpenFeature([]byte(body)); firstOf(err) != want {
			t.Errorf("%s: %v, want %v", body, err, want)
		}
	}
}

func TestPropertiesMatchTheTextOfTheirValue(t *testing.T) {
	t.Parallel()
	c := handshakeContext(t, `{"distinct_id":"u","props":{"s":"x","n":30,"f":1.50,"yes":true,"no":false,"nil":null,"list":["x"],"dup":1,"dup":"two","esc":"\u00e4\n","":"empty"}}`)
	for _, w := range []struct {
		key, value string
		want       bool
	}{
		{"s", "x", true}, {"s", "X", false}, {"s", "", false}, {"n", "30", true}, {"n", "30.0", false}, {"f", "1.50", true}, {"f", "1.5", false},
		{"yes", "true", true}, {"no", "false", true}, {"nil", "null", false}, {"list", `["x"]`, false}, {"dup", "1", false}, {"dup", "two", true},
		{"esc", "ä\n", true}, {"", "empty", true}, {"absent", "", false},
	} {
		if got := c.PropIs(w.key, w.value); got != w.want {
			t.Errorf("%s = %q is %v", w.key, w.value, got)
		}
	}
}

func TestManyPropertiesAreFoundToo(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i := range 500 {
		fmt.Fprintf(&b, `%s"key-%d":%d`, map[bool]string{true: "", false: ","}[i == 0], i*7919%500, i*7919%500)
	}
	c := handshakeContext(t, `{"distinct_id":"u","props":{`+b.String()+`}}`)
	for i := range 500 {
		if !c.PropIs(fmt.Sprintf("key-%d", i), fmt.Sprint(i)) {
			t.Fatalf("key-%d is not found", i)
		}
	}
	if c.PropIs("key-500", "500") || c.PropIs("", "") {
		t.Error("found what is not there")
	}
}

func TestDigestIsTheSameForTheSameContextOnly(t *testing.T) {
	t.Parallel()
	base := `{"distinct_id":"u","anon_id":"a","session_count":3,"props":{"k":"v","n":1}}`
	want := handshakeContext(t, base).Digest()
	for _, same := range []string{
		`{ "props" : { "n" : 1 , "k" : "v" } , "session_count" : 3 , "anon_id" : "a" , "distinct_id" : "u" }`,
		`{"distinct_id":"\u0075","anon_id":"a","session_count":3.0,"props":{"k":"other","\u006b":"v","n":1},"unknown":true}`,
	} {
		if handshakeContext(t, same).Digest() != want {
			t.Errorf("%s has another digest", same)
		}
	}
	for _, other := range []string{
		`{"distinct_id":"v","anon_id":"a","session_count":3,"props":{"k":"v","n":1}}`,
		`{"distinct_id":"u","session_count":3,"props":{"k":"v","n":1}}`,
		`{"distinct_id":"ua","session_count":3,"props":{"k":"v","n":1}}`,
		`{"distinct_id":"u","anon_id":"a","props":{"k":"v","n":1}}`,
		`{"distinct_id":"u","anon_id":"a","session_count":0,"props":{"k":"v","n":1}}`,
		`{"distinct_id":"u","anon_id":"a","session_count":3,"props":{"k":"v","n":"1"}}`,
		`{"distinct_id":"u","anon_id":"a","session_count":3,"props":{"k":"v"}}`,
		`{"distinct_id":"u","anon_id":"a","session_count":3,"props":{"kv":"","n":1}}`,
		`{"distinct_id":"u","anon_id":"a","session_count":3,"props":{"k":"v","n":1,"z":null}}`,
		`{"distinct_id":"u","anon_id":"a","session_count":3,"props":{"k":["v"],"n":1}}`,
	} {
		if handshakeContext(t, other).Digest() == want {
			t.Errorf("%s has the same digest", other)
		}
	}
}

// The digest is in tags that clients keep, and every edge must agree on it: this value may never change.
func TestDigestIsTheSameInEveryRelease(t *testing.T) {
	t.Parallel()
	d := handshakeContext(t, `{"distinct_id":"u","anon_id":"a","session_count":3,"props":{"k":"v","n":1.0,"t":true,"z":null,"o":{"a":[1,2]}}}`).Digest()
	if got := hex.EncodeToString(d[:]); got != "c39ec214ab5bc2981682ff39f50533de" {
		t.Errorf("digest %s", got)
	}
}

func TestContextHasTheSameDigestFromEachEndpoint(t *testing.T) {
	t.Parallel()
	var q, o Context
	q.Reset()
	_ = q.SetDistinctID([]byte("u"))
	q.SetAnonID([]byte("a"))
	if q.SetSession([]byte("3")) != nil || q.SetProps([]byte(`{"k":"v"}`)) != nil {
		t.Fatal("refused")
	}
	o.Reset()
	if err := o.ReadOpenFeature([]byte(`{"context":{"k":"v","session_count":3,"anon_id":"a","targetingKey":"u"}}`)); err != nil {
		t.Fatal(err)
	}
	if want := handshakeContext(t, `{"distinct_id":"u","anon_id":"a","session_count":3,"props":{"k":"v"}}`).Digest(); q.Digest() != want || o.Digest() != want {
		t.Error("digests differ")
	}
}

type listed map[string]bool

func (l listed) Has(id string) (in, known bool) { return l[id], !l["unreadable"] }

func TestCohortsAreByPredicateListOrBoth(t *testing.T) {
	t.Parallel()
	parse := func(text string) *predicate.Predicate {
		p, err := predicate.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	set := NewCohortSet([]Cohort{
		{Name: "pro", Predicate: parse(`props.plan = "pro"`)},
		{Name: "listed", Members: listed{"ada": true}},
		{Name: "either", Predicate: parse(`props.plan = "pro"`), Members: listed{"bob": true}},
		{Name: "of-listed", Predicate: parse(`cohort:listed`)},
		{Name: "circle-a", Predicate: parse(`cohort:circle-b`)},
		{Name: "circle-b", Predicate: parse(`cohort:circle-a`)},
		{Name: "dangling", Predicate: parse(`cohort:gone`)},
	})
	for body, want := range map[string]string{
		`{"distinct_id":"ada"}`:                        `["listed","of-listed"]`,
		`{"distinct_id":"bob"}`:                        `["either"]`,
		`{"distinct_id":"eve"}`:                        `[]`,
		`{"distinct_id":"ada","props":{"plan":"pro"}}`: `["either","listed","of-listed","pro"]`,
	} {
		c := handshakeContext(t, body)
		c.UseCohorts(set)
		if got := string(c.AppendCohorts(nil)); got != want {
			t.Errorf("%s is in %s, want %s", body, got, want)
		}
		if c.InCohort("gone") {
			t.Error("an unknown cohort holds somebody")
		}
	}
}

func TestAListThatCannotTellMakesUnsure(t *testing.T) {
	t.Parallel()
	predicate, err := predicate.Parse(`props.plan = "pro"`)
	if err != nil {
		t.Fatal(err)
	}
	good, bad := NewCohortSet([]Cohort{{Name: "a", Members: listed{}}}), NewCohortSet([]Cohort{
		{Name: "a", Members: listed{}}, {Name: "b", Predicate: predicate, Members: listed{"unreadable": true}}})
	for _, c := range []struct {
		body string
		ask  func(*Context)
		want bool
	}{
		{`{"distinct_id":"u"}`, func(c *Context) { c.InCohort("a") }, false},
		{`{"distinct_id":"u"}`, func(c *Context) { c.InCohort("b") }, true},
		{`{"distinct_id":"u"}`, func(c *Context) { c.InCohort("b"); c.InCohort("a") }, true},
		{`{"distinct_id":"u"}`, func(c *Context) { c.AppendCohorts(nil) }, true},
		{`{"distinct_id":"u","props":{"plan":"pro"}}`, func(c *Context) { c.AppendCohorts(nil) }, false}, // the list does not matter
		{`{"distinct_id":"u"}`, func(c *Context) { c.InCohort("b"); c.UseCohorts(good) }, false},
		{`{"distinct_id":"u"}`, func(c *Context) { c.InCohort("b"); c.Reset() }, false},
	} {
		context := handshakeContext(t, c.body)
		context.UseCohorts(bad)
		if c.ask(context); context.Unsure() != c.want {
			t.Errorf("%s: unsure is %t", c.body, context.Unsure())
		}
	}
}

func TestShardsAreEven(t *testing.T) {
	t.Parallel()
	count := make([]int, 128)
	for i := range 128_000 {
		count[Shard(fmt.Sprintf("user-%d", i), len(count))]++
	}
	for n, c := range count {
		if c < 850 || c > 1150 {
			t.Errorf("shard %d holds %d", n, c)
		}
	}
	if Shard("anything", 1) != 0 {
		t.Error("one shard is not the first")
	}
}

func FuzzContext(f *testing.F) {
	f.Add([]byte(`{"distinct_id":"u","anon_id":"a","session_count":3,"props":{"k":"v","n":1.0,"t":true,"z":null,"o":{"a":[1,2]}}}`))
	f.Add([]byte(`{"context":{"targetingKey":"u","x":"\ud83d\ude00"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var a, b Context
		a.Reset()
		b.Reset()
		_ = b.ReadOpenFeature(body)
		if err := a.ReadHandshake(body); err != nil {
			if !json.Valid(body) && !errors.Is(err, ErrSyntax) {
				t.Fatalf("%q: %v", body, err)
			}
			return
		}
		if !json.Valid(body) {
			t.Fatalf("%q accepted", body)
		}
		first := a.Digest()
		a.Reset()
		_ = a.ReadHandshake(body)
		if a.Digest() != first {
			t.Fatalf("%q: another digest at the second reading", body)
		}
	})
}
