package intake

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/andybalholm/brotli"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/klauspost/compress/zstd"
	"github.com/valyala/fasthttp"

	"skerry/edgenode/buffer"
	"skerry/edgenode/edgetest"
	"skerry/edgenode/front"
	"skerry/edgenode/gate"
	"skerry/edgenode/store"
	"skerry/edgenode/view"
	"skerry/pkg/apikey"
	"skerry/pkg/openapi/openapitest"
	"skerry/pkg/state"
	"skerry/replication"
	"skerry/replication/down"
	"skerry/replication/tally"
	"skerry/replication/up"
)

// The cleaner of a stopped fasthttp server sleeps ten seconds before it looks whether it is to end, and its clock runs on.
func TestMain(m *testing.M) { edgetest.Main(m) }

const projectID = "018f0000-0000-7000-8000-000000000001"

var (
	key    = apikey.New(apikey.Live)
	closed = apikey.New(apikey.Test) // of another project, with an allowlist, no crash intake
)

const closedID = "018f0000-0000-7000-8000-000000000002"

// world is an edge's ingestion: state, gate, buffer and intake behind a real server.
type world struct {
	t      testing.TB
	url    string
	disk   *store.Store
	buffer *buffer.Buffer
	intake *Module
	next   replication.Position
}

type settings struct {
	fs      vfs.FS
	dir     string
	config  Config
	buffer  buffer.Config
	project func(*state.Project)
	empty   bool // no state yet
}

func newWorld(t testing.TB, s settings) *world {
	t.Helper()
	w := &world{t: t}
	if s.fs == nil {
		s.fs, s.dir = vfs.NewMem(), "data"
	}
	quiet := slog.New(slog.DiscardHandler)
	views := view.New(view.Options{Log: quiet})
	var err error
	w.disk, err = store.Open(store.Config{Dir: s.dir + "/state", FS: s.fs, Log: quiet}, views.Apply)
	w.must(err)
	views.Attach(w.disk)
	if !s.empty {
		w.fill(s.project)
	}
	s.buffer.Dir, s.buffer.Edge, s.buffer.FS, s.buffer.Log = s.dir+"/buffer", "e1", s.fs, quiet
	w.buffer, err = buffer.Open(s.buffer)
	w.must(err)
	limiter, err := tally.NewLimiter(tally.LimiterConfig{Edge: "e1"})
	w.must(err)
	s.config.Gate = gate.New(gate.Config{Views: views, Limiter: limiter, Meter: tally.NewMeter("e1", w.buffer, nil)})
	s.config.Buffer, s.config.Log = w.buffer, quiet
	w.intake, err = New(s.config)
	w.must(err)
	w.serve(s.config.Gate)
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) document(subject replication.Subject, body any) replication.Document {
	data, err := json.Marshal(body)
	w.must(err)
	w.next++
	return replication.Document{Subject: subject, Position: w.next, TxFirst: w.next, TxLast: w.next, Through: w.next,
		ChangedAt: 1, Body: data}
}

func (w *world) fill(change func(*state.Project)) {
	project := state.Project{ID: projectID, Name: `A "project"`, Tier: "pro", Modules: state.Modules{Catch: true},
		RateLimits: state.RateLimits{IngestPerMinute: 1 << 30}}
	if change != nil {
		change(&project)
	}
	other := state.Project{ID: closedID, Name: "closed", RateLimits: state.RateLimits{IngestPerMinute: 1 << 30},
		Allowlist: state.Allowlist{Origins: []string{"https://a.example"}, CIDRs: []string{"10.0.0.0/8"}}}
	for lane := range replication.Lanes {
		g, err := w.disk.Begin(lane)
		w.must(err)
		if lane == replication.Normal {
			w.must(g.Add([]replication.Document{
				w.document(replication.KeySubject(apikey.Of(key).String()), state.Key{ID: "k1", ProjectID: projectID, Environment: "live"}),
				w.document(replication.KeySubject(apikey.Of(closed).String()), state.Key{ID: "k2", ProjectID: closedID, Environment: "test"}),
				w.document(replication.ProjectSubject(projectID), project),
				w.document(replication.ProjectSubject(closedID), other),
			}))
		}
		w.must(g.Serve(down.Cursor{Seq: 1, Position: w.next}))
	}
}

