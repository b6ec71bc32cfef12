package report

import (
	"bytes"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"

	"skerry/pkg/atomicfile"
)

// SavePage writes the run as one HTML page with its plots drawn in it: no script, no
// style and no font from anywhere else.
func (r *Run) SavePage(path string) error {
	var b bytes.Buffer
	if err := page.Execute(&b, r); err != nil {
		return fmt.Errorf("render report: %w", err)
	}
	return atomicfile.Write(path, b.Bytes())
}

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"number": number, "span": span, "ratio": ratio, "micros": micros, "percent": percent, "verdict": verdict, "median": Median,
	"latencyPlot": latencyPlot, "throughputPlot": throughputPlot, "seriesPlot": seriesPlot, "withSeries": withSeries,
	"class": func(f Figure) string {
		switch reached, known := f.Reached(); {
		case !known:
			return ""
		case reached:
			return "reached"
		}
		return "missed"
	},
}).Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Skerry benchmark {{.Started.Format "2006-01-02 15:04"}}</title>
<style>
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1b2733}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #dfe5ea;vertical-align:top}
td.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}.reached{color:#0a7d36}.missed{color:#b3261e}
figure{margin:1rem 0;display:inline-block}figcaption{font-size:.85rem;color:#51606d}svg{background:#fafbfc;border:1px solid #dfe5ea}
.remark{color:#8a5a00}
</style></head><body>
<h1>Skerry benchmark</h1>
<p>{{.Started.Format "2006-01-02 15:04 MST"}}, version {{.Version}}, <code>{{.Command}}</code><br>
{{.Machine.CPU}}, {{.Machine.Cores}} cores, {{.Machine.MemoryMB}} MB, Linux {{.Machine.Kernel}}, {{.Machine.Go}}</p>
<p>Medians over repetitions. “Of baseline” is the ratio to the yardstick measured beside it in the same run; a pair counts only when the
server's core was at least 95% busy in both.</p>
<table><tr><th>scenario<th>figure<th>median<th>min – max<th>of baseline<th>p50<th>p99<th>busy<th>target</tr>
{{range .Figures}}<tr><td>{{.Scenario}}<td>{{.Name}}<td class="n">{{number (median .Values)}} {{.Unit}}<td class="n">{{span .Values}}<td class="n">{{ratio .}}
<td class="n">{{micros (.At 50)}}<td class="n">{{micros (.At 99)}}<td class="n">{{percent .Busy}}<td class="{{class .}}">{{verdict .}}</tr>
{{if .Invalid}}<tr><td><td colspan="8" class="remark">{{.Invalid}}</tr>{{end}}{{if .Note}}<tr><td><td colspan="8">{{.Note}}</tr>{{end}}
{{end}}</table>
<h2>Latency</h2>
{{range .Figures}}{{if .Latency}}<figure>{{latencyPlot .}}<figcaption>{{.Scenario}}: {{.Name}}</figcaption></figure>{{end}}{{end}}
<h2>Throughput over time</h2>
{{range .Figures}}{{if .PerSecond}}<figure>{{throughputPlot .}}<figcaption>{{.Scenario}}: {{.Name}}</figcaption></figure>{{end}}{{end}}
{{with withSeries .Figures}}<h2>Over time</h2>
{{range .}}<figure>{{seriesPlot .Series}}<figcaption>{{.Scenario}}: {{.Name}}, {{.Series.Unit}}</figcaption></figure>{{end}}{{end}}
</body></html>
`))

const (
	plotWidth, plotHeight = 340.0, 180.0
	margin                = 44.0
)

// latencyPlot draws latency (logarithmic) over the percentile, spread so that the
// nines at the end can be seen.
func latencyPlot(f Figure) template.HTML {
	nines := func(q float64) float64 { return min(4, -math.Log10(1-min(q, 99.99)/100)) }
	low, high := math.Inf(1), 1.0
	for _, p := range f.Latency {
		if p.Micros > 0 {
			low, high = min(low, p.Micros), max(high, p.Micros)
		}
	}
	low, high = math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Ceil(math.Log10(high)))
	if high <= low {
		high = low * 10
	}
	x := func(q float64) float64 { return margin + nines(q)/4*(plotWidth-margin-10) }
	y := func(v float64) float64 {
		return plotHeight - 24 - (math.Log10(max(v, low))-math.Log10(low))/(math.Log10(high)-math.Log10(low))*(plotHeight-40)
	}
	var b strings.Builder
	for v := low; v <= high*1.01; v *= 10 {
		fmt.Fprintf(&b, `<line x1="%g" y1="%g" x2="%g" y2="%g" stroke="#e4e9ed"/><text x="4" y="%g" font-size="10">%s</text>`,
			margin, y(v), plotWidth-10, y(v), y(v)+3, micros(v))
	}
	for _, q := range []float64{50, 90, 99, 99.9, 99.99} {
		fmt.Fprintf(&b, `<text x="%g" y="%g" font-size="10" text-anchor="middle">%g</text>`, x(q), plotHeight-8, q)
	}
	points := make([]string, 0, len(f.Latency))
	for _, p := range f.Latency {
		points = append(points, fmt.Sprintf("%.1f,%.1f", x(p.Q), y(p.Micros)))
	}
	fmt.Fprintf(&b, `<polyline fill="none" stroke="#1769aa" stroke-width="2" points="%s"/>`, strings.Join(points, " "))
	return svg(b.String())
}

// throughputPlot draws answers in each second.
func throughputPlot(f Figure) template.HTML {
	highest := max(1, slices.Max(f.PerSecond))
	x := func(i int) float64 {
		return margin + float64(i)/math.Max(1, float64(len(f.PerSecond)-1))*(plotWidth-margin-10)
	}
	y := func(v int64) float64 { return plotHeight - 24 - float64(v)/float64(highest)*(plotHeight-40) }
	var b strings.Builder
	for _, v := range []int64{0, highest / 2, highest} {
		fmt.Fprintf(&b, `<line x1="%g" y1="%g" x2="%g" y2="%g" stroke="#e4e9ed"/><text x="2" y="%g" font-size="10">%s</text>`,
			margin, y(v), plotWidth-10, y(v), y(v)+3, number(float64(v)))
	}
	points := make([]string, len(f.PerSecond))
	for i, v := range f.PerSecond {
		points[i] = fmt.Sprintf("%.1f,%.1f", x(i), y(v))
	}
	fmt.Fprintf(&b, `<polyline fill="none" stroke="#0a7d36" stroke-width="2" points="%s"/><text x="%g" y="%g" font-size="10" text-anchor="end">%d s</text>`,
		strings.Join(points, " "), plotWidth-10, plotHeight-8, len(f.PerSecond)-1)
	return svg(b.String())
}

// svg wraps drawn shapes; they hold numbers and units only, nothing of a user's.
func svg(shapes string) template.HTML {
	return template.HTML(fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%g" role="img">%s</svg>`, plotWidth, plotHeight, shapes))
}
