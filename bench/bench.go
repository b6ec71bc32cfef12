// Package bench measures Skerry, so that users can do on their own machines what its
// documents claim: scenarios of load against processes started with the production
// commands, each figure beside a yardstick measured in the same run.
package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"skerry/bench/baseline"
	"skerry/bench/load"
	"skerry/bench/report"
	"skerry/bench/rig"
	"skerry/bench/stage"
)

// Config says what to measure and for how long.
type Config struct {
	Binary      string        // skerry itself
	Version     string        // shown in the report
	Command     string        // likewise
	Scenarios   []string      // by name; empty: all
	Length      time.Duration // of one counted measurement; 0 means 5 s
	Warmup      time.Duration // before it; 0 means 1 s
	Repetitions int           // 0 means 3
	Rate        float64       // where a scenario sends at a fixed rate, requests a second; 0 means the scenario's own
	Edges       int           // of scenarios with several; 0 means 3
	Documents   int           // of coldstart; 0 means 1,000,000
	Out         io.Writer     // progress and table
	Interactive bool          // draw a progress bar
	JSON, HTML  string        // where to save the report; empty: not
}

// Validate names the flag that is wrong.
func (c Config) Validate() error {
	for _, name := range c.Scenarios {
		if !slices.ContainsFunc(scenarios, func(s scenario) bool { return s.name == name }) {
			return fmt.Errorf("--scenario: there is no %q; there are %s", name, strings.Join(Names(), ", "))
		}
	}
	switch {
	case c.Length < 0 || c.Warmup < 0:
		return errors.New("--length and --warmup must not be negative")
	case c.Repetitions < 0 || c.Repetitions > 100:
		return errors.New("--repetitions must be from 1 to 100")
	case c.Edges < 0 || c.Edges > 16:
		return errors.New("--edges must be from 1 to 16")
	case c.Documents != 0 && c.Documents < 100 || c.Documents > 10_000_000:
		return errors.New("--documents must be from 100 to 10,000,000")
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Length == 0 {
		c.Length = 5 * time.Second
	}
	if c.Warmup == 0 {
		c.Warmup = time.Second
	}
	if c.Repetitions == 0 {
		c.Repetitions = 3
	}
	if c.Edges == 0 {
		c.Edges = 3
	}
	if c.Documents == 0 {
		c.Documents = 1_000_000
	}
	if len(c.Scenarios) == 0 {
		c.Scenarios = Names()
	}
	return c
}

// scenario is one chapter of a run. It adds its figures to the bench's report.
type scenario struct {
	name, about string
	run         func(ctx context.Context, b *bench) error
}

// scenarios are all there are, in the order in which they run.
var scenarios = []scenario{
	{"reads", "survey list, bundle, handshake and OpenFeature at one edge on one core, beside a bare fasthttp server", reads},
	{"ingest", "single events synced before the answer, and batches of 100", ingest},
	{"submit", "survey submissions stored a second, and their latency at a fixed rate", submit},
	{"propagation", "from a halt, a rollback or a survey's edit to every edge", propagation},
	{"drain", "events from the edge's answer to their row in PostgreSQL, beside a plain COPY", drain},
	{"burst", "events absorbed while PostgreSQL is stopped, and drained afterwards", burst},
	{"mixed", "reads, ingestion, submissions and changes together, at a fixed rate", mixed},
	{"coldstart", "an edge killed and started again without its centre", coldstart},
	{"memory", "an edge's memory with many projects under read load", memory},
	{"streams", "an edge's memory with 10,000 change streams, and how fast all of them hear of a change", streams},
}

// Names lists the scenarios.
func Names() []string {
	names := make([]string, len(scenarios))
	for i, s := range scenarios {
		names[i] = s.name
	}
	return names
}

// About describes the scenarios, a line each.
func About() string {
	var b strings.Builder
	for _, s := range scenarios {
		_, _ = fmt.Fprintf(&b, "%-12s %s\n", s.name, s.about)
	}
	return b.String()
}

// Cores: what is measured gets the first, the load and everything else the second.
const serverCore, loadCore = 0, 1

// bench is a run under way.
type bench struct {
	config Config
	stage  *stage.Stage
	report report.Run
}

// Run measures, prints a table and saves the report. The figures of scenarios that
// were finished are printed and saved even when a later one fails.
func Run(ctx context.Context, config Config) error {
	if err := config.Validate(); err != nil {
		return err
	}
	config = config.withDefaults()
	b := &bench{config: config, report: report.Run{
		Version: config.Version, Started: time.Now(), Machine: report.ThisMachine(), Command: config.Command,
	}}
	if b.report.Machine.Cores < 2 {
		return errors.New("a benchmark needs two cores: one for what is measured, one for the load")
	}
	if err := rig.Pin(os.Getpid(), loadCore); err != nil {
		return err
	}
	failed := b.play(ctx)
	if len(b.report.Figures) > 0 {
		_, _ = fmt.Fprintln(config.Out)
		if err := errors.Join(b.report.Table(config.Out), b.save()); err != nil {
			return errors.Join(failed, err)
		}
	}
	return failed
}

func (b *bench) play(ctx context.Context) (err error) {
	b.stage, err = stage.Start(ctx, stage.Config{Binary: b.config.Binary, CentreCore: loadCore, EdgeCore: serverCore, EdgeProcs: 1, Log: b.say})
	if err != nil {
		return err
	}
	defer b.stage.Close()
	for _, s := range scenarios {
		if !slices.Contains(b.config.Scenarios, s.name) {
			continue
		}
		b.say("scenario %s: %s", s.name, s.about)
		if err := s.run(ctx, b); err != nil {
			return fmt.Errorf("scenario %s: %w", s.name, err)
		}
	}
	return nil
}

func (b *bench) save() error {
	var err error
	if b.config.JSON != "" {
		err = b.report.Save(b.config.JSON)
	}
	if b.config.HTML != "" {
		err = errors.Join(err, b.report.SavePage(b.config.HTML))
	}
	return err
}

func (b *bench) say(format string, args ...any) {
	_, _ = fmt.Fprintf(b.config.Out, format+"\n", args...)
}

func (b *bench) add(f report.Figure) { b.report.Figures = append(b.report.Figures, f) }

// progress draws a bar for one measurement.
func (b *bench) progress(label string) func(float64) {
	if !b.config.Interactive {
		return nil
	}
	const width = 30
	return func(done float64) {
		full := int(done * width)
		_, _ = fmt.Fprintf(b.config.Out, "\r%-44s [%s%s] %3.0f%%", label, strings.Repeat("#", full), strings.Repeat(" ", width-full), 100*done)
		if done >= 1 {
			_, _ = fmt.Fprint(b.config.Out, "\r"+strings.Repeat(" ", 90)+"\r")
		}
	}
}

// least is the share of its core that a server must have used in both runs of a pair:
// else it is the generator that was measured.
const least = 0.95

// pair is a figure with a yardstick: a server that is measured and a bare one that
// sends the same.
type pair struct {
	scenario, name string
	target         float64 // of the ratio, or of the figure itself when absolute
	absolute       bool
	edge           *stage.Edge
	requests       func(worker int) load.Source
	sample         []byte // one request whose response the yardstick imitates
	status         int    // that every answer must have
	conns          int
	times          int // units in one request, such as the events of a batch; 0 means 1
	unit           string
	file           []byte // the request whose answer nginx serves in the same run; nil: no peer
}

// measure runs a pair: yardstick, server, yardstick, server, …
func (b *bench) measure(ctx context.Context, p pair) error {
	status, head, body, err := load.Get(p.edge.Address, p.sample)
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	if status != p.status {
		return fmt.Errorf("%s: status %d, want %d: %s", p.name, status, p.status, body)
	}
	yardstick, address, err := b.yardstick(ctx, baseline.Like(status, head, body))
	if err != nil {
		return err
	}
	defer yardstick.Kill()
	peer, err := b.peer(ctx, p)
	if err != nil {
		return err
	}
	defer peer.end()
	if p.times == 0 {
		p.times, p.unit = 1, "requests/s"
	}
	f := report.Figure{
		Scenario: p.scenario, Name: p.name, Unit: p.unit, BaselineName: "bare fasthttp", Target: p.target, TargetIsRatio: !p.absolute,
	}
	for range b.config.Repetitions {
		bare, bareBusy, err := b.closedLoop(ctx, yardstick, load.Plan{Address: address, Requests: load.Same(p.sample), Conns: p.conns}, "baseline of "+p.name)
		if err != nil {
			return err
		}
		own, ownBusy, err := b.closedLoop(ctx, p.edge.Process, load.Plan{Address: p.edge.Address, Requests: p.requests, Conns: p.conns}, p.name)
		if err != nil {
			return err
		}
		if !own.OnlyStatus(p.status) {
			f.Invalid = fmt.Sprintf("%s; want only %d", own.Answers(), p.status)
		} else if min(bareBusy, ownBusy) < least {
			f.Invalid = fmt.Sprintf("the server's core was %.0f%% busy, the yardstick's %.0f%%; a pair counts from %.0f%%", 100*ownBusy, 100*bareBusy, 100*least)
		}
		value, yard := own.Throughput()*float64(p.times), bare.Throughput()*float64(p.times)
		f.AddPair(value, yard)
		f.Busy = append(f.Busy, ownBusy)
		f.Latency, f.PerSecond = report.Quantiles(own.Latency), own.PerSec[:len(own.PerSec)-1]
		if err := peer.measure(ctx, b, p, yard); err != nil {
			return err
		}
	}
	b.add(f)
	if peer != nil {
		b.add(peer.figure)
	}
	return nil
}

// closedLoop sends the plan's requests as fast as the process answers them. It also
// returns the share of one core that the process used, from the end of the warm-up on.
// The plan's times are the benchmark's.
func (b *bench) closedLoop(ctx context.Context, process *rig.Process, plan load.Plan, label string) (*load.Result, float64, error) {
	plan.Warmup, plan.Length, plan.Progress = b.config.Warmup, b.config.Length, b.progress(label)
	type sample struct {
		cpu time.Duration
		at  time.Time
		err error
	}
	warm := make(chan sample, 1)
	timer := time.AfterFunc(plan.Warmup, func() {
		cpu, err := process.CPU()
		warm <- sample{cpu, time.Now(), err}
	})
	defer timer.Stop()
	result, err := load.Run(ctx, plan)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", label, err)
	}
	before := <-warm
	after, err := process.CPU()
	if err = errors.Join(before.err, err); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", label, err)
	}
	return result, float64(after-before.cpu) / float64(time.Since(before.at)), nil
}

// yardstick starts a bare server on the measured core.
func (b *bench) yardstick(ctx context.Context, answer baseline.Answer) (*rig.Process, string, error) {
	process, err := rig.Start(ctx, rig.Config{Path: b.config.Binary, Args: []string{"bench", "yardstick"}, Core: serverCore, Procs: 1})
	if err != nil {
		return nil, "", err
	}
	description, err := json.Marshal(answer)
	if err != nil {
		process.Kill()
		return nil, "", fmt.Errorf("describe the yardstick's answer: %w", err)
	}
	if _, err := process.Stdin().Write(append(description, '\n')); err != nil {
		process.Kill()
		return nil, "", fmt.Errorf("describe the yardstick's answer: %w", err)
	}
	address, err := process.ReadLine()
	if err != nil {
		process.Kill()
		return nil, "", err
	}
	return process, address, nil
}