// serve starts a server that does what the edge's own assembly does for these paths.
func (w *world) serve(g *gate.Gate) {
	handlers := map[string]func(*fasthttp.RequestCtx, []byte){
		"/api/v1/track": w.intake.Track, "/api/v1/people": w.intake.People, "/api/v1/alias": w.intake.Alias,
		"/api/v1/batch": w.intake.Batch, "/api/catch/events": w.intake.Crash,
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	w.url = "http://" + ln.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	wait.Go(func() {
		err := front.Serve(ctx, ln, func(ctx *fasthttp.RequestCtx) {
			g.Begin(ctx)
			handlers[string(ctx.Path())](ctx, nil)
		}, front.Limits{})
		if err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		stop()
		wait.Wait()
		w.must(w.buffer.Close())
		w.must(w.disk.Close())
	})
}

// send posts a body and returns status and body of the answer.
func (w *world) send(path string, body io.Reader, headers ...string) (int, string) {
	w.t.Helper()
	req, err := http.NewRequest(http.MethodPost, w.url+path, body)
	w.must(err)
	req.Header.Set("x-api-key", key)
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] == "" {
			req.Header.Del(headers[i])
		} else {
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	res, err := http.DefaultClient.Do(req)
	w.must(err)
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	w.must(err)
	if res.Header.Get("X-Request-Id") == "" {
		w.t.Errorf("%s: no X-Request-Id", path)
	}
	if res.Header.Get("Retry-After") != "" {
		w.t.Errorf("%s: Retry-After", path)
	}
	openapitest.Check(w.t, req.Method, path, res.StatusCode, res.Header, answer)
	return res.StatusCode, string(answer)
}

func (w *world) expect(what, path, body string, status int, answer string, headers ...string) {
	w.t.Helper()
	gotStatus, got := w.send(path, strings.NewReader(body), headers...)
	if gotStatus != status || got != answer {
		w.t.Errorf("%s: %d %s, want %d %s", what, gotStatus, got, status, answer)
	}
}

// stored is what stands in the buffer's lane, by distinct_id (and what else tells operations apart).
func (w *world) stored(lane up.Lane) (list []string) {
	w.t.Helper()
	for _, in := range w.buffer.Pending(lane) {
		for from := uint64(1); ; {
			batch, ok, err := w.buffer.Read(context.Background(), in, lane, from, up.PackBudget)
			w.must(err)
			if !ok {
				break
			}
			blocks, err := batch.Blocks()
			w.must(err)
			for i := range blocks {
				if blocks[i].Count == 0 || blocks[i].RequestID == "" {
					w.t.Errorf("block header %+v", blocks[i].Header)
				}
				var op up.Operation
				ops := blocks[i].Operations()
				for ops.Next(&op) {
					list = append(list, show(lane, &op))
				}
				w.must(ops.Err())
			}
			from = batch.End()
		}
	}
	return list
}

func show(lane up.Lane, op *up.Operation) string {
	if op.Unstorable != 0 {
		return op.Unstorable.String() + " " + string(op.Raw)
	}
	switch lane {
	case up.LaneAlias:
		return string(op.AliasID) + "→" + string(op.DistinctID)
	case up.LaneCrash:
		return string(op.Raw)
	}
	return strings.TrimSpace(string(op.EventName) + " " + string(op.DistinctID) + " " + string(op.Properties))
}

func (w *world) wantStored(what string, lane up.Lane, want ...string) {
	w.t.Helper()
	got := w.stored(lane)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		w.t.Errorf("%s: %s lane holds %.500q, want %.500q", what, lane, got, want)
	}
}

const (
	track   = `{"event_name":"a","distinct_id":"u1","properties":{"n":1e999}}`
	people  = `{"distinct_id":"u1","properties":{"plan":"pro"}}`
	aliased = `{"alias_id":"a1","distinct_id":"u1"}`
)

