package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"skerry/bench/load"
	"skerry/bench/report"
	"skerry/bench/stage"
)

// coldstart kills the centre and an edge, and times the edge's first right answer
// after it is started again alone.
func coldstart(ctx context.Context, b *bench) error {
	edge, project, err := b.ownEdge(ctx, "bench coldstart")
	if err != nil {
		return err
	}
	defer func() { _ = edge.Stop(stopTime) }()
	if err := b.stage.AddFlags(ctx, project, 1); err != nil {
		return err
	}
	const flags = 98 // with settings and key, a hundred documents a project
	b.say("writing %d documents", b.config.Documents)
	began := time.Now()
	copies, err := b.stage.Copies(ctx, project, max(b.config.Documents/(flags+2), 1), flags)
	if err != nil {
		return err
	}
	wrote := time.Since(began)
	if err := b.stage.Settled(ctx, edge); err != nil {
		return err
	}
	documents := len(copies) * (flags + 2)
	b.say("written in %.1f s, at the edge after %.1f s", wrote.Seconds(), time.Since(began).Seconds())
	one := copies[len(copies)/2]
	request := load.Render("GET", "/api/v1/handshake?distinct_id=u", edge.Address, map[string]string{"X-Api-Key": one.Key}, nil)
	right := fmt.Appendf(nil, `"flag-%03d"`, flags-1)
	if ok, err := contains(edge, request, right); err != nil || !ok {
		return fmt.Errorf("before the cold start the edge does not serve the flag (%w)", err)
	}
	b.stage.KillCentre()
	f := report.Figure{Scenario: "coldstart", Name: "first answer of a killed edge, centre gone", Unit: "s", LowerIsBetter: true, Target: 1,
		Note: fmt.Sprintf("%d documents; from the start of the process", documents)}
	m := report.Figure{Scenario: "coldstart", Name: "its memory then", Unit: "MB", LowerIsBetter: true}
	for range b.config.Repetitions {
		edge.Kill()
		began := time.Now()
		if err := b.stage.StartEdge(ctx, edge); err != nil {
			return err
		}
		if ok, err := contains(edge, request, right); err != nil || !ok {
			return fmt.Errorf("after the cold start the edge does not serve the flag (%w)", err)
		}
		f.Values = append(f.Values, time.Since(began).Seconds())
		resident, err := edge.Memory()
		if err != nil {
			return err
		}
		m.Values = append(m.Values, float64(resident)/(1<<20))
	}
	b.add(f)
	b.add(m)
	return b.stage.StartCentre(ctx)
}

// memory fills an edge with projects and reads them all.
func memory(ctx context.Context, b *bench) error {
	edge, project, err := b.ownEdge(ctx, "bench memory")
	if err != nil {
		return err
	}
	defer func() { _ = edge.Stop(stopTime) }()
	if err := b.stage.AddFlags(ctx, project, 1); err != nil {
		return err
	}
	const projects, flags = 1000, 100
	b.say("writing %d projects with %d flags each", projects, flags)
	made, err := b.stage.Copies(ctx, project, projects, flags)
	if err != nil {
		return err
	}
	if err := b.stage.Settled(ctx, edge); err != nil {
		return err
	}
	turn := func(worker int) load.Source {
		requests := make([][]byte, projects)
		for i, p := range made {
			requests[i] = load.Render("GET", fmt.Sprintf("/api/v1/handshake?distinct_id=user-%d", worker), edge.Address, map[string]string{"X-Api-Key": p.Key}, nil)
		}
		next := worker * projects / readConns
		return func() []byte { next++; return requests[next%projects] }
	}
	result, err := load.Run(ctx, load.Plan{Address: edge.Address, Requests: turn, Conns: readConns, Length: 2 * b.config.Length, Progress: b.progress("memory")})
	if err != nil {
		return err
	}
	resident, err := edge.Memory()
	if err != nil {
		return err
	}
	f := report.Figure{Scenario: "memory", Name: "edge, 1,000 projects × 100 flags, under reads", Unit: "MB", Values: []float64{float64(resident) / (1 << 20)},
		LowerIsBetter: true, Target: 256, Latency: report.Quantiles(result.Latency), Note: fmt.Sprintf("%.0f handshakes/s over all projects meanwhile", result.Throughput())}
	if !result.OnlyStatus(200) {
		f.Invalid = result.Answers()
	}
	b.add(f)
	return nil
}

// mixed plays a day's shape on one edge at a fixed rate: reads, events, submissions
// and changes together, each with its own latency.
func mixed(ctx context.Context, b *bench) error {
	edge, project, err := b.ownEdge(ctx, "bench mixed")
	if err != nil {
		return err
	}
	defer func() { _ = edge.Stop(stopTime) }()
	surveyID, err := b.stage.AddSurveys(ctx, project, 3)
	if err != nil {
		return err
	}
	if err := b.stage.AddFlags(ctx, project, 20); err != nil {
		return err
	}
	questions, err := b.stage.Questions(ctx, surveyID)
	if err != nil {
		return err
	}
	if err := b.stage.Settled(ctx, edge); err != nil {
		return err
	}
	rate := b.config.Rate
	if rate == 0 {
		rate = 10_000
	}
	fresh := newUsers(edge.Address, project.Key)
	track := trackRequest(edge, project)
	answer := load.Render("POST", "/api/pulse/responses", edge.Address, map[string]string{"X-Api-Key": project.Key, "Content-Type": "application/json"},
		fmt.Appendf(nil, `{"survey_id":%q,"answers":{%q:9}}`, surveyID, questions[0]))
	return b.together(ctx, edge, rate, []share{
		{"handshakes", 0.6, 200, fresh.handshake},
		{"events", 0.37, 200, func(worker int) load.Source { return counting(track, worker) }},
		{"submissions", 0.03, 201, load.Same(answer)},
	}, func(ctx context.Context) error { return b.stage.KeepSwitching(ctx, project, "flag-000") })
}

// share is one of several kinds of requests that come together.
type share struct {
	name     string
	of       float64 // the rate of all
	status   int     // of every answer
	requests func(worker int) load.Source
}

// together sends all shares at once, while meanwhile runs, and adds a figure for each.
func (b *bench) together(ctx context.Context, edge *stage.Edge, rate float64, shares []share, meanwhile func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	beside := make(chan error, 1)
	go func() { beside <- meanwhile(ctx) }()
	figures, faults := make([]report.Figure, len(shares)), make([]error, len(shares))
	var running sync.WaitGroup
	for i, s := range shares {
		running.Go(func() {
			result, err := load.Run(ctx, load.Plan{Address: edge.Address, Requests: s.requests, Conns: 16, Warmup: b.config.Warmup, Length: 3 * b.config.Length, Rate: rate * s.of})
			if err != nil {
				faults[i] = err
				return
			}
			figures[i] = report.Figure{Scenario: "mixed", Name: s.name, Unit: "requests/s", Values: []float64{result.Throughput()},
				Latency: report.Quantiles(result.Latency), PerSecond: result.PerSec[:len(result.PerSec)-1]}
			if !result.OnlyStatus(s.status) {
				figures[i].Invalid = result.Answers()
			}
		})
	}
	running.Wait()
	stop()
	if err := errors.Join(append(faults, <-beside)...); err != nil {
		return err
	}
	for _, f := range figures {
		b.add(f)
	}
	return nil
}
