package report

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
)

// withSeries are the figures that have one.
func withSeries(figures []Figure) (some []Figure) {
	for _, f := range figures {
		if f.Series != nil && len(f.Series.Values) > 0 {
			some = append(some, f)
		}
	}
	return some
}

// seriesPlot draws values over time, from zero.
func seriesPlot(s *Series) template.HTML {
	highest := slices.Max(s.Values)
	if highest <= 0 {
		highest = 1
	}
	last := len(s.Values) - 1
	x := func(i int) float64 { return margin + float64(i)/math.Max(1, float64(last))*(plotWidth-margin-10) }
	y := func(v float64) float64 { return plotHeight - 24 - v/highest*(plotHeight-40) }
	var b strings.Builder
	for _, v := range []float64{0, highest / 2, highest} {
		fmt.Fprintf(&b, `<line x1="%g" y1="%g" x2="%g" y2="%g" stroke="#e4e9ed"/><text x="2" y="%g" font-size="10">%s</text>`,
			margin, y(v), plotWidth-10, y(v), y(v)+3, number(v))
	}
	points := make([]string, len(s.Values))
	for i, v := range s.Values {
		points[i] = fmt.Sprintf("%.1f,%.1f", x(i), y(v))
	}
	fmt.Fprintf(&b, `<polyline fill="none" stroke="#8a3ffc" stroke-width="2" points="%s"/><text x="%g" y="%g" font-size="10" text-anchor="end">%.0f s</text>`,
		strings.Join(points, " "), plotWidth-10, plotHeight-8, float64(last+1)*s.Step)
	return svg(b.String())
}
