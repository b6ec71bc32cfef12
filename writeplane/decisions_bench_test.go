package writeplane

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"testing"
	"time"
)

// BenchmarkMillionMembers creates a cohort of all but one of a million ids by one request, then adds that one.
func BenchmarkMillionMembers(b *testing.B) {
	d := newDecisions(b)
	var body bytes.Buffer
	body.WriteString(`{"name":"million","members":[`)
	for i := range 999_999 {
		if i > 0 {
			body.WriteByte(',')
		}
		fmt.Fprintf(&body, `"6f1c2d1e-9f0a-4d5b-8c3e-%012d"`, i)
	}
	body.WriteString(`]}`)
	post := func(path string, content []byte) {
		request, err := http.NewRequestWithContext(b.Context(), "POST", d.server.URL+path, bytes.NewReader(content))
		if err != nil {
			b.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+d.tokens["editor"])
		response, err := d.server.Client().Do(request)
		if err != nil {
			b.Fatal(err)
		}
		head, err := io.ReadAll(io.LimitReader(response.Body, 1000))
		_ = response.Body.Close()
		if err != nil || response.StatusCode >= 300 {
			b.Fatalf("%s %s %v", response.Status, head, err)
		}
	}
	for b.Loop() {
		post("/api/v1/cohorts", body.Bytes())
		began := time.Now()
		post("/api/v1/cohorts/million/members", []byte(`{"add":["ada"]}`))
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms-to-add-one")
		_, shards := d.shards("million")
		b.ReportMetric(float64(shards), "shards")
		d.must(200, "DELETE", "/api/v1/cohorts/million", "")
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.Sys>>20), "MB-process")
}
