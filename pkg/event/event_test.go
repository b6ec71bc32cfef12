package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"
)

var receipt = time.Date(2026, 1, 2, 3, 4, 5, 678000000, time.UTC)

// record is a Sink that writes down what it is given.
type record struct {
	ops   []string
	large []byte
}

func (r *record) Operation(op *Operation) error {
	payload := op.Payload
	properties, defaults := op.Properties, op.DefaultProperties
	if op.Large {
		payload = r.large
		properties, defaults = cut(payload, op.PropertiesAt), cut(payload, op.DefaultsAt)
	}
	s := fmt.Sprintf("%d", op.Kind)
	for _, m := range []struct {
		name string
		text []byte
	}{{"event", op.EventName}, {"id", op.DistinctID}, {"alias", op.AliasID}, {"anon", op.AnonID}, {"insert", op.InsertID},
		{"lib", op.LibVersion}, {"p", properties}, {"d", defaults}} {
		if m.text != nil {
			s += fmt.Sprintf(" %s=%s", m.name, m.text)
		}
	}
	if op.Timestamp != 0 && op.Timestamp != receipt.UnixMicro() {
		s += " at=" + time.UnixMicro(op.Timestamp).UTC().Format(time.RFC3339Nano)
	}
	if op.Unstorable != 0 {
		s += fmt.Sprintf(" unstorable=%d payload=%s", op.Unstorable, payload)
	}
	r.ops = append(r.ops, s)
	r.large = nil
	return nil
}

func cut(b []byte, s Span) []byte {
	if s.Length == 0 {
		return nil
	}
	return b[s.Offset : s.Offset+s.Length]
}

func (r *record) Large(piece []byte) error { r.large = append(r.large, piece...); return nil }
func (r *record) DropLarge() error         { r.large = nil; return nil }
func (r *record) Restart() error           { r.ops, r.large = nil, nil; return nil }

func single(kind Kind, body string) (string, error) {
	var r record
	_, err := NewParser().Single([]byte(body), kind, receipt, &r)
	return strings.Join(r.ops, "\n"), err
}

