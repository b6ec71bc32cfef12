// Package campaign breaks a running Skerry in every way that its design claims to
// survive, under load, and balances the books afterwards.
//
// A run starts the production processes (write plane, edges) beside a real PostgreSQL
// and a real NATS, sends reads, events, submissions and changes, and meanwhile, by a
// schedule that follows from its seed alone, kills, stops and restarts what it
// started, and cuts or slows the links between edges and centre. Then everything is
// healed, and the client's own log is compared with what the database holds:
//
//   - every answered event is stored once, or stands in the dead letters;
//   - an event that was not answered is stored at most once;
//   - every response answered with 201 is stored once;
//   - the versions of a config item are numbered without gaps;
//   - no read failed at an edge that lived and was reachable;
//   - every edge serves the same revision in the end; no edge's ever falls, not even when
//     it is killed;
//   - an edge whose disk is full refuses events, answers reads, and takes events again
//     when there is space;
//   - the audit chain is whole;
//   - no process holds more files or goroutines than before the load.
//
// A database that is restored from an older copy forgets what came after the copy: the
// books forgive that, and nothing else.
//
// What it does not test: the loss of what a disk had not synced, because the kernel
// lives on (the buffer's tests on a crashable file system do that), and a clock that
// is wrong: a static program cannot be given a false clock from outside, and Linux' time
// namespaces shift only the clocks that measure durations.
package campaign

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"text/tabwriter"
	"time"
)

// Config says how many runs to make.
type Config struct {
	Binary  string        // skerry itself
	Version string        // kept in the log
	Seed    uint64        // of the first run; the others follow
	Runs    int           // 0 means 1
	Length  time.Duration // of the load in each run; 0 means 20 s
	Edges   int           // 0 means 2
	Nodes   int           // of the streams: 1 or 3; 0 means 3 in every third run, else 1
	Replica bool          // of PostgreSQL, for rehearsals
	Log     string        // file to which each run's result is appended as a line of JSON; empty: none
	Out     io.Writer
}

