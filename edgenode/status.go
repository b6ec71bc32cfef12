package edgenode

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skerry/edgenode/store"
	"skerry/pkg/serve"
	"skerry/replication"
)

// metrics are what /metrics shows of an edge; docs/operations/metrics.md names them.
type metrics struct {
	registry    *prometheus.Registry
	halts       prometheus.Histogram
	revocations prometheus.Histogram
	responses   [6]prometheus.Counter // by the status's first digit
}

func newMetrics(e *Edge) *metrics {
	m := &metrics{registry: serve.NewRegistry()}
	buckets := []float64{.0005, .001, .002, .003, .005, .0075, .01, .02, .035, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	m.halts = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "skerry_halt_propagation_seconds", Help: "From the commit of a halt or resume to its being served at this edge.", Buckets: buckets})
	m.revocations = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "skerry_revocation_propagation_seconds", Help: "From the commit of a key's revocation to its holding at this edge.", Buckets: buckets})
	m.registry.MustRegister(m.halts, m.revocations)
	responses := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "skerry_edge_responses_total", Help: "Answers by the first digit of their status."}, []string{"class"})
	m.registry.MustRegister(responses)
	for i, class := range []string{"other", "1xx", "2xx", "3xx", "4xx", "5xx"} {
		m.responses[i] = responses.WithLabelValues(class)
	}
	m.registry.MustRegister(stateCollector{e}, ingestCollector{e})
	return m
}

func (m *metrics) answered(status int) {
	class := status / 100
	if class >= len(m.responses) {
		class = 0
	}
	m.responses[class].Inc()
}

// propagated measures the way of an urgent document. The two ends' clocks may differ; a
// negative time counts as none.
func (m *metrics) propagated(d *replication.Document, now time.Time) {
	took := max(now.Sub(time.UnixMicro(d.ChangedAt)).Seconds(), 0)
	p, err := d.Subject.Parse()
	if err != nil {
		return
	}
	switch p.Kind {
	case replication.KindHalt:
		m.halts.Observe(took)
	case replication.KindRevoked:
		m.revocations.Observe(took)
	}
}

// stateCollector reads gauges when somebody asks.
type stateCollector struct{ edge *Edge }

