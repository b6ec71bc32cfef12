package crash

import (
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"skerry/pkg/problem"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

const whole = `{"release":"1.2.3","platform":"javascript","timestamp":"2026-01-02T03:04:05+01:00","distinct_id":"u1",
"exception":{"type":"TypeError","value":"x is undefined"},"frames":[{"filename":"app.min.js","function":"t","lineno":1,"colno":20.0,"extra":true},
{"address":"0x1000","image_base":"0x400","debug_id":"AB","module":"m","lineno":null}],"stacktrace":"raw","ignored":[]}`

func TestDecodeKeepsEveryMemberOfTheSpecification(t *testing.T) {
	t.Parallel()
	e, err := Decode([]byte(whole), noon)
	if err != nil {
		t.Fatal(err)
	}
	body, err := e.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"release":"1.2.3","platform":"javascript","timestamp":"2026-01-02T02:04:05.000Z","distinct_id":"u1",` +
		`"exception":{"type":"TypeError","value":"x is undefined"},"frames":[{"filename":"app.min.js","function":"t","lineno":1,"colno":20},` +
		`{"module":"m","debug_id":"AB","address":"0x1000","image_base":"0x400"}],"stacktrace":"raw"}`
	if string(body) != want {
		t.Errorf("got  %s\nwant %s", body, want)
	}
	again, err := Unmarshal(body)
	if err != nil {
		t.Fatal(err)
	}
	if twice, _ := again.Marshal(); string(twice) != want {
		t.Errorf("stored form is not stable: %s", twice)
	}
}

func TestDecodeNamesTheMemberThatIsWrong(t *testing.T) {
	t.Parallel()
	const tail = `"exception":{"type":"E","value":""},"frames":[]}`
	for body, want := range map[string]string{
		`[]`:                        "the body is not a JSON object",
		`{"release":`:               "the body is not a JSON object",
		"{\"release\":\"\xff\"}":    "the body is not UTF-8",
		`{"platform":"ndk",` + tail: "release is required",
		`{"release":"1",` + tail:    "platform is required",
		`{"RELEASE":"1","platform":"ndk",` + tail:                                                "release is required",
		`{"release":1,"platform":"ndk",` + tail:                                                  "release must be a string",
		`{"release":"a\u0000","platform":"ndk",` + tail:                                          "release must not contain NUL",
		`{"release":"1","platform":"windows",` + tail:                                            "platform must be one of javascript, ios, android, ndk, flutter",
		`{"release":"1","platform":"ndk","timestamp":"soon",` + tail:                             "timestamp must be an ISO 8601 time",
		`{"release":"1","platform":"ndk","frames":[]}`:                                           "exception is required",
		`{"release":"1","platform":"ndk","exception":[],"frames":[]}`:                            "exception must be an object",
		`{"release":"1","platform":"ndk","exception":{},"frames":[]}`:                            "exception.type is required",
		`{"release":"1","platform":"ndk","exception":{"type":"E","value":""}}`:                   "frames is required",
		`{"release":"1","platform":"ndk","exception":{"type":"E"},"frames":{}}`:                  "frames must be an array",
		`{"release":"1","platform":"ndk","exception":{"type":"E"},"frames":[1]}`:                 "frames[0] must be an object",
		`{"release":"1","platform":"ndk","exception":{"type":"E"},"frames":[{},{"lineno":"7"}]}`: "frames[1].lineno must be an integer",
		`{"release":"1","platform":"ndk","exception":{"type":"E"},"frames":[{"lineno":7.5}]}`:    "frames[0].lineno must be an integer",
		`{"release":"1","platform":"ndk","exception":{"type":"E"},"frames":[{"colno":1e999}]}`:   "frames[0].colno must be an integer",
		`{"release":"1","platform":"ndk","exception":{"type":"E"},"frames":[{"address":4096}]}`:  "frames[0].address must be a string",
	} {
		_, err := Decode([]byte(body), noon)
		var fault *problem.Error
		if !errors.As(err, &fault) || fault.Code != "invalid_body" || fault.Message != want {
			t.Errorf("%s: got %v, want %s", body, err, want)
		}
	}
}

func TestTimestampFarAheadIsDropped(t *testing.T) {
	t.Parallel()
	body := strings.Replace(whole, "2026-01-02T03:04:05+01:00", "2026-01-03T12:00:01Z", 1)
	e, err := Decode([]byte(body), noon)
	if err != nil || !e.Timestamp.IsZero() {
		t.Fatalf("got %v, %v", e.Timestamp, err)
	}
}

func TestTooManyFramesAndTooManyBytesAreRefused(t *testing.T) {
	t.Parallel()
	head := `{"release":"1","platform":"ndk","exception":{"type":"E"},"frames":[{}`
	_, err := Decode([]byte(head+strings.Repeat(",{}", MaxFrames)+"]}"), noon)
	if err == nil || !strings.Contains(err.Error(), "more than 20000") {
		t.Errorf("frames: %v", err)
	}
	_, err = Decode(make([]byte, MaxBodyBytes+1), noon)
	var fault *problem.Error
	if !errors.As(err, &fault) || fault.Kind != problem.TooLarge {
		t.Errorf("bytes: %v", err)
	}
}

// What cannot become a report must not take more memory than one. Not parallel: what
// others allocate meanwhile would be counted.
func TestHostileBodiesTakeNoMoreMemoryThanTheirText(t *testing.T) {
	const head = `{"release":"1","platform":"ndk","exception":{"type":"E"},`
	const room = MaxBodyBytes - 100
	for what, body := range map[string]string{
		"numbers for frames":   head + `"frames":[1` + strings.Repeat(",1", room/2) + `]}`,
		"empty frames":         head + `"frames":[{}` + strings.Repeat(",{}", room/3) + `]}`,
		"members nobody knows": head + `"frames":[],"x":{` + strings.Repeat(`"":1,`, room/5) + `"":1},"":0` + `}`,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = Decode([]byte(body), noon)
		runtime.ReadMemStats(&after)
		if taken := after.TotalAlloc - before.TotalAlloc; taken > 2*MaxBodyBytes { // the copy of body is one
			t.Errorf("%s: %d bytes", what, taken)
		}
	}
}

func TestStoredFormIsNoLargerThanABody(t *testing.T) {
	t.Parallel()
	const head = `{"release":"1","platform":"ndk","exception":{"type":"E","value":"`
	const tail = `"},"frames":[]}`
	e, err := Decode([]byte(head+strings.Repeat("<&>", (MaxBodyBytes-200)/3)+tail), noon)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := e.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Decode(stored, noon); err != nil {
		t.Errorf("stored form is refused: %v", err)
	}
	e.Exception.Value = strings.Repeat("\u2028", MaxBodyBytes/6) // stored as six bytes each
	var fault *problem.Error
	if _, err := e.Marshal(); !errors.As(err, &fault) || fault.Code != "payload_too_large" {
		t.Errorf("a form of more than 16 MiB: %v", err)
	}
}

func FuzzObject(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte(` { "a" : [ {"b":"]\\\""} , "x" ] ,"\u0061":1e5,"b":{"a":2}, "c" : null } `))
	f.Fuzz(func(t *testing.T, text []byte) {
		var want map[string]json.RawMessage
		if !json.Valid(text) {
			return
		}
		isObject := json.Unmarshal(text, &want) == nil && want != nil
		got, ok := object(text, "a", "b", "frames")
		if ok != isObject {
			t.Fatalf("object is %v, want %v", ok, isObject)
		}
		for _, name := range []string{"a", "b", "frames"} {
			if string(got[name]) != string(want[name]) {
				t.Fatalf("%s is %s, want %s", name, got[name], want[name])
			}
			var list []json.RawMessage
			if w := want[name]; w == nil || json.Unmarshal(w, &list) != nil || list == nil {
				continue
			}
			var found []string
			elements(got[name], func(e []byte) bool { found = append(found, string(e)); return true })
			if len(found) != len(list) {
				t.Fatalf("%d elements, want %d", len(found), len(list))
			}
			for i := range list {
				if found[i] != string(list[i]) {
					t.Fatalf("element %d is %s, want %s", i, found[i], list[i])
				}
			}
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte(`{"release":"\ud800","platform":"ndk","exception":{"type":"\u0000"},"frames":[{"lineno":-0}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := Decode(body, noon)
		if err != nil {
			return
		}
		stored, err := e.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(stored, noon); err != nil {
			t.Fatalf("stored form is refused: %v: %s", err, stored)
		}
	})
}
