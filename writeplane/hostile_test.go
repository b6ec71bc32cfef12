package writeplane

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// hostile are values that no member wants.
var hostile = []string{`null`, `1e999`, `-1`, `1.5`, `9223372036854775808`, `""`, `"\u0000"`, `"\ud800"`, `"` + strings.Repeat("x", 300_000) + `"`,
	`{}`, `[]`, `[null]`, `[[]]`, `{"a":{"b":[1]}}`, `true`, `"💥"`, `["\u0000"]`, `{"\u0000":"\u0000"}`, `"../../etc/passwd"`, `"' OR 1=1 --"`,
	strings.Repeat("[", 5000) + strings.Repeat("]", 5000)}

// bodies are hostile as a whole.
var bodies = []string{``, ` `, `null`, `[]`, `"x"`, `7`, `{`, `{}`, `{}{}`, "\xff\xfe", "{\"a\":\"\xff\"}", `{"a":1,"a":2}`, strings.Repeat("[", 100_000), "\x00"}

func TestNoBodyMakesAFault(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("about 4,000 calls")
	}
	w := newWhole(t)
	for _, l := range permissions {
		method, template, _ := strings.Cut(l.route, " ")
		if method == "GET" || strings.Contains(template, "{fresh_project}") || strings.HasPrefix(l.body, "--frontier") || template == "/api/v1/organization" {
			continue
		}
		path, valid := w.request(l, nil)
		try := func(body string) {
			t.Helper()
			status, answer := w.do(method, path, body, bearer(w.owner)...)
			text := fmt.Sprint(answer)
			leaks := strings.Contains(text, "SQLSTATE") || strings.Contains(text, "pgx") || strings.Contains(text, ".go:")
			if status >= 500 || status >= 400 && leaks { // a success may show a random secret with any letters
				t.Errorf("%s %.200s: %d %.300s", l.route, body, status, text)
			}
			if status >= 400 && answer["error"] == nil {
				t.Errorf("%s %.200s: %d without error: %.300s", l.route, body, status, text)
			}
		}
		for _, body := range bodies {
			try(body)
		}
		var members map[string]json.RawMessage
		if json.Unmarshal([]byte(valid), &members) != nil {
			continue
		}
		for name := range members {
			for _, value := range hostile {
				changed := map[string]json.RawMessage{}
				for other, kept := range members {
					changed[other] = kept
				}
				changed[name] = json.RawMessage(value)
				var body strings.Builder
				body.WriteByte('{')
				for other, kept := range changed {
					if body.Len() > 1 {
						body.WriteByte(',')
					}
					fmt.Fprintf(&body, "%q:%s", other, kept)
				}
				body.WriteByte('}')
				try(body.String())
			}
		}
	}
}

func TestNoQueryMakesAFault(t *testing.T) {
	t.Parallel()
	w := newWhole(t)
	for _, l := range permissions {
		method, _, _ := strings.Cut(l.route, " ")
		if method != "GET" {
			continue
		}
		path, _ := w.request(l, nil)
		separator := "?"
		if strings.Contains(path, "?") {
			separator = "&"
		}
		for _, name := range []string{"limit", "cursor", "since", "until", "environment", "project_id", "action", "month", "status", "order", "kind", "release", "distinct_id", "event_name", "actor_id"} {
			for _, value := range []string{"", "x", "%00", "%ff", "-1", "9999999999999999999999", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "294277-01-01T00:00:00Z", "2026-01-01T00:00:00%2B23:59", "%27", "*", strings.Repeat("a", 5000)} {
				status, answer := w.do(method, path+separator+name+"="+value, "", bearer(w.owner)...)
				if status >= 500 {
					t.Errorf("%s %s=%.60s: %d %v", l.route, name, value, status, answer)
				}
			}
		}
		// The id in the path itself.
		for _, id := range []string{"%00", "%ff", "x%2Fy", "..%2f", strings.Repeat("a", 3000), "00000000-0000-0000-0000-000000000000", "%F0%9F%92%A5"} {
			broken := path
			for _, segment := range strings.Split(strings.Split(path, "?")[0], "/") {
				if len(segment) > 20 || strings.HasPrefix(segment, "cohort") && len(segment) > 7 || strings.HasPrefix(segment, "person") && len(segment) > 7 {
					broken = strings.Replace(path, segment, id, 1)
				}
			}
			if broken == path {
				continue
			}
			if status, answer := w.do(method, broken, "", bearer(w.owner)...); status >= 500 || status < 300 {
				t.Errorf("%s as %.80s: %d %v", l.route, broken, status, answer)
			}
		}
	}
}
