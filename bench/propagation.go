package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"skerry/bench/load"
	"skerry/bench/report"
	"skerry/bench/stage"
)

// propagation measures the time from the answer to a change (its commit) to the first
// read at each edge that shows it, as a client sees it that polls each edge.
func propagation(ctx context.Context, b *bench) error {
	var edges []*stage.Edge
	for range b.config.Edges {
		edge, err := b.stage.AddEdge(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = edge.Stop(stopTime) }()
		edges = append(edges, edge)
	}
	project, err := b.stage.NewProject(ctx, "bench propagation")
	if err != nil {
		return err
	}
	changes, err := b.changes(ctx, project, edges)
	if err != nil {
		return err
	}
	for _, c := range changes {
		if err := b.spread(ctx, c, edges); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	background, err := b.startHalfLoad(ctx, edges, project)
	if err != nil {
		return err
	}
	halt := changes[0]
	halt.name, halt.target = halt.name+", at half load", 250_000
	halt.note = fmt.Sprintf("; meanwhile half of what the edges can answer: %.0f handshakes/s", background.perSecond)
	err = b.spread(ctx, halt, edges)
	if err := errors.Join(err, background.end(edges)); err != nil {
		return fmt.Errorf("%s: %w", halt.name, err)
	}
	return nil
}

// changes are what is timed, a halt first. What they change is made, and at the edges,
// when it returns.
func (b *bench) changes(ctx context.Context, project stage.Project, edges []*stage.Edge) ([]change, error) {
	if err := b.stage.AddFlags(ctx, project, 1); err != nil {
		return nil, err
	}
	surveyID, err := b.stage.AddSurveys(ctx, project, 1)
	if err != nil {
		return nil, err
	}
	item, version, err := b.stage.AddItem(ctx, project, "limit")
	if err != nil {
		return nil, err
	}
	if err := b.stage.Settled(ctx, edges...); err != nil {
		return nil, err
	}
	handshake := load.Render("GET", "/api/v1/handshake?distinct_id=user-1", edges[0].Address, map[string]string{"X-Api-Key": project.Key}, nil)
	list := load.Render("GET", "/api/pulse/surveys", edges[0].Address, map[string]string{"X-Api-Key": project.Key}, nil)
	return []change{
		{
			name: "halt → every edge", target: 50_000, poll: handshake,
			make: func(round int) ([]byte, error) {
				return []byte(`"reason":"halted"`), b.stage.Halt(ctx, project, "flag-000", fmt.Sprintf("round %d", round))
			},
			undo: func() error { return b.stage.Resume(ctx, project, "flag-000") },
			gone: []byte(`"reason":"halted"`),
		},
		{
			name: "rollback → every edge", poll: handshake,
			make: func(round int) ([]byte, error) {
				number, err := b.stage.Rollback(ctx, item, version)
				return fmt.Appendf(nil, `"version":%d}`, number), err
			},
		},
		{
			name: "survey's edit → every edge", target: 50_000, poll: list,
			make: func(round int) ([]byte, error) {
				name := fmt.Sprintf("Edited %d", round)
				return []byte(name), b.stage.Manage(ctx, "PATCH", "/api/v1/pulse/surveys/"+surveyID, map[string]any{"name": name}, nil)
			},
		},
	}, nil
}

// change is something done at the centre that a read at an edge shows.
type change struct {
	name   string
	target float64                                   // of the 99th percentile, µs
	make   func(round int) (shows []byte, err error) // returns when it is committed
	undo   func() error
	gone   []byte // what an edge must not show before the next round
	poll   []byte // the read
	note   string // beside the figure
}

const (
	rounds       = 100
	spreadPoll   = 200 * time.Microsecond
	spreadAtMost = 30 * time.Second // the specification's own bound
)

// spread makes a change many times and times its arrival at the slowest edge.
func (b *bench) spread(ctx context.Context, c change, edges []*stage.Edge) error {
	slowest := hdrhistogram.New(1, int64(time.Minute), 3)
	var micros []float64
	for round := range rounds {
		if err := b.arrived(ctx, edges, c.poll, func(body []byte) bool { return c.gone == nil || !bytes.Contains(body, c.gone) }); err != nil {
			return fmt.Errorf("before round %d: %w", round, err)
		}
		shows, err := c.make(round)
		if err != nil {
			return err
		}
		committed := time.Now()
		if err := b.arrived(ctx, edges, c.poll, func(body []byte) bool { return bytes.Contains(body, shows) }); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		took := time.Since(committed)
		_ = slowest.RecordValue(int64(took))
		micros = append(micros, float64(took.Microseconds()))
		if c.undo != nil {
			if err := c.undo(); err != nil {
				return err
			}
		}
		if progress := b.progress(c.name); progress != nil {
			progress(float64(round+1) / rounds)
		}
	}
	f := report.Figure{Scenario: "propagation", Name: c.name + ", p99", Unit: "µs", Values: []float64{float64(slowest.ValueAtQuantile(99)) / 1e3}, LowerIsBetter: true,
		Target: c.target, Latency: report.Quantiles(slowest),
		Note: fmt.Sprintf("%d edges, %d rounds, slowest edge each; p50 %.0f µs; from the answer to the change, polled every %s%s", len(edges), rounds, report.Median(micros), spreadPoll, c.note)}
	b.add(f)
	return nil
}

// arrived polls every edge until its answer satisfies ok.
func (b *bench) arrived(ctx context.Context, edges []*stage.Edge, poll []byte, ok func([]byte) bool) error {
	ctx, cancel := context.WithTimeout(ctx, spreadAtMost)
	defer cancel()
	faults := make([]error, len(edges))
	var group sync.WaitGroup
	for i, e := range edges {
		group.Go(func() {
			asker := load.NewAsker(e.Address)
			defer asker.Close()
			for {
				body, err := asker.Ask(poll)
				if err == nil && ok(body) {
					return
				}
				if ctx.Err() != nil {
					faults[i] = fmt.Errorf("edge %s did not show it within %s (%w): %.200s", e.ID, spreadAtMost, err, body)
					return
				}
				time.Sleep(spreadPoll)
			}
		})
	}
	group.Wait()
	for _, err := range faults {
		if err != nil {
			return err
		}
	}
	return nil
}