// payloads are single bodies of each kind, and what is read of them.
var payloads = []struct {
	kind       Kind
	body, want string
	err        error
}{
	{Track, `{"event_name":"a","distinct_id":"u1"}`, `0 event=a id=u1`, nil},
	{Track, ` { "event_name" : "a" , "distinct_id" : "u1" , "properties" : { "n" : 1e999 } } `, `0 event=a id=u1 p={ "n" : 1e999 }`, nil},
	{Track, `{"event_name":"a","distinct_id":"u1","properties":null,"anon_id":null,"timestamp":null,"insert_id":null}`, `0 event=a id=u1`, nil},
	{Track, `{"event_name":"a","event_name":"b","distinct_id":7,"distinct_id":"u1"}`, `0 event=b id=u1`, nil},
	{Track, `{"e\u0076ent_name":"\u00e9\ud83d\ude00\n","distinct_id":"u1","x":[{}]}`, "0 event=é😀\n id=u1", nil},
	{Track, `{"event_name":"a","distinct_id":"u1","anon_id":"","lib_version":"1.0","insert_id":"i","default_properties":{"$os":"x"}}`,
		`0 event=a id=u1 anon= insert=i lib=1.0 d={"$os":"x"}`, nil},
	{Track, `{"event_name":"a","distinct_id":"u1","timestamp":"2025-02-03T04:05:06.789+02:00"}`, `0 event=a id=u1 at=2025-02-03T02:05:06.789Z`, nil},
	{Track, `{"event_name":"a","distinct_id":"u1","timestamp":"2025-02-03T04:05:06.789Z"}`, `0 event=a id=u1 at=2025-02-03T04:05:06.789Z`, nil},
	{Track, `{"event_name":"a","distinct_id":"u1","timestamp":"2025-02-03T04:05:06Z"}`, `0 event=a id=u1 at=2025-02-03T04:05:06Z`, nil},
	{Track, `{"event_name":"a","distinct_id":"u1","timestamp":"2026-01-03T03:04:05.678Z"}`, `0 event=a id=u1 at=2026-01-03T03:04:05.678Z`, nil}, // 24 h ahead
	{Track, `{"event_name":"a","distinct_id":"u1","timestamp":"2026-01-03T03:04:05.679Z"}`, `0 event=a id=u1`, nil},                             // more: receipt
	{Track, `{"event_name":"a","distinct_id":"u1","timestamp":"0001-01-01T00:00:00Z"}`, `0 event=a id=u1 at=0001-01-01T00:00:00.000001Z`, nil},  // not no time at all
	{Track, `{"event_name":"a","distinct_id":"u1","timestamp":"0000-12-31T23:59:59Z"}`, ``, ErrTrack},
	{Track, `{"event_name":"a","distinct_id":"u1","timestamp":"0001-01-01T00:00:00+14:00"}`, ``, ErrTrack},
	{Track, `{"event_name":"a","distinct_id":"u1","timestamp":"2025-02-30T04:05:06Z"}`, ``, ErrTrack},
	{Track, `{"event_name":"a","distinct_id":"u1","timestamp":1735689600}`, ``, ErrTrack},
	{Track, `{"event_name":"a","distinct_id":"u1","timestamp":""}`, ``, ErrTrack},
	{Track, `{"event_name":"","distinct_id":"u1"}`, ``, ErrTrack},
	{Track, `{"event_name":"a","distinct_id":""}`, ``, ErrTrack},
	{Track, `{"event_name":"a","distinct_id":null}`, ``, ErrTrack},
	{Track, `{"event_name":null,"distinct_id":"u1"}`, ``, ErrTrack},
	{Track, `{"event_name":"a"}`, ``, ErrTrack},
	{Track, `{"distinct_id":"u1"}`, ``, ErrTrack},
	{Track, `{}`, ``, ErrTrack},
	{Track, `{"event_name":"` + strings.Repeat("é", 200) + `","distinct_id":"u1"}`, `0 event=` + strings.Repeat("é", 200) + ` id=u1`, nil},
	{Track, `{"event_name":"` + strings.Repeat("é", 201) + `","distinct_id":"u1"}`, ``, ErrTrack},
	{Track, `{"event_name":"a","distinct_id":"u1","insert_id":"` + strings.Repeat("é", 64) + `"}`, `0 event=a id=u1 insert=` + strings.Repeat("é", 64), nil},
	{Track, `{"event_name":"a","distinct_id":"u1","insert_id":"` + strings.Repeat("i", 65) + `"}`, ``, ErrTrack},
	{Track, `{"event_name":"a","distinct_id":"u1","insert_id":""}`, ``, ErrTrack},
	{Track, `{"event_name":"a","distinct_id":"u1","properties":[]}`, ``, ErrTrack},
	{Track, `{"event_name":"a","distinct_id":"u1","properties":"{}"}`, ``, ErrTrack},
	{Track, `{"event_name":"a","distinct_id":"u1","default_properties":1}`, ``, ErrTrack},
	{Track, `{"event_name":"a","distinct_id":"u1","anon_id":1}`, ``, ErrTrack},
	{Track, `{"event_name":"a","distinct_id":"u1","lib_version":{}}`, ``, ErrTrack},
	{Track, `{"event_name":"a","distinct_id":"u1","properties":{"a":"x\u0000"}}`,
		`0 event=a id=u1 p={"a":"x\u0000"} unstorable=1 payload={"event_name":"a","distinct_id":"u1","properties":{"a":"x\u0000"}}`, nil},
	{Track, `{"event_name":"a","distinct_id":"u1","properties":{"\ud800":1}}`,
		`0 event=a id=u1 p={"\ud800":1} unstorable=2 payload={"event_name":"a","distinct_id":"u1","properties":{"\ud800":1}}`, nil},
	{Track, `{"event_name":"a\udc00","distinct_id":"u1"}`, "0 event=a\uFFFD id=u1 unstorable=2 payload=" + `{"event_name":"a\udc00","distinct_id":"u1"}`, nil},
	{Track, `{"event_name":"a","distinct_id":"u1","unknown":"\u0000","properties":{"a":"\u0000"},"properties":{}}`, `0 event=a id=u1 p={}`, nil},
	{Track, `{"event_name":"a","distinct_id":"u1","properties":{"a":"\\u0000 \\ud800"}}`, `0 event=a id=u1 p={"a":"\\u0000 \\ud800"}`, nil},
	{Track, `{"event_name":"a","distinct_id":"u\u0000"}`, ``, nil}, // garbage
	{Track, `{"event_name":"a","distinct_id":"\ud800abc"}`, ``, nil},
	{Track, `{"event_name":"a","distinct_id":"null"}`, ``, nil},
	{Track, `{"event_name":7,"distinct_id":"null"}`, ``, ErrTrack}, // shape before garbage
	{Track, `[]`, ``, ErrBody},
	{Track, `"a"`, ``, ErrBody},
	{Track, `null`, ``, ErrBody},
	{Track, ``, ``, ErrBody},
	{Track, ` `, ``, ErrBody},
	{Track, `{"event_name":"a","distinct_id":"u1"} x`, ``, ErrBody},
	{Track, `{"event_name":"a","distinct_id":"u1"}{}`, ``, ErrBody},
	{Track, "\ufeff" + `{"event_name":"a","distinct_id":"u1"}`, ``, ErrBody},
	{Track, "{\"event_name\":\"a\xff\",\"distinct_id\":\"u1\"}", ``, ErrBody},
	{Track, "{\"event_name\":\"\xed\xa0\x80\",\"distinct_id\":\"u1\"}", ``, ErrBody},
	{People, `{"distinct_id":"u1"}`, `1 id=u1`, nil},
	{People, `{"distinct_id":"u1","properties":{"a":null,"$set_once":{"b":1}},"timestamp":5}`, `1 id=u1 p={"a":null,"$set_once":{"b":1}}`, nil},
	{People, `{"distinct_id":"u1","properties":{"a":"\u0000"}}`, `1 id=u1 p={"a":"\u0000"} unstorable=1 payload={"distinct_id":"u1","properties":{"a":"\u0000"}}`, nil},
	{People, `{"properties":{}}`, ``, ErrPeople},
	{People, `{"distinct_id":"u1","properties":1}`, ``, ErrPeople},
	{Alias, `{"alias_id":"a1","distinct_id":"u1"}`, `2 id=u1 alias=a1`, nil},
	{Alias, `{"alias_id":"a1","distinct_id":"u1","timestamp":"2025-02-03T04:05:06.7Z"}`, `2 id=u1 alias=a1 at=2025-02-03T04:05:06.7Z`, nil},
	{Alias, `{"alias_id":"a1","distinct_id":"u1","timestamp":"soon"}`, ``, ErrAlias},
	{Alias, `{"alias_id":"","distinct_id":"u1"}`, ``, ErrAlias},
	{Alias, `{"alias_id":"a1"}`, ``, ErrAlias},
	{Alias, `{"alias_id":"","distinct_id":"null"}`, ``, ErrAlias},
	{Alias, `{"alias_id":"null","distinct_id":"u1"}`, ``, nil},
	{Alias, `{"alias_id":"a1","distinct_id":"0"}`, ``, nil},
}

