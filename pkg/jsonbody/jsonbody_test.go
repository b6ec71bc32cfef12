package jsonbody_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"skerry/pkg/instant"
	"skerry/pkg/jsonbody"
	"skerry/pkg/problem"
)

func TestStrictNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for body, message := range map[string]string{
		``:                          "the body is empty; a JSON object is expected",
		`[]`:                        "the body is not a JSON object",
		`{"name":1}`:                "name must be a string, not number",
		`{"nome":"a"}`:              `unknown member "nome"`,
		`{"name":"a"} {}`:           "there are bytes behind the JSON object",
		`{"name":`:                  "malformed JSON: it ends too early",
		`{"Name":"a"}`:              `unknown member "Name"`,
		`{"settings":{"Days":1}}`:   `unknown member "settings.Days"`,
		`{"name":"a",}`:             "malformed JSON at byte 13",
		`{"settings":{"days":"x"}}`: "settings.days must be an integer, not string",
		"{\"name\":\"\xff\"}":       "the body is not UTF-8",
	} {
		var into struct {
			Name     string `json:"name"`
			Settings struct {
				Days int `json:"days"`
			} `json:"settings"`
		}
		err := jsonbody.Strict(httptest.NewRequest("POST", "/", strings.NewReader(body)), &into)
		var p *problem.Error
		if !errors.As(err, &p) || p.Kind != problem.Invalid || p.Code != "invalid_body" || p.Message != message {
			t.Errorf("%s: %v, want invalid_body: %s", body, err, message)
		}
	}
}

func TestOfMembersOfOneNameTheLastCounts(t *testing.T) {
	t.Parallel()
	type delivery struct {
		Type string `json:"type"`
		To   string `json:"to"`
	}
	type settings struct {
		Name     string     `json:"name"`
		Days     int        `json:"days"`
		Delivery delivery   `json:"delivery"`
		Each     []delivery `json:"each"`
	}
	for body, want := range map[string]settings{
		`{"name":"a","name":"b"}`:       {Name: "b", Days: 7},
		`{"name":"a","name":null}`:      {Days: 7},
		`{"n\u0061me":"a","name":null}`: {Days: 7},
		`{"days":1,"days":null}`:        {Days: 7}, // as if it were absent
		`{"delivery":{"type":"email","to":"a"},"delivery":{"type":"url"}}`: {Days: 7, Delivery: delivery{Type: "url"}},
		`{"delivery":{"to":"a","type":"email","to":null}}`:                 {Days: 7, Delivery: delivery{Type: "email"}},
		`{"each":[{"type":"to","to":"type"}],"each":[{"to":"c"}]}`:         {Days: 7, Each: []delivery{{To: "c"}}},
	} {
		into := settings{Days: 7}
		if err := jsonbody.Unmarshal([]byte(body), &into); err != nil || !reflect.DeepEqual(into, want) {
			t.Errorf("%s: %+v %v, want %+v", body, into, err, want)
		}
	}
	for body, message := range map[string]string{
		`{"name":"a","nome":1,"nome":2}`: `unknown member "nome"`,
		`{"name":"a","name":5}`:          "name must be a string, not number",
		`{"name":"a","name":"b"} {}`:     "there are bytes behind the JSON object",
	} {
		var p *problem.Error
		if err := jsonbody.Unmarshal([]byte(body), &settings{}); !errors.As(err, &p) || p.Message != message {
			t.Errorf("%s: %v, want %s", body, err, message)
		}
	}
}

func TestTimesAreReadUnescapedAndNamedWhenTheyAreNone(t *testing.T) {
	t.Parallel()
	for body, message := range map[string]string{
		`{"range":{"since":"2026-01-02T03:04:05\u002B01:00"}}`: "", // as .NET writes the plus sign
		`{"range":{"since":null}}`:                             "",
		`{"range":{"since":7}}`:                                "range.since must be an ISO 8601 time such as 2026-01-02T03:04:05.678Z, not number",
		`{"range":{"since":["2026-01-02"]}}`:                   "range.since must be an ISO 8601 time such as 2026-01-02T03:04:05.678Z, not array",
		`{"range":{"since":"soon"}}`:                           `range.since must be an ISO 8601 time such as 2026-01-02T03:04:05.678Z, not "soon"`,
	} {
		var into struct {
			Range struct {
				Since *instant.Time `json:"since"`
			} `json:"range"`
		}
		err := jsonbody.Strict(httptest.NewRequest("POST", "/", strings.NewReader(body)), &into)
		var p *problem.Error
		switch {
		case message == "" && err != nil:
			t.Errorf("%s: %v", body, err)
		case message != "" && (!errors.As(err, &p) || p.Message != message):
			t.Errorf("%s: %v, want %s", body, err, message)
		case into.Range.Since != nil && message == "" && instant.Format(into.Range.Since.Time) != "2026-01-02T02:04:05.000Z":
			t.Errorf("%s: %v", body, into.Range.Since)
		}
	}
}

func TestOptionalTakesAnEmptyBodyForNothing(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{"": "", " \n": "", "{}": "", `{"n":1}`: "", `{"m":1}`: `unknown member "m"`, "1": "the body is not a JSON object"} {
		into := struct {
			N int `json:"n"`
		}{N: 7}
		// A body of unknown length, as clients send that write it in pieces.
		request := httptest.NewRequest("POST", "/", struct{ io.Reader }{strings.NewReader(body)})
		err := jsonbody.Optional(request, &into)
		if got := fmt.Sprint(err); want == "" && err != nil || want != "" && !strings.Contains(got, want) {
			t.Errorf("%q: %v, want %q", body, err, want)
		}
		if wantN := map[bool]int{true: 1, false: 7}[strings.Contains(body, `"n"`)]; into.N != wantN {
			t.Errorf("%q: n is %d, want %d", body, into.N, wantN)
		}
	}
}

// The cases are the examples of RFC 7396, appendix A.
func TestMergePatchFollowsRFC7396(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`["a","b"]`, `["c","d"]`, `["c","d"]`},
		{`{"a":"b"}`, `["c"]`, `["c"]`},
		{`{"a":"foo"}`, `null`, `null`},
		{`{"a":"foo"}`, `"bar"`, `"bar"`},
		{`{"e":null}`, `{"a":1}`, `{"e":null,"a":1}`},
		{`[1,2]`, `{"a":"b","c":null}`, `{"a":"b"}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
	} {
		got, err := jsonbody.MergePatch([]byte(c[0]), []byte(c[1]))
		if err != nil {
			t.Fatalf("%s + %s: %v", c[0], c[1], err)
		}
		var have, want any
		_ = json.Unmarshal(got, &have)
		_ = json.Unmarshal([]byte(c[2]), &want)
		if !reflect.DeepEqual(have, want) {
			t.Errorf("%s + %s = %s, want %s", c[0], c[1], got, c[2])
		}
	}
}
