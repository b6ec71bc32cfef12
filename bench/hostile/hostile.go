// Package hostile attacks an edge as the Internet does, while a polite client measures
// what others notice of it.
//
// Everything is bounded in number and time and stays on the loopback interface, against
// processes that it started itself. It promises nothing about attacks it does not list:
// floods of packets and of TLS handshakes are the business of what stands in front.
package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"skerry/bench/load"
	"skerry/bench/report"
	"skerry/bench/stage"
)

// Config says what to attack with.
type Config struct {
	Binary  string // skerry itself
	Version string
	Command string
	Attacks []string      // by name; empty: all
	Length  time.Duration // of each; 0 means 10 s
	Out     io.Writer
	JSON    string // where to save the report; empty: not
	HTML    string // likewise
}

// Validate names the flag that is wrong.
func (c Config) Validate() error {
	if c.Length < 0 || c.Length > 10*time.Minute {
		return errors.New("--length must be from 1s to 10m")
	}
	for _, name := range c.Attacks {
		if _, ok := byName(name); !ok {
			return fmt.Errorf("--attack: there is no %q; there are %s", name, strings.Join(Names(), ", "))
		}
	}
	return nil
}

const (
	politeRate  = 200 // handshakes a second
	politeConns = 4
	// On two cores that attackers, edge, centre and measurement share, a polite request
	// waits behind the attackers' work. A quarter of a second is what the slowest of a
	// hundred may wait; without an attack it is a few milliseconds.
	politeP99 = 250 * time.Millisecond
	// mostMemory is what an edge may take at worst: its caches (96 MB of views, 32 MB of
	// cohorts' members, 16 MB of state), its two stores, 10,000 connections of 24 KiB
	// (header and answer buffers), and bodies within the budget of intake.
	mostMemory = 1 << 30
)

// target is what is attacked.
type target struct {
	stage   *stage.Stage
	edge    *stage.Edge
	project stage.Project
	survey  string
	length  time.Duration
}

// attack does its worst until ctx ends or its number is reached. It returns what it saw
// in a sentence, and what was not as it must be.
type attack struct {
	name string
	run  func(ctx context.Context, t *target) (seen string, broken []string, err error)
}

var attacks = []attack{
	{"none", func(ctx context.Context, _ *target) (string, []string, error) {
		<-ctx.Done()
		return "the yardstick", nil, nil
	}},
	{"slowloris", slowloris},
	{"slow-bodies", slowBodies},
	{"idle", idle},
	{"random-keys", randomKeys},
	{"bombs", bombs},
	{"headers", headerFlood},
	{"smuggling", smuggling},
}

// Names lists the attacks.
func Names() []string {
	names := make([]string, len(attacks))
	for i, a := range attacks {
		names[i] = a.name
	}
	return names
}

func byName(name string) (attack, bool) {
	for _, a := range attacks {
		if a.name == name {
			return a, true
		}
	}
	return attack{}, false
}

// Run attacks, prints a table and fails when anybody polite was harmed.
func Run(ctx context.Context, config Config) error {
	if err := config.Validate(); err != nil {
		return err
	}
	if config.Length == 0 {
		config.Length = 10 * time.Second
	}
	if len(config.Attacks) == 0 {
		config.Attacks = Names()
	}
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(config.Out, format+"\n", args...) }
	s, err := stage.Start(ctx, stage.Config{Binary: config.Binary, CentreCore: -1, EdgeCore: -1, Log: say})
	if err != nil {
		return err
	}
	defer s.Close()
	t, err := prepare(ctx, s, config.Length)
	if err != nil {
		return err
	}
	run := report.Run{Version: config.Version, Started: time.Now(), Machine: report.ThisMachine(), Command: config.Command}
	var failed error
	for _, name := range config.Attacks {
		a, _ := byName(name)
		say("attack %s", a.name)
		figure, broken, err := t.suffer(ctx, a)
		if err != nil {
			return errors.Join(failed, fmt.Errorf("attack %s: %w", a.name, err))
		}
		run.Figures = append(run.Figures, figure)
		for _, b := range broken {
			failed = errors.Join(failed, fmt.Errorf("attack %s: %s", a.name, b))
		}
	}
	err = run.Table(config.Out)
	if config.JSON != "" {
		err = errors.Join(err, run.Save(config.JSON))
	}
	if config.HTML != "" {
		err = errors.Join(err, run.SavePage(config.HTML))
	}
	return errors.Join(failed, err)
}

func prepare(ctx context.Context, s *stage.Stage, length time.Duration) (*target, error) {
	edge, err := s.AddEdge(ctx)
	if err != nil {
		return nil, err
	}
	t := &target{stage: s, edge: edge, length: length}
	if t.project, err = s.NewProject(ctx, "hostile"); err != nil {
		return nil, err
	}
	if err := s.AddFlags(ctx, t.project, 20); err != nil {
		return nil, err
	}
	if t.survey, err = s.AddSurveys(ctx, t.project, 1); err != nil {
		return nil, err
	}
	return t, s.Settled(ctx, edge)
}

// suffer runs one attack beside the polite client.
func (t *target) suffer(ctx context.Context, a attack) (report.Figure, []string, error) {
	attackCtx, stop := context.WithTimeout(ctx, t.length)
	defer stop()
	type outcome struct {
		seen   string
		broken []string
		err    error
	}
	attacked := make(chan outcome, 1)
	go func() {
		seen, broken, err := a.run(attackCtx, t)
		attacked <- outcome{seen, broken, err}
	}()
	peak := t.watchMemory(attackCtx)
	polite, err := load.Run(ctx, load.Plan{Address: t.edge.Address, Conns: politeConns, Rate: politeRate, Length: t.length,
		Requests: load.Same(load.Render("GET", "/api/v1/handshake?distinct_id=polite", t.edge.Address, map[string]string{"X-Api-Key": t.project.Key}, nil))})
	stop()
	done := <-attacked
	most := <-peak
	if err := errors.Join(err, done.err); err != nil {
		return report.Figure{}, nil, err
	}
	broken := done.broken
	if !polite.OnlyStatus(200) {
		broken = append(broken, fmt.Sprintf("polite requests were answered %v, %d not at all (%s)", polite.Statuses, polite.Errors, polite.Error))
	}
	if p99 := time.Duration(polite.Latency.ValueAtQuantile(99)); p99 > politeP99 {
		broken = append(broken, fmt.Sprintf("the slowest of a hundred polite requests took %s", p99))
	}
	if most > mostMemory {
		broken = append(broken, fmt.Sprintf("the edge took %d MB", most>>20))
	}
	figure := report.Figure{Scenario: "hostile", Name: a.name, Unit: "MB at most", Values: []float64{float64(most) / (1 << 20)},
		LowerIsBetter: true, Target: mostMemory >> 20, Latency: report.Quantiles(polite.Latency), PerSecond: polite.PerSec[:len(polite.PerSec)-1], Note: done.seen}
	if len(broken) > 0 {
		figure.Invalid = strings.Join(broken, "; ")
	}
	return figure, broken, nil
}

// watchMemory gives the edge's largest resident set once ctx has ended.
func (t *target) watchMemory(ctx context.Context) <-chan int64 {
	result := make(chan int64, 1)
	go func() {
		var most int64
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			if now, err := t.edge.Memory(); err == nil {
				most = max(most, now)
			}
			select {
			case <-ctx.Done():
				result <- most
				return
			case <-tick.C:
			}
		}
	}()
	return result
}