func TestSinglePayloadIsAcceptedOnlyInItsShape(t *testing.T) {
	t.Parallel()
	for _, c := range payloads {
		got, err := single(c.kind, c.body)
		if got != c.want || !errors.Is(err, c.err) || (c.err == nil) != (err == nil) {
			t.Errorf("%.200s\n got %q, %v\nwant %q, %v", c.body, got, err, c.want, c.err)
		}
	}
}

func TestDepthIsLimitedTo512(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		depth int
		err   error
	}{{200, nil}, {512, nil}, {513, ErrBody}, {100000, ErrBody}} {
		// The payload and properties are two levels.
		body := `{"event_name":"a","distinct_id":"u1","properties":{"a":` + strings.Repeat("[", c.depth-2) + strings.Repeat("]", c.depth-2) + `}}`
		if _, err := single(Track, body); !errors.Is(err, c.err) {
			t.Errorf("depth %d: %v, want %v", c.depth, err, c.err)
		}
	}
}

const ok1 = `{"type":"track","payload":{"event_name":"a","distinct_id":"u1"}}`

func TestBatchIsAcceptedWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		body, want string
		counts     Counts
		err        error
	}{
		{`{"operations":[` + ok1 + `]}`, `0 event=a id=u1`, Counts{Track: 1}, nil},
		{`{"operations":[{"payload":{"alias_id":"a1","distinct_id":"u1"},"type":"alias"},{"type":"people","payload":{"distinct_id":"u2"}},` + ok1 + `]}`,
			"2 id=u1 alias=a1\n1 id=u2\n0 event=a id=u1", Counts{Track: 1, People: 1, Alias: 1}, nil},
		{`{"operations":[{"type":"track","payload":{"event_name":"a","distinct_id":"anon"}},` + ok1 + `]}`, `0 event=a id=u1`, Counts{Track: 1, Garbage: 1}, nil},
		{`{"operations":[{"type":"track","payload":{"event_name":"a","distinct_id":"anon"}}]}`, ``, Counts{Garbage: 1}, nil},
		{`{"operations":[{"type":"alias","type":"track","payload":{"distinct_id":"u0"},"payload":{"event_name":"a","distinct_id":"u1"}}]}`, `0 event=a id=u1`, Counts{Track: 1}, nil},
		{`{"operations":[{"type":"people","payload":{"distinct_id":"u1","event_name":5}}]}`, `1 id=u1`, Counts{People: 1}, nil},
		{`{"operations":"x","operations":[1],"operations":[` + ok1 + `],"more":[{}]}`, `0 event=a id=u1`, Counts{Track: 1}, nil},
		{`{"operations":[` + ok1 + `],"operations":[` + ok1 + `,` + ok1 + `]}`, "0 event=a id=u1\n0 event=a id=u1", Counts{Track: 2}, nil},
		{`{"operations":[` + ok1 + `],"operations":[]}`, ``, Counts{}, ErrNoOperations},
		{`{"operations":[` + ok1 + `],"operations":null}`, ``, Counts{}, ErrNoOperations},
		{`{"operations":[]}`, ``, Counts{}, ErrNoOperations},
		{`{"operations":null}`, ``, Counts{}, ErrNoOperations},
		{`{}`, ``, Counts{}, ErrNoOperations},
		{`{"operations":{}}`, ``, Counts{}, ErrBody},
		{`{"operations":5}`, ``, Counts{}, ErrBody},
		{`[]`, ``, Counts{}, ErrBody},
		{`{"operations":[` + ok1 + `,]}`, ``, Counts{}, ErrBody},
		{`{"operations":[` + ok1, ``, Counts{}, ErrBody},
		{`{"operations":[1]}`, ``, Counts{}, ErrUnknownType},
		{`{"operations":[{}]}`, ``, Counts{}, ErrUnknownType},
		{`{"operations":[{"type":"Track","payload":{}}]}`, ``, Counts{}, ErrUnknownType},
		{`{"operations":[{"type":1,"payload":{}}]}`, ``, Counts{}, ErrUnknownType},
		{`{"operations":[{"type":null,"payload":{}}]}`, ``, Counts{}, ErrUnknownType},
		{`{"operations":[{"type":"track"}]}`, ``, Counts{}, ErrTrack},
		{`{"operations":[{"type":"track","payload":null}]}`, ``, Counts{}, ErrTrack},
		{`{"operations":[{"type":"people","payload":[]}]}`, ``, Counts{}, ErrPeople},
		{`{"operations":[{"type":"alias","payload":"x"}]}`, ``, Counts{}, ErrAlias},
		// Every type is looked at before any payload, and the text before the types.
		{`{"operations":[{"type":"track","payload":{}},{"type":"x"}]}`, ``, Counts{}, ErrUnknownType},
		{`{"operations":[{"type":"people"},{"type":"track","payload":{}}]}`, ``, Counts{}, ErrPeople},
		{`{"operations":[{"type":"x"},{"type":"track","payload":{}}]`, ``, Counts{}, ErrBody},
	} {
		for _, window := range []int{0, 160, 4096} {
			var r record
			p := NewParser()
			var counts Counts
			var err error
			if window == 0 {
				counts, err = p.Batch([]byte(c.body), receipt, &r)
			} else {
				p.window = make([]byte, 0, window)
				counts, err = p.BatchFrom(iotest.OneByteReader(strings.NewReader(c.body)), receipt, &r)
			}
			got := ""
			if err == nil {
				got = strings.Join(r.ops, "\n")
			}
			if got != c.want || counts != c.counts || !errors.Is(err, c.err) || (c.err == nil) != (err == nil) {
				t.Errorf("%s (window %d)\n got %q, %+v, %v\nwant %q, %+v, %v", c.body, window, got, counts, err, c.want, c.counts, c.err)
			}
		}
	}
}