func TestEndpointsAnswerInTheSpecificationsWords(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{})
	const discarded = `{"ok":true,"status":"discarded"}`
	for _, c := range []struct {
		path, body string
		status     int
		answer     string
	}{
		{"/api/v1/track", track, 200, `{"ok":true}`},
		{"/api/v1/people", people, 200, `{"ok":true}`},
		{"/api/v1/alias", aliased, 200, ``},
		{"/api/v1/track", `{"event_name":"a","distinct_id":"null"}`, 202, discarded},
		{"/api/v1/people", `{"distinct_id":" 'Anonymous' "}`, 202, discarded},
		{"/api/v1/alias", `{"alias_id":"0","distinct_id":"u1"}`, 202, discarded},
		{"/api/v1/alias", `{"alias_id":"a1","distinct_id":"x"}`, 202, discarded},
		{"/api/v1/track", ``, 400, `{"error":"Invalid body"}`},
		{"/api/v1/track", `nope`, 400, `{"error":"Invalid body"}`},
		{"/api/v1/track", `[]`, 400, `{"error":"Invalid body"}`},
		{"/api/v1/track", `{"event_name":"a","distinct_id":"u1","properties":` + strings.Repeat("[", 511) + strings.Repeat("]", 511) + `}`, 400, `{"error":"Invalid track payload"}`},
		{"/api/v1/track", `{"event_name":"a","distinct_id":"u1","properties":` + strings.Repeat("[", 512) + strings.Repeat("]", 512) + `}`, 400, `{"error":"Invalid body"}`},
		{"/api/v1/track", `{"distinct_id":"u1"}`, 400, `{"error":"Invalid track payload"}`},
		{"/api/v1/track", `{"event_name":"","distinct_id":"u1"}`, 400, `{"error":"Invalid track payload"}`},
		{"/api/v1/people", `{"distinct_id":""}`, 400, `{"error":"Invalid people payload"}`},
		{"/api/v1/alias", `{"alias_id":"a1"}`, 400, `{"error":"Invalid alias payload"}`},
		{"/api/v1/batch", `{}`, 400, `{"error":"No operations provided"}`},
		{"/api/v1/batch", `{"operations":[]}`, 400, `{"error":"No operations provided"}`},
		{"/api/v1/batch", `{"operations":{}}`, 400, `{"error":"Invalid body"}`},
		{"/api/v1/batch", `{"operations":[{"type":"identify","payload":{}}]}`, 400, `{"error":"unknown operation type"}`},
		{"/api/v1/batch", `{"operations":[{"type":"track","payload":` + track + `},{"type":"track","payload":{}}]}`, 400, `{"error":"Invalid track payload"}`},
		{"/api/v1/batch", `{"operations":[{"type":"track","payload":{"event_name":"a","distinct_id":"nil"}},{"type":"alias","payload":{"alias_id":"a1","distinct_id":"-"}}]}`,
			202, `{"ok":true,"status":"discarded_all"}`},
		{"/api/v1/batch", `{"operations":[{"type":"track","payload":` + track + `},{"type":"people","payload":` + people + `},{"type":"alias","payload":` + aliased + `},` +
			`{"type":"track","payload":{"event_name":"b","distinct_id":"u2"}},{"type":"track","payload":{"event_name":"a","distinct_id":"guest"}}]}`,
			200, `{"ok":true,"project_id":"` + projectID + `","project_name":"A \"project\"","environment":"live","operations_received":4,` +
				`"events_received":2,"people_received":1,"aliases_received":1,"commands":[]}`},
	} {
		w.expect(c.path+" "+c.body[:min(len(c.body), 100)], c.path, c.body, c.status, c.answer)
	}
	w.wantStored("all", up.LaneEvent, `a u1 {"n":1e999}`, `a u1 {"n":1e999}`, `b u2`)
	w.wantStored("all", up.LanePeople, `u1 {"plan":"pro"}`, `u1 {"plan":"pro"}`)
	w.wantStored("all", up.LaneAlias, `a1→u1`, `a1→u1`)
	if s := w.intake.Stats(); s.Track != 3 || s.Garbage != 7 || s.Memory != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestGateComesBeforeTheBody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{})
	big := strings.Repeat("x", 100_000)
	for _, path := range []string{"/api/v1/track", "/api/v1/people", "/api/v1/alias", "/api/v1/batch", "/api/catch/events"} {
		for _, body := range []string{"nope", big} {
			w.expect("no key "+path, path, body, 401, `{"error":"Missing API key"}`, "x-api-key", "")
			w.expect("unknown key "+path, path, body, 403, `{"error":"Unknown API key"}`, "x-api-key", "sk_live_x")
			w.expect("origin "+path, path, body, 403, `{"error":"Origin not allowed"}`, "x-api-key", closed, "Origin", "https://b.example")
			w.expect("address "+path, path, body, 403, `{"error":"Origin not allowed"}`, "x-api-key", closed)
		}
	}
	w.expect("listed origin", "/api/v1/track", track, 200, `{"ok":true}`, "x-api-key", closed, "Origin", "https://a.example")
	w.expect("module off", "/api/catch/events", "nope", 403, `{"error":"module_disabled"}`, "x-api-key", closed, "Origin", "https://a.example")
}