var (
	descStaleness = prometheus.NewDesc("skerry_edge_staleness_seconds", "Since the centre was last heard of.", nil, nil)
	descPosition  = prometheus.NewDesc("skerry_edge_position", "Position served.", []string{"lane"}, nil)
	descLag       = prometheus.NewDesc("skerry_edge_lag_positions", "Positions behind what the centre last said.", []string{"lane"}, nil)
	descResets    = prometheus.NewDesc("skerry_edge_state_resets_total", "Times that state was taken anew.", []string{"lane"}, nil)
	descReady     = prometheus.NewDesc("skerry_edge_ready", "1 when the edge has state to serve.", nil, nil)
	descViews     = prometheus.NewDesc("skerry_edge_view_environments", "Environments compiled in memory.", nil, nil)
	descViewBytes = prometheus.NewDesc("skerry_edge_view_bytes", "Bytes the compiled environments are reckoned to hold.", nil, nil)
	descFills     = prometheus.NewDesc("skerry_edge_view_fills_total", "Environments compiled from disk.", nil, nil)
	descDisk      = prometheus.NewDesc("skerry_edge_state_disk_bytes", "Size of the state store.", nil, nil)
	descDamaged   = prometheus.NewDesc("skerry_edge_state_damaged", "1 when the state store was found damaged since the start.", nil, nil)
	descStreams   = prometheus.NewDesc("skerry_edge_streams", "Change streams that are open.", nil, nil)
	descStreamMax = prometheus.NewDesc("skerry_edge_streams_max", "Change streams that may be open at once; past it: 503.", nil, nil)
	descStreamNo  = prometheus.NewDesc("skerry_edge_streams_refused_total", "Change streams answered 503 because too many were open.", nil, nil)
	descRelay     = prometheus.NewDesc("skerry_edge_relay_in_flight", "Requests being passed on to the write plane.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descStaleness, descPosition, descLag, descResets, descReady, descViews,
		descViewBytes, descFills, descDisk, descDamaged, descStreams, descStreamMax, descStreamNo, descRelay} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c stateCollector) Collect(ch chan<- prometheus.Metric) {
	e := c.edge
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if e.disk == nil || e.followers[replication.Urgent] == nil || e.stream == nil {
		return // not open yet
	}
	gauge(descStaleness, e.staleness().Seconds())
	for lane, f := range e.followers {
		s, name := f.Status(), replication.Lane(lane).String()
		gauge(descPosition, float64(s.Cursor.Position), name)
		gauge(descLag, float64(s.Lag()), name)
		ch <- prometheus.MustNewConstMetric(descResets, prometheus.CounterValue, float64(s.Resets), name)
	}
	gauge(descReady, flag(e.views.Ready()))
	views := e.views.Stats()
	gauge(descViews, float64(views.Environments))
	gauge(descViewBytes, float64(views.Bytes))
	ch <- prometheus.MustNewConstMetric(descFills, prometheus.CounterValue, float64(views.Fills))
	gauge(descDisk, float64(e.disk.Bytes()))
	gauge(descDamaged, flag(e.disk.Damage() != nil))
	streams := e.stream.Stats()
	gauge(descStreams, float64(streams.Open))
	gauge(descStreamMax, float64(streams.AtMost))
	ch <- prometheus.MustNewConstMetric(descStreamNo, prometheus.CounterValue, float64(streams.Refused))
	gauge(descRelay, float64(e.relay.InFlight()))
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Status is what /status shows of an edge.
type Status struct {
	ID               string       `json:"id"`
	Ready            bool         `json:"ready"`
	Since            time.Time    `json:"since"`
	Connected        bool         `json:"connected"` // to the streams
	StalenessSeconds float64      `json:"staleness_seconds"`
	Lanes            []LaneStatus `json:"lanes"`
	Damage           *Damage      `json:"damaged_state,omitempty"` // a state store that was found damaged since the start
	Environments     int          `json:"environments_in_memory"`
	StateBytes       uint64       `json:"state_bytes"`
	Streams          int          `json:"streams"` // of changes, open now
	StreamsAtMost    int          `json:"streams_at_most"`
	RelayInFlight    int64        `json:"relay_in_flight"`
	Ingest           IngestStatus `json:"ingest"`
}

// LaneStatus is one lane of Status.
type LaneStatus struct {
	Lane         string               `json:"lane"`
	Serving      bool                 `json:"serving"`
	Filling      bool                 `json:"filling"` // state is being taken anew
	Epoch        string               `json:"epoch"`
	Position     replication.Position `json:"position"`
	Sequence     uint64               `json:"sequence"`
	LagPositions uint64               `json:"lag_positions"`
	HeardAt      *time.Time           `json:"heard_at"`
	Error        string               `json:"error,omitempty"`
}

// Damage is a damaged store of Status.
type Damage struct {
	At     time.Time `json:"at"`
	Path   string    `json:"path"` // where it was set aside; empty while it is still read
	Reason string    `json:"reason"`
}

func damageOf(d *store.Damage) *Damage {
	if d == nil {
		return nil
	}
	return &Damage{At: d.At, Path: d.Path, Reason: d.Reason}
}

// Status tells how the edge is doing.
func (e *Edge) Status() Status {
	streams := e.stream.Stats()
	s := Status{
		ID: e.config.ID, Ready: e.views.Ready(), Since: e.started.UTC(), Connected: e.conn.IsConnected(),
		StalenessSeconds: e.staleness().Seconds(), Damage: damageOf(e.disk.Damage()),
		Environments: e.views.Stats().Environments, StateBytes: e.disk.Bytes(), RelayInFlight: e.relay.InFlight(),
		Streams: streams.Open, StreamsAtMost: streams.AtMost,
		Ingest: e.ingestStatus(),
	}
	for lane, f := range e.followers {
		from := f.Status()
		to := LaneStatus{
			Lane: replication.Lane(lane).String(), Serving: from.Serving, Filling: from.Filling, Epoch: from.Cursor.Epoch.String(),
			Position: from.Cursor.Position, Sequence: from.Cursor.Seq, LagPositions: from.Lag(),
		}
		if !from.Heard.IsZero() {
			heard := from.Heard.UTC()
			to.HeardAt = &heard
		}
		if from.Err != nil {
			to.Error = from.Err.Error()
		}
		s.Lanes = append(s.Lanes, to)
	}
	return s
}

func (e *Edge) operatorHandler() http.Handler {
	return serve.Operator{
		Ready: func(context.Context) error {
			if !e.views.Ready() {
				return store.ErrNoState
			}
			return nil
		},
		Shutdown: &e.shutdown,
		Status:   func(context.Context) any { return e.Status() },
		Metrics:  e.metrics.registry,
	}.Handler()
}
