package writeplane

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skerry/replication/up"
	"skerry/writeplane/access"
	"skerry/writeplane/blobs"
	"skerry/writeplane/commit"
	"skerry/writeplane/ingest"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

// behindLink is a plane whose database stands behind a link, with a watch of it that runs.
func behindLink(t *testing.T) (*plane, *dbtest.Link, *postgres.Watch) {
	t.Helper()
	p := newPlane(t)
	link := dbtest.NewLink(t, p.db.App.Config().ConnString())
	var err error
	if p.db, err = postgres.Open(t.Context(), postgres.Config{URL: link.URL, MaxConns: 2}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.db.Close)
	if p.access, err = access.New(t.Context(), access.Config{}, p.db.App); err != nil {
		t.Fatal(err)
	}
	p.commits = commit.New(p.db.App, commit.Sinks{})
	watch, err := postgres.NewWatch(link.URL, postgres.WatchConfig{Every: 5 * time.Millisecond, Patience: time.Second, Misses: 2})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- watch.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return p, link, watch
}

const awayBody = `{"error":"Service temporarily unavailable"}`

func TestSilentDatabaseIsA503(t *testing.T) {
	t.Parallel()
	p, link, watch := behindLink(t)
	server := p.serve(t, HandlerConfig{Database: watch},
		Route{Method: "GET", Path: "/x", Needs: Viewer, Handle: ok}, Route{Method: "GET", Path: "/public", Needs: Public, Handle: ok})
	if got := call(t, server, "GET", "/x", "", bearer(p.tokens["viewer"])...); got.status != 200 {
		t.Fatalf("while it answers: %d %s", got.status, got.body)
	}
	link.Hold(true)
	for range 4 { // more than the pool has connections; the first hangs in a statement, the rest do not wait
		if got := call(t, server, "GET", "/x", "", bearer(p.tokens["viewer"])...); got.status != 503 || got.body != awayBody {
			t.Errorf("while it is silent: %d %s", got.status, got.body)
		}
	}
	if got := call(t, server, "GET", "/public", ""); got.status != 200 {
		t.Errorf("what needs no database: %d %s", got.status, got.body)
	}
	link.Release()
	late := time.After(20 * time.Second)
	for call(t, server, "GET", "/x", "", bearer(p.tokens["viewer"])...).status != 200 {
		select {
		case <-late:
			t.Fatal("not answered again within 20 s")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestCommitWithoutAnAnswerIsA502(t *testing.T) {
	t.Parallel()
	p, link, watch := behindLink(t)
	change := func(w http.ResponseWriter, r *http.Request, c *access.Call) error {
		err := p.commits.InTx(r.Context(), c.Origin(), func(tx *commit.Tx) error {
			_, err := tx.Exec(r.Context(), "SELECT")
			link.Hold(false)
			return err
		})
		if err != nil {
			return err
		}
		return ok(w, r, c)
	}
	server := p.serve(t, HandlerConfig{Database: watch}, Route{Method: "POST", Path: "/x", Needs: Viewer, Handle: change})
	const want = `{"error":"bad_gateway","message":"the database went away while the change was being stored: it may or may not have taken effect"}`
	if got := call(t, server, "POST", "/x", "", bearer(p.tokens["viewer"])...); got.status != 502 || got.body != want {
		t.Errorf("%d %s", got.status, got.body)
	}
	link.Release()
}

func TestALaneDoesNotWaitForASilentDatabase(t *testing.T) {
	t.Parallel()
	p, link, watch := behindLink(t)
	files, err := blobs.Open(t.Context(), blobs.Config{URL: t.TempDir()}, p.db.App)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = files.Close() })
	store, err := ingest.NewStore(ingest.Config{}, p.db, files, nil)
	if err != nil {
		t.Fatal(err)
	}
	sink := heardSink{store, watch}
	take := func(number uint64) error {
		var w up.BlockWriter
		w.Reset(up.Header{Lane: up.LaneEvent, Environment: up.Live, ReceivedAt: time.Now().UnixMicro()})
		w.Append(&up.Operation{EventName: []byte("e"), DistinctID: []byte("u1"), Timestamp: 1})
		up.SetFirst(w.Bytes(), number)
		_, err := sink.Store(t.Context(), "e1", []up.Batch{{Lane: up.LaneEvent, First: number, Count: 1, Data: w.Bytes()}})
		return err
	}
	if err := take(1); err != nil {
		t.Fatal(err)
	}
	link.Hold(true)
	if err := take(2); err == nil {
		t.Error("stored by a silent database")
	}
	if _, err := sink.Stored(t.Context(), "e1", up.LaneEvent, up.Incarnation{}); err == nil {
		t.Error("read from a silent database")
	}
	link.Release()
	late := time.After(20 * time.Second)
	for err := take(2); err != nil; err = take(2) {
		select {
		case <-late:
			t.Fatalf("not stored within 20 s: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	if stored, err := sink.Stored(t.Context(), "e1", up.LaneEvent, up.Incarnation{}); err != nil || stored != 2 {
		t.Errorf("stored up to %d, %v", stored, err)
	}
}

// auditing is the part of a plane that keeps the audit log; nothing of it runs.
func auditing(t *testing.T, mirrorURL string) *Plane {
	t.Helper()
	founded := newPlane(t)
	files, err := blobs.Open(t.Context(), blobs.Config{URL: t.TempDir()}, founded.db.App)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = files.Close() })
	p := &Plane{db: founded.db, Store: founded.commits, blobs: files}
	config := Config{Postgres: postgres.Config{URL: founded.db.Owner.Config().ConnString()}, Audit: AuditConfig{MirrorURL: mirrorURL}}
	if _, err := p.openAudit(t.Context(), config, prometheus.NewRegistry()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.mirror.Close)
	return p
}

func TestPlaneStartsWhileItsAuditMirrorIsAway(t *testing.T) {
	t.Parallel()
	auditing(t, "postgres://nobody@127.0.0.1:1/none")
}

// Long queries of the mirror, as exports are, take no connections from the rest.
func TestQueriesOfTheAuditMirrorKeepThePlaneReady(t *testing.T) {
	t.Parallel()
	p := auditing(t, "")
	for range mirrorConns {
		conn, err := p.mirror.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
	}
	if err := p.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	if p.mirror == p.db.Owner || p.mirror == p.db.App {
		t.Error("the mirror shares its connections")
	}
}
