package writeplane

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"skerry/replication/up"
	"skerry/writeplane/access"
	"skerry/writeplane/blobs"
	"skerry/writeplane/identity"
	"skerry/writeplane/ingest"
	"skerry/writeplane/lease"
)

// received is a plane whose store of events answers.
type received struct {
	*managed
	store   *ingest.Store
	worker  *identity.Worker
	blobs   *blobs.Store
	project uuid.UUID
	next    map[up.Lane]uint64
}

func newReceived(t *testing.T) *received {
	t.Helper()
	p := newPlane(t)
	place, err := blobs.Open(t.Context(), blobs.Config{URL: t.TempDir()}, p.db.App)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = place.Close() })
	store, err := ingest.NewStore(ingest.Config{}, p.db, place, func(context.Context, pgx.Tx, []ingest.CrashRow) ([]ingest.BadCrash, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	server := p.serve(t, HandlerConfig{}, Routes(Modules{
		Access: access.NewModule(p.commits, p.access), Ingest: ingest.New(store, p.access), Persons: identity.New(p.commits, p.access),
	})...)
	return &received{managed: &managed{plane: p, server: server}, store: store, blobs: place,
		worker:  identity.NewWorker(p.db.App, lease.New(p.db.App, t.Name())),
		project: uuid.MustParse(p.founding.ProjectID), next: map[up.Lane]uint64{}}
}

var start = time.Now().UTC().Add(-time.Hour).Truncate(time.Millisecond)

func (r *received) send(t *testing.T, lane up.Lane, at time.Time, ops ...up.Operation) {
	t.Helper()
	var w up.BlockWriter
	w.Reset(up.Header{Lane: lane, Environment: up.Live, ReceivedAt: at.UnixMicro(), Project: r.project})
	for i := range ops {
		w.Append(&ops[i])
	}
	b := up.Batch{Incarnation: up.Incarnation{ID: [16]byte{1}, Ordinal: 1}, Lane: lane, First: r.next[lane] + 1, Count: uint32(len(ops)), Data: w.Bytes()}
	up.SetFirst(b.Data, b.First)
	r.next[lane] += uint64(len(ops))
	if outcome, err := r.store.Store(t.Context(), "edge-1", []up.Batch{b}); err != nil || outcome.Taken != 1 {
		t.Fatalf("store: %+v, %v", outcome, err)
	}
}

func tracked(name, distinct string, at time.Time) up.Operation {
	return up.Operation{EventName: []byte(name), DistinctID: []byte(distinct), Timestamp: at.UnixMicro(), Properties: []byte(`{"n":1}`)}
}

func (r *received) path(path string, query ...string) string {
	v := url.Values{"project_id": {r.founding.ProjectID}}
	for i := 0; i < len(query); i += 2 {
		v.Set(query[i], query[i+1])
	}
	return path + "?" + v.Encode()
}

func (r *received) names(t *testing.T, query ...string) string {
	t.Helper()
	body := r.must(t, 200, "viewer", "GET", r.path("/api/v1/events", query...), "")
	var names []string
	for _, e := range body["events"].([]any) {
		names = append(names, e.(map[string]any)["event_name"].(string))
	}
	return strings.Join(names, " ")
}

func TestEventsAreListedNewestFirst(t *testing.T) {
	t.Parallel()
	r := newReceived(t)
	ops := []up.Operation{
		tracked("a", "u1", start), tracked("b", "u2", start.Add(time.Second)), tracked("c", "u1", start.Add(-3*time.Hour)),
		tracked("d", "u1", start.Add(-100*24*time.Hour)), tracked("e", "u1", start.Add(10*time.Hour)),
	}
	ops[1].AnonID, ops[1].LibVersion, ops[1].DefaultProperties = []byte("x"), []byte("1.0"), []byte(`{"$os":"iOS"}`)
	r.send(t, up.LaneEvent, start, ops...)
	for _, c := range []struct{ query, want string }{
		{"", "e b a c d"},
		{"distinct_id=u1", "e a c d"},
		{"event_name=b", "b"},
		{"distinct_id=nobody", ""},
		{"environment=test", ""},
		{"since=" + start.Format(time.RFC3339Nano), "e b a"},
		{"until=" + start.Format(time.RFC3339Nano), "c d"},
		{"since=" + start.Add(-4*time.Hour).Format(time.RFC3339Nano) + "&until=" + start.Add(time.Millisecond).Format(time.RFC3339Nano), "a c"},
	} {
		v, err := url.ParseQuery(c.query)
		if err != nil {
			t.Fatal(err)
		}
		var query []string
		for name := range v {
			query = append(query, name, v.Get(name))
		}
		if got := r.names(t, query...); got != c.want {
			t.Errorf("%s: %q, want %q", c.query, got, c.want)
		}
	}
	got := r.must(t, 200, "viewer", "GET", r.path("/api/v1/events", "event_name", "b"), "")
	entry := got["events"].([]any)[0].(map[string]any)
	format := func(at time.Time) string { return at.Format("2006-01-02T15:04:05.000Z") }
	want := map[string]any{"id": entry["id"], "event_name": "b", "distinct_id": "u2", "anon_id": "x", "sent_anon_id": nil,
		"default_properties": map[string]any{"$os": "iOS"}, "lib_version": "1.0", "timestamp": format(start.Add(time.Second)), "received_at": format(start)}
	want["properties"] = map[string]any{"n": 1.0}
	if !reflect.DeepEqual(entry, want) {
		t.Errorf("entry %v\nwant %v", entry, want)
	}
}

func TestNumbersOfEventsKeepTheirWrittenPrecision(t *testing.T) {
	t.Parallel()
	r := newReceived(t)
	op := tracked("a", "u1", start)
	op.Properties = []byte(`{"n":1e999,"m":9223372036854775808,"d":0.10}`)
	r.send(t, up.LaneEvent, start, op)
	got := call(t, r.server, "GET", r.path("/api/v1/events"), "", bearer(r.tokens["viewer"])...)
	if !strings.Contains(got.body, `"properties":{"n":1e999,"m":9223372036854775808,"d":0.10}`) {
		t.Errorf("properties changed: %s", got.body)
	}
}

func TestEventsArePagedByACursorBoundToItsFilters(t *testing.T) {
	t.Parallel()
	r := newReceived(t)
	var ops []up.Operation
	for i := range 25 {
		ops = append(ops, tracked(fmt.Sprint("e", i), "u", start.Add(-time.Duration(i*i)*time.Minute)))
	}
	for i := range 5 {
		ops[10+i].Timestamp = ops[10].Timestamp // equal times are told apart by id
	}
	r.send(t, up.LaneEvent, start, ops...)
	for _, person := range []string{"", "u"} {
		seen, cursor := map[string]bool{}, ""
		for page := 0; ; page++ {
			query := []string{"limit", "7"}
			if person != "" {
				query = append(query, "distinct_id", person)
			}
			if cursor != "" {
				query = append(query, "cursor", cursor)
			}
			body := r.must(t, 200, "viewer", "GET", r.path("/api/v1/events", query...), "")
			events := body["events"].([]any)
			for _, e := range events {
				seen[e.(map[string]any)["event_name"].(string)] = true
			}
			if more := body["has_more"].(bool); more != (page < 3) {
				t.Fatalf("page %d of %q: has_more %v with %d events", page, person, more, len(events))
			} else if !more {
				break
			}
			cursor = body["next_cursor"].(string)
		}
		if len(seen) != 25 {
			t.Errorf("%d of 25 events over all pages of %q", len(seen), person)
		}
		if got, _ := r.as(t, "viewer", "GET", r.path("/api/v1/events", "cursor", cursor, "event_name", "e1"), ""); got.status != 400 || !strings.Contains(got.body, `"invalid_cursor"`) {
			t.Errorf("another filter: %d %s", got.status, got.body)
		}
	}
}

// Tokens that carry a project need not name it, so nothing in the query tells whose list it is.
func TestCursorsOfOneOrganizationAreNoneOfAnothers(t *testing.T) {
	t.Parallel()
	r := newReceived(t)
	others, err := r.access.Bootstrap(t.Context(), r.commits, access.NewFounding("Other", "Demo", access.Pro))
	if err != nil {
		t.Fatal(err)
	}
	lost := up.Operation{Unstorable: up.ReasonNUL, DistinctID: []byte("u"), Raw: []byte(`{"event_name":"e","distinct_id":"u","properties":{"a":"\u0000"}}`)}
	r.send(t, up.LaneEvent, start, tracked("e1", "u", start), tracked("e2", "u", start), lost, lost)
	for _, list := range []string{"/api/v1/events?limit=1", "/api/v1/ingest/dead-letters?limit=1"} {
		cursor, _ := r.must(t, 200, "viewer", "GET", list, "")["next_cursor"].(string)
		if got, _ := r.as(t, "viewer", "GET", list+"&cursor="+cursor, ""); cursor == "" || got.status != 200 {
			t.Errorf("%s: %q, its own: %d %s", list, cursor, got.status, got.body)
		}
		if got, _ := r.with(t, others["viewer"], "GET", list+"&cursor="+cursor, ""); got.status != 400 || !strings.Contains(got.body, `"invalid_cursor"`) {
			t.Errorf("%s of another organization: %d %s", list, got.status, got.body)
		}
	}
}

func TestFaultsOfEventQueries(t *testing.T) {
	t.Parallel()
	r := newReceived(t)
	for _, c := range []struct{ name, value, want string }{
		{"since", "yesterday", "invalid_since"}, {"until", "2026-13-01", "invalid_until"}, {"limit", "201", "invalid_limit"},
		{"cursor", "x", "invalid_cursor"}, {"environment", "prod", "environment must be live or test"},
	} {
		got, body := r.as(t, "viewer", "GET", r.path("/api/v1/events", c.name, c.value), "")
		if got.status != 400 || body["error"] != c.want {
			t.Errorf("%s=%s: %d %s", c.name, c.value, got.status, got.body)
		}
	}
	if got := call(t, r.server, "GET", "/api/v1/events", ""); got.status != 401 || got.body != `{"error":"Invalid token"}` {
		t.Errorf("without a token: %d %s", got.status, got.body)
	}
	if got, _ := r.as(t, "admin", "GET", "/api/v1/events", ""); got.status != 400 || got.body != `{"error":"project_id is required"}` {
		t.Errorf("without a project: %d %s", got.status, got.body)
	}
	if got, _ := r.as(t, "admin", "GET", "/api/v1/events?project_id="+uuid.NewString(), ""); got.status != 404 {
		t.Errorf("another project: %d %s", got.status, got.body)
	}
}

func TestAPersonIsFoundByEveryID(t *testing.T) {
	t.Parallel()
	r := newReceived(t)
	r.send(t, up.LaneEvent, start, tracked("first", "anon-1", start.Add(-time.Hour)), tracked("second", "ann", start))
	r.send(t, up.LanePeople, start.Add(time.Minute), up.Operation{DistinctID: []byte("anon-1"), Properties: []byte(`{"plan":"free","big":9223372036854775808}`)})
	r.send(t, up.LanePeople, start.Add(2*time.Minute), up.Operation{DistinctID: []byte("ann"), Properties: []byte(`{"plan":"pro"}`)})
	r.send(t, up.LaneAlias, start, up.Operation{AliasID: []byte("anon-1"), DistinctID: []byte("ann"), Timestamp: start.UnixMicro()})
	r.send(t, up.LaneAlias, start, up.Operation{AliasID: []byte("anon-1"), DistinctID: []byte("bob"), Timestamp: start.UnixMicro()})
	// Before the history is rewritten, and after.
	for range 2 {
		for _, id := range []string{"ann", "anon-1"} {
			got, _ := r.as(t, "viewer", "GET", r.path("/api/v1/persons/"+id), "")
			want := fmt.Sprintf(`{"person":{"distinct_id":"ann","ids":["ann","anon-1"],"properties":{"big":9223372036854775808,"plan":"pro"},"first_seen":"%s","last_seen":"%s","event_count":2}}`,
				start.Add(-time.Hour).Format("2006-01-02T15:04:05.000Z"), start.Add(2*time.Minute).Format("2006-01-02T15:04:05.000Z"))
			if got.status != 200 || got.body != want {
				t.Errorf("%s: %d %s\nwant %s", id, got.status, got.body, want)
			}
			if got := r.names(t, "distinct_id", id); got != "second first" {
				t.Errorf("events of %s: %q", id, got)
			}
			list := r.must(t, 200, "viewer", "GET", r.path("/api/v1/events", "distinct_id", id), "")
			first := list["events"].([]any)[1].(map[string]any)
			if first["distinct_id"] != "ann" || first["anon_id"] != "anon-1" || first["sent_anon_id"] != nil {
				t.Errorf("the aliased event is shown as %v", first)
			}
			conflicts := r.must(t, 200, "viewer", "GET", r.path("/api/v1/persons/"+id+"/conflicts"), "")
			want2 := []any{map[string]any{"alias_id": "anon-1", "kept_distinct_id": "ann", "refused_distinct_id": "bob", "received_at": start.Format("2006-01-02T15:04:05.000Z")}}
			if !reflect.DeepEqual(conflicts["conflicts"], want2) {
				t.Errorf("conflicts of %s: %v", id, conflicts)
			}
		}
		if err := r.worker.Work(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"nobody", "a%00b", "%ff"} {
		if got, _ := r.as(t, "viewer", "GET", r.path("/api/v1/persons/"+id), ""); got.status != 404 || got.body != `{"error":"not_found"}` {
			t.Errorf("%s: %d %s", id, got.status, got.body)
		}
	}
}

func TestAnErasedPersonIsGoneAndMayBeginAnew(t *testing.T) {
	t.Parallel()
	r := newReceived(t)
	r.send(t, up.LaneEvent, start, tracked("old", "anon", start), tracked("old", "ann", start), tracked("hers", "bea", start))
	r.send(t, up.LanePeople, start, up.Operation{DistinctID: []byte("ann"), Properties: []byte(`{"plan":"pro"}`)})
	r.send(t, up.LaneAlias, start, up.Operation{AliasID: []byte("anon"), DistinctID: []byte("ann"), Timestamp: start.UnixMicro()})
	if got, _ := r.as(t, "editor", "DELETE", r.path("/api/v1/persons/anon"), ""); got.status != 403 || got.body != `{"error":"Permission denied"}` {
		t.Fatalf("an editor: %d %s", got.status, got.body)
	}
	seen, _ := r.as(t, "viewer", "GET", r.path("/api/v1/persons/anon"), "")
	for _, tag := range []string{`"another"`, `W/` + seen.header.Get("ETag")} {
		if got, decoded := r.as(t, "admin", "DELETE", r.path("/api/v1/persons/anon"), "", "If-Match", tag); got.status != 412 || decoded["error"] != "precondition_failed" {
			t.Errorf("If-Match %s: %d %s", tag, got.status, got.body)
		}
	}
	if got, _ := r.as(t, "admin", "DELETE", r.path("/api/v1/persons/nobody"), "", "If-Match", "*"); got.status != 404 {
		t.Errorf("If-Match of nobody: %d %s", got.status, got.body)
	}
	if got, _ := r.as(t, "admin", "DELETE", r.path("/api/v1/persons/anon"), "", "If-Match", seen.header.Get("ETag")); got.status != 200 || got.body != `{"deleted":true}` {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if got := r.lastAction(t); got != "person.erased" {
		t.Errorf("audited as %s", got)
	}
	// At once, and after the rows are removed.
	for range 2 {
		for _, id := range []string{"ann", "anon"} {
			for method, path := range map[string]string{"GET": "/api/v1/persons/" + id, "DELETE": "/api/v1/persons/" + id} {
				if got, _ := r.as(t, "admin", method, r.path(path), ""); got.status != 404 {
					t.Errorf("%s %s: %d %s", method, path, got.status, got.body)
				}
			}
		}
		if got := r.names(t); got != "hers" {
			t.Errorf("events %q", got)
		}
		if err := r.worker.Work(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// What was received before and comes late is dropped; what is received later starts a new person.
	r.send(t, up.LaneEvent, start, tracked("late", "anon", start))
	r.send(t, up.LanePeople, start, up.Operation{DistinctID: []byte("ann"), Properties: []byte(`{"plan":"late"}`)})
	r.send(t, up.LaneAlias, start, up.Operation{AliasID: []byte("anon"), DistinctID: []byte("zoe"), Timestamp: start.UnixMicro()})
	if got, _ := r.as(t, "viewer", "GET", r.path("/api/v1/persons/ann"), ""); got.status != 404 {
		t.Errorf("late operations brought the person back: %s", got.body)
	}
	r.send(t, up.LaneEvent, time.Now().Add(time.Second), tracked("new", "anon", start))
	if got := r.must(t, 200, "viewer", "GET", r.path("/api/v1/persons/anon"), ""); member(got, "person", "event_count") != 1.0 {
		t.Errorf("the new person: %v", got)
	}
	lag := r.must(t, 200, "viewer", "GET", "/api/v1/ingest/lag", "")
	got, _ := json.Marshal(lag)
	want := `{"edges":[{"edge_id":"edge-1","lanes":[` +
		`{"dead":0,"duplicate":0,"erased":1,"lane":"alias","oldest_age_seconds":0,"pending":0,"pending_bytes":0,"received":2,"stored":1},` +
		`{"dead":0,"duplicate":0,"erased":1,"lane":"people","oldest_age_seconds":0,"pending":0,"pending_bytes":0,"received":2,"stored":1},` +
		`{"dead":0,"duplicate":0,"erased":1,"lane":"event","oldest_age_seconds":0,"pending":0,"pending_bytes":0,"received":5,"stored":4}]}]}`
	if string(got) != want {
		t.Errorf("lag %s\nwant %s", got, want)
	}
}

func TestLagShowsWhatAnEdgeStillHolds(t *testing.T) {
	t.Parallel()
	r := newReceived(t)
	r.send(t, up.LaneEvent, start, tracked("a", "u", start))
	if err := r.store.Report(t.Context(), "edge-1", []up.Totals{{Lane: up.LaneEvent, Received: 5, Pending: 5, PendingBytes: 900, OldestAge: time.Minute}}); err != nil {
		t.Fatal(err)
	}
	lane := func() map[string]any {
		lag := r.must(t, 200, "viewer", "GET", "/api/v1/ingest/lag", "")
		return lag["edges"].([]any)[0].(map[string]any)["lanes"].([]any)[0].(map[string]any)
	}
	if l := lane(); l["received"] != 5.0 || l["stored"] != 1.0 || l["pending"] != 4.0 || l["pending_bytes"] != 900.0 || l["oldest_age_seconds"].(float64) < 60 {
		t.Errorf("lane %v", l)
	}
	// The edge's disk is lost: its new log counts from 0, and the books still balance.
	if err := r.store.Report(t.Context(), "edge-1", []up.Totals{{Lane: up.LaneEvent, Received: 2, Pending: 2, PendingBytes: 300, OldestAge: time.Second}}); err != nil {
		t.Fatal(err)
	}
	if l := lane(); l["received"] != 3.0 || l["stored"] != 1.0 || l["pending"] != 2.0 {
		t.Errorf("lane after a lost disk %v", l)
	}
}

func TestDeadLettersAreListedAndReplayed(t *testing.T) {
	t.Parallel()
	r := newReceived(t)
	nul := `{"event_name":"e","distinct_id":"u1","properties":{"a":"\u0000"}}`
	r.send(t, up.LaneEvent, start, up.Operation{Unstorable: up.ReasonNUL, DistinctID: []byte("u"), Raw: []byte(nul)})
	// One that an older program could not store.
	good := `{"event_name":"saved","distinct_id":"u1","properties":{"a": 1}}`
	r.send(t, up.LaneEvent, start.Add(time.Second), up.Operation{Unstorable: up.ReasonTooLong, DistinctID: []byte("u"), Raw: []byte(good)})
	list := r.must(t, 200, "viewer", "GET", r.path("/api/v1/ingest/dead-letters"), "")
	letters := list["dead_letters"].([]any)
	if len(letters) != 2 || list["has_more"] != false || list["next_cursor"] != nil {
		t.Fatalf("list %v", list)
	}
	newest, oldest := letters[0].(map[string]any), letters[1].(map[string]any)
	want := map[string]any{"id": oldest["id"], "kind": "track", "environment": "live", "reason": "nul_character",
		"payload": base64.StdEncoding.EncodeToString([]byte(nul)), "received_at": start.Format("2006-01-02T15:04:05.000Z"), "replayed_at": nil}
	if !reflect.DeepEqual(oldest, want) {
		t.Errorf("letter %v\nwant %v", oldest, want)
	}
	page := r.must(t, 200, "viewer", "GET", r.path("/api/v1/ingest/dead-letters", "limit", "1"), "")
	second := r.must(t, 200, "viewer", "GET", r.path("/api/v1/ingest/dead-letters", "limit", "1", "cursor", page["next_cursor"].(string)), "")
	if got := second["dead_letters"].([]any); len(got) != 1 || !reflect.DeepEqual(got[0], letters[1]) || second["has_more"] != false {
		t.Errorf("second page %v", second)
	}

	replay := func(letter map[string]any) string {
		return "/api/v1/ingest/dead-letters/" + letter["id"].(string) + "/replay"
	}
	if got, _ := r.as(t, "viewer", "POST", replay(newest), ""); got.status != 403 {
		t.Errorf("a viewer replays: %d", got.status)
	}
	if got, body := r.as(t, "editor", "POST", replay(oldest), ""); got.status != 422 || body["error"] != "not_storable" {
		t.Errorf("replay of what cannot be stored: %d %s", got.status, got.body)
	}
	for range 2 { // the second changes nothing
		got := r.must(t, 200, "editor", "POST", replay(newest), "")
		if member(got, "dead_letter", "replayed_at") == nil {
			t.Errorf("replayed %v", got)
		}
	}
	if got := r.names(t); got != "saved" {
		t.Errorf("events %q", got)
	}
	edges, err := r.store.Lag(t.Context())
	if err != nil || edges[0].Lanes[0].Stored != 1 || edges[0].Lanes[0].Dead != 1 || edges[0].Lanes[0].Received != 2 {
		t.Errorf("books %+v, %v", edges, err)
	}
	for _, id := range []string{"x", uuid.NewString()} {
		if got, _ := r.as(t, "editor", "POST", "/api/v1/ingest/dead-letters/"+id+"/replay", ""); got.status != 404 {
			t.Errorf("replay of %s: %d", id, got.status)
		}
	}
}

func TestAnEdgeIsRetiredOnlyWhenItIsSilent(t *testing.T) {
	t.Parallel()
	r := newReceived(t)
	r.send(t, up.LaneEvent, start, tracked("a", "u", start))
	heard := time.Now()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /edges/{edge}/retire", r.store.Retire(func(string) time.Time { return heard }))
	server := httptest.NewServer(mux)
	defer server.Close()
	if got := call(t, server, "POST", "/edges/nobody/retire", ""); got.status != 404 {
		t.Errorf("an unknown edge: %d %s", got.status, got.body)
	}
	if got := call(t, server, "POST", "/edges/edge-1/retire", ""); got.status != 409 || !strings.Contains(got.body, `"error":"edge_alive"`) {
		t.Errorf("a living edge: %d %s", got.status, got.body)
	}
	heard = time.Now().Add(-2 * time.Minute)
	for range 2 {
		if got := call(t, server, "POST", "/edges/edge-1/retire", ""); got.status != 200 || got.body != `{"edge_id":"edge-1","retired":true}` {
			t.Errorf("a dead edge: %d %s", got.status, got.body)
		}
	}
}

func TestPageInAnOperatorsBrowserChangesNothing(t *testing.T) {
	t.Parallel()
	reached := false
	operator := (&Plane{}).operatorRoutes(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	for name, value := range map[string]string{"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"} {
		ask := httptest.NewRequest(http.MethodPost, "http://127.0.0.1:8190/edges/edge-1/retire", http.NoBody)
		ask.Header.Set(name, value)
		answer := httptest.NewRecorder()
		operator.ServeHTTP(answer, ask)
		if want := `{"error":"cross_origin","message":"a web page of another origin may change nothing here"}`; answer.Code != http.StatusForbidden || answer.Body.String() != want {
			t.Errorf("%s %s: %d %s", name, value, answer.Code, answer.Body)
		}
	}
	operator.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "http://127.0.0.1:8190/status", http.NoBody))
	if !reached {
		t.Error("/status is not reached")
	}
}
