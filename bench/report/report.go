// Package report holds what a benchmark run saw and shows it: as a table on a
// terminal, as JSON for `skerry bench compare`, as one self-contained HTML page.
package report

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"skerry/pkg/atomicfile"
)

// Run is one run of `skerry bench`.
type Run struct {
	Version string    `json:"version"` // of the program
	Started time.Time `json:"started"`
	Machine Machine   `json:"machine"`
	Command string    `json:"command"`
	Figures []Figure  `json:"figures"`
}

// Machine is where it ran.
type Machine struct {
	CPU      string `json:"cpu"`
	Cores    int    `json:"cores"`
	MemoryMB int64  `json:"memory_mb"`
	Kernel   string `json:"kernel"`
	Go       string `json:"go"`
}

// Figure is one thing measured, in several repetitions.
type Figure struct {
	Scenario string `json:"scenario"`
	Name     string `json:"name"`
	Unit     string `json:"unit"`
	// Values are the repetitions' figures. Higher is better unless LowerIsBetter.
	Values        []float64 `json:"values"`
	LowerIsBetter bool      `json:"lower_is_better,omitempty"`
	// Baseline and Ratios pair each value with the yardstick measured beside it.
	Baseline     []float64 `json:"baseline,omitempty"`
	BaselineName string    `json:"baseline_name,omitempty"`
	Ratios       []float64 `json:"ratios,omitempty"`
	// Busy is the share of its core that the server used, a repetition each.
	Busy []float64 `json:"busy,omitempty"`
	// Invalid says why the figure does not count; empty when it does.
	Invalid string `json:"invalid,omitempty"`
	// Target is what the design wants: of the median ratio if TargetIsRatio.
	Target        float64    `json:"target,omitempty"`
	TargetIsRatio bool       `json:"target_is_ratio,omitempty"`
	Latency       []Quantile `json:"latency,omitempty"`
	PerSecond     []int64    `json:"per_second,omitempty"`
	Series        *Series    `json:"series,omitempty"`
	Note          string     `json:"note,omitempty"`
}

// AddPair adds one repetition with the yardstick measured beside it.
func (f *Figure) AddPair(value, baseline float64) {
	f.Values, f.Baseline, f.Ratios = append(f.Values, value), append(f.Baseline, baseline), append(f.Ratios, value/baseline)
}

// Series is how a figure went over time.
type Series struct {
	Unit   string    `json:"unit"`
	Step   float64   `json:"step_seconds"`
	Values []float64 `json:"values"`
}

// Quantile is a point of a latency distribution, in microseconds.
type Quantile struct {
	Q      float64 `json:"q"` // percent
	Micros float64 `json:"micros"`
}

// Quantiles reads the points that reports show off a histogram of nanoseconds.
func Quantiles(h *hdrhistogram.Histogram) []Quantile {
	if h == nil || h.TotalCount() == 0 {
		return nil
	}
	points := []float64{0, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.99, 100}
	quantiles := make([]Quantile, len(points))
	for i, q := range points {
		quantiles[i] = Quantile{q, float64(h.ValueAtQuantile(q)) / 1e3}
	}
	return quantiles
}

// At is the latency at a quantile in microseconds, 0 when it is not among the points.
func (f Figure) At(q float64) float64 {
	for _, point := range f.Latency {
		if point.Q == q {
			return point.Micros
		}
	}
	return 0
}

// Median is the middle of the values, 0 without any.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	if n := len(sorted); n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[len(sorted)/2]
}

// Reached compares the figure with its target; known is false where there is none or
// the figure does not count.
func (f Figure) Reached() (reached, known bool) {
	if f.Target == 0 || f.Invalid != "" || len(f.Values) == 0 {
		return false, false
	}
	got := Median(f.Values)
	if f.TargetIsRatio {
		got = Median(f.Ratios)
	}
	if f.LowerIsBetter {
		return got <= f.Target, true
	}
	return got >= f.Target, true
}

// ThisMachine describes where the program runs.
func ThisMachine() Machine {
	m := Machine{CPU: "unknown", Cores: runtime.NumCPU(), Go: runtime.Version()}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	if info, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kib int64
		if _, err := fmt.Sscanf(string(info), "MemTotal: %d kB", &kib); err == nil {
			m.MemoryMB = kib >> 10
		}
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(release))
	}
	return m
}

// Save writes the run as JSON.
func (r *Run) Save(path string) error {
	body, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("marshal report: %w", err)
	}
	return atomicfile.Write(path, append(body, '\n'))
}

// Load reads what Save wrote.
func Load(path string) (*Run, error) {
	body, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	var r Run
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, fmt.Errorf("%s is no report of skerry bench: %w", path, err)
	}
	return &r, nil
}