func TestEdgeWithoutStateAnswers503(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{empty: true})
	w.expect("track", "/api/v1/track", track, 503, `{"error":"Service temporarily unavailable"}`)
}

func TestRateLimitIsOneForTheFourPaths(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{project: func(p *state.Project) { p.RateLimits.IngestPerMinute = 4 }})
	waitForRoomInTheMinute()
	const refused = `{"error":"Rate limit exceeded. Please wait a moment."}`
	w.expect("1", "/api/v1/track", track, 200, `{"ok":true}`)
	w.expect("2", "/api/v1/people", `nope`, 400, `{"error":"Invalid body"}`)
	w.expect("3", "/api/v1/alias", aliased, 200, ``)
	w.expect("4", "/api/v1/batch", `{}`, 400, `{"error":"No operations provided"}`)
	for _, path := range []string{"/api/v1/track", "/api/v1/people", "/api/v1/alias", "/api/v1/batch"} {
		w.expect("over", path, track, 429, refused)
	}
	w.expect("crash reports are not counted", "/api/catch/events", `{}`, 400, crashFault(t, w))
	w.expect("another key", "/api/v1/track", track, 403, `{"error":"Unknown API key"}`, "x-api-key", "sk_live_y")
}

// crashFault is the message for an empty report, whose words are another package's.
func crashFault(t *testing.T, w *world) string {
	t.Helper()
	status, body := w.send("/api/catch/events", strings.NewReader(`{}`))
	if status != 400 || !strings.HasPrefix(body, `{"error":"invalid_body","message":`) {
		t.Errorf("empty crash report: %d %s", status, body)
	}
	return body
}

// waitForRoomInTheMinute returns when the present minute lasts ten seconds more: the counter resets at its end.
func waitForRoomInTheMinute() {
	if left := time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)); left < 10*time.Second {
		<-time.After(left)
	}
}

func TestQuotaIsCheckedBeforeTheBodyAndABatchIsTakenWhole(t *testing.T) {
	t.Parallel()
	three := int64(3)
	w := newWorld(t, settings{project: func(p *state.Project) { p.Quotas.Events = &three }})
	one := `{"type":"track","payload":` + track + `}`
	w.expect("first", "/api/v1/track", track, 200, `{"ok":true}`)
	w.expect("garbage is not counted", "/api/v1/track", `{"event_name":"a","distinct_id":"x"}`, 202, `{"ok":true,"status":"discarded"}`)
	w.expect("people are not counted", "/api/v1/people", people, 200, `{"ok":true}`)
	if status, _ := w.send("/api/v1/batch", strings.NewReader(`{"operations":[`+one+`,`+one+`,`+one+`]}`)); status != 200 {
		t.Errorf("a batch that starts with quota left: %d", status)
	}
	const exceeded = `{"error":"quota_exceeded","current":4,"limit":3}`
	w.expect("over", "/api/v1/track", `nope`, 429, exceeded)
	w.expect("over", "/api/v1/batch", `nope`, 429, exceeded)
	w.expect("people", "/api/v1/people", people, 200, `{"ok":true}`)
	w.expect("alias", "/api/v1/alias", aliased, 200, ``)
	if n := len(w.stored(up.LaneEvent)); n != 4 {
		t.Errorf("%d events stored, want 4", n)
	}
}

