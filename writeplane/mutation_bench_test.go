package writeplane

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"skerry/pkg/pgserver"
	"skerry/writeplane/access"
	"skerry/writeplane/audit"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
	"skerry/writeplane/webhooks"
	"skerry/writeplane/webhooks/target"
)

// BenchmarkWholeMutation changes projects over HTTP — token, row, audit entry, document,
// delivery — by eight callers of one organization, and says what share that is of the
// single-row commits that one connection reaches before, as pgbench would. The server
// syncs its log as in production, and all wait for it.
func BenchmarkWholeMutation(b *testing.B) {
	server, err := pgserver.Start(b.Context(), pgserver.Config{Dir: b.TempDir(), Durable: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = server.Stop() })
	if err := postgres.Migrate(b.Context(), server.URL()); err != nil {
		b.Fatal(err)
	}
	db, err := postgres.Open(b.Context(), postgres.Config{URL: server.URL(), MaxConns: 8})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(db.Close)
	p := &plane{db: db, commits: commit.New(db.App, commit.Sinks{Audit: audit.Append, Deliveries: webhooks.Enqueue})}
	if p.access, err = access.New(b.Context(), access.Config{}, db.App); err != nil {
		b.Fatal(err)
	}
	p.founding = access.NewFounding("Example", "Demo", access.Growth)
	if p.tokens, err = p.access.Bootstrap(b.Context(), p.commits, p.founding); err != nil {
		b.Fatal(err)
	}
	guard := target.New(target.Config{AllowCIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	api := httptest.NewServer(NewHandler(HandlerConfig{}, p.access, Routes(Modules{
		Access: access.NewModule(p.commits, p.access), Webhooks: webhooks.New(p.commits, p.access, guard)})))
	b.Cleanup(api.Close)
	if got := call(b, api, "POST", "/api/v1/webhooks/subscriptions", `{"url":"http://127.0.0.1:9/","events":["project.*"]}`, bearer(p.tokens["owner"])...); got.status != 201 {
		b.Fatal(got)
	}
	if _, err := db.Owner.Exec(b.Context(), `CREATE TABLE single (id int PRIMARY KEY, v bigint); INSERT INTO single VALUES (1, 0)`); err != nil {
		b.Fatal(err)
	}
	conn, err := db.Owner.Acquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Release()

	// Serial: one row after another, as a client of pgbench does it.
	const rows = 500
	begun := time.Now()
	for range rows {
		if _, err := conn.Exec(b.Context(), `UPDATE single SET v = v + 1 WHERE id = 1`); err != nil {
			b.Fatal(err)
		}
	}
	serial := rows / time.Since(begun).Seconds()

	var one []time.Duration
	count := 0
	patch := func(project string, n int) {
		got := call(b, api, "PATCH", "/api/v1/projects/"+project, fmt.Sprintf(`{"name":"N%d"}`, n), bearer(p.tokens["admin"])...)
		if got.status != 200 {
			b.Error(got)
		}
	}
	for b.Loop() {
		begun := time.Now()
		count++
		patch(p.founding.ProjectID, count)
		one = append(one, time.Since(begun))
	}
	// Several callers of one organization, each with a project of its own.
	const callers, each = 8, 100
	projects := make([]string, callers)
	for i := range projects {
		answer := call(b, api, "POST", "/api/v1/projects", `{"name":"P"}`, bearer(p.tokens["admin"])...)
		var made struct{ Project struct{ ID string } }
		if err := json.Unmarshal([]byte(answer.body), &made); err != nil || answer.status != 201 {
			b.Fatal(answer, err)
		}
		projects[i] = made.Project.ID
	}
	begun = time.Now()
	var wg sync.WaitGroup
	for _, project := range projects {
		wg.Go(func() {
			for n := range each {
				patch(project, n)
			}
		})
	}
	wg.Wait()
	together := callers * each / time.Since(begun).Seconds()
	count += callers * (each + 1)
	var deliveries int
	if err := db.Owner.QueryRow(b.Context(), `SELECT count(*) FROM webhook_deliveries`).Scan(&deliveries); err != nil || deliveries < count {
		b.Fatalf("%d deliveries of %d mutations, %v", deliveries, count, err)
	}
	slices.Sort(one)
	b.ReportMetric(serial, "single-rows/s")
	b.ReportMetric(float64(one[len(one)/2].Microseconds()), "µs-alone-p50")
	b.ReportMetric(together, "mutations/s")
	b.ReportMetric(together/serial, "ratio")
}
