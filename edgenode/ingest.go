package edgenode

import (
	"context"
	"fmt"
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"skerry/edgenode/buffer"
	"skerry/pkg/serve"
	"skerry/replication/tally"
	"skerry/replication/up"
)

// ingest is the way of events through this edge: buffer, what ships it, and what
// counts usage.
type ingest struct {
	buffer   *buffer.Buffer
	uploader *up.Uploader
	shipper  *up.Shipper
	meter    *tally.Meter
	keyUse   *tally.KeyUse
}

// openIngest opens the buffer; a new incarnation begins here.
func (e *Edge) openIngest() (err error) {
	c := e.config
	in := &e.ingest
	if in.uploader, err = up.NewUploader(c.ID, c.WritePlane, e.conn); err != nil {
		return err
	}
	c.Buffer.Edge, c.Buffer.Upload = c.ID, in.uploader.Upload
	if in.buffer, err = buffer.Open(c.Buffer); err != nil {
		return err
	}
	in.meter = tally.NewMeter(c.ID, in.buffer, nil)
	in.keyUse = tally.NewKeyUse(c.ID)
	if in.shipper, err = up.NewShipper(up.ShipperConfig{Edge: c.ID}, in.buffer, e.conn); err != nil {
		return fmt.Errorf("shipper: %w", err)
	}
	return nil
}

// addIngest adds what runs in the background.
func (e *Edge) addIngest(g *serve.Group) {
	g.Add("shipper", e.ingest.shipper.Run)
	g.Add("rate limits", func(ctx context.Context) error { return e.limiter.Run(ctx, e.conn) })
	g.Add("usage", func(ctx context.Context) error { return e.ingest.meter.Run(ctx, e.conn) })
	g.Add("key use", func(ctx context.Context) error { return e.ingest.keyUse.Run(ctx, e.conn) })
}

func (in *ingest) close() error {
	if in.uploader != nil {
		in.uploader.Close()
	}
	if in.buffer == nil {
		return nil
	}
	return in.buffer.Close()
}

// IngestStatus is the events' part of Status.
type IngestStatus struct {
	Buffer  buffer.Status   `json:"buffer"`
	Shipper []up.LaneStatus `json:"shipper"`
	// Full counts requests answered 503 because disk or memory was short, Garbage
	// operations left out for their ids.
	Full    uint64 `json:"full"`
	Garbage uint64 `json:"garbage"`
	// Forgotten counts rate counters that made room for others: more keys were tried than
	// are counted at once.
	Forgotten uint64 `json:"forgotten_rate_counters"`
}

func (e *Edge) ingestStatus() IngestStatus {
	stats := e.intake.Stats()
	return IngestStatus{Buffer: e.ingest.buffer.Status(), Shipper: e.ingest.shipper.Status(),
		Full: stats.Full, Garbage: stats.Garbage, Forgotten: e.limiter.Evictions()}
}

// ingestCollector reads the events' metrics when somebody asks;
// docs/operations/metrics.md names them.
type ingestCollector struct{ edge *Edge }

var (
	descReceived     = prometheus.NewDesc("skerry_ingest_received_total", "Operations ever accepted by this edge.", []string{"lane"}, nil)
	descPending      = prometheus.NewDesc("skerry_ingest_pending", "Accepted operations that the centre has not yet stored.", []string{"lane"}, nil)
	descPendingBytes = prometheus.NewDesc("skerry_ingest_pending_bytes", "Bytes of pending operations.", []string{"lane"}, nil)
	descOldest       = prometheus.NewDesc("skerry_ingest_oldest_seconds", "Age of the oldest pending operation.", []string{"lane"}, nil)
	descRewinds      = prometheus.NewDesc("skerry_ingest_rewinds_total", "Times that the shipper went back.", []string{"lane"}, nil)
	descBuffered     = prometheus.NewDesc("skerry_ingest_buffer_bytes", "Bytes that the buffer holds.", nil, nil)
	descBufferMax    = prometheus.NewDesc("skerry_ingest_buffer_max_bytes", "Bytes that the buffer may hold; past it: 503.", nil, nil)
	descBufferFree   = prometheus.NewDesc("skerry_ingest_disk_free_bytes", "Free bytes of the buffer's disk, as last looked.", nil, nil)
	descTimeToFull   = prometheus.NewDesc("skerry_ingest_full_in_seconds", "Time until the buffer is full at the pace of the last minute; +Inf when it does not grow.", nil, nil)
	descBufferDamage = prometheus.NewDesc("skerry_ingest_buffer_damaged", "1 when damage was found or a damaged buffer was set aside since the start.", nil, nil)
	descAccepted     = prometheus.NewDesc("skerry_intake_operations_total", "Operations since the start, by what became of them.", []string{"kind"}, nil)
	descFull         = prometheus.NewDesc("skerry_intake_full_total", "Requests answered 503 for want of disk or memory.", nil, nil)
	descSpooled      = prometheus.NewDesc("skerry_intake_spooled_total", "Requests that went through the disk while they were checked.", nil, nil)
	descIntakeMemory = prometheus.NewDesc("skerry_intake_memory_bytes", "Bytes that large requests hold at this moment.", nil, nil)
	descForgotten    = prometheus.NewDesc("skerry_rate_counters_forgotten_total", "Rate counters that made room for others.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c ingestCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descReceived, descPending, descPendingBytes, descOldest, descRewinds, descBuffered,
		descBufferMax, descBufferFree, descTimeToFull, descBufferDamage, descAccepted, descFull, descSpooled, descIntakeMemory, descForgotten} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c ingestCollector) Collect(ch chan<- prometheus.Metric) {
	e := c.edge
	if e.intake == nil {
		return // not open yet
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	status := e.ingest.buffer.Status()
	for _, t := range status.Lanes {
		lane := t.Lane.String()
		counter(descReceived, t.Received, lane)
		gauge(descPending, float64(t.Pending), lane)
		gauge(descPendingBytes, float64(t.PendingBytes), lane)
		gauge(descOldest, t.OldestAge.Seconds(), lane)
	}
	for _, l := range e.ingest.shipper.Status() {
		counter(descRewinds, l.Rewinds, l.Lane)
	}
	gauge(descBuffered, float64(status.Bytes))
	gauge(descBufferMax, float64(status.MaxBytes))
	gauge(descBufferFree, float64(status.FreeBytes))
	fullIn := math.Inf(1)
	if status.FullIn != nil {
		fullIn = *status.FullIn
	}
	gauge(descTimeToFull, fullIn)
	gauge(descBufferDamage, flag(len(status.Damaged) > 0))
	stats := e.intake.Stats()
	for _, k := range []struct {
		name string
		n    uint64
	}{{"track", stats.Track}, {"people", stats.People}, {"alias", stats.Alias}, {"crash", stats.Crashes}, {"garbage", stats.Garbage}} {
		counter(descAccepted, k.n, k.name)
	}
	counter(descFull, stats.Full)
	counter(descSpooled, stats.Spooled)
	gauge(descIntakeMemory, float64(stats.Memory))
	counter(descForgotten, e.limiter.Evictions())
}
