package identity_test

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkRewriteBacklog rewrites the history of 10,000 people who signed in: each has two days of ten events, somewhere
// in the last year, among those of others. It reports the longest transaction.
func BenchmarkRewriteBacklog(b *testing.B) {
	const people, days = 10_000, 365
	e := newEdges(b)
	ctx := b.Context()
	today := at.Truncate(24 * time.Hour)
	for ago := range days {
		day := today.AddDate(0, 0, -ago)
		if _, err := e.db.Owner.Exec(ctx, fmt.Sprintf(`
			CREATE TABLE IF NOT EXISTS events_%[1]s PARTITION OF events FOR VALUES FROM ('%[2]s') TO ('%[3]s');
			GRANT ALL ON events_%[1]s TO skerry_app`,
			day.Format("20060102"), day.Format(time.DateOnly), day.AddDate(0, 0, 1).Format(time.DateOnly))); err != nil {
			b.Fatal(err)
		}
	}
	for _, sql := range []string{
		`INSERT INTO events (received_at, timestamp, id, project_id, number, environment, rewritten, edge, event_name, distinct_id)
		SELECT d, d, gen_random_uuid(), $1, 1, 0, false, 'edge-0', 'page_viewed', id FROM (
			SELECT 'someone-' || md5(i::text), ago FROM generate_series(1, 2000) i, generate_series(0, $2 - 1) ago
			UNION ALL
			SELECT 'anon-' || md5(i::text), (i * 7919 + j) % $2 FROM generate_series(1, $3) i, generate_series(0, 1) j, generate_series(1, 10)
		) sent (id, ago), LATERAL (SELECT $4::timestamptz - ago * interval '1 day') at (d)`,
		`WITH linked AS (
			INSERT INTO aliases (project_id, environment, alias_id, canonical_id, aliased_at, received_at)
			SELECT $1, 0, 'anon-' || md5(i::text), 'user-' || i, $4, $4 FROM generate_series(1, $3) i WHERE $2::int > 0 RETURNING alias_id
		), head AS (
			INSERT INTO alias_heads VALUES ($1, 0)
		)
		INSERT INTO rewrites (project_id, environment, alias_id) SELECT $1, 0, alias_id FROM linked`,
	} {
		if _, err := e.db.Owner.Exec(ctx, sql, e.project, days, people, today); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		e.work(b)
	}
	status := e.worker.Status()
	if n := e.count(b, `SELECT count(*) FROM events WHERE rewritten`); n != people*20 {
		b.Errorf("%d of %d events are rewritten", n, people*20)
	}
	b.ReportMetric(status.LongestTxSeconds, "longest-tx-s")
	b.ReportMetric(float64(people)/b.Elapsed().Seconds(), "aliases/s")
}