func encode(t testing.TB, encoding, text string) string {
	var b bytes.Buffer
	var w io.WriteCloser
	switch encoding {
	case "gzip":
		w = gzip.NewWriter(&b)
	case "br":
		w = brotli.NewWriter(&b)
	case "zstd":
		var err error
		if w, err = zstd.NewWriter(&b); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestCompressedBodiesAreReadWithinTheirBounds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{config: Config{MaxBodyBytes: 3 << 20}})
	large := `{"operations":[{"type":"track","payload":` + track + `}` + strings.Repeat(`,{"type":"track","payload":`+track+`}`, 25_000) + `]}`
	n := 0
	for _, encoding := range []string{"gzip", "zstd", "br"} {
		w.expect(encoding, "/api/v1/track", encode(t, encoding, track), 200, `{"ok":true}`, "Content-Encoding", strings.ToUpper(encoding))
		if status, _ := w.send("/api/v1/batch", strings.NewReader(encode(t, encoding, large)), "Content-Encoding", encoding); status != 200 {
			t.Errorf("%s of %d bytes: %d", encoding, len(large), status)
		}
		n += 25_002
		whole := encode(t, encoding, track)
		const invalid = `{"error":"Invalid body"}`
		w.expect(encoding+" cut off", "/api/v1/track", whole[:len(whole)/2], 400, invalid, "Content-Encoding", encoding)
		w.expect(encoding+" corrupt", "/api/v1/track", "\x01\x02"+whole, 400, invalid, "Content-Encoding", encoding)
		w.expect(encoding+" empty", "/api/v1/track", "", 400, invalid, "Content-Encoding", encoding)
		w.expect(encoding+" of nothing", "/api/v1/track", encode(t, encoding, ""), 400, invalid, "Content-Encoding", encoding)
		bomb := encode(t, encoding, `{"event_name":"a","distinct_id":"u1","properties":{"x":"`+strings.Repeat("0", 64<<20)+`"}}`)
		w.expect(encoding+" bomb", "/api/v1/track", bomb, 413, `{"error":"payload_too_large"}`, "Content-Encoding", encoding)
	}
	w.expect("identity", "/api/v1/track", track, 200, `{"ok":true}`, "Content-Encoding", "identity")
	w.expect("unknown", "/api/v1/track", track, 415, `{"error":"unsupported_encoding"}`, "Content-Encoding", "deflate")
	req, err := http.NewRequest(http.MethodPost, w.url+"/api/v1/track", strings.NewReader(encode(t, "gzip", track)))
	w.must(err)
	req.Header = http.Header{"X-Api-Key": {key}, "Content-Encoding": {"gzip", "gzip"}}
	res, err := http.DefaultClient.Do(req)
	w.must(err)
	w.must(res.Body.Close())
	if res.StatusCode != 415 {
		t.Errorf("two codings in lines of their own: %d, want 415", res.StatusCode)
	}
	if got := len(w.stored(up.LaneEvent)); got != n+1 {
		t.Errorf("%d events stored, want %d", got, n+1)
	}
	if used := w.intake.Stats().Memory; used != 0 {
		t.Errorf("%d bytes of the budget are not given back", used)
	}
}

func TestBodyOverTheLimitIs413AndLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{config: Config{MaxBodyBytes: 3 << 20}})
	one := `{"type":"track","payload":` + track + `}`
	body := `{"operations":[` + one + strings.Repeat(`,`+one, 40_000) + `]}`
	const tooLarge = `{"error":"payload_too_large"}`
	w.expect("announced", "/api/v1/batch", body, 413, tooLarge)
	if status, answer := w.send("/api/v1/batch", io.MultiReader(strings.NewReader(body))); status != 413 || answer != tooLarge {
		t.Errorf("chunked: %d %s", status, answer)
	}
	w.wantStored("nothing", up.LaneEvent)
	if b := w.buffer.Status().Bytes; b != 0 {
		t.Errorf("%d bytes held", b)
	}
}

func TestChunkedBodiesAndTheNextRequestOfTheConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{})
	for i := range 5 {
		body := io.MultiReader(strings.NewReader(track[:10]), strings.NewReader(track[10:]))
		if status, answer := w.send("/api/v1/track", body); status != 200 || answer != `{"ok":true}` {
			t.Errorf("%d: %d %s", i, status, answer)
		}
	}
	if n := len(w.stored(up.LaneEvent)); n != 5 {
		t.Errorf("%d events, want 5", n)
	}
}

// operationsReader is the body of a batch of any size, which is never whole in memory.
type operationsReader struct {
	n    int
	each func(i int) string
	end  string
	buf  string
	i    int
}

func (r *operationsReader) Read(p []byte) (int, error) {
	for r.buf == "" {
		switch {
		case r.i == 0:
			r.buf = `{"operations":[` + r.each(0)
		case r.i < r.n:
			r.buf = "," + r.each(r.i)
		case r.i == r.n:
			r.buf = r.end
		default:
			return 0, io.EOF
		}
		r.i++
	}
	n := copy(p, r.buf)
	r.buf = r.buf[n:]
	return n, nil
}