func TestLargePayloadGoesThroughInPieces(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", 3<<20)
	payload := `{"event_name":"a","properties":{"big":"` + big + `"},"distinct_id":"u1","anon_id":"` + strings.Repeat("y", MaxMemberBytes) + `"}`
	body := `{"junk":"` + big + `","operations":[` + ok1 + `,{"junk":["` + big + `"],"payload":` + payload + `,"type":"track","junk":"` + big + `"},` +
		`{"type":"track","payload":{"event_name":"dropped","distinct_id":"anon","properties":{"big":"` + big + `"}}},` + ok1 + `],"junk":"` + big + `"}`
	sink := &pieces{}
	p := NewParser()
	counts, err := p.BatchFrom(strings.NewReader(body), receipt, sink)
	if err != nil || counts != (Counts{Track: 3, Garbage: 1}) {
		t.Fatalf("%+v, %v", counts, err)
	}
	if sink.most > WindowBytes || cap(p.window) != WindowBytes {
		t.Errorf("a piece of %d bytes, a window of %d", sink.most, cap(p.window))
	}
	if len(sink.larges) != 1 || sink.larges[0] != payload {
		t.Fatalf("%d large payloads, or not as sent", len(sink.larges))
	}
	// 64 KiB with its quotes is one over the limit.
	if sink.last.Unstorable != TooLong || payload[sink.last.PropertiesAt.Offset:][:sink.last.PropertiesAt.Length] != `{"big":"`+big+`"}` {
		t.Errorf("unstorable %d, properties at %+v", sink.last.Unstorable, sink.last.PropertiesAt)
	}
}

