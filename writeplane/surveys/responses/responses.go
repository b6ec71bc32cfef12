// Package responses takes in what respondents send: submissions, partial responses,
// and the results made of them (specification, Pulse sections; supplement §5).
//
// It promises: a submission answered with 201 is stored whole, once, and counted
// against the quota in the same transaction; the quota is never exceeded, however
// many submissions come at once and into however many processes; a retry with the
// same Idempotency-Key gets the first answer again; what was stored stays readable
// whatever becomes of its questions.
//
// Submissions are committed in groups: whatever has arrived while the last group was
// on its way to the disk goes together (see writer). The bus and the mirror hear of a
// response after its commit, and nothing waits for them.
package responses

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"skerry/pkg/problem"
	"skerry/pkg/survey"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
	"skerry/writeplane/surveys"
)

// Config bounds what the module takes on.
type Config struct {
	// MaxBody is the largest submission or partial save in bytes; 0 means 64 MiB.
	MaxBody int64
	// Bodies is how many bytes of bodies over 64 KiB are worked on at a time; 0 means
	// 128 MiB. Others wait; those of which over 1 MiB has come are refused instead.
	Bodies int64
	// Mirror writes rows of the analytics copy; nil means the table survey_mirror.
	Mirror func(ctx context.Context, rows []MirrorRow) error
}

const (
	defaultMaxBody = 64 << 20
	defaultBodies  = 128 << 20
)

// Validate names the first field that is wrong.
func (c Config) Validate() error {
	switch {
	case c.MaxBody < 0:
		return errors.New("responses: MaxBody is negative")
	case c.Bodies < 0:
		return errors.New("responses: Bodies is negative")
	}
	if c = c.withDefaults(); c.Bodies < c.MaxBody {
		return fmt.Errorf("responses: Bodies is %d, too little for one of MaxBody, %d", c.Bodies, c.MaxBody)
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.MaxBody == 0 {
		c.MaxBody = defaultMaxBody
	}
	if c.Bodies == 0 {
		c.Bodies = defaultBodies
	}
	return c
}

// Module takes submissions and partial responses, and shows results. Its exported
// handlers are routes; they need Run to be running.
type Module struct {
	config  Config
	store   *commit.Store
	access  *access.Store
	surveys *surveys.Module
	forms   *forms
	writer  *writer
	mirror  *mirror
	bus     Bus
	bodies  *semaphore.Weighted // bytes of large bodies at work
	now     func() time.Time
}

// New returns the module; its counters go to the registry.
func New(config Config, store *commit.Store, access *access.Store, surveys *surveys.Module, registry prometheus.Registerer) (*Module, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.withDefaults()
	if config.Mirror == nil {
		config.Mirror = mirrorTable(store.Pool())
	}
	m := &Module{
		config: config, store: store, access: access, surveys: surveys,
		forms: newForms(store.Pool()), mirror: newMirror(config.Mirror),
		bodies: semaphore.NewWeighted(config.Bodies), now: time.Now,
	}
	m.writer = newWriter(store, m.announce)
	m.register(registry)
	return m, nil
}

// Bus carries every stored response to other modules of the process.
func (m *Module) Bus() *Bus { return &m.bus }

// announce tells the bus and the mirror of what has been committed.
func (m *Module) announce(stored []*submission) {
	for _, s := range stored {
		m.bus.publish(s.submitted())
		m.mirror.add(s)
	}
}

// Run commits submissions, writes the mirror and clears away what has expired, until
// ctx ends. Then submissions that wait are refused.
func (m *Module) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return m.writer.run(ctx) })
	group.Go(func() error { return m.mirror.run(ctx) })
	group.Go(func() error { return m.sweep(ctx) })
	return group.Wait()
}

// register shows the module's counters.
func (m *Module) register(registry prometheus.Registerer) {
	for _, c := range []struct {
		name, help string
		count      *atomic.Int64
	}{
		{"skerry_survey_responses_stored_total", "Survey responses stored.", &m.writer.stored},
		{"skerry_survey_responses_groups_total", "Transactions that stored survey responses.", &m.writer.groups},
		{"skerry_survey_responses_bus_dropped_total", "Survey responses that a full subscriber of the bus did not get.", &m.bus.dropped},
		{"skerry_survey_responses_mirror_written_total", "Survey responses written to the analytics copy.", &m.mirror.written},
		{"skerry_survey_responses_mirror_dropped_total", "Survey responses that found the queue of the analytics copy full.", &m.mirror.dropped},
		{"skerry_survey_responses_mirror_failed_total", "Survey responses whose write to the analytics copy failed.", &m.mirror.failed},
	} {
		registry.MustRegister(prometheus.NewCounterFunc(
			prometheus.CounterOpts{Name: c.name, Help: c.help},
			func() float64 { return float64(c.count.Load()) }))
	}
}

// sweepEvery is how often expired rows are looked for; they are ignored from the
// moment they expire.
const sweepEvery = 10 * time.Minute

func (m *Module) sweep(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		if err := removeExpired(ctx, m.store.Pool(), m.now()); err != nil && ctx.Err() == nil {
			slog.Warn("expired survey rows not removed; will try again", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// The refusals of the Pulse endpoints.
var (
	errModuleDisabled = problem.New(problem.Forbidden, "module_disabled")
	errSurveyUnknown  = problem.Newf(problem.NotFound, "not_found", "survey not found for this project")
	errNoQuestions    = problem.Newf(problem.Unprocessable, "no_questions", "the survey has no questions")
	errIdempotency    = problem.Newf(problem.Conflict, "idempotency_conflict", "the Idempotency-Key was used with another body")
	errUnavailable    = problem.New(problem.Unavailable, "Service temporarily unavailable")
	errUnknownFate    = problem.Newf(problem.BadGateway, "unknown_outcome",
		"the database went away while the response was being stored: it may or may not be; repeat with an Idempotency-Key")
)

// notAccepting names the status that keeps a survey from accepting responses.
func notAccepting(status string) error {
	return problem.Newf(problem.Unprocessable, "not_accepting_responses", "the survey is %s", status)
}

func invalidAnswers(faults survey.Faults) error {
	return problem.Newf(problem.Invalid, "validation", "%s", faults.Message()).
		With("invalid", faults.Invalid).With("missing", faults.Missing)
}

func quotaExceeded(current, limit int64) error {
	return problem.Newf(problem.QuotaExceeded, "quota_exceeded", "the project's monthly quota of %d survey responses is used up", limit).
		With("current", current).With("limit", limit)
}

// worded turns a body's fault into its answer.
func worded(err error) error {
	var fault *survey.BodyFault
	if errors.As(err, &fault) {
		return problem.Newf(problem.Invalid, fault.Code, "%s", fault.Message)
	}
	return fmt.Errorf("read body: %w", err)
}
