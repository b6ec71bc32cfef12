package decide

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestValuesKeepWhatTheirTypeAllows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		typ      Type
		in, want string // want "!…": refused, with these words
	}{
		{Bool, "true", "true"},
		{Boolean, " false ", "false"},
		{Bool, "TRUE", "!true or false"},
		{Bool, `"true"`, "!true or false"},
		{Bool, "1", "!true or false"},
		{Bool, "", "!true or false"},
		{Int, "12", "12"},
		{Int, "-9223372036854775808", "-9223372036854775808"},
		{Int, "9007199254740993", "9007199254740993"},
		{Int, "9223372036854775808", "!64 bits"},
		{Int, "12.0", "!whole number"},
		{Int, "1e3", "!whole number"},
		{Int, "012", "!whole number"},
		{Int, "+1", "!whole number"},
		{Int, `"12"`, "!whole number"},
		{Int, "", "!whole number"},
		{Int, "null", "!whole number"},
		{Float, "12", "12"},
		{Float, "0.10", "0.10"},
		{Float, "3.14159265358979323846264338327950288", "3.14159265358979323846264338327950288"},
		{Float, "1e999", "!64-bit"},
		{Float, "NaN", "!number"},
		{Float, ".5", "!number"},
		{Number, "1E-2", "1E-2"},
		{Number, "0x10", "!number"},
		{String, `"blue"`, `"blue"`},
		{String, `blue`, `"blue"`},
		{String, ``, `""`},
		{String, `say "hi"`, `"say \"hi\""`},
		{String, `"half`, `"\"half"`},
		{String, `"a" "b"`, `"\"a\" \"b\""`},
		{String, `12`, `"12"`},
		{String, "two\nlines\x01", `"two\nlines\u0001"`},
		{String, `"\u00e4<>"`, `"\u00e4<>"`},
		{String, " padded ", `" padded "`},
		{JSON, `{ "a" : [ 1 , 2.50 ] }`, `{"a":[1,2.50]}`},
		{JSON, `123456789012345678901234567890`, `123456789012345678901234567890`},
		{JSON, `null`, `null`},
		{JSON, `{"a":1,}`, "!JSON"},
		{JSON, `{"a":1} x`, "!JSON"},
		{JSON, ``, "!JSON"},
		{JSON, strings.Repeat("[", 512) + strings.Repeat("]", 512), strings.Repeat("[", 512) + strings.Repeat("]", 512)},
		{JSON, strings.Repeat("[", 513) + strings.Repeat("]", 513), "!too deep"},
		{JSON, "\"\xff\"", "!UTF-8"},
		{"colour", "1", "!unknown type"},
	} {
		got, err := NormalizeValue(c.typ, c.in)
		if words, refused := strings.CutPrefix(c.want, "!"); refused {
			if err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("%s %q: %q, %v; want an error with %q", c.typ, c.in, got, err, words)
			}
		} else if err != nil || got != c.want {
			t.Errorf("%s %q: %q, %v; want %q", c.typ, c.in, got, err, c.want)
		}
	}
}

func TestKeysAreOfTheAllowedCharacters(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]bool{
		"a": true, "A.b_c-9": true, ".": true, strings.Repeat("k", 128): true,
		"": false, "a b": false, "ä": false, "a/b": false, strings.Repeat("k", 129): false, "a\n": false,
	} {
		if ValidKey(key) != want {
			t.Errorf("%q: %v", key, !want)
		}
	}
}

// FuzzReader compares with encoding/json, which is laxer in one thing only: it replaces invalid UTF-8.
func FuzzReader(f *testing.F) {
	for _, s := range []string{
		`{"a":[1,-2.5e+3,true,false,null,"\u00e4\ud83d\ude00\n"],"b":{}}`, `[`, `{"a"}`, `"\ud800"`, `01`, `1.`, `-`, `1e`, ` [ ] `, "\"\x01\"", `[1,]`, `nul`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r := reader{in: in}
		got, err := r.compact(nil)
		if err == nil {
			err = r.end()
		}
		var buf bytes.Buffer
		valid := utf8.Valid(in) && json.Compact(&buf, in) == nil
		if err != nil {
			if valid && !strings.Contains(err.Error(), "deep") {
				t.Fatalf("%q refused: %v", in, err)
			}
			return
		}
		if !valid || !bytes.Equal(got, buf.Bytes()) {
			t.Fatalf("%q: %q, want %q (%v)", in, got, buf.Bytes(), valid)
		}
		if in = bytes.TrimLeft(in, " \t\r\n"); in[0] == '"' {
			var want string
			_ = json.Unmarshal(in, &want)
			r := reader{in: in}
			if s, err := r.str(); err != nil || string(s) != want {
				t.Fatalf("%q decodes to %q, want %q", in, s, want)
			}
		}
	})
}