type pieces struct {
	larges []string
	now    bytes.Buffer
	most   int
	last   Operation
}

func (s *pieces) Operation(op *Operation) error {
	if op.Large {
		s.last = *op
		s.larges = append(s.larges, s.now.String())
		s.now.Reset()
	}
	return nil
}
func (s *pieces) Large(p []byte) error { s.most = max(s.most, len(p)); s.now.Write(p); return nil }
func (s *pieces) DropLarge() error     { s.now.Reset(); return nil }
func (s *pieces) Restart() error       { return nil }

func TestFaultsOfReaderAndSinkComeOutAsTheyAre(t *testing.T) {
	t.Parallel()
	cut := errors.New("cut off")
	src := io.MultiReader(strings.NewReader(`{"operations":[`+ok1+`,`), iotest.ErrReader(cut))
	if _, err := NewParser().BatchFrom(src, receipt, &record{}); !errors.Is(err, cut) {
		t.Errorf("reader: %v", err)
	}
	src = io.MultiReader(strings.NewReader(`{"operations":[`+ok1+`]}`), iotest.ErrReader(cut))
	if _, err := NewParser().BatchFrom(src, receipt, &record{}); !errors.Is(err, cut) {
		t.Errorf("reader, behind the last brace: %v", err)
	}
	if _, err := NewParser().Batch([]byte(`{"operations":[`+ok1+`]}`), receipt, &full{}); !errors.Is(err, errFull) {
		t.Errorf("sink: %v", err)
	}
}

