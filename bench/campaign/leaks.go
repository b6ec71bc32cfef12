package campaign

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"skerry/bench/rig"
)

// holdings is what a process holds that it could forget to give back.
type holdings struct{ files, goroutines int }

// Tolerances, over what a process of the same kind held before the load.
//
// Files: the write plane's pool keeps up to 32 connections to PostgreSQL for half an
// hour, and some were open before. An edge's two Pebble stores keep their tables open,
// a handful each after a run. Both keep idle connections between them, and a process
// killed and started again finds more tables than the first start did.
// A leak of one descriptor in each request or each fault would show hundreds.
//
// Goroutines: Pebble, NATS and net/http have a few each that come and go; idle
// connections of the relay and of the write plane's HTTP server cost two.
const (
	moreFiles      = 48
	moreGoroutines = 40
	settleTime     = 30 * time.Second
)

const planePrefix = "write plane "

// watched are the processes whose holdings count, with the address of their metrics.
func (c *cluster) watched() map[string]struct {
	process *rig.Process
	ops     string
} {
	all := map[string]struct {
		process *rig.Process
		ops     string
	}{}
	for i, p := range c.planes {
		all[planePrefix+strconv.Itoa(i)] = struct {
			process *rig.Process
			ops     string
		}{p.Process, p.ops}
	}
	for _, e := range c.edges {
		all[e.id] = struct {
			process *rig.Process
			ops     string
		}{e.Process, e.ops}
	}
	return all
}

// hold measures all processes.
func (c *cluster) hold(ctx context.Context) (map[string]holdings, error) {
	client.CloseIdleConnections()
	held := map[string]holdings{}
	for name, w := range c.watched() {
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.process.PID()))
		if err != nil {
			return nil, fmt.Errorf("count open files of %s: %w", name, err)
		}
		goroutines, err := rig.Gauge(ctx, w.ops, "go_goroutines")
		if err != nil {
			return nil, fmt.Errorf("count goroutines of %s: %w", name, err)
		}
		held[name] = holdings{len(files), int(goroutines)}
	}
	return held, nil
}

// restful measures all processes once they have taken up what they do also without
// load: leases of the edges' lanes, the job queue's leadership. That shows in nothing
// but the counts, which rise for some seconds after a start.
func (c *cluster) restful(ctx context.Context) (map[string]holdings, error) {
	const unchanged = 4 * time.Second
	most := map[string]holdings{}
	for rose := time.Now(); time.Since(rose) < unchanged && ctx.Err() == nil; sleep(ctx, 500*time.Millisecond) {
		now, err := c.hold(ctx)
		if err != nil {
			return nil, err
		}
		for name, is := range now {
			was := most[name]
			if is.goroutines > was.goroutines {
				rose = time.Now()
			}
			most[name] = holdings{max(is.files, was.files), max(is.goroutines, was.goroutines)}
		}
	}
	return most, ctx.Err()
}

// leaked waits until every process holds about what it held before, and otherwise says
// what it kept.
func (c *cluster) leaked(ctx context.Context, before map[string]holdings) (broken []string, after map[string]holdings, err error) {
	// Several write planes share the work by leases and may have changed places: what the
	// busiest of them held before, each may hold.
	var most holdings
	for name, was := range before {
		if strings.HasPrefix(name, planePrefix) {
			most = holdings{max(most.files, was.files), max(most.goroutines, was.goroutines)}
		}
	}
	until := time.Now().Add(settleTime)
	for {
		if after, err = c.hold(ctx); err != nil {
			return nil, nil, err
		}
		broken = nil
		for name, was := range before {
			if strings.HasPrefix(name, planePrefix) {
				was = most
			}
			is := after[name]
			if is.files > was.files+moreFiles || is.goroutines > was.goroutines+moreGoroutines {
				broken = append(broken, fmt.Sprintf("%s holds %d files (before: %d) and %d goroutines (before: %d)", name, is.files, was.files, is.goroutines, was.goroutines))
			}
		}
		if len(broken) == 0 || time.Now().After(until) || ctx.Err() != nil {
			return broken, after, ctx.Err()
		}
		sleep(ctx, 500*time.Millisecond)
	}
}
