package campaign

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"time"

	"skerry/bench/rig"
)

// action is one thing that can be broken and made whole again.
type action struct {
	kind, target string
	edge         *edge // whose reads it may disturb; nil: nobody's
	do           func() error
	during       func(context.Context) string // what was not as promised while it was broken; may be nil
	undo         func(context.Context) error
	note         func() string // what is to be said of it afterwards; may be nil
}

// chaos breaks one or two things at a time until ctx ends, then leaves the rest to
// heal. What is done and when follows from random alone.
func chaos(ctx context.Context, c *cluster, l *ledger, random *rand.Rand, result *Result) {
	began := time.Now()
	var mu sync.Mutex
	for ctx.Err() == nil {
		sleep(ctx, time.Duration(300+random.IntN(1200))*time.Millisecond)
		count := 1 + random.IntN(2)
		var group sync.WaitGroup
		broken := map[string]bool{}
		for range count {
			a := choose(c, l, random)
			length := time.Duration(200+random.IntN(2800)) * time.Millisecond
			if ctx.Err() != nil || broken[a.target] {
				continue
			}
			broken[a.target] = true
			group.Go(func() {
				fault, broken := carryOut(ctx, a, l, length)
				fault.At = time.Since(began).Seconds() - fault.For
				mu.Lock()
				result.Faults = append(result.Faults, fault)
				if broken != "" {
					result.Broken = append(result.Broken, broken)
				}
				mu.Unlock()
			})
		}
		group.Wait()
	}
}

// carryOut breaks something for a while and waits until it works again.
func carryOut(ctx context.Context, a action, l *ledger, length time.Duration) (fault Fault, broken string) {
	requests, errors := l.requests.Load(), l.failures.Load()
	began := time.Now()
	if a.edge != nil {
		a.edge.shaken.Store(true)
	}
	fault = Fault{Kind: a.kind, Target: strings.TrimRight(a.target, "0123456789-")}
	if err := a.do(); err != nil {
		fault.Note = err.Error()
	} else {
		if a.during != nil {
			broken = a.during(ctx)
		}
		sleep(ctx, length)
		undone := time.Now()
		// Healing at the end of the run covers what could not be undone here.
		if err := a.undo(context.WithoutCancel(ctx)); err != nil {
			fault.Note = err.Error()
		} else {
			fault.Recovery = time.Since(undone).Seconds()
		}
		if a.note != nil && fault.Note == "" {
			fault.Note = a.note()
		}
	}
	if a.edge != nil {
		a.edge.shaken.Store(false)
	}
	fault.For = time.Since(began).Seconds()
	fault.Requests, fault.Errors = l.requests.Load()-requests, l.failures.Load()-errors
	return fault, broken
}

func choose(c *cluster, l *ledger, random *rand.Rand) action {
	e := c.edges[random.IntN(len(c.edges))]
	n, first := c.nodes[random.IntN(len(c.nodes))], c.planes[0]
	all := []func() action{
		func() action {
			return kill(e.id, e, func() *rig.Process { return e.Process }, func(ctx context.Context) error { return c.startEdge(ctx, e) })
		},
		func() action { return stop(e.id, e, func() int { return e.PID() }, "http://"+e.ops+"/readyz") },
		func() action {
			return kill("write plane", nil, func() *rig.Process { return first.Process }, func(ctx context.Context) error { return c.startPlane(ctx, first) })
		},
		func() action {
			return stop("write plane", nil, func() int { return first.PID() }, "http://"+first.ops+"/readyz")
		},
		func() action {
			return kill(n.name, nil, func() *rig.Process { return n.Process }, func(ctx context.Context) error { return c.startNode(ctx, n) })
		},
		func() action { return stop(n.name, nil, func() int { return n.PID() }, "") },
		c.killPostgres,
		func() action { return stop("PostgreSQL", nil, func() int { return c.postgres.PID() }, "") },
		func() action { return cut("link to NATS cut", e, e.toNATS) },
		func() action { return cut("link to the write plane cut", e, links{e.toAPI}) },
		func() action { return slow(e, time.Duration(20+random.IntN(200))*time.Millisecond) },
		func() action { return lossy(e, int64(5+random.IntN(100))) },
		func() action { return damage(c, l, e, random) },
		func() action { return c.restore(l) },
	}
	if last := c.edges[len(c.edges)-1]; last.smallDisk {
		all = append(all,
			func() action { return fill(l, last, full) },
			func() action { return fill(l, last, fullest) })
	}
	return all[random.IntN(len(all))]()
}

func kill(target string, shakes *edge, process func() *rig.Process, start func(context.Context) error) action {
	return action{kind: "kill -9", target: target, edge: shakes,
		do: func() error { process().Kill(); return nil }, undo: start}
}

// stop freezes a process (SIGSTOP): it is there, holds its connections, and does nothing.
func stop(target string, shakes *edge, pid func() int, ready string) action {
	stopped := 0
	return action{kind: "stop", target: target, edge: shakes,
		do: func() error { stopped = pid(); return syscall.Kill(stopped, syscall.SIGSTOP) },
		undo: func(ctx context.Context) error {
			if err := syscall.Kill(stopped, syscall.SIGCONT); err != nil || ready == "" {
				return err
			}
			return eventually(ctx, func() error { return answers(ready) })
		}}
}

// killPostgres kills the postmaster; its children end by themselves when they notice,
// as after a real crash.
func (c *cluster) killPostgres() action {
	return action{kind: "kill -9", target: "PostgreSQL",
		do: func() error { return syscall.Kill(c.postgres.PID(), syscall.SIGKILL) },
		undo: func(ctx context.Context) error {
			<-c.postgres.Done()
			return c.restartPostgres(ctx)
		}}
}

func cut(kind string, e *edge, l links) action {
	return action{kind: kind, target: e.id,
		do: func() error { l.sever(); return nil }, undo: func(context.Context) error { l.mend(); return nil }}
}

func slow(e *edge, delay time.Duration) action {
	return action{kind: "link to NATS slowed", target: e.id,
		do: func() error { e.toNATS.slow(delay); return nil }, undo: func(context.Context) error { e.toNATS.mend(); return nil }}
}

// lossy loses pieces on both lines of an edge. Which ones is not part of the seed: it
// depends on how the streams are cut into pieces.
func lossy(e *edge, perMille int64) action {
	both := append(links{e.toAPI}, e.toNATS...)
	return action{kind: "links lossy", target: e.id,
		do: func() error { both.lose(perMille); return nil }, undo: func(context.Context) error { both.mend(); return nil }}
}

func eventually(ctx context.Context, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := check()
		if err == nil || ctx.Err() != nil {
			return err
		}
		sleep(ctx, 20*time.Millisecond)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
