package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// Table prints the figures for a terminal.
func (r *Run) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "scenario\tfigure\tmedian\tmin – max\tof baseline\tp50\tp99\tbusy\ttarget\t")
	for _, f := range r.Figures {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s %s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", f.Scenario, f.Name, number(Median(f.Values)), f.Unit,
			span(f.Values), ratio(f), micros(f.At(50)), micros(f.At(99)), percent(f.Busy), verdict(f))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, f := range r.Figures {
		for _, remark := range []string{f.Invalid, f.Note} {
			if remark != "" {
				if _, err := fmt.Fprintf(w, "%s, %s: %s\n", f.Scenario, f.Name, remark); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case math.Abs(v) >= 10000:
		text := fmt.Sprintf("%.0f", v)
		for i := len(text) - 3; i > 0; i -= 3 {
			text = text[:i] + "," + text[i:]
		}
		return text
	case math.Abs(v) >= 100:
		return fmt.Sprintf("%.0f", v)
	case math.Abs(v) >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

func span(values []float64) string {
	if len(values) < 2 {
		return ""
	}
	return number(slices.Min(values)) + " – " + number(slices.Max(values))
}

func ratio(f Figure) string {
	if len(f.Ratios) == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f (%.2f – %.2f)", Median(f.Ratios), slices.Min(f.Ratios), slices.Max(f.Ratios))
}

func micros(v float64) string {
	switch {
	case v == 0:
		return ""
	case v >= 10000:
		return fmt.Sprintf("%.0f ms", v/1000)
	case v >= 1000:
		return fmt.Sprintf("%.1f ms", v/1000)
	}
	return fmt.Sprintf("%.0f µs", v)
}

func percent(values []float64) string {
	if len(values) == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f%%", 100*Median(values))
}

func verdict(f Figure) string {
	if f.Target == 0 {
		return ""
	}
	sign := "≥"
	if f.LowerIsBetter {
		sign = "≤"
	}
	text := sign + " " + number(f.Target)
	switch reached, known := f.Reached(); {
	case !known:
		return text + " (no verdict)"
	case reached:
		return text + " reached"
	}
	return text + " missed"
}

// Compare prints what changed from a to b beyond the noise: figures whose ranges over
// the repetitions do not touch. Where both have ratios to a baseline, those are
// compared, because machines differ from day to day.
func Compare(w io.Writer, a, b *Run) error {
	var lines []string
	for _, was := range a.Figures {
		i := slices.IndexFunc(b.Figures, func(f Figure) bool { return f.Scenario == was.Scenario && f.Name == was.Name })
		if i < 0 {
			lines = append(lines, fmt.Sprintf("%s, %s: only in the first", was.Scenario, was.Name))
			continue
		}
		lines = append(lines, compareFigure(was, b.Figures[i]))
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}

func compareFigure(was, is Figure) string {
	name := was.Scenario + ", " + was.Name
	before, after, unit := was.Values, is.Values, was.Unit
	if len(was.Ratios) > 0 && len(is.Ratios) > 0 {
		before, after, unit = was.Ratios, is.Ratios, "of baseline"
	}
	if len(before) == 0 || len(after) == 0 || was.Invalid != "" || is.Invalid != "" {
		return name + ": no verdict, one of the figures does not count"
	}
	from, to := Median(before), Median(after)
	text := fmt.Sprintf("%s: %s → %s %s (%+.1f%%)", name, number(from), number(to), unit, 100*(to-from)/from)
	better := slices.Min(after) > slices.Max(before)
	worse := slices.Max(after) < slices.Min(before)
	if was.LowerIsBetter {
		better, worse = worse, better
	}
	switch {
	case better:
		return text + ", better"
	case worse:
		return text + ", WORSE"
	}
	return text + ", within the noise"
}
