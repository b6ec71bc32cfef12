package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"skerry/writeplane/postgres"
)

// Mirrorer copies entries to the mirror, behind the mutations and in the order of
// each chain. What could not be written stays behind the cursor and is written the
// next time: a failure costs time, never an entry.
type Mirrorer struct {
	pool     *pgxpool.Pool
	mirror   Mirror
	patience time.Duration
	copied   prometheus.Counter
	failures prometheus.Counter
}

const (
	mirrorEvery = 2 * time.Second
	mirrorRetry = 30 * time.Second
	mirrorBatch = 500
	mirrorBytes = 8 << 20 // of a batch's snapshots, unless its first entry alone has more
	mirrorRound = 200     // organizations a round

	// mirrorPatience is how long a mirror may be silent. The cursor's transaction waits for
	// it, and must not do so for as long as PostgreSQL lets one idle.
	mirrorPatience = 20 * time.Second
)

// NewMirrorer returns the copier on the application's pool.
func NewMirrorer(pool *pgxpool.Pool, mirror Mirror, registry prometheus.Registerer) *Mirrorer {
	m := &Mirrorer{pool: pool, mirror: mirror, patience: mirrorPatience,
		copied:   prometheus.NewCounter(prometheus.CounterOpts{Name: "skerry_audit_mirror_entries_total", Help: "Audit entries copied to the query mirror."}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "skerry_audit_mirror_failures_total", Help: "Failed attempts to copy audit entries to the query mirror; each is repeated until it succeeds."}),
	}
	registry.MustRegister(m.copied, m.failures)
	return m
}

// Run copies until ctx ends.
func (m *Mirrorer) Run(ctx context.Context) error {
	for {
		wait := mirrorEvery
		more, err := m.Round(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			slog.Warn("audit mirror lags, will be tried again", "error", err)
			wait = mirrorRetry
		case more:
			continue
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// Round copies one batch of each chain that is behind; more tells that some still are.
func (m *Mirrorer) Round(ctx context.Context) (more bool, err error) {
	behind, err := postgres.All(ctx, m.pool, "list chains behind", pgx.RowTo[string], `
		SELECT c.organization_id FROM audit_chains c LEFT JOIN audit_mirrored m USING (organization_id)
		WHERE c.seq > coalesce(m.seq, 0) ORDER BY coalesce(m.at, 'epoch') LIMIT $1`, mirrorRound)
	if err != nil {
		return false, err
	}
	more = len(behind) == mirrorRound
	var faults []error
	for _, organizationID := range behind {
		left, err := m.chain(ctx, organizationID)
		if err != nil {
			m.failures.Inc()
			faults = append(faults, err)
			if postgres.Unavailable(err) || ctx.Err() != nil {
				break // it need not be asked once for each chain; one that it refuses keeps no other back
			}
		}
		more = more || left
	}
	return more, errors.Join(faults...)
}

// chain copies a chain's next batch and moves its cursor; left tells that there is more.
// The cursor's row lock keeps other processes off the same chain.
func (m *Mirrorer) chain(ctx context.Context, organizationID string) (left bool, err error) {
	if _, err := m.pool.Exec(ctx, `INSERT INTO audit_mirrored (organization_id, seq, at) VALUES ($1, 0, 'epoch') ON CONFLICT DO NOTHING`, organizationID); err != nil {
		return false, fmt.Errorf("begin the mirror's cursor: %w", err)
	}
	err = postgres.InTx(ctx, m.pool, func(tx pgx.Tx) error {
		var done, end Position
		err := tx.QueryRow(ctx, `SELECT seq, at FROM audit_mirrored WHERE organization_id = $1 FOR UPDATE SKIP LOCKED`, organizationID).Scan(&done.Seq, &done.At)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // another process is at it
		}
		if err != nil {
			return fmt.Errorf("read the mirror's cursor: %w", err)
		}
		// The head is read before the entries: those up to it that are missing were taken
		// by retention.
		if err := tx.QueryRow(ctx, `SELECT seq, at FROM audit_chains WHERE organization_id = $1`, organizationID).Scan(&end.Seq, &end.At); err != nil {
			return fmt.Errorf("read the chain's head: %w", err)
		}
		batch, err := nextBatch(ctx, tx, organizationID, done)
		if err != nil {
			return err
		}
		reached := end
		if len(batch) > 0 {
			last := batch[len(batch)-1]
			reached = Position{last.CreatedAt, last.Seq}
		}
		if reached, err = m.write(ctx, Batch{organizationID, done, reached, batch}); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE audit_mirrored SET seq = $2, at = $3 WHERE organization_id = $1`, organizationID, reached.Seq, reached.At)
		if err != nil {
			return fmt.Errorf("move the mirror's cursor: %w", err)
		}
		left = reached.Seq < end.Seq
		return nil
	})
	return left, err
}

// write gives the mirror a batch and returns how far it has the chain then.
func (m *Mirrorer) write(ctx context.Context, b Batch) (reached Position, err error) {
	ctx, cancel := context.WithTimeout(ctx, m.patience)
	defer cancel()
	err = m.mirror.Write(ctx, b)
	var behind *Behind
	if errors.As(err, &behind) {
		slog.WarnContext(ctx, "the audit mirror has lost entries, which are copied again", "organization", b.OrganizationID, "after", behind.Reached.Seq)
		return behind.Reached, nil
	}
	if err != nil {
		return b.After, fmt.Errorf("write to the mirror: %w", err)
	}
	m.copied.Add(float64(len(b.Entries)))
	return b.Reached, nil
}

// nextBatch reads the chain's entries behind a place, as many as make a batch. How long
// they are is asked first: the cursor waits in its transaction while they travel to the
// mirror, and they are held in memory.
func nextBatch(ctx context.Context, tx pgx.Tx, organizationID string, done Position) ([]Entry, error) {
	q := Query{OrganizationID: organizationID, Since: done.At, After: &done, Ascending: true, Limit: mirrorBatch}
	sql, args := q.build(table)
	var fit int
	err := tx.QueryRow(ctx, fmt.Sprintf(`
		SELECT count(*) FROM (
			SELECT sum(coalesce(octet_length(before), 0) + coalesce(octet_length(after), 0) + octet_length(metadata)) OVER (ORDER BY created_at, seq) AS bytes FROM (%s) AS entries
		) AS sums WHERE bytes <= $%d`, sql, len(args)), append(args, mirrorBytes)...).Scan(&fit)
	if err != nil {
		return nil, fmt.Errorf("measure entries to mirror: %w", err)
	}
	q.Limit = max(fit, 1)
	sql, args = q.build(table)
	return postgres.All(ctx, tx, "read entries to mirror", scan, sql, args...)
}
