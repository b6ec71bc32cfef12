package crashes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/pkg/crash"
	"skerry/writeplane/symbolicate"
	"skerry/writeplane/symbols"
)

const (
	pollEvery  = 500 * time.Millisecond
	takeFor    = 6 * time.Second // a dead process's reports are free after this
	renewEvery = 2 * time.Second
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

type scope struct{ project, environment string }

// Round takes some pending reports and answers them; n is how many.
func (w *Worker) Round(ctx context.Context) (n int, err error) {
	taken, err := take(ctx, w.pool, atOnce, takeFor)
	if err != nil || len(taken) == 0 {
		return 0, err
	}
	defer w.hold(ctx, taken)()
	byScope := map[scope][]claim{}
	for _, c := range taken {
		s := scope{c.ProjectID, c.Environment}
		byScope[s] = append(byScope[s], c)
	}
	var finished []done
	var failed []error
	for s, claims := range byScope {
		list, err := w.answer(ctx, s, claims)
		if err != nil {
			// The others go on; these are taken again when their term ends.
			failed = append(failed, err)
		}
		finished = append(finished, list...)
	}
	if len(finished) > 0 {
		failed = append(failed, finish(ctx, w.pool, finished))
	}
	return len(finished), errors.Join(failed...)
}

// hold keeps reports taken until release is called.
func (w *Worker) hold(ctx context.Context, taken []claim) (release func()) {
	ids := make([]string, len(taken))
	for i, c := range taken {
		ids[i] = c.ID
	}
	ctx, cancel := context.WithCancel(ctx)
	var renewal sync.WaitGroup
	renewal.Go(func() {
		ticker := time.NewTicker(renewEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				_ = renew(ctx, w.pool, ids, takeFor) // who comes to take them does the same work
			}
		}
	})
	return func() { cancel(); renewal.Wait() }
}

// answer answers the reports of one environment, with one search for artifacts.
func (w *Worker) answer(ctx context.Context, s scope, claims []claim) ([]done, error) {
	releases, ids := map[string]bool{}, map[string]bool{}
	for _, c := range claims {
		releases[c.Release] = true
		for _, id := range c.DebugIDs {
			ids[id] = true
		}
	}
	found, err := w.library.Candidates(ctx, s.project, s.environment, keys(releases), keys(ids))
	if err != nil {
		return nil, err
	}
	// Release by release: a set keeps what it has opened in memory.
	slices.SortStableFunc(claims, func(a, b claim) int { return cmp.Compare(a.Release, b.Release) })
	var set *symbolicate.Set
	var finished []done
	var failed []error
	for i, c := range claims {
		if i == 0 || c.Release != claims[i-1].Release {
			artifacts := make([]*symbolicate.Artifact, len(found))
			for k, a := range found {
				artifacts[k] = w.library.For(ctx, a, c.Release)
			}
			set = symbolicate.NewSet(artifacts)
		}
		d, err := settle(c, set)
		if err != nil {
			failed = append(failed, fmt.Errorf("symbolicate crash report %s: %w", c.ID, err))
			continue
		}
		finished = append(finished, d)
	}
	return finished, errors.Join(failed...)
}

func keys(set map[string]bool) []string {
	out := make([]string, 0, len(set))
	for k := range set {
		out = append(out, k)
	}
	return out
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
