package intake

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/valyala/fasthttp"

	"skerry/replication/up"
)

const event300 = `{"event_name":"checkout_completed","distinct_id":"user-1234567","timestamp":"2026-01-02T03:04:05.678Z","lib_version":"2.4.1",` +
	`"properties":{"$session_id":"3f1c9a","plan":"pro","amount":129.95,"currency":"EUR","items":[1,2,3],"coupon":null},` +
	`"default_properties":{"$os":"iOS 19.1","$device_model":"iPhone18,2"}}`

// benchmarkHandler measures what a request costs beside HTTP: 128 requests at once, synced to a real disk. The buffer is
// freed as a centre would.
func benchmarkHandler(b *testing.B, path, body string, events int) {
	w := newWorld(b, settings{fs: vfs.Default, dir: b.TempDir()})
	handler := map[string]func(*fasthttp.RequestCtx, []byte){"/api/v1/track": w.intake.Track, "/api/v1/batch": w.intake.Batch}[path]
	stop := make(chan struct{})
	freed := make(chan struct{})
	go func() {
		defer close(freed)
		for {
			select {
			case <-stop:
				return
			case <-w.buffer.Appended(up.LaneEvent):
				for _, t := range w.buffer.Totals() {
					if err := w.buffer.Stored(w.buffer.Incarnation(), t.Lane, t.Received); err != nil {
						b.Error(err)
					}
				}
			}
		}
	}()
	b.SetParallelism(128)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		var req fasthttp.Request
		req.Header.SetMethod("POST")
		req.SetRequestURI(path)
		req.Header.Set("x-api-key", key)
		req.SetBodyString(body)
		var ctx fasthttp.RequestCtx
		for pb.Next() {
			ctx.Init(&req, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, nil)
			w.intake.cfg.Gate.Begin(&ctx)
			handler(&ctx, nil)
			if ctx.Response.StatusCode() != 200 {
				b.Error(ctx.Response.StatusCode(), string(ctx.Response.Body()))
				return
			}
			ctx.Response.Reset()
		}
	})
	b.StopTimer()
	close(stop)
	<-freed
	b.ReportMetric(float64(b.N*events)/b.Elapsed().Seconds(), "events/s")
}

func BenchmarkTrackHandler(b *testing.B) { benchmarkHandler(b, "/api/v1/track", event300, 1) }

func BenchmarkBatchOf100Handler(b *testing.B) {
	one := `{"type":"track","payload":` + event300 + `}`
	benchmarkHandler(b, "/api/v1/batch", `{"operations":[`+one+strings.Repeat(","+one, 99)+`]}`, 100)
}

// benchmarkPost measures requests over the loopback, clients in the same process; Bare answers the same and knows nothing.
func benchmarkPost(b *testing.B, url string) {
	b.SetParallelism(64)
	client := &fasthttp.HostClient{Addr: strings.TrimPrefix(url, "http://"), MaxConns: 1024}
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		var req fasthttp.Request
		var res fasthttp.Response
		req.Header.SetMethod("POST")
		req.SetRequestURI(url + "/api/v1/track")
		req.Header.Set("x-api-key", key)
		req.SetBodyString(event300)
		for pb.Next() {
			if err := client.Do(&req, &res); err != nil || res.StatusCode() != 200 {
				b.Error(err, res.StatusCode(), string(res.Body()))
				return
			}
		}
	})
	b.StopTimer()
	client.CloseIdleConnections()
}

func BenchmarkTrackPost(b *testing.B) {
	w := newWorld(b, settings{fs: vfs.Default, dir: b.TempDir()})
	benchmarkPost(b, w.url)
}

func BenchmarkBarePost(b *testing.B) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	server := &fasthttp.Server{NoDefaultServerHeader: true, Handler: func(ctx *fasthttp.RequestCtx) {
		ctx.Response.Header.Set("X-Request-Id", fmt.Sprintf("%032x", 1))
		respond(ctx, 200, okBody)
	}}
	done := make(chan error, 1)
	go func() { done <- server.Serve(ln) }()
	benchmarkPost(b, "http://"+ln.Addr().String())
	if err := server.Shutdown(); err != nil {
		b.Fatal(err)
	}
	<-done
}