// Validate names the flag that is wrong.
func (c Config) Validate() error {
	switch {
	case c.Runs < 0 || c.Runs > 10_000:
		return errors.New("--runs must be from 1 to 10000")
	case c.Length < 0 || c.Length > time.Hour:
		return errors.New("--length must be from 1s to 1h")
	case c.Edges < 0 || c.Edges > 8:
		return errors.New("--edges must be from 1 to 8")
	case c.Nodes != 0 && c.Nodes != 1 && c.Nodes != 3:
		return errors.New("--nodes must be 1 or 3")
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Runs == 0 {
		c.Runs = 1
	}
	if c.Length == 0 {
		c.Length = 20 * time.Second
	}
	if c.Edges == 0 {
		c.Edges = 2
	}
	return c
}

// Result is what one run showed.
type Result struct {
	Seed    uint64    `json:"seed"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"` // of load
	Nodes   int       `json:"nodes"`   // of the streams
	Faults  []Fault   `json:"faults"`
	Books   Books     `json:"books"`
	Broken  []string  `json:"broken"` // promises that did not hold; empty: all did
}

// Fault is one thing that was done.
type Fault struct {
	Kind     string  `json:"kind"`
	Target   string  `json:"target"`
	At       float64 `json:"at_seconds"`
	For      float64 `json:"for_seconds"`
	Requests int64   `json:"requests"` // of all clients while it lasted
	Errors   int64   `json:"errors"`   // of them without a good answer
	Recovery float64 `json:"recovery_seconds"`
	Note     string  `json:"note,omitempty"`
}

// Books compare what clients were told with what is stored.
type Books struct {
	EventsAnswered    int64   `json:"events_answered"`
	EventsUnknown     int64   `json:"events_unknown"` // without an answer: stored once or not at all
	EventsStored      int64   `json:"events_stored"`
	EventsDead        int64   `json:"events_dead"`
	EventsLost        int64   `json:"events_lost"`
	EventsDoubled     int64   `json:"events_doubled"`
	EventsUndone      int64   `json:"events_undone"` // gone with a database that was replaced by an older copy
	Restores          int     `json:"restores"`
	ResponsesAnswered int64   `json:"responses_answered"`
	ResponsesStored   int64   `json:"responses_stored"`
	Changes           int64   `json:"changes"`
	Reads             int64   `json:"reads"`
	ReadsFailed       int64   `json:"reads_failed"` // at edges that lived
	DrainSeconds      float64 `json:"drain_seconds"`
}

// Run makes the runs, prints a table and fails when any promise did not hold.
func Run(ctx context.Context, config Config) error {
	if err := config.Validate(); err != nil {
		return err
	}
	config = config.withDefaults()
	var results []Result
	var failed error
	for i := range config.Runs {
		seed := config.Seed + uint64(i)
		result, err := once(ctx, config, seed)
		if err != nil {
			failed = fmt.Errorf("run with seed %d: %w", seed, err)
			break
		}
		results = append(results, *result)
		_, _ = fmt.Fprintln(config.Out, result.line())
		if err := record(config.Log, result); err != nil {
			failed = err
			break
		}
	}
	if err := table(config.Out, results); err != nil {
		return errors.Join(failed, err)
	}
	for _, r := range results {
		if len(r.Broken) > 0 {
			failed = errors.Join(failed, fmt.Errorf("seed %d: %s", r.Seed, strings.Join(r.Broken, "; ")))
		}
	}
	return failed
}

// once is one run: start, load and break, heal, balance.
func once(ctx context.Context, config Config, seed uint64) (*Result, error) {
	nodes := config.Nodes
	if nodes == 0 {
		nodes = 1
		if seed%3 == 0 {
			nodes = 3
		}
	}
	c, err := startCluster(ctx, config, nodes, 1)
	if err != nil {
		return nil, err
	}
	defer c.close()
	l, err := newLedger(ctx, c)
	if err != nil {
		return nil, err
	}
	before, err := c.restful(ctx)
	if err != nil {
		return nil, err
	}
	result := &Result{Seed: seed, Version: config.Version, Started: time.Now(), Seconds: config.Length.Seconds(), Nodes: nodes}
	loadCtx, stop := context.WithTimeout(ctx, config.Length)
	defer stop()
	done := l.run(loadCtx)
	chaos(loadCtx, c, l, rand.New(rand.NewPCG(seed, 0x736b65727279)), result)
	<-done
	if err := c.heal(ctx); err != nil {
		return nil, fmt.Errorf("heal: %w", err)
	}
	if err := l.balance(ctx, result); err != nil {
		return nil, err
	}
	broken, _, err := c.leaked(ctx, before)
	result.Broken = append(result.Broken, broken...)
	return result, err
}

func (r *Result) line() string {
	b := r.Books
	verdict := "all promises held"
	if len(r.Broken) > 0 {
		verdict = "BROKEN: " + strings.Join(r.Broken, "; ")
	}
	return fmt.Sprintf("seed %d: %d faults, %d events answered, %d stored, %d lost, %d doubled, %d reads (%d failed at living edges), %d responses, drained in %.1f s: %s",
		r.Seed, len(r.Faults), b.EventsAnswered, b.EventsStored, b.EventsLost, b.EventsDoubled, b.Reads, b.ReadsFailed, b.ResponsesStored, b.DrainSeconds, verdict)
}

func record(path string, r *Result) error {
	if path == "" {
		return nil
	}
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("marshal result: %w", err)
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("keep result: %w", err)
	}
	_, err = file.Write(append(line, '\n'))
	return errors.Join(err, file.Close())
}

// table sums the faults up by kind and target.
func table(w io.Writer, results []Result) error {
	type sum struct {
		times            int
		requests, errors int64
		slowest          float64
	}
	sums := map[string]*sum{}
	var order []string
	var lost, doubled int64
	for _, r := range results {
		lost, doubled = lost+r.Books.EventsLost, doubled+r.Books.EventsDoubled
		for _, f := range r.Faults {
			name := f.Kind + "\t" + f.Target
			if sums[name] == nil {
				sums[name] = &sum{}
				order = append(order, name)
			}
			s := sums[name]
			s.times++
			s.requests, s.errors, s.slowest = s.requests+f.Requests, s.errors+f.Errors, max(s.slowest, f.Recovery)
		}
	}
	t := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "fault\ttarget\ttimes\trequests during it\tof them failed\tslowest recovery\t")
	for _, name := range order {
		s := sums[name]
		_, _ = fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%.1f s\t\n", name, s.times, s.requests, s.errors, s.slowest)
	}
	_, _ = fmt.Fprintf(t, "all\t%d runs\t\t\tlost %d\tdoubled %d\t\n", len(results), lost, doubled)
	return t.Flush()
}
