package crashes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/pkg/crash"
	"skerry/writeplane/lease"
	"skerry/writeplane/symbolicate"
	"skerry/writeplane/symbols"
)

const (
	pollEvery  = 500 * time.Millisecond
	takeFor    = 6 * time.Second // a dead process's reports are free after this
	renewEvery = 2 * time.Second
	putOffFor  = time.Minute // reports whose artifacts cannot be read just now
	awaitFor   = time.Minute // an awaited artifact asks for its reports itself, unless it is deleted first
	atOnce     = 200         // reports of one round, and
	roundBytes = 32 << 20    // of records and answers, beyond which no further report is taken
	workers    = 2
)

// Worker makes pending reports readable. Any number of processes may run one; work
// that is done twice gives the same answers.
type Worker struct {
	pool    *pgxpool.Pool
	library *symbols.Library
}

// NewWorker returns a worker that uses the artifacts of a library.
func NewWorker(pool *pgxpool.Pool, library *symbols.Library) *Worker {
	return &Worker{pool: pool, library: library}
}

// Run works until ctx ends.
func (w *Worker) Run(ctx context.Context) error {
	var group sync.WaitGroup
	for range workers {
		group.Go(func() { w.loop(ctx) })
	}
	group.Wait()
	return nil
}

func (w *Worker) loop(ctx context.Context) {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		n, err := w.Round(ctx)
		if err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "symbolication was put off", "error", err)
		}
		if n > 0 && err == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// build is what reports have their artifacts in common by.
type build struct{ project, environment, release string }

// Round takes some pending reports and answers them; n is how many.
func (w *Worker) Round(ctx context.Context) (n int, err error) {
	taken, err := take(ctx, w.pool, atOnce, takeFor)
	if err != nil || len(taken) == 0 {
		return 0, err
	}
	defer w.hold(ctx, taken)()
	builds := map[build][]claim{}
	for _, c := range taken {
		b := build{c.ProjectID, c.Environment, c.Release}
		builds[b] = append(builds[b], c)
	}
	var finished []done
	var failed []error
	for b, claims := range builds {
		list, err := w.answer(ctx, b, claims)
		if err != nil {
			// The others go on, and are not held up by these again and again.
			failed = append(failed, err, renew(ctx, w.pool, without(claims, list), putOffFor))
		}
		finished = append(finished, list...)
	}
	if len(finished) > 0 {
		failed = append(failed, finish(ctx, w.pool, finished))
	}
	return len(finished), errors.Join(failed...)
}

// without are the ids of the claims that are not finished.
func without(claims []claim, finished []done) (ids []string) {
	for _, c := range claims {
		if !slices.ContainsFunc(finished, func(d done) bool { return d.ID == c.ID }) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// hold keeps reports taken until release is called.
func (w *Worker) hold(ctx context.Context, taken []claim) (release func()) {
	ids := make([]string, len(taken))
	for i, c := range taken {
		ids[i] = c.ID
	}
	return lease.Keep(ctx, renewEvery, func(ctx context.Context) {
		_ = renew(ctx, w.pool, ids, takeFor) // who comes to take them does the same work
	})
}

// answer answers the reports of one build, with one search for artifacts: each release
// has the whole bound of candidates to itself, and what it opens in memory ends with it.
func (w *Worker) answer(ctx context.Context, b build, claims []claim) ([]done, error) {
	ids := map[string]bool{}
	for _, c := range claims {
		for _, id := range c.DebugIDs {
			ids[id] = true
		}
	}
	found, err := w.library.Candidates(ctx, b.project, b.environment, b.release, slices.Collect(maps.Keys(ids)))
	if err != nil {
		return nil, err
	}
	artifacts := make([]*symbolicate.Artifact, len(found))
	for i, a := range found {
		artifacts[i] = w.library.For(ctx, a, b.release)
	}
	set := symbolicate.NewSet(artifacts)
	var finished []done
	var failed []error
	for _, c := range claims {
		d, err := settle(c, set)
		if err != nil {
			failed = append(failed, fmt.Errorf("symbolicate crash report %s: %w", c.ID, err))
			continue
		}
		finished = append(finished, d)
	}
	return finished, errors.Join(failed...)
}

// settle answers one report.
func settle(c claim, set *symbolicate.Set) (done, error) {
	sent, err := crash.Unmarshal(c.Record)
	if err != nil {
		return done{}, err
	}
	before, err := (&Event{Answers: c.Answers}).answers()
	if err != nil {
		return done{}, err
	}
	now, err := set.Symbolicate(sent)
	if err != nil {
		return done{}, err
	}
	merged, settled := merge(before, now)
	body, err := json.Marshal(merged)
	if err != nil {
		return done{}, fmt.Errorf("marshal answers: %w", err)
	}
	awaits := slices.ContainsFunc(now, func(a symbolicate.Answer) bool { return a.Reason == symbolicate.Awaited })
	return done{claim: c, answers: body, settled: settled, awaits: awaits}, nil
}
