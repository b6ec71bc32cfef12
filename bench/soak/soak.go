// Package soak keeps a system under a steady mixed load for a long time and watches that
// it stays as it is: memory, goroutines, open files and latency.
//
// It promises to fail when one of them grows from the middle third of the time to the
// last by more than noise explains. It does not find what takes days to show.
package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"skerry/bench/load"
	"skerry/bench/report"
	"skerry/bench/rig"
	"skerry/bench/stage"
)

// Config says how long to soak and how hard.
type Config struct {
	Binary  string // skerry itself
	Version string
	Command string
	Length  time.Duration // 0 means 30 minutes
	Window  time.Duration // of one sample; 0 means a minute, or a fifteenth of Length if that is less
	Rate    float64       // requests a second; 0 means 5,000, half of what the scenario "mixed" sends
	Out     io.Writer
	JSON    string // where to save the report; empty: not
	HTML    string // likewise
}

// Validate names the flag that is wrong.
func (c Config) Validate() error {
	switch {
	case c.Length < 0 || c.Length > 0 && c.Length < 30*time.Second:
		return errors.New("--length must be 30s or more")
	case c.Window < 0 || c.Window > 0 && c.Window < time.Second:
		return errors.New("--window must be 1s or more")
	case c.Rate < 0:
		return errors.New("--rate must not be negative")
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Length == 0 {
		c.Length = 30 * time.Minute
	}
	if c.Window == 0 {
		c.Window = min(time.Minute, c.Length/15)
	}
	if c.Rate == 0 {
		c.Rate = 5000
	}
	return c
}

// stream is one kind of request among the mixture.
type stream struct {
	name   string
	share  float64
	status int
	source func(worker int) load.Source
	p99    []float64 // milliseconds, a window each
	bad    []string
}

// watched is a process and what it held at the end of each window.
type watched struct {
	name       string
	process    *rig.Process
	ops        string
	memory     []float64 // MB
	goroutines []float64
	files      []float64
}

// Run soaks, prints a table and fails when something grew.
func Run(ctx context.Context, config Config) error {
	if err := config.Validate(); err != nil {
		return err
	}
	config = config.withDefaults()
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(config.Out, format+"\n", args...) }
	s, err := stage.Start(ctx, stage.Config{Binary: config.Binary, CentreCore: -1, EdgeCore: -1, Log: say})
	if err != nil {
		return err
	}
	defer s.Close()
	edge, project, streams, err := prepare(ctx, s)
	if err != nil {
		return err
	}
	all := []*watched{
		{name: "edge", process: edge.Process, ops: edge.OperatorAddress},
		{name: "centre (write plane, NATS, an idle edge)", process: s.Centre(), ops: strings.TrimPrefix(s.Credentials.WritePlaneOp, "http://")},
	}
	changing, stop := context.WithCancel(ctx)
	changed := make(chan error, 1)
	go func() { changed <- s.KeepSwitching(changing, project, "flag-000") }()
	windows := int(config.Length / config.Window)
	for i := range windows {
		if err := window(ctx, edge, streams, config); err != nil {
			stop()
			return errors.Join(err, <-changed)
		}
		for _, w := range all {
			if err := w.sample(ctx); err != nil {
				stop()
				return errors.Join(err, <-changed)
			}
		}
		say("%s: edge %.0f MB, %.0f goroutines, %.0f files; p99 of %s %.1f ms", time.Duration(i+1)*config.Window,
			all[0].memory[i], all[0].goroutines[i], all[0].files[i], streams[0].name, streams[0].p99[i])
	}
	stop()
	if err := <-changed; err != nil {
		return err
	}
	return finish(config, streams, all)
}

