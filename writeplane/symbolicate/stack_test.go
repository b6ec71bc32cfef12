package symbolicate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"skerry/pkg/crash"
)

// artifact builds an artifact of the release from its bytes.
func artifact(t testing.TB, kind Kind, key string, data []byte) *Artifact {
	t.Helper()
	ids, _, err := Identify(kind, data, t.TempDir())
	var fault *Fault
	if err != nil && !errors.As(err, &fault) {
		t.Fatal(err)
	}
	return &Artifact{Kind: kind, MatchKey: key, Name: key, DebugIDs: ids, OfRelease: true, Load: func() (*Index, error) {
		var form bytes.Buffer
		if _, err := Build(kind, data, t.TempDir(), &form); err != nil {
			return nil, err
		}
		return Open(kind, form.Bytes())
	}}
}

func elsewhere(a *Artifact) *Artifact {
	a.OfRelease = false
	return a
}

func debugFile(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("native", "testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// answers renders what became of the frames of a report, one a line.
func answers(t testing.TB, set *Set, platform, thrown, frames string) string {
	t.Helper()
	e, err := crash.Decode(fmt.Appendf(nil, `{"release":"1","platform":%q,"exception":{"type":%q},"frames":[%s]}`, platform, thrown, frames), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	got, err := set.Symbolicate(e)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, a := range got {
		if a.Symbolicated == nil {
			lines = append(lines, a.Reason)
			continue
		}
		line, err := json.Marshal(a.Symbolicated)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(line))
	}
	return strings.Join(lines, "\n")
}

const oneLine = `{"version":3,"sources":[%q],"names":["run"],"mappings":"AAAAA,SACA,E"}`

func TestJavaScriptFramesFindTheirMapByDebugIDOrFileName(t *testing.T) {
	t.Parallel()
	withID := strings.Replace(fmt.Sprintf(oneLine, "id.ts"), `{`, `{"debug_id":"ABCD",`, 1)
	set := NewSet([]*Artifact{
		artifact(t, SourceMap, "app.min.js", fmt.Appendf(nil, oneLine, "new.ts")),
		artifact(t, SourceMap, "app.min.js.map", fmt.Appendf(nil, oneLine, "old.ts")),
		artifact(t, SourceMap, "dist/chunk.js", fmt.Appendf(nil, oneLine, "chunk.ts")),
		elsewhere(artifact(t, SourceMap, "other.js", fmt.Appendf(nil, oneLine, "other.ts"))),
		elsewhere(artifact(t, SourceMap, "id.js", []byte(withID))),
		artifact(t, SourceMap, "null.js", []byte(`{"version":3,"sources":[null],"mappings":"AAAA"}`)),
		artifact(t, SourceMap, "[id] é.js", fmt.Appendf(nil, oneLine, "page.ts")),
		artifact(t, SourceMap, "50%25.js", fmt.Appendf(nil, oneLine, "half.ts")),
	})
	found := func(file, function string, line, column int) string {
		return fmt.Sprintf(`{"filename":%s,"function":%s,"lineno":%d,"colno":%d,"inlined":[]}`, file, function, line, column)
	}
	for frame, want := range map[string]string{
		`{"filename":"app.min.js","function":"t","lineno":1,"colno":1}`:                      found(`"new.ts"`, `"run"`, 1, 1),
		`{"filename":"https://x.y/a/app.min.js?v=2#z","function":"t","lineno":1,"colno":10}`: found(`"new.ts"`, `"t"`, 2, 1),
		`{"filename":"webpack:///./chunk.js","lineno":1,"colno":10}`:                         found(`"chunk.ts"`, `null`, 2, 1),
		`{"filename":"other.js","lineno":1,"colno":1}`:                                       "no_symbols",
		`{"filename":"whatever.js","debug_id":"abcd","lineno":1,"colno":1}`:                  found(`"id.ts"`, `"run"`, 1, 1),
		`{"filename":"app.min.js","debug_id":"unknown","lineno":1,"colno":1}`:                found(`"new.ts"`, `"run"`, 1, 1),
		`{"filename":"null.js","function":"f","lineno":1,"colno":1}`:                         found(`null`, `"f"`, 1, 1),
		`{"filename":"https://x.y/%5Bid%5D%20%C3%A9.js?v=2","lineno":1,"colno":10}`:          found(`"page.ts"`, `null`, 2, 1),
		`{"filename":"[id] é.js","lineno":1,"colno":10}`:                                     found(`"page.ts"`, `null`, 2, 1),
		`{"filename":"https://x.y/50%25.js","lineno":1,"colno":10}`:                          found(`"half.ts"`, `null`, 2, 1),
		`{"filename":"https://x.y/50%2.js","lineno":1,"colno":10}`:                           "no_symbols",
		`{"filename":"app.min.js","lineno":1}`:                                               "no_match",
		`{"filename":"app.min.js","lineno":1,"colno":12}`:                                    "no_match",
		`{"filename":"app.min.js","lineno":9,"colno":1}`:                                     "no_match",
		`{"lineno":1,"colno":1}`:                                                             "no_symbols",
	} {
		if got := answers(t, set, "javascript", "E", frame); got != want {
			t.Errorf("%s\n got %s\nwant %s", frame, got, want)
		}
	}
}

const shop = `shop.Main -> a:
    1:1:void lib.In.deep():7:7 -> b
    1:1:void go():8 -> b
shop.Lambda -> c:
    void run() -> a
    # {"id":"com.android.tools.r8.synthesized"}
`

func TestAndroidFramesAreRetracedAndNativeOnesLookedUp(t *testing.T) {
	t.Parallel()
	withID := append([]byte("# pg_map_id: 99\n"), strings.ReplaceAll(shop, "shop.", "other.")...)
	set := NewSet([]*Artifact{
		artifact(t, AndroidMapping, "x", []byte(shop)), elsewhere(artifact(t, AndroidMapping, "99", withID)),
		artifact(t, AndroidNDK, "libtiny.so", debugFile(t, "tiny.so")),
	})
	got := answers(t, set, "android", "java.lang.Error", `{"module":"a","function":"b","lineno":1},{"module":"c","function":"a"},
		{"module":"a","function":"zz","lineno":1},{"module":"java.util.List","function":"get"},{"module":"a","function":"b","lineno":1,"debug_id":"99"},
		{"module":"libtiny.so","address":"0x102e"}`)
	const want = `{"module":"lib.In","filename":"In.java","function":"deep","lineno":7,"colno":0,"inlined":[{"module":"shop.Main","filename":"Main.java","function":"go","lineno":8,"colno":0}]}
synthesized
{"module":"shop.Main","filename":"Main.java","function":null,"lineno":0,"colno":0,"inlined":[]}
no_match
{"module":"lib.In","filename":"In.java","function":"deep","lineno":7,"colno":0,"inlined":[{"module":"other.Main","filename":"Main.java","function":"go","lineno":8,"colno":0}]}
{"filename":"/src/tiny.c","function":"twice","lineno":1,"colno":47,"inlined":[{"filename":"/src/tiny.c","function":"helper","lineno":5,"colno":10}]}`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := answers(t, NewSet(nil), "android", "E", `{"module":"a","function":"b"},{"address":"0x1"}`); got != "no_symbols\nno_symbols" {
		t.Error(got)
	}
}

func TestNativeFramesSayWhyTheyHaveNoAnswer(t *testing.T) {
	t.Parallel()
	set := NewSet([]*Artifact{
		artifact(t, DSYM, "App", debugFile(t, "tiny.dsym")), artifact(t, DSYM, "broken", []byte("neither")),
		artifact(t, AndroidNDK, "libtiny.so", debugFile(t, "tiny.so")),
	})
	const entry = `{"filename":"/src/tiny.c","function":"helper","lineno":4,"colno":21,"inlined":[]}`
	for frame, want := range map[string]string{
		`{"address":"0x330"}`:                                                                         entry,
		`{"address":"0x10330","image_base":"0x10000"}`:                                                entry,
		`{"address":"0x330","debug_id":"4C4C449B-5555-3144-A1CE-229B6D50D126"}`:                       entry,
		`{"address":"0x330","debug_id":"4c4c449b-0000-3144-a1ce-229b6d50d126"}`:                       "no_symbols",
		`{"address":"0x10","image_base":"0x10000","debug_id":"4c4c449b-5555-3144-a1ce-229b6d50d126"}`: "no_match",
		`{"function":"f","debug_id":"4c4c449b-5555-3144-a1ce-229b6d50d126"}`:                          "no_match",
		`{"address":"820","debug_id":"4c4c449b-5555-3144-a1ce-229b6d50d126"}`:                         "malformed",
		`{"address":"0xzz","debug_id":"4c4c449b-5555-3144-a1ce-229b6d50d126"}`:                        "malformed",
		`{"address":"0x99999"}`: "malformed", // the artifact that is broken might have known it
	} {
		if got := answers(t, set, "ios", "E", frame); got != want {
			t.Errorf("%s: got %s, want %s", frame, got, want)
		}
	}
}

func TestFramesOfAnAwaitedArtifactAreNotDecided(t *testing.T) {
	t.Parallel()
	awaited := func(kind Kind, key string, ids ...string) *Artifact {
		return &Artifact{Kind: kind, MatchKey: key, Name: key, DebugIDs: ids, OfRelease: true, Load: func() (*Index, error) {
			return nil, &Fault{Awaited, "the lookup form is being made"}
		}}
	}
	set := NewSet([]*Artifact{
		awaited(SourceMap, "app.js"), artifact(t, SourceMap, "app.js", fmt.Appendf(nil, oneLine, "old.ts")),
		artifact(t, SourceMap, "other.js", fmt.Appendf(nil, oneLine, "other.ts")),
		awaited(DSYM, "App", "4c4c449b-0000-3144-a1ce-229b6d50d126"), artifact(t, DSYM, "Old", debugFile(t, "tiny.dsym")), artifact(t, DSYM, "broken", []byte("neither")),
		awaited(AndroidMapping, "x"), artifact(t, AndroidMapping, "old", []byte(shop)),
	})
	for _, c := range []struct{ platform, frame, want string }{
		{"javascript", `{"filename":"app.js","lineno":1,"colno":1}`, "awaited"}, // an older map of the file is another build's
		{"javascript", `{"filename":"other.js","lineno":1,"colno":12}`, "no_match"},
		{"javascript", `{"filename":"third.js","lineno":1,"colno":1}`, "no_symbols"},
		{"ios", `{"address":"0x330","debug_id":"4c4c449b-0000-3144-a1ce-229b6d50d126"}`, "awaited"},
		{"ios", `{"address":"0x330","debug_id":"4c4c449b-1111-3144-a1ce-229b6d50d126"}`, "no_symbols"},
		{"ios", `{"address":"0x99999"}`, "awaited"}, // neither the broken artifact nor the one that does not cover it has the last word
		{"ios", `{"address":"0x330"}`, `{"filename":"/src/tiny.c","function":"helper","lineno":4,"colno":21,"inlined":[]}`},
		{"android", `{"module":"a","function":"b","lineno":1}`, "awaited"},
	} {
		if got := answers(t, set, c.platform, "E", c.frame); got != c.want {
			t.Errorf("%s %s: got %s, want %s", c.platform, c.frame, got, c.want)
		}
	}
}

func TestFramesBeyondTheLimitSaySo(t *testing.T) {
	t.Parallel()
	frames := strings.Repeat(`{"filename":"app.js","lineno":1,"colno":1},`, MaxFrames) + `{"filename":"app.js","lineno":1,"colno":1}`
	set := NewSet([]*Artifact{artifact(t, SourceMap, "app.js", fmt.Appendf(nil, oneLine, "a.ts"))})
	lines := strings.Split(answers(t, set, "javascript", "E", frames), "\n")
	if lines[MaxFrames-1] == Limit || lines[MaxFrames] != Limit {
		t.Errorf("%s, %s", lines[MaxFrames-1], lines[MaxFrames])
	}
}

// A source's name of a megabyte would be told for each frame.
func TestAnswersThatTakeTooMuchSaySo(t *testing.T) {
	t.Parallel()
	for platform, set := range map[string]*Set{
		"javascript": NewSet([]*Artifact{artifact(t, SourceMap, "app.js", fmt.Appendf(nil, oneLine, strings.Repeat("a", 1<<20)))}),
		"android":    NewSet([]*Artifact{artifact(t, AndroidMapping, "x", fmt.Appendf(nil, "%s -> a:\n    1:1:void m() -> b\n", strings.Repeat("c", 1<<19)))}),
	} {
		frame := crash.Frame{Filename: new("app.js"), Module: new("a"), Function: new("b"), Lineno: new(int64(1)), Colno: new(int64(1))}
		got, err := set.Symbolicate(crash.Event{Platform: platform, Frames: slices.Repeat([]crash.Frame{frame}, 40)})
		if err != nil {
			t.Fatal(err)
		}
		readable := slices.IndexFunc(got, func(a Answer) bool { return a.Reason == Limit })
		if readable != 15 { // each takes a little more than a megabyte
			t.Errorf("%s: %d frames are readable, want 15", platform, readable)
		}
		if i := slices.IndexFunc(got[max(readable, 0):], func(a Answer) bool { return a.Reason != Limit }); i >= 0 {
			t.Errorf("%s: frame %d behind them says %q", platform, readable+i, got[readable+i].Reason)
		}
	}
}

func TestOlderMapsOfAFileAreNotRead(t *testing.T) {
	t.Parallel()
	older := artifact(t, SourceMap, "app.js", nil)
	older.Load = func() (*Index, error) {
		t.Error("an older map was read")
		return nil, &Fault{Awaited, ""}
	}
	set := NewSet([]*Artifact{artifact(t, SourceMap, "app.js", fmt.Appendf(nil, oneLine, "new.ts")), older})
	if got := answers(t, set, "javascript", "E", `{"filename":"app.js","lineno":1,"colno":1}`); !strings.Contains(got, "new.ts") {
		t.Error(got)
	}
}

func TestFailureThatIsNotTheArtifactsEndsTheCall(t *testing.T) {
	t.Parallel()
	away := errors.New("the store is away")
	set := NewSet([]*Artifact{{Kind: SourceMap, MatchKey: "app.js", OfRelease: true, Load: func() (*Index, error) { return nil, away }}})
	f, line := "app.js", int64(1)
	_, err := set.Symbolicate(crash.Event{Platform: "javascript", Frames: []crash.Frame{{Filename: &f, Lineno: &line, Colno: &line}}})
	if !errors.Is(err, away) {
		t.Errorf("got %v", err)
	}
}
