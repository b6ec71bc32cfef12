package identity

import "github.com/prometheus/client_golang/prometheus"

// Collector shows the rewriting's progress as metrics.
type Collector struct {
	worker                                *Worker
	waiting, oldest, rewritten, longestTx *prometheus.Desc
}

// NewCollector returns the worker's metrics.
func NewCollector(worker *Worker) *Collector {
	return &Collector{
		worker:    worker,
		waiting:   prometheus.NewDesc("skerry_identity_rewrites_waiting", "Aliases whose history is not rewritten yet.", nil, nil),
		oldest:    prometheus.NewDesc("skerry_identity_rewrite_oldest_seconds", "How long the first of them has waited.", nil, nil),
		rewritten: prometheus.NewDesc("skerry_identity_events_rewritten_total", "Events given their canonical id by this process.", nil, nil),
		longestTx: prometheus.NewDesc("skerry_identity_longest_transaction_seconds", "Longest transaction of rewriting and erasing so far.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.waiting, c.oldest, c.rewritten, c.longestTx} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	s := c.worker.Status()
	out <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, float64(s.Waiting))
	out <- prometheus.MustNewConstMetric(c.oldest, prometheus.GaugeValue, s.OldestSeconds)
	out <- prometheus.MustNewConstMetric(c.rewritten, prometheus.CounterValue, float64(s.Rewritten))
	out <- prometheus.MustNewConstMetric(c.longestTx, prometheus.GaugeValue, s.LongestTxSeconds)
}
