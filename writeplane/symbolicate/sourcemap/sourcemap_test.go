package sourcemap

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func open(t testing.TB, text string) (*Table, []string) {
	t.Helper()
	index, warnings, err := Build([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	table, err := Open(index)
	if err != nil {
		t.Fatal(err)
	}
	return table, warnings
}

// at renders one lookup as "source:line:column name", or the outcome.
func at(table *Table, line, column int64) string {
	p, outcome := table.Lookup(line, column)
	switch outcome {
	case NotFound:
		return "-"
	case Bad:
		return "bad"
	}
	source := p.Source
	if p.NullSource {
		source = "null"
	}
	if p.Ignored {
		source += "(ignored)"
	}
	return strings.TrimSpace(fmt.Sprintf("%s:%d:%d %s", source, p.Line, p.Column, p.Name))
}

func TestPositionsCountFromOneAndTheLastSegmentBeforeTheColumnAnswers(t *testing.T) {
	t.Parallel()
	// Line 1: column 0 → a.js 1:1; column 9 → a.js 1:10 "foo". Line 2: column 4 → a.js 3:1.
	table, warnings := open(t, `{"version":3,"sources":["a.js"],"names":["foo"],"mappings":"AAAA,SAASA;IAET"}`)
	for pos, want := range map[[2]int64]string{
		{1, 1}: "a.js:1:1", {1, 9}: "a.js:1:1", {1, 10}: "a.js:1:10 foo", {1, 9999}: "a.js:1:10 foo",
		{2, 4}: "-", {2, 5}: "a.js:3:1", {3, 1}: "-", {0, 1}: "-", {1, 0}: "-", {-1, -1}: "-", {1 << 40, 1 << 40}: "-",
	} {
		if got := at(table, pos[0], pos[1]); got != want {
			t.Errorf("%v: got %q, want %q", pos, got, want)
		}
	}
	if warnings != nil {
		t.Errorf("warnings: %v", warnings)
	}
}

func TestSegmentOfOneFieldEndsTheMappingBeforeIt(t *testing.T) {
	t.Parallel()
	table, _ := open(t, `{"version":3,"sources":["a.js"],"names":[],"mappings":"AAAA,EACA,E,IAAA"}`)
	for column, want := range map[int64]string{1: "a.js:1:1", 3: "a.js:2:1", 5: "-", 8: "-", 9: "a.js:2:1"} {
		if got := at(table, 1, column); got != want {
			t.Errorf("column %d: got %q, want %q", column, got, want)
		}
	}
}

func TestColumnOffsetOfASectionHoldsOnItsFirstLineOnly(t *testing.T) {
	t.Parallel()
	const sub = `{"version":3,"sources":["%s.js"],"names":[],"mappings":"AAAA,IAAI;EACA"}`
	text := fmt.Sprintf(`{"version":3,"sections":[{"offset":{"line":0,"column":0},"map":%s},{"offset":{"line":1,"column":10},"map":%s}]}`,
		fmt.Sprintf(sub, "a"), fmt.Sprintf(sub, "b"))
	table, _ := open(t, text)
	for pos, want := range map[[2]int64]string{
		{1, 1}: "a.js:1:1", {1, 5}: "a.js:1:5", {2, 3}: "a.js:2:5", {2, 10}: "a.js:2:5",
		{2, 11}: "b.js:1:1", {2, 15}: "b.js:1:5", {3, 2}: "-", {3, 3}: "b.js:2:5",
	} {
		if got := at(table, pos[0], pos[1]); got != want {
			t.Errorf("%v: got %q, want %q", pos, got, want)
		}
	}
}

func TestSectionEndsWhereTheNextBegins(t *testing.T) {
	t.Parallel()
	table, _ := open(t, `{"version":3,"sections":[
		{"offset":{"line":0,"column":0},"map":{"version":3,"sources":["a"],"mappings":"AAAA,UAAA;AACA"}},
		{"offset":{"line":0,"column":5},"map":{"version":3,"sources":["b"],"mappings":"EAAA"}}]}`)
	for pos, want := range map[[2]int64]string{{1, 6}: "a:1:1", {1, 8}: "b:1:1", {1, 20}: "b:1:1", {2, 1}: "-"} {
		if got := at(table, pos[0], pos[1]); got != want {
			t.Errorf("%v: got %q, want %q", pos, got, want)
		}
	}
}

func TestNestedIndexMapsAddTheirOffsets(t *testing.T) {
	t.Parallel()
	table, _ := open(t, `{"version":3,"sections":[{"offset":{"line":2,"column":4},"map":{"version":3,"sections":[
		{"offset":{"line":0,"column":3},"map":{"version":3,"sources":["a"],"mappings":"AAAA;AACA"}},
		{"offset":{"line":5,"column":2},"map":{"version":3,"sources":["b"],"mappings":"AAAA"}}]}}]}`)
	for pos, want := range map[[2]int64]string{{3, 7}: "-", {3, 8}: "a:1:1", {4, 1}: "a:2:1", {8, 2}: "-", {8, 3}: "b:1:1"} {
		if got := at(table, pos[0], pos[1]); got != want {
			t.Errorf("%v: got %q, want %q", pos, got, want)
		}
	}
}

func TestSourcesAreNamedAsTheMapMeansThem(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"version":3,"sources":[null],"mappings":"AAAA"}`:                                          "null:1:1",
		`{"version":3,"sourceRoot":"src","sources":["a.ts"],"mappings":"AAAA"}`:                     "src/a.ts:1:1",
		`{"version":3,"sourceRoot":"src/","sources":["a.ts"],"mappings":"AAAA"}`:                    "src/a.ts:1:1",
		`{"version":3,"sourceRoot":"src","sources":["/a.ts"],"mappings":"AAAA"}`:                    "/a.ts:1:1",
		`{"version":3,"sourceRoot":"src","sources":["webpack://x/a.ts"],"mappings":"AAAA"}`:         "webpack://x/a.ts:1:1",
		`{"version":3,"sourceRoot":null,"sources":["\u00e9\/\"a"],"mappings":"AAAA"}`:               `é/"a:1:1`,
		`{"version":3,"sources":["a"],"ignoreList":[0],"mappings":"AAAA"}`:                          "a(ignored):1:1",
		`{"version":3,"sources":["a"],"x_google_ignoreList":[0],"mappings":"AAAA"}`:                 "a(ignored):1:1",
		`{"version":3,"sources":["a"],"x_google_ignoreList":[0],"ignoreList":[],"mappings":"AAAA"}`: "a:1:1",
		")]}'\n" + `{"version":3,"sources":["a"],"mappings":"AAAA"}`:                                "a:1:1",
		"\xef\xbb\xbf" + `{"version":3.0,"sources":["a"],"mappings":"\u0041AAA"}`:                   "a:1:1",
		`{"version":3,"sources":["b"],"sources":["a"],"mappings":"AAAA"}`:                           "a:1:1",
		`{"version":3,"sources":["a"],"mappings":""}`:                                               "-",
		`{"version":3,"sources":[],"mappings":";;,;"}`:                                              "-",
		`{"version":3,"sections":[]}`:                                                               "-",
	} {
		table, _ := open(t, text)
		if got := at(table, 1, 1); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

func TestUnsortedColumnsOfALineAreSorted(t *testing.T) {
	t.Parallel()
	// Columns 10, 2, 6 in the text.
	table, _ := open(t, `{"version":3,"sources":["a"],"mappings":"UAAA,RACA,IACA"}`)
	for column, want := range map[int64]string{2: "-", 3: "a:2:1", 7: "a:3:1", 11: "a:1:1"} {
		if got := at(table, 1, column); got != want {
			t.Errorf("column %d: got %q, want %q", column, got, want)
		}
	}
}

func TestReferenceToNothingIsBadThereAndTheRestStillAnswers(t *testing.T) {
	t.Parallel()
	table, warnings := open(t, `{"version":3,"sources":["a"],"names":[],"mappings":"AAAA,ECAA,EDAA,EADA,EACA,EAAAE"}`)
	for column, want := range map[int64]string{1: "a:1:1", 3: "bad", 5: "a:1:1", 7: "bad", 9: "a:1:1", 11: "a:1:1"} {
		if got := at(table, 1, column); got != want {
			t.Errorf("column %d: got %q, want %q", column, got, want)
		}
	}
	if len(warnings) != 1 || warnings[0] != "2 mappings refer to sources or positions that do not exist" {
		t.Errorf("warnings: %q", warnings)
	}
}

func TestMapThatIsNoMapIsMalformed(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		``, `null`, `[]`, `"x"`, `{`, `{"version":3`, `{"version":3,}`, `{"version":3,"sources":[],"mappings":""}x`,
		`{"sources":[],"mappings":""}`, `{"version":"3","sources":[],"mappings":""}`, `{"version":2,"sources":[],"mappings":""}`,
		`{"version":3,"sources":[]}`, `{"version":3,"mappings":""}`, `{"version":3,"sources":[],"mappings":5}`,
		`{"version":3,"sources":"a","mappings":""}`, `{"version":3,"sources":[1],"mappings":""}`,
		`{"version":3,"sources":[],"names":[1],"mappings":""}`, `{"version":3,"sources":[],"names":{},"mappings":""}`,
		`{"version":3,"sources":[],"sourceRoot":[],"mappings":""}`,
		`{"version":3,"sources":[],"ignoreList":[-1],"mappings":""}`, `{"version":3,"sources":[],"ignoreList":{},"mappings":""}`,
		`{"version":3,"sources":["a"],"mappings":"A!AA"}`, `{"version":3,"sources":["a"],"mappings":"AA="}`,
		`{"version":3,"sources":["a"],"mappings":"g"}`, `{"version":3,"sources":["a"],"mappings":"AA"}`,
		`{"version":3,"sources":["a"],"mappings":"AAA"}`, `{"version":3,"sources":["a"],"mappings":"AAAAAA"}`,
		`{"version":3,"sources":["a"],"mappings":"AggggggEAA"}`, // source index 2^31
		`{"version":3,"sources":["a"],"mappings":"AgggggggggggggggEAA"}`,
		`{"version":3,"sections":{}}`, `{"version":3,"sections":[1]}`, `{"version":3,"sections":[],"mappings":""}`,
		`{"version":3,"sections":[{"offset":{"line":0,"column":0}}]}`,
		`{"version":3,"sections":[{"offset":{"line":0,"column":0},"map":null}]}`,
		`{"version":3,"sections":[{"map":{"version":3,"sources":[],"mappings":""}}]}`,
		`{"version":3,"sections":[{"offset":{"line":-1,"column":0},"map":{"version":3,"sources":[],"mappings":""}}]}`,
		`{"version":3,"sections":[{"offset":{"line":5,"column":0},"map":{"version":3,"sources":[],"mappings":""}},{"offset":{"line":4,"column":0},"map":{"version":3,"sources":[],"mappings":""}}]}`,
		strings.Repeat(`{"version":3,"sections":[{"offset":{"line":0,"column":0},"map":`, 20) + `{"version":3,"sources":[],"mappings":""}` + strings.Repeat(`}]}`, 20),
		`{"a":` + strings.Repeat("[", 100_000),
	} {
		if _, _, err := Build([]byte(text)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%.80s: got %v", text, err)
		}
	}
}

func TestLongNumbersOfThirtyTwoBitsAreRead(t *testing.T) {
	t.Parallel()
	// Column 2^31-1, written with needless continuation digits; line and column of the original 2^31-1 too.
	table, _ := open(t, `{"version":3,"sources":["a"],"mappings":"+/////DA+/////D+/////D"}`)
	if got := at(table, 1, 1<<31); got != "a:2147483648:2147483648" {
		t.Errorf("got %q", got)
	}
	table, _ = open(t, `{"version":3,"sources":["a"],"mappings":"ggggggggggggggggggggggggggggAAAA"}`)
	if got := at(table, 1, 1); got != "a:1:1" {
		t.Errorf("got %q", got)
	}
}

func TestDebugIDIsTheTopLevelOneInLowerCase(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"version":3,"debugId":"85314830-023F-4CF1-A267-535F4E37BB17"}`: "85314830-023f-4cf1-a267-535f4e37bb17",
		`{"debug_id":"ab","x":{"debugId":"no"}}`:                         "ab",
		`{"debug_id":"second","debugId":"first"}`:                        "first",
		`{"debugId":7}`: "",
		`{"sourcesContent":["{\"debugId\":\"no\"}"],"mappings":"\"debugId\":\"no\""}`: "",
	} {
		got, err := DebugID([]byte(text))
		if err != nil || got != want {
			t.Errorf("%s: got %q, %v", text, got, err)
		}
	}
	if _, err := DebugID([]byte(`{"debugId":"x"`)); !errors.Is(err, ErrMalformed) {
		t.Errorf("cut off: %v", err)
	}
}

func TestManySegmentsAcrossBlocksAnswerLikeALinearScan(t *testing.T) {
	t.Parallel()
	// 1,000 segments on one line at columns 0, 3, 6, …, each one line further down.
	table, _ := open(t, `{"version":3,"sources":["a"],"mappings":"AAAA`+strings.Repeat(",GACA", 999)+`;AADA"}`)
	for column := int64(1); column <= 3_000; column++ {
		if got, want := at(table, 1, column), fmt.Sprintf("a:%d:1", (column-1)/3+1); got != want {
			t.Fatalf("column %d: got %q, want %q", column, got, want)
		}
	}
	if got := at(table, 2, 1); got != "a:999:1" {
		t.Errorf("line 2: %q", got)
	}
}

func TestDamagedLookupFormNeverPanics(t *testing.T) {
	t.Parallel()
	index, _, err := Build([]byte(`{"version":3,"sources":["a","b"],"names":["n"],"mappings":"AAAAA,ECAA;EADAA,E,GAAA"}`))
	if err != nil {
		t.Fatal(err)
	}
	for i := range index {
		for _, flip := range []byte{0x01, 0x80, 0xff} {
			damaged := append([]byte(nil), index...)
			damaged[i] ^= flip
			if table, err := Open(damaged); err == nil {
				for column := int64(1); column < 8; column++ {
					table.Lookup(1, column)
					table.Lookup(2, column)
				}
			}
		}
		if _, err := Open(index[:i]); err == nil {
			t.Fatalf("a form cut at %d opens", i)
		}
	}
}

func TestLongRootsAndFarSectionsAreRefused(t *testing.T) {
	t.Parallel()
	nest := func(line int, inner string) string {
		return fmt.Sprintf(`{"version":3,"sections":[{"offset":{"line":%d,"column":0},"map":%s}]}`, line, inner)
	}
	const one = `{"version":3,"sources":["a"],"mappings":"AAAA"}`
	var many strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&many, `,"%d"`, i)
	}
	rooted := func(root int) string {
		return fmt.Sprintf(`{"version":3,"sourceRoot":"%s","sources":["a"%s],"mappings":"AAAA"}`, strings.Repeat("r", root), many.String())
	}
	for text, refused := range map[string]bool{
		nest(1<<31-1, one): false, nest(1<<31-1, nest(1, one)): true, nest(1<<31-1, nest(1<<31-1, nest(3, one))): true,
		rooted(60): false, rooted(60_000): true,
	} {
		if _, _, err := Build([]byte(text)); errors.Is(err, ErrMalformed) != refused {
			t.Errorf("%.100s…: %v", text, err)
		}
	}
	table, _ := open(t, nest(1<<31-1, one))
	if got := at(table, 1<<31, 1); got != "a:1:1" {
		t.Errorf("the last line: %s", got)
	}
}

func FuzzBuild(f *testing.F) {
	f.Add([]byte(`{"version":3,"sources":["a"],"names":["n"],"mappings":"AAAAA,EACA,E;IAAA"}`), int64(1), int64(3))
	f.Add([]byte(`{"version":3,"sections":[{"offset":{"line":0,"column":2},"map":{"version":3,"sources":[null],"mappings":"AAAA"}}]}`), int64(1), int64(3))
	f.Fuzz(func(t *testing.T, data []byte, line, column int64) {
		_, _ = DebugID(data)
		index, _, err := Build(data)
		if err != nil {
			return
		}
		table, err := Open(index)
		if err != nil {
			t.Fatalf("own lookup form does not open: %v", err)
		}
		table.Lookup(line, column)
		table.Lookup(1, 1)
	})
}

func FuzzOpen(f *testing.F) {
	index, _, _ := Build([]byte(`{"version":3,"sources":["a"],"names":["n"],"mappings":"AAAAA,EACA,E;IAAA"}`))
	f.Add(index, int64(1), int64(1))
	f.Fuzz(func(t *testing.T, index []byte, line, column int64) {
		if table, err := Open(index); err == nil {
			table.Lookup(line, column)
		}
	})
}
