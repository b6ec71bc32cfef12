package responses

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// MirrorRow is one answer in the analytics copy: nothing has to be joined to it.
type MirrorRow struct {
	ProjectID, Environment, SurveyID, ResponseID string
	QuestionID, QuestionKind, Prompt             string
	Value                                        json.RawMessage
	Score                                        *int
	ReleaseVersion, DistributionID               *string
	SubmittedAt, ReceivedAt                      time.Time
}

// mirror writes the analytics copy behind the clients' backs: best effort, counted.
// A failed write is not repeated, since rows that lose nothing are in the table of
// answers; a copy that must be complete is rebuilt from there.
type mirror struct {
	write   func(ctx context.Context, rows []MirrorRow) error
	queue   chan *submission
	bytes   atomic.Int64 // of what is queued or being written
	written atomic.Int64
	dropped atomic.Int64
	failed  atomic.Int64
}

const (
	mirrorQueue   = 4096     // responses
	mirrorBatch   = 512      // responses
	mirrorBytes   = 64 << 20 // of the bodies of responses
	mirrorTimeout = 10 * time.Second
)

func newMirror(write func(ctx context.Context, rows []MirrorRow) error) *mirror {
	return &mirror{write: write, queue: make(chan *submission, mirrorQueue)}
}

// add queues a stored response, or counts it as dropped when the queue is full.
func (m *mirror) add(s *submission) {
	size := int64(s.size)
	if now := m.bytes.Add(size); now <= mirrorBytes || now == size {
		select {
		case m.queue <- s:
			return
		default:
		}
	}
	m.bytes.Add(-size)
	m.dropped.Add(1)
}

func (m *mirror) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case first := <-m.queue:
			m.flush(ctx, first)
		}
	}
}

// flush writes first and what has queued behind it.
func (m *mirror) flush(ctx context.Context, first *submission) {
	rows := first.mirrorRows(nil)
	n, size := int64(1), int64(first.size)
	defer func() { m.bytes.Add(-size) }()
	for more := true; more && n < mirrorBatch; {
		select {
		case next := <-m.queue:
			rows = next.mirrorRows(rows)
			n, size = n+1, size+int64(next.size)
		default:
			more = false
		}
	}
	ctx, cancel := context.WithTimeout(ctx, mirrorTimeout)
	defer cancel()
	if err := m.write(ctx, rows); err != nil {
		m.failed.Add(n)
		slog.Warn("analytics copy of survey responses not written", "responses", n, "error", err)
		return
	}
	m.written.Add(n)
}

// mirrorRows appends the submission's rows.
func (s *submission) mirrorRows(rows []MirrorRow) []MirrorRow {
	for _, g := range s.given {
		rows = append(rows, MirrorRow{
			ProjectID: s.key.ProjectID, Environment: s.key.Environment, SurveyID: s.form.id, ResponseID: s.id,
			QuestionID: g.Question.ID, QuestionKind: g.Question.Kind, Prompt: g.Question.Prompt, Value: g.Value,
			Score: s.score, ReleaseVersion: s.context.ReleaseVersion, DistributionID: s.context.DistributionID,
			SubmittedAt: s.submittedAt, ReceivedAt: s.receivedAt,
		})
	}
	return rows
}

// mirrorTable writes to the table survey_mirror.
func mirrorTable(pool *pgxpool.Pool) func(ctx context.Context, rows []MirrorRow) error {
	columns := []string{"project_id", "environment", "survey_id", "response_id", "question_id", "question_kind", "prompt",
		"value", "score", "release_version", "distribution_id", "submitted_at", "received_at"}
	return func(ctx context.Context, rows []MirrorRow) error {
		_, err := pool.CopyFrom(ctx, pgx.Identifier{"survey_mirror"}, columns, pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) {
			r := &rows[i]
			return []any{r.ProjectID, r.Environment, r.SurveyID, r.ResponseID, r.QuestionID, r.QuestionKind, r.Prompt,
				r.Value, r.Score, r.ReleaseVersion, r.DistributionID, r.SubmittedAt, r.ReceivedAt}, nil
		}))
		if err != nil {
			return fmt.Errorf("copy %d rows: %w", len(rows), err)
		}
		return nil
	}
}
