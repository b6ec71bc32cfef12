package serve

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Operator answers on the second, operator-only listener (supplement §9):
//
//	GET /healthz       200 {"status":"ok"}: the process is alive
//	GET /readyz        200 {"status":"ready"} or 503 {"status":"not ready","reason":…}
//	GET /metrics       Prometheus
//	GET /status        what Status returns, as JSON
//	    /debug/pprof/  profiles
type Operator struct {
	// Ready returns nil when the process can do its work. It has 2 s.
	Ready func(context.Context) error
	// Shutdown, once it has begun, makes the process not ready; nil means that
	// nobody waits for that.
	Shutdown *Shutdown
	// Status returns a value for JSON, in any state of the process.
	Status func(context.Context) any
	// Metrics is what /metrics shows; see NewRegistry.
	Metrics *prometheus.Registry
}

// readyTime bounds a readiness check: a probe that hangs says less than one
// that fails.
const readyTime = 2 * time.Second

// Handler serves the operator's paths on a mux of its own.
func (o Operator) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readyTime)
		defer cancel()
		if err := o.ready(ctx); err != nil {
			answer(w, http.StatusServiceUnavailable, map[string]string{"status": "not ready", "reason": mask(err.Error())})
			return
		}
		answer(w, http.StatusOK, map[string]string{"status": "ready"})
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, o.Status(r.Context()))
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(o.Metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusNotFound, map[string]string{"error": "not_found"})
	})
	return mux
}

func (o Operator) ready(ctx context.Context) error {
	if o.Shutdown != nil && o.Shutdown.Begun() {
		return errStopping
	}
	return o.Ready(ctx)
}

func answer(w http.ResponseWriter, status int, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"error":"internal"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

// NewRegistry returns a registry with the metrics of the Go runtime and the
// process.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return reg
}