var errFull = errors.New("full")

type full struct{ record }

func (full) Operation(*Operation) error { return errFull }

func TestGarbageIDsAreThoseThatCannotBeAnybodys(t *testing.T) {
	t.Parallel()
	for _, id := range []string{
		"a", "é", "日", "😀", `"😀"`, " a ", `"a"`, `' a '`, "0", "0000", "0-0 0", "---", "   ", "\t\n", `""`, `"`, `''`,
		"00000000-0000-0000-0000-000000000000", strings.Repeat("x", 201), strings.Repeat("é", 201), "ab\x00c", "ab\xff",
		"anonymous", "ANONYMOUS-user", "anon", "guest", "backend", "system", "user", "unknown", "distinct_id", "distinctid",
		"id", "Email", "not_authenticated", "undefined", "NULL", "nil", "None", "NaN", "n/a", "NA", "true", "FALSE",
		"[object Object]", "<nil>", "[]", "{}", "-1", "lmy47d", "LMY47D", ` "null" `, `' undefined '`, `"[object Object]"`,
	} {
		if !Garbage([]byte(id)) {
			t.Errorf("%q is garbage", id)
		}
	}
	for _, id := range []string{
		"ab", "éé", "日本", "😀😀", "u1", "00a", "-2", "1-", "anonymous2", "users", `""null""`, `"null'`, "null null", strings.Repeat("x", 200), strings.Repeat("é", 200), strings.Repeat("😀", 200),
		" " + strings.Repeat("x", 200) + " ", "10", "550e8400-e29b-41d4-a716-446655440000",
	} {
		if Garbage([]byte(id)) {
			t.Errorf("%q is no garbage", id)
		}
	}
}

func depth(b []byte) (most int) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	for d := 0; ; {
		tok, err := dec.Token()
		if err != nil {
			return most
		}
		switch tok {
		case json.Delim('{'), json.Delim('['):
			d++
			most = max(most, d)
		case json.Delim('}'), json.Delim(']'):
			d--
		}
	}
}

