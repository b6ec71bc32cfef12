package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"skerry/bench/load"
	"skerry/bench/stage"
)

// halfLoad is load that keeps edges at half of what they answered together when asked
// as fast as they could.
type halfLoad struct {
	perSecond float64 // over all edges
	cancel    context.CancelFunc
	group     sync.WaitGroup
	faults    []error // of the edges
}

const halfLoadConns = 8 // at each edge

// startHalfLoad finds the edges' most and then asks for half of it, handshakes of ever
// new users at fixed times, until end is called.
func (b *bench) startHalfLoad(ctx context.Context, edges []*stage.Edge, project stage.Project) (*halfLoad, error) {
	most := make([]float64, len(edges))
	h := &halfLoad{faults: make([]error, len(edges))}
	each := func(run func(i int, plan load.Plan)) {
		for i, edge := range edges {
			plan := load.Plan{Address: edge.Address, Requests: newUsers(edge.Address, project.Key).handshake, Conns: halfLoadConns, Length: b.config.Length}
			h.group.Go(func() { run(i, plan) })
		}
	}
	each(func(i int, plan load.Plan) {
		plan.Warmup = b.config.Warmup
		result, err := load.Run(ctx, plan)
		if h.faults[i] = err; err == nil {
			most[i] = result.Throughput()
		}
	})
	if err := h.wait(edges); err != nil {
		return nil, err
	}
	for _, rate := range most {
		h.perSecond += rate / 2
	}
	ctx, h.cancel = context.WithCancel(ctx)
	each(func(i int, plan load.Plan) {
		plan.Rate, plan.Length = most[i]/2, time.Second
		for h.faults[i] == nil {
			result, err := load.Run(ctx, plan)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				h.faults[i] = err
			case !result.OnlyStatus(200):
				h.faults[i] = fmt.Errorf("%s; want only 200", result.Answers())
			}
		}
	})
	return h, nil
}

// end stops the load, and tells what went wrong with it.
func (h *halfLoad) end(edges []*stage.Edge) error {
	h.cancel()
	return h.wait(edges)
}

func (h *halfLoad) wait(edges []*stage.Edge) error {
	h.group.Wait()
	for i, err := range h.faults {
		if err != nil {
			return fmt.Errorf("load on edge %s: %w", edges[i].ID, err)
		}
	}
	return nil
}
