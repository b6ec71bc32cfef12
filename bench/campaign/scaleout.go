package campaign

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/replication/down"
)

// Rehearsal says how to rehearse a large installation.
type Rehearsal struct {
	Binary  string // skerry itself
	Version string
	Log     string // file to which the result is appended as a line of JSON; empty: none
	Out     io.Writer
}

// rehearsal is a large installation on one machine: a primary and a streaming replica of
// PostgreSQL with synchronous commit, three NATS nodes with three replicas of every
// stream, two write planes and three edges, each behind a balancer, all as processes of
// their own with the production commands.
type rehearsal struct {
	*cluster
	l      *ledger
	front  *link // before the edges
	gate   string
	number atomic.Int64
	failed atomic.Int64 // reads through front
	read   atomic.Int64
	first  atomic.Pointer[string]
	result *Result
}

// Rehearse takes the installation through what happens to one: the publishing write plane
// is killed, everything is restarted one after the other, the primary is killed and the
// replica promoted; all under load. No read through the balancer may fail and nothing
// may be lost or doubled.
func Rehearse(ctx context.Context, config Rehearsal) error {
	c, err := startCluster(ctx, Config{Binary: config.Binary, Version: config.Version, Edges: 3, Replica: true}, 3, 2)
	if err != nil {
		return err
	}
	defer c.close()
	l, err := newLedger(ctx, c)
	if err != nil {
		return err
	}
	r := &rehearsal{cluster: c, l: l, result: &Result{Version: config.Version, Started: time.Now(), Nodes: 3}}
	if err := r.prepare(ctx); err != nil {
		return err
	}
	defer r.front.close()
	before, err := c.restful(ctx)
	if err != nil {
		return err
	}
	if err := r.play(ctx, config.Out); err != nil {
		return err
	}
	if err := c.heal(ctx); err != nil {
		return fmt.Errorf("heal: %w", err)
	}
	if err := l.balance(ctx, r.result); err != nil {
		return err
	}
	leaked, _, err := c.leaked(ctx, before)
	if err != nil {
		return err
	}
	r.result.Broken = append(r.result.Broken, leaked...)
	if n := r.failed.Load(); n > 0 {
		r.result.Broken = append(r.result.Broken, fmt.Sprintf("%d of %d reads through the balancer failed, first %s", n, r.read.Load(), *r.first.Load()))
	}
	r.result.Seconds = time.Since(r.result.Started).Seconds()
	return errors.Join(r.show(config.Out), record(config.Log, r.result))
}

// prepare makes what the steps need besides the ledger's own.
func (r *rehearsal) prepare(ctx context.Context) error {
	at := make([]string, len(r.edges))
	for i, e := range r.edges {
		at[i] = e.at
	}
	var err error
	if r.front, err = newLink(at...); err != nil {
		return err
	}
	var made struct{ Item struct{ ID string } }
	err = r.l.manage(ctx, "POST", "/api/v1/config/items?project_id="+r.project, map[string]any{"environment": "live", "key": "gate", "type": "int", "default_value": "0"}, &made)
	r.gate = made.Item.ID
	return err
}

// play runs the load and the steps.
func (r *rehearsal) play(ctx context.Context, out io.Writer) error {
	loadCtx, stop := context.WithCancel(ctx)
	defer stop()
	done := r.l.run(loadCtx)
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		r.l.every(loadCtx, 2*time.Millisecond, func() { r.readThrough(loadCtx) })
	}()
	err := r.steps(ctx, out)
	stop()
	<-done
	<-reading
	return err
}

// step is one thing that happens to the installation.
type step struct {
	kind, target string
	do           func(context.Context) error
}

func (r *rehearsal) steps(ctx context.Context, out io.Writer) error {
	steps := []step{{"calm", "all", func(ctx context.Context) error { sleep(ctx, 3*time.Second); return nil }},
		{"kill -9", "publishing write plane", r.takeOver}}
	for _, n := range r.nodes {
		steps = append(steps, step{"restart", n.name, func(ctx context.Context) error {
			_ = n.Stop(stopTime)
			return r.startNode(ctx, n)
		}})
	}
	for _, p := range r.planes {
		steps = append(steps, step{"restart", "write plane", func(ctx context.Context) error {
			r.balancer.drain(p.at, true)
			defer r.balancer.drain(p.at, false)
			_ = p.Stop(stopTime)
			return r.startPlane(ctx, p)
		}})
	}
	for _, e := range r.edges {
		steps = append(steps, step{"restart", "edge", func(ctx context.Context) error { return r.restartEdge(ctx, e) }})
	}
	steps = append(steps, step{"kill -9, replica promoted", "PostgreSQL primary", r.failOver})
	began := time.Now()
	for _, s := range steps {
		requests, failures := r.l.requests.Load(), r.l.failures.Load()
		start := time.Now()
		if err := s.do(ctx); err != nil {
			return fmt.Errorf("%s of %s: %w", s.kind, s.target, err)
		}
		acted := time.Now()
		if err := r.pass(ctx); err != nil {
			return fmt.Errorf("after %s of %s a change does not arrive: %w", s.kind, s.target, err)
		}
		f := Fault{Kind: s.kind, Target: strings.TrimRight(s.target, "0123456789-"), At: start.Sub(began).Seconds(), For: time.Since(start).Seconds(),
			Requests: r.l.requests.Load() - requests, Errors: r.l.failures.Load() - failures, Recovery: time.Since(acted).Seconds()}
		r.result.Faults = append(r.result.Faults, f)
		_, _ = fmt.Fprintf(out, "%s of %s: %.1f s, then %.1f s until a new change stood at every edge\n", s.kind, s.target, acted.Sub(start).Seconds(), f.Recovery)
	}
	return nil
}

