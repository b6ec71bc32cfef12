package survey

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
)

func jsonNumber(text string) bool {
	return text != "" && (text[0] == '-' || text[0] >= '0' && text[0] <= '9') && json.Valid([]byte(text))
}

// The splitter must agree with encoding/json on everything that is valid.
func FuzzSplit(f *testing.F) {
	for _, seed := range []string{
		`{"a":1,"b":[1,2,{"c":"}"}],"a":"\"]"}`, ` { "a" : null , "\u0062" : -1.5e3 } `, `{}`, `[ ]`, `[1,"a",[],{}]`, `["\\",",","\""]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if !json.Valid(raw) {
			return
		}
		switch skipSpace(raw)[0] {
		case '{':
			var want map[string]json.RawMessage
			if err := json.Unmarshal(raw, &want); err != nil {
				return
			}
			got := map[string]json.RawMessage{}
			members(raw, func(key string, value []byte) { got[key] = value })
			compare := func(m map[string]json.RawMessage) map[string]string {
				texts := map[string]string{}
				for k, v := range m {
					texts[string(bytes.ToValidUTF8([]byte(k), []byte("\uFFFD")))] = string(bytes.TrimSpace(v))
				}
				return texts
			}
			if !validKeys(raw) {
				return
			}
			if !reflect.DeepEqual(compare(got), compare(want)) {
				t.Fatalf("%q split as %q, want %q", raw, got, want)
			}
		case '[':
			var want, got []json.RawMessage
			if err := json.Unmarshal(raw, &want); err != nil {
				return
			}
			elements(raw, func(value []byte) bool { got = append(got, value); return true })
			if len(got) != len(want) {
				t.Fatalf("%q split into %d, want %d", raw, len(got), len(want))
			}
			for i := range got {
				if !bytes.Equal(got[i], bytes.TrimSpace(want[i])) {
					t.Fatalf("%q: element %d is %q, want %q", raw, i, got[i], want[i])
				}
			}
		}
	})
}

// validKeys is what readObject demands before anything is split.
func validKeys(raw []byte) bool { return bytes.Equal(raw, bytes.ToValidUTF8(raw, nil)) }
