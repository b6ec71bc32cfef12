package writeplane

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/id"
	"skerry/writeplane/crashes"
	"skerry/writeplane/postgres"
	"skerry/writeplane/symbols"
)

// BenchmarkSymbolication answers stored reports of 20 frames from cached lookup
// forms: take, look up, store the answers.
func BenchmarkSymbolication(b *testing.B) {
	c := newCatch(b, symbols.Config{})
	mappings := strings.Repeat("AAAAA,SACA,GAASA,IAAIA;", 50_000)
	c.upload(b, "editor", "file", `app.js.map:{"version":3,"sources":["a.ts"],"names":["run"],"mappings":"`+mappings+`"}`, "kind", "js_sourcemap", "release", "1.0")
	c.work(b)
	frames := make([]string, 20)
	for i := range frames {
		frames[i] = fmt.Sprintf(`{"filename":"https://example.com/assets/app.js","function":"t","lineno":%d,"colno":10}`, i*1000+1)
	}
	record := []byte(report("javascript", strings.Join(frames, ",")))
	const reports = 5_000
	for b.Loop() {
		begun := time.Now()
		err := postgres.InTx(b.Context(), c.db.App, func(tx pgx.Tx) error {
			rows := make([]crashes.Row, reports)
			for i := range rows {
				rows[i] = crashes.Row{ID: id.New(), ProjectID: c.founding.ProjectID, Environment: "live", ReceivedAt: time.Now(), Record: record}
			}
			_, err := crashes.Insert(b.Context(), tx, rows)
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(reports/time.Since(begun).Seconds(), "inserted/s")
		begun = time.Now()
		tick := time.NewTicker(5 * time.Millisecond)
		for pending := 1; pending > 0; <-tick.C {
			if err := c.db.App.QueryRow(b.Context(), `SELECT count(*) FROM crash_events WHERE pending`).Scan(&pending); err != nil {
				b.Fatal(err)
			}
		}
		tick.Stop()
		b.ReportMetric(reports/time.Since(begun).Seconds(), "answered/s")
	}
}