// FuzzAcceptance compares with encoding/json what is JSON at all, and the window with memory.
func FuzzAcceptance(f *testing.F) {
	for _, s := range []string{`{"event_name":"a","distinct_id":"u1","properties":{"a":[1,-0.5e+7,"\ud83d\ude00\u0000",null,true,false]}}`,
		`{"a":01}`, `{"a":1.}`, `{"a":"` + "\x01" + `"}`, `{"a":"\x"}`, `{"a":tru}`, `{,}`, `{"a":[1,]}`, `{"a":-}`, `{"a":1e}`, `{"a":"é` + "\xc3" + `"}`,
		`{"operations":[` + ok1 + `]}`, `{"a":"\ud800\ud800\udc00\ud800x"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var inMemory, inWindow record
		p := NewParser()
		_, err := p.Single(body, People, receipt, &inMemory)
		trimmed := bytes.TrimLeft(body, " \t\r\n")
		want := json.Valid(body) && utf8.Valid(body) && len(trimmed) > 0 && trimmed[0] == '{' && depth(body) <= MaxDepth
		if got := !errors.Is(err, ErrBody); got != want {
			t.Fatalf("%q: accepted %v, want %v", body, got, want)
		}
		p.window = make([]byte, 0, 256)
		_, streamed := p.SingleFrom(iotest.HalfReader(bytes.NewReader(body)), People, receipt, &inWindow)
		if len(body) < 200 && (fmt.Sprint(streamed) != fmt.Sprint(err) || fmt.Sprint(inMemory.ops) != fmt.Sprint(inWindow.ops)) {
			t.Fatalf("%q: in memory %v %v, in a window %v %v", body, inMemory.ops, err, inWindow.ops, streamed)
		}
		if errors.Is(streamed, ErrBody) != errors.Is(err, ErrBody) {
			t.Fatalf("%q: in memory %v, in a window %v", body, err, streamed)
		}
	})
}

// FuzzMembers compares with encoding/json what the members hold.
func FuzzMembers(f *testing.F) {
	f.Add([]byte(`{"event_name":"a\n\u00e9","distinct_id":"u1","properties":{"a":1},"anon_id":"\ud83d\ude00"}`))
	f.Add([]byte(`{"event_name":"a","distinct_id":"u1","event_name":"b","lib_version":"\/"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var op Operation
		sink := hold{&op}
		if _, err := NewParser().Single(body, Track, receipt, sink); err != nil || op.DistinctID == nil || op.Unstorable != 0 {
			return
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatal(err)
		}
		for name, got := range map[string][]byte{"event_name": op.EventName, "distinct_id": op.DistinctID, "anon_id": op.AnonID, "lib_version": op.LibVersion, "insert_id": op.InsertID} {
			var s *string
			if err := json.Unmarshal(want[name], &s); want[name] != nil && err != nil {
				t.Fatal(err)
			}
			if (s == nil) != (got == nil) || s != nil && *s != string(got) {
				t.Fatalf("%s of %q is %q", name, body, got)
			}
		}
		if p := want["properties"]; string(p) != string(op.Properties) && string(p) != "null" {
			t.Fatalf("properties of %q are %q, want %q", body, op.Properties, p)
		}
	})
}

type hold struct{ op *Operation }

func (h hold) Operation(op *Operation) error { *h.op = *op; return nil }
func (hold) Large([]byte) error              { return nil }
func (hold) DropLarge() error                { return nil }
func (hold) Restart() error                  { return nil }

type discard struct{ n int }

func (d *discard) Operation(*Operation) error { d.n++; return nil }
func (*discard) Large([]byte) error           { return nil }
func (*discard) DropLarge() error             { return nil }
func (*discard) Restart() error               { return nil }

func event300() string {
	return `{"event_name":"checkout_completed","distinct_id":"user-1234567","timestamp":"2026-01-02T03:04:05.678Z","lib_version":"2.4.1",` +
		`"properties":{"$session_id":"3f1c9a","plan":"pro","amount":129.95,"currency":"EUR","items":[1,2,3],"coupon":null},` +
		`"default_properties":{"$os":"iOS 19.1","$device_model":"iPhone18,2"}}`
}

func BenchmarkTrack(b *testing.B) {
	body := []byte(event300())
	p, d := NewParser(), &discard{}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Single(body, Track, receipt, d); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBatchOf100(b *testing.B) {
	body := []byte(`{"operations":[` + strings.Repeat(`{"type":"track","payload":`+event300()+`},`, 99) + `{"type":"track","payload":` + event300() + `}]}`)
	p, d := NewParser(), &discard{}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Batch(body, receipt, d); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(d.n)/b.Elapsed().Seconds(), "events/s")
}

// A string that is longer than the window is still being read when the window has to move on for the first time.
func TestMemberLongerThanTheWindowIsAFaultAndNotAPanic(t *testing.T) {
	t.Parallel()
	body := `{"operations":[{"type":"track","payload":{"event_name":"` + strings.Repeat("a", 3*WindowBytes) + `","distinct_id":"d"}}]}`
	for name, cut := range map[string]int{"whole": len(body), "cut": len(body) - 100} {
		var streamed record
		_, fromStream := NewParser().BatchFrom(strings.NewReader(body[:cut]), receipt, &streamed)
		var stored record
		_, fromMemory := NewParser().Batch([]byte(body[:cut]), receipt, &stored)
		if (fromStream == nil) != (fromMemory == nil) {
			t.Errorf("%s: from a stream %v, from memory %v", name, fromStream, fromMemory)
		}
	}
}