const stopTime = 15 * time.Second

// takeOver kills the write plane that publishes and waits for the other one to publish.
func (r *rehearsal) takeOver(ctx context.Context) error {
	was, err := r.publisher(ctx)
	if err != nil {
		return err
	}
	// The first one was alone when it started, so the lease is its own.
	r.planes[0].Kill()
	err = eventually(ctx, func() error {
		is, err := r.publisher(ctx)
		if err == nil && is == was {
			err = errors.New("nobody has taken over")
		}
		return err
	})
	if err != nil {
		return err
	}
	return r.startPlane(ctx, r.planes[0])
}

// publisher names the process that holds the publisher's lease.
func (c *cluster) publisher(ctx context.Context) (holder string, err error) {
	conn, err := pgx.Connect(ctx, c.postgresURL)
	if err != nil {
		return "", fmt.Errorf("reach the database: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	err = conn.QueryRow(ctx, "SELECT holder FROM leases WHERE name = $1 AND expires_at > clock_timestamp()", down.LeaseName).Scan(&holder)
	if err != nil {
		return "", fmt.Errorf("look for the publisher: %w", err)
	}
	return holder, nil
}

// restartEdge does as a balancer and a supervisor do: no new connections, then SIGTERM.
func (r *rehearsal) restartEdge(ctx context.Context, e *edge) error {
	r.front.drain(e.at, true)
	defer r.front.drain(e.at, false)
	e.shaken.Store(true)
	defer e.shaken.Store(false)
	sleep(ctx, 200*time.Millisecond) // for connections that were just made
	_ = e.Stop(stopTime)
	return r.startEdge(ctx, e)
}

// failOver kills the primary and promotes the replica. Commits wait for the replica, so
// nothing that was confirmed may be missing there.
func (r *rehearsal) failOver(ctx context.Context) error {
	if err := r.replica.promote(ctx, r.postgres); err != nil {
		return err
	}
	_ = r.postgres.Stop()
	r.postgres, r.replica.server = r.replica.server, nil
	return nil
}

// pass makes a change and waits until every edge serves it.
func (r *rehearsal) pass(ctx context.Context) error {
	value := strconv.FormatInt(770_000_000+r.number.Add(1), 10)
	err := eventually(ctx, func() error {
		return r.l.manage(ctx, "PATCH", "/api/v1/config/items/"+r.gate, map[string]any{"default_value": value}, nil)
	})
	if err != nil {
		return err
	}
	return eventually(ctx, func() error {
		for _, e := range r.edges {
			answer, err := r.l.ask(ctx, e.at, "GET", "/api/v1/handshake?distinct_id=gate", nil, nil)
			if err != nil {
				return err
			}
			if !strings.Contains(string(answer), value) {
				return fmt.Errorf("%s does not serve %s", e.id, value)
			}
		}
		return nil
	})
}

// readThrough reads from whatever edge the balancer picks, on a connection of its own.
func (r *rehearsal) readThrough(ctx context.Context) {
	_, err := r.l.ask(context.WithoutCancel(ctx), r.front.address(), "GET", "/api/v1/handshake?distinct_id=user-"+strconv.Itoa(rand.IntN(1000)), nil,
		map[string]string{"Connection": "close"})
	r.read.Add(1)
	if err != nil {
		r.failed.Add(1)
		text := err.Error()
		r.first.CompareAndSwap(nil, &text)
	}
}

func (r *rehearsal) show(w io.Writer) error {
	t := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "\nstep\tof\ttook\tuntil a change stood everywhere\trequests\tof them failed\t")
	for _, f := range r.result.Faults {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%.1f s\t%.1f s\t%d\t%d\t\n", f.Kind, f.Target, f.For, f.Recovery, f.Requests, f.Errors)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "reads through the balancer: %d, %d failed\n%s\n", r.read.Load(), r.failed.Load(), r.result.line())
	if len(r.result.Broken) > 0 {
		err = errors.Join(err, errors.New(strings.Join(r.result.Broken, "; ")))
	}
	return err
}
