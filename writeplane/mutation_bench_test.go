package writeplane

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/pkg/pgserver"
	"skerry/writeplane/access"
	"skerry/writeplane/audit"
	"skerry/writeplane/commit"
	"skerry/writeplane/flags"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
	"skerry/writeplane/remoteconfig"
	"skerry/writeplane/webhooks"
	"skerry/writeplane/webhooks/target"
)

// BenchmarkWholeMutation changes projects, flags and config items over HTTP — token,
// row, audit entry, document, delivery — by eight callers of one organization, and
// says what share that is of the single-row commits that one connection reaches, as
// pgbench would. Both run by turns, so that a busy machine slows both; the server syncs
// its log as in production, and all wait for it. It also counts how often a change
// waits for the database's answer.
func BenchmarkWholeMutation(b *testing.B) {
	m := newMutations(b)
	for _, kind := range []struct {
		name string
		make func() string
		body string
	}{
		{"project", m.makeProject, `{"name":"N%d"}`},
		{"flag", m.makeFlag, `{"default_value":"N%d"}`},
		{"config", m.makeItem, `{"default_value":"N%d"}`},
	} {
		b.Run(kind.name, func(b *testing.B) {
			paths := make([]string, callers)
			for i := range paths {
				paths[i] = kind.make()
			}
			m.measure(b, paths, kind.body)
		})
	}
}

const callers = 8

// mutations is a plane with callers, on a database that counts round trips.
type mutations struct {
	b      *testing.B
	plane  *plane
	api    *httptest.Server
	client *http.Client
	single *pgxpool.Conn
	trips  *atomic.Int64
	made   atomic.Int64
}

func newMutations(b *testing.B) *mutations {
	server, err := pgserver.Start(b.Context(), pgserver.Config{Dir: b.TempDir(), Durable: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = server.Stop() })
	if err := postgres.Migrate(b.Context(), server.URL()); err != nil {
		b.Fatal(err)
	}
	db, err := postgres.Open(b.Context(), postgres.Config{URL: server.URL(), MaxConns: callers})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(db.Close)
	m := &mutations{b: b}
	config := db.App.Config()
	m.trips = dbtest.CountTrips(config)
	pool, err := pgxpool.NewWithConfig(b.Context(), config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	p := &plane{db: db, commits: commit.New(pool, commit.Sinks{Audit: audit.Append, Deliveries: webhooks.Enqueue})}
	if p.access, err = access.New(b.Context(), access.Config{}, pool); err != nil {
		b.Fatal(err)
	}
	p.founding = access.NewFounding("Example", "Demo", access.Growth)
	if p.tokens, err = p.access.Bootstrap(b.Context(), p.commits, p.founding); err != nil {
		b.Fatal(err)
	}
	guard := target.New(target.Config{AllowCIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	m.api = httptest.NewServer(NewHandler(HandlerConfig{}, p.access, Routes(Modules{
		Access: access.NewModule(p.commits, p.access), Webhooks: webhooks.New(p.commits, p.access, guard),
		Flags: flags.New(p.commits, p.access), RemoteConfig: remoteconfig.New(p.commits, p.access)})))
	b.Cleanup(m.api.Close)
	m.plane, m.client = p, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers}}
	b.Cleanup(m.client.CloseIdleConnections)
	m.call("POST", "/api/v1/webhooks/subscriptions", `{"url":"http://127.0.0.1:9/","events":["project.*","audit.entry.created"]}`, 201)
	dbtest.Exec(b, db.Owner, `CREATE TABLE single (id int PRIMARY KEY, v bigint); INSERT INTO single VALUES (1, 0)`)
	if m.single, err = db.Owner.Acquire(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(m.single.Release)
	return m
}

// call is a lean client: what it costs is not the plane's.
func (m *mutations) call(method, path, body string, want int) []byte {
	request, err := http.NewRequestWithContext(m.b.Context(), method, m.api.URL+path, strings.NewReader(body))
	if err != nil {
		m.b.Error(err)
		return nil
	}
	request.Header.Set("Authorization", "Bearer "+m.plane.tokens["owner"])
	response, err := m.client.Do(request)
	if err != nil {
		m.b.Error(err)
		return nil
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != want {
		m.b.Errorf("%s %s: %d %s, %v", method, path, response.StatusCode, answer, err)
	}
	return answer
}

func (m *mutations) makeProject() string {
	var made struct{ Project struct{ ID string } }
	if err := json.Unmarshal(m.call("POST", "/api/v1/projects", `{"name":"P"}`, 201), &made); err != nil {
		m.b.Fatal(err)
	}
	return "/api/v1/projects/" + made.Project.ID
}

func (m *mutations) makeFlag() string {
	var made struct{ Flag struct{ ID string } }
	answer := m.call("POST", "/api/v1/switch/flags?project_id="+m.plane.founding.ProjectID, fmt.Sprintf(
		`{"environment":"live","key":"f%d","kind":"string","default_value":"x"}`, m.made.Add(1)), 201)
	if err := json.Unmarshal(answer, &made); err != nil {
		m.b.Fatal(err)
	}
	return "/api/v1/switch/flags/" + made.Flag.ID
}

func (m *mutations) makeItem() string {
	var made struct{ Item struct{ ID string } }
	answer := m.call("POST", "/api/v1/config/items?project_id="+m.plane.founding.ProjectID, fmt.Sprintf(
		`{"environment":"live","key":"c%d","type":"string","default_value":"x"}`, m.made.Add(1)), 201)
	if err := json.Unmarshal(answer, &made); err != nil {
		m.b.Fatal(err)
	}
	return "/api/v1/config/items/" + made.Item.ID
}

// measure lets single rows, one caller and all callers change things by turns.
func (m *mutations) measure(b *testing.B, paths []string, body string) {
	const rows, alone, each = 50, 5, 10
	entries := func() (n int) {
		if err := m.plane.db.Owner.QueryRow(b.Context(), `SELECT count(*) FROM audit_entries`).Scan(&n); err != nil {
			b.Fatal(err)
		}
		return n
	}
	n := 0
	patch := func(path string, n int) { m.call("PATCH", path, fmt.Sprintf(body, n), 200) }
	for i := range 20 * callers { // statements are prepared, connections open
		n++
		patch(paths[i%callers], n)
	}
	before := entries()
	var serial, together time.Duration
	var took []time.Duration
	var trips int64
	rounds := 0
	for b.Loop() {
		rounds++
		begun := time.Now()
		for range rows {
			dbtest.Exec(b, m.single, `UPDATE single SET v = v + 1 WHERE id = 1`)
		}
		serial += time.Since(begun)
		counted := m.trips.Load()
		for range alone {
			n++
			begun := time.Now()
			patch(paths[0], n)
			took = append(took, time.Since(begun))
		}
		trips += m.trips.Load() - counted
		begun = time.Now()
		var wg sync.WaitGroup
		for _, path := range paths {
			wg.Go(func() {
				for i := range each {
					patch(path, n+i+1)
				}
			})
		}
		wg.Wait()
		together += time.Since(begun)
		n += each
	}
	if got, want := entries()-before, rounds*(alone+callers*each); got != want {
		b.Fatalf("%d audit entries of %d mutations", got, want)
	}
	slices.Sort(took)
	singles, changes := float64(rounds*rows)/serial.Seconds(), float64(rounds*callers*each)/together.Seconds()
	b.ReportMetric(singles, "single-rows/s")
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-alone-p50")
	b.ReportMetric(float64(trips)/float64(rounds*alone), "round-trips")
	b.ReportMetric(changes, "mutations/s")
	b.ReportMetric(changes/singles, "ratio")
}
