package report_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skerry/bench/report"
)

func run(values ...float64) *report.Run {
	return &report.Run{Version: "v", Started: time.Unix(0, 0).UTC(), Machine: report.ThisMachine(), Figures: []report.Figure{{
		Scenario: "reads", Name: "304", Unit: "requests/s", Values: values, Target: 100,
		Latency: []report.Quantile{{Q: 50, Micros: 12}, {Q: 99, Micros: 3400}, {Q: 100, Micros: 20000}}, PerSecond: []int64{90, 110},
	}}}
}

func TestComparisonNeedsRangesThatDoNotTouch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		is   []float64
		want string
	}{
		"better": {[]float64{130, 140}, "better"}, "worse": {[]float64{60, 70}, "WORSE"}, "noise": {[]float64{105, 150}, "within the noise"},
	} {
		var out bytes.Buffer
		if err := report.Compare(&out, run(90, 100, 110), run(c.is...)); err != nil || !strings.Contains(out.String(), c.want) {
			t.Errorf("%s: %q %v", name, out.String(), err)
		}
	}
}

func TestLowerIsBetterTurnsTheVerdict(t *testing.T) {
	t.Parallel()
	a, b := run(10, 11), run(20, 21)
	a.Figures[0].LowerIsBetter, b.Figures[0].LowerIsBetter = true, true
	var out bytes.Buffer
	if err := report.Compare(&out, a, b); err != nil || !strings.Contains(out.String(), "WORSE") {
		t.Errorf("%q %v", out.String(), err)
	}
}

func TestTableTellsReachedFromMissed(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]*report.Run{"≥ 100 reached": run(101), "≥ 100 missed": run(99)} {
		var out bytes.Buffer
		if err := r.Table(&out); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%q %v, want %q", out.String(), err, want)
		}
	}
	invalid := run(500)
	invalid.Figures[0].Invalid = "the server was idle"
	var out bytes.Buffer
	if err := invalid.Table(&out); err != nil || !strings.Contains(out.String(), "no verdict") || !strings.Contains(out.String(), "the server was idle") {
		t.Errorf("%q %v", out.String(), err)
	}
}

func TestSavedRunsComeBackAndThePageStandsAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := run(1, 2, 3)
	if err := r.Save(filepath.Join(dir, "run.json")); err != nil {
		t.Fatal(err)
	}
	back, err := report.Load(filepath.Join(dir, "run.json"))
	if err != nil || len(back.Figures) != 1 || report.Median(back.Figures[0].Values) != 2 {
		t.Fatalf("%+v %v", back, err)
	}
	if err := r.SavePage(filepath.Join(dir, "run.html")); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "run.html"))
	if err != nil || !bytes.Contains(page, []byte("<polyline")) || bytes.Contains(page, []byte("src=")) || bytes.Contains(page, []byte("<script")) {
		t.Errorf("page of %d bytes: %v", len(page), err)
	}
	if _, err := report.Load(filepath.Join(dir, "run.html")); err == nil {
		t.Error("an HTML page was read as a report")
	}
}

func TestSeriesIsDrawnAndKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := run(1)
	r.Figures[0].Series = &report.Series{Unit: "MB", Step: 60, Values: []float64{0, 10, 20}}
	if err := r.Save(filepath.Join(dir, "run.json")); err != nil {
		t.Fatal(err)
	}
	back, err := report.Load(filepath.Join(dir, "run.json"))
	if err != nil || back.Figures[0].Series == nil || back.Figures[0].Series.Values[2] != 20 {
		t.Fatalf("%+v %v", back, err)
	}
	if err := back.SavePage(filepath.Join(dir, "run.html")); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "run.html"))
	// Three minutes; zero at the bottom, the highest at the top of a plot of 340 × 180.
	if err != nil || !bytes.Contains(page, []byte(`points="44.0,156.0 187.0,86.0 330.0,16.0"`)) || !bytes.Contains(page, []byte("180 s")) {
		t.Errorf("the series is not drawn: %v", err)
	}
}