func TestFaultInTheLastOperationOfALargeBatchLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{})
	each := func(i int) string {
		switch i % 3 {
		case 0:
			return fmt.Sprintf(`{"type":"alias","payload":{"alias_id":"a%d","distinct_id":"u%d"}}`, i, i)
		case 1:
			return fmt.Sprintf(`{"payload":{"distinct_id":"u%d","properties":{"x":"%s"}},"type":"people"}`, i, strings.Repeat("y", 100))
		}
		return fmt.Sprintf(`{"type":"track","payload":{"event_name":"e","distinct_id":"u%d","properties":{"x":"%s"}}}`, i, strings.Repeat("y", 200))
	}
	for end, answer := range map[string]string{
		`,{"type":"track","payload":{"event_name":"e"}}]}`: `{"error":"Invalid track payload"}`,
		`,{"type":"other","payload":{}}]}`:                 `{"error":"unknown operation type"}`,
		`,{"type":"track","payload":{"event_name":"e"}}]`:  `{"error":"Invalid body"}`,
		`]},`:                `{"error":"Invalid body"}`,
		`],"operations":[]}`: `{"error":"No operations provided"}`,
	} {
		if status, got := w.send("/api/v1/batch", &operationsReader{n: 60_000, each: each, end: end}); status != 400 || got != answer {
			t.Errorf("%s: %d %s", end, status, got)
		}
	}
	for _, lane := range up.Lanes {
		w.wantStored("faults", lane)
	}
	if b := w.buffer.Status().Bytes; b != 0 {
		t.Errorf("%d bytes held", b)
	}
	status, answer := w.send("/api/v1/batch", &operationsReader{n: 60_000, each: each, end: "]}"})
	if status != 200 || !strings.Contains(answer, `"operations_received":60000,"events_received":20000,"people_received":20000,"aliases_received":20000`) {
		t.Errorf("without a fault: %d %s", status, answer)
	}
	events := w.stored(up.LaneEvent)
	if len(events) != 20_000 || !strings.HasPrefix(events[0], "e u2 ") || !strings.HasPrefix(events[19_999], "e u59999 ") {
		t.Errorf("%d events, from %.20s to %.20s", len(events), events[0], events[len(events)-1])
	}
	if aliases := w.stored(up.LaneAlias); len(aliases) != 20_000 || aliases[19_999] != "a59997→u59997" {
		t.Errorf("%d aliases", len(aliases))
	}
	if s := w.intake.Stats(); s.Spooled != 6 || s.Memory != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestStrangePropertiesAreKeptAsSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{})
	long := strings.Repeat("z", 3<<20)
	deep := strings.Repeat(`{"a":`, 198) + `1` + strings.Repeat(`}`, 198)
	nul := `{"event_name":"a","distinct_id":"u1","properties":{"x":"\u0000"}}`
	lone := `{"distinct_id":"u1","properties":{"x":"\ud83d"}}`
	w.expect("nul", "/api/v1/track", nul, 200, `{"ok":true}`)
	w.expect("lone surrogate", "/api/v1/people", lone, 200, `{"ok":true}`)
	for _, properties := range []string{
		`{ "a" : 1.0000000000000000000001, "b":9223372036854775808, "a": 2 }`, deep, `{"x":"` + long + `"}`,
	} {
		w.expect("as sent", "/api/v1/track", `{"event_name":"a","distinct_id":"u1","properties":`+properties+`}`, 200, `{"ok":true}`)
	}
	w.expect("alias with a large member that is ignored", "/api/v1/alias", `{"alias_id":"a1","x":"`+long+`","distinct_id":"u1"}`, 200, ``)
	w.wantStored("events", up.LaneEvent, "nul_character "+nul, `a u1 { "a" : 1.0000000000000000000001, "b":9223372036854775808, "a": 2 }`,
		"a u1 "+deep, `a u1 {"x":"`+long+`"}`)
	w.wantStored("people", up.LanePeople, "lone_surrogate "+lone)
	w.wantStored("aliases", up.LaneAlias, "a1→u1")
}