func prepare(ctx context.Context, s *stage.Stage) (edge *stage.Edge, project stage.Project, streams []*stream, err error) {
	if edge, err = s.AddEdge(ctx); err != nil {
		return
	}
	if project, err = s.NewProject(ctx, "soak"); err != nil {
		return
	}
	if err = s.AddFlags(ctx, project, 20); err != nil {
		return
	}
	survey, err := s.AddSurveys(ctx, project, 3)
	if err != nil {
		return
	}
	questions, err := s.Questions(ctx, survey)
	if err != nil {
		return
	}
	if err = s.Settled(ctx, edge); err != nil {
		return
	}
	post := map[string]string{"X-Api-Key": project.Key, "Content-Type": "application/json"}
	var user atomic.Int64
	streams = []*stream{
		{name: "handshakes", share: 0.6, status: 200, source: func(int) load.Source {
			return func() []byte {
				return load.Render("GET", "/api/v1/handshake?distinct_id=user-"+strconv.FormatInt(user.Add(1), 10), edge.Address, map[string]string{"X-Api-Key": project.Key}, nil)
			}
		}},
		{name: "events", share: 0.38, status: 200, source: load.Same(load.Render("POST", "/api/v1/track", edge.Address, post,
			[]byte(`{"event_name":"soak","distinct_id":"soak-user","properties":{"plan":"pro","amount":1299}}`)))},
		{name: "submissions", share: 0.02, status: 201, source: load.Same(load.Render("POST", "/api/pulse/responses", edge.Address, post,
			fmt.Appendf(nil, `{"survey_id":%q,"answers":{%q:9}}`, survey, questions[0])))},
	}
	return
}

// window runs the mixture once.
func window(ctx context.Context, edge *stage.Edge, streams []*stream, config Config) error {
	faults := make(chan error, len(streams))
	for _, s := range streams {
		go func() {
			result, err := load.Run(ctx, load.Plan{Address: edge.Address, Requests: s.source, Conns: 8, Length: config.Window, Rate: config.Rate * s.share})
			if err == nil {
				s.p99 = append(s.p99, float64(result.Latency.ValueAtQuantile(99))/1e6)
				if !result.OnlyStatus(s.status) {
					s.bad = append(s.bad, result.Answers())
				}
			}
			faults <- err
		}()
	}
	var failed error
	for range streams {
		failed = errors.Join(failed, <-faults)
	}
	return failed
}

// sample measures a process.
func (w *watched) sample(ctx context.Context) error {
	memory, err := w.process.Memory()
	if err != nil {
		return err
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.process.PID()))
	if err != nil {
		return fmt.Errorf("count open files of %s: %w", w.name, err)
	}
	goroutines, err := rig.Gauge(ctx, w.ops, "go_goroutines")
	if err != nil {
		return fmt.Errorf("count goroutines of %s: %w", w.name, err)
	}
	w.memory = append(w.memory, float64(memory)/(1<<20))
	w.files = append(w.files, float64(len(files)))
	w.goroutines = append(w.goroutines, goroutines)
	return nil
}

func finish(config Config, streams []*stream, all []*watched) error {
	run := report.Run{Version: config.Version, Started: time.Now().Add(-config.Length), Machine: report.ThisMachine(), Command: config.Command}
	var failed error
	add := func(name, unit string, values []float64, grown string) {
		f := report.Figure{Scenario: "soak", Name: name, Unit: unit, Values: values, LowerIsBetter: true, Invalid: grown,
			Series: &report.Series{Unit: unit, Step: config.Window.Seconds(), Values: values}}
		run.Figures = append(run.Figures, f)
		if grown != "" {
			failed = errors.Join(failed, fmt.Errorf("%s: %s", name, grown))
		}
	}
	for _, w := range all {
		add(w.name+", memory", "MB", w.memory, grew(w.memory, memoryFactor, memorySlack))
		add(w.name+", goroutines", "goroutines", w.goroutines, grew(w.goroutines, 1, goroutineSlack))
		add(w.name+", open files", "files", w.files, grew(w.files, 1, fileSlack))
	}
	for _, s := range streams {
		wrong := grew(s.p99, latencyFactor, latencySlack)
		if len(s.bad) > 0 {
			wrong = s.bad[0]
		}
		add(s.name+", p99", "ms", s.p99, wrong)
	}
	err := run.Table(config.Out)
	if config.JSON != "" {
		err = errors.Join(err, run.Save(config.JSON))
	}
	if config.HTML != "" {
		err = errors.Join(err, run.SavePage(config.HTML))
	}
	return errors.Join(failed, err)
}
