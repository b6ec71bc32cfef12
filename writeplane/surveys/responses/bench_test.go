package responses_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"skerry/pkg/pgserver"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
	"skerry/writeplane/surveys/responses"
	"skerry/writeplane/surveys/surveystest"
)

// durable is a world on a PostgreSQL that syncs its commits, served over TCP.
func durable(b *testing.B) (*surveystest.World, *httptest.Server) {
	b.Helper()
	server, err := pgserver.Start(b.Context(), pgserver.Config{Dir: b.TempDir(), Durable: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = server.Stop() })
	if err := postgres.Migrate(b.Context(), server.URL()); err != nil {
		b.Fatal(err)
	}
	db, err := postgres.Open(b.Context(), postgres.Config{URL: server.URL()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(db.Close)
	w := surveystest.On(b, db, responses.Config{})
	w.Published(everyKind)
	dbtest.Exec(b, db.Owner, `UPDATE projects SET quotas = '{"responses":1000000000}'`)
	served := httptest.NewServer(w.Handler)
	b.Cleanup(served.Close)
	return w, served
}

func post(client *http.Client, url, key string, n int64) (int, error) {
	body := fmt.Sprintf(`{"survey_id":"every-kind","respondent":{"external_id":"user-%d"},"context":{"release_version":"1.2.3"},"answers":{"nps":9,"select":"a","multi":["x","y"],"text":"good"}}`, n)
	r, err := http.NewRequest("POST", url+submit, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Header.Set("X-Api-Key", key)
	answer, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	_, _ = io.Copy(io.Discard, answer.Body) // or the connection is not used again
	return answer.StatusCode, answer.Body.Close()
}

// BenchmarkSubmit is how many submissions of four answers a second are stored, durably,
// from 64 clients, with the clients, the plane and Postgres on this one machine.
func BenchmarkSubmit(b *testing.B) {
	w, served := durable(b)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	var n atomic.Int64
	var clients sync.WaitGroup
	b.ResetTimer()
	for range 64 {
		clients.Go(func() {
			for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
				if status, err := post(client, served.URL, w.Live, i); err != nil || status != http.StatusCreated {
					b.Errorf("%d %v", status, err)
					return
				}
			}
		})
	}
	clients.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "stored/s")
	b.ReportMetric(w.Metric("skerry_survey_responses_stored_total")/w.Metric("skerry_survey_responses_groups_total"), "stored/group")
}

// BenchmarkSubmitAt500 is the latency at 500 submissions a second, counted from when
// each was due.
func BenchmarkSubmitAt500(b *testing.B) {
	w, served := durable(b)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}
	defer client.CloseIdleConnections()
	took := make([]time.Duration, b.N)
	var clients sync.WaitGroup
	b.ResetTimer()
	begin := time.Now()
	for i := range b.N {
		due := begin.Add(time.Duration(i) * 2 * time.Millisecond)
		<-time.After(time.Until(due)) // the pace is what is measured
		clients.Go(func() {
			if status, err := post(client, served.URL, w.Live, int64(i)); err != nil || status != http.StatusCreated {
				b.Errorf("%d %v", status, err)
			}
			took[i] = time.Since(due)
		})
	}
	clients.Wait()
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}