func TestFullBufferAndFullMemoryAnswer503(t *testing.T) {
	t.Parallel()
	const unavailable = `{"error":"Service temporarily unavailable"}`
	w := newWorld(t, settings{buffer: buffer.Config{MaxBytes: 2 << 20}})
	properties := strings.Repeat("x", 900_000)
	body := `{"event_name":"a","distinct_id":"u1","properties":{"x":"` + properties + `"}}`
	w.expect("room for one", "/api/v1/track", body, 200, `{"ok":true}`)
	w.expect("room for two", "/api/v1/track", body, 200, `{"ok":true}`)
	w.expect("in memory", "/api/v1/track", body, 503, unavailable)
	w.expect("spooled", "/api/v1/track", strings.Replace(body, `{"x"`, `{"y":"`+properties+`","x"`, 1), 503, unavailable)
	w.expect("a small one", "/api/v1/track", track, 200, `{"ok":true}`)
	if n := len(w.stored(up.LaneEvent)); n != 3 {
		t.Errorf("%d events, want 3", n)
	}
	w = newWorld(t, settings{config: Config{MemoryBytes: 1 << 20}})
	w.expect("over the memory of all", "/api/v1/track", body, 503, unavailable)
	w.expect("a small one", "/api/v1/track", track, 200, `{"ok":true}`)
}

func TestCrashReportIsAnsweredWithItsIDWhenItIsOnTheDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{})
	report := `{"release":"1.0","platform":"javascript","exception":{"type":"TypeError","value":"x"},"frames":[]}`
	status, answer := w.send("/api/catch/events", strings.NewReader(report))
	var got struct{ ID string }
	if err := json.Unmarshal([]byte(answer), &got); err != nil || status != 202 || len(got.ID) != 36 || answer != `{"id":"`+got.ID+`"}` {
		t.Errorf("%d %s", status, answer)
	}
	stored := w.stored(up.LaneCrash)
	if len(stored) != 1 || !strings.Contains(stored[0], `"TypeError"`) {
		t.Errorf("stored %q", stored)
	}
	if status, answer := w.send("/api/catch/events", strings.NewReader(`{"platform":7}`)); status != 400 || !strings.HasPrefix(answer, `{"error":"invalid_body"`) {
		t.Errorf("bad report: %d %s", status, answer)
	}
	big := strings.Replace(report, `"x"`, `"`+strings.Repeat("x", 17<<20)+`"`, 1)
	w.expect("too large, announced", "/api/catch/events", big, 413, `{"error":"payload_too_large"}`)
	w.expect("far too large", "/api/catch/events", strings.Repeat(big, 3), 413, `{"error":"payload_too_large"}`)
	if status, _ := w.send("/api/catch/events", io.MultiReader(strings.NewReader(big))); status != 413 {
		t.Errorf("too large, chunked: %d", status)
	}
	middle := strings.Replace(report, `"x"`, `"`+strings.Repeat("x", 5<<20)+`"`, 1)
	if status, answer := w.send("/api/catch/events", strings.NewReader(encode(t, "gzip", middle)), "Content-Encoding", "gzip"); status != 202 {
		t.Errorf("5 MiB, compressed: %d %s", status, answer)
	}
	if used := w.intake.Stats().Memory; used != 0 {
		t.Errorf("%d bytes of the budget are not given back", used)
	}
}

// A batch that cannot be packed would be tried for ever, and hold up every report behind it.
func TestEveryAcceptedCrashReportCanTravel(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{})
	const report = `{"release":"1.0","platform":"ndk","exception":{"type":"E","value":"%s"},"frames":[]}`
	for _, c := range []struct {
		what, text string
		times      int
		status     int
	}{
		{"brackets, a byte each as sent and as stored", "<", 6 << 20, 202},
		{"line separators, twice as long as stored", "\u2028", 5 << 20, 413},
		{"a small one", "x", 1, 202},
	} {
		if status, answer := w.send("/api/catch/events", strings.NewReader(fmt.Sprintf(report, strings.Repeat(c.text, c.times)))); status != c.status {
			t.Errorf("%s: %d %s", c.what, status, answer)
		}
	}
	packer, err := up.NewPacker()
	w.must(err)
	reports := uint32(0)
	for _, in := range w.buffer.Pending(up.LaneCrash) {
		for from := uint64(1); ; {
			batch, ok, err := w.buffer.Read(t.Context(), in, up.LaneCrash, from, up.PackBudget)
			w.must(err)
			if !ok {
				break
			}
			if _, err := packer.Pack(&batch); err != nil {
				t.Error(err)
			}
			reports, from = reports+batch.Count, batch.End()
		}
	}
	if reports != 2 {
		t.Errorf("%d reports travel, want 2", reports)
	}
}
