package tally

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Metric is what a monthly quota counts.
type Metric uint8

// The metrics. Their numbers stand in edges' stores.
const (
	Events     Metric = 1 // accepted track events
	Handshakes Metric = 2 // decision calls
)

// String is the metric's name in reports and in the database.
func (m Metric) String() string {
	switch m {
	case Events:
		return "events"
	case Handshakes:
		return "handshakes"
	}
	return fmt.Sprintf("metric(%d)", uint8(m))
}

func parseMetric(s string) (Metric, bool) {
	for _, m := range []Metric{Events, Handshakes} {
		if m.String() == s {
			return m, true
		}
	}
	return 0, false
}

// Count is how much one edge ever counted of a metric for a project in a month. It
// only grows.
type Count struct {
	Project [16]byte
	Month   time.Time // its first instant, UTC
	Metric  Metric
	Value   uint64
}

// Report is what an edge says of its counters. Values are totals, so that a report that
// comes twice, late or never does no harm: per source, project, month and metric the
// highest counts.
type Report struct {
	Edge string
	// Source is the edge's store: its id, and behind a dot that of its disk. An edge that
	// lost its disk begins at 0 under a new source, and what it had counted before still
	// stands under the old.
	Source string
	Counts []Count
}

// ReportSubjects is where the centre hears usage reports of all edges.
const ReportSubjects = "tally.usage.*"

// ReportSubject is where an edge reports.
func ReportSubject(edge string) string { return "tally.usage." + edge }

const monthForm = "2006-01"

// The wire form:
// {"edge":"e1","source":"e1.9f86d081","counts":[{"project":"…","month":"2026-01","metric":"events","value":7}]}
type wireReport struct {
	Edge   string      `json:"edge"`
	Source string      `json:"source"`
	Counts []wireCount `json:"counts"`
}

type wireCount struct {
	Project string `json:"project"`
	Month   string `json:"month"`
	Metric  string `json:"metric"`
	Value   uint64 `json:"value"`
}

// Encode is the report's message.
func (r *Report) Encode() []byte {
	w := wireReport{Edge: r.Edge, Source: r.Source, Counts: make([]wireCount, len(r.Counts))}
	for i, c := range r.Counts {
		w.Counts[i] = wireCount{uuid.UUID(c.Project).String(), c.Month.UTC().Format(monthForm), c.Metric.String(), c.Value}
	}
	data, err := json.Marshal(w)
	if err != nil {
		panic("BUG: a report does not marshal: " + err.Error())
	}
	return data
}

// DecodeReport reads a message. Metrics of newer versions are left out.
func DecodeReport(data []byte) (Report, error) {
	var w wireReport
	if err := json.Unmarshal(data, &w); err != nil {
		return Report{}, fmt.Errorf("usage report: %w", err)
	}
	if w.Edge == "" || (w.Source != w.Edge && !strings.HasPrefix(w.Source, w.Edge+".")) {
		return Report{}, errors.New("usage report without an edge and a source of its own")
	}
	r := Report{Edge: w.Edge, Source: w.Source, Counts: make([]Count, 0, len(w.Counts))}
	for _, c := range w.Counts {
		metric, ok := parseMetric(c.Metric)
		if !ok {
			continue
		}
		project, err := uuid.Parse(c.Project)
		if err != nil {
			return Report{}, fmt.Errorf("usage report: project: %w", err)
		}
		month, err := time.Parse(monthForm, c.Month)
		if err != nil {
			return Report{}, fmt.Errorf("usage report: month: %w", err)
		}
		if c.Value > 1<<62 {
			return Report{}, fmt.Errorf("usage report: value %d", c.Value)
		}
		r.Counts = append(r.Counts, Count{Project: project, Month: month, Metric: metric, Value: c.Value})
	}
	return r, nil
}
