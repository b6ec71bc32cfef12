// Package quota totals what edges have counted against the monthly quotas of events and
// decision calls, tells edges the totals, and warns.
//
// Edges count exactly and report cumulative counters (package tally); here the highest
// report of each source counts, and the sum over sources is the total. The total goes
// down as a document when it matters: see matters. An edge puts its own present count
// in the place of its reported one, so what is used above a quota is bounded by what
// the other edges accept in the seconds between a report and its arrival.
//
// Promised: a total never falls within a month; each level is warned of once a month.
// Not promised: that usage over several edges stops exactly at the quota.
package quota

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"skerry/pkg/state"
	"skerry/replication"
	"skerry/replication/tally"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

const (
	// flushEvery is how long reports are gathered: a project's total changes at most
	// so often.
	flushEvery = time.Second
	// sendEvery is how soon any change of a total that has a quota goes down.
	sendEvery = 30 * time.Second
	// chunk is how many projects one transaction totals, and patience how long it may
	// take: what is not stored comes again.
	chunk    = 100
	patience = 15 * time.Second
	queue    = "skerry-quota"
	// lockKey lets one process total at a time, so that no older sum replaces a newer one.
	lockKey = 0x71756f7461 // "quota"
)

// Totaller totals usage.
type Totaller struct {
	store    *commit.Store
	now      func() time.Time
	patience time.Duration
}

// New returns a Totaller.
func New(store *commit.Store) *Totaller {
	return &Totaller{store: store, now: time.Now, patience: patience}
}

// Run takes edges' reports until ctx ends. Reports that cannot be stored are dropped:
// edges repeat all their counters.
func (t *Totaller) Run(ctx context.Context, nc *nats.Conn) error {
	reports := make(chan *nats.Msg, 1024)
	sub, err := nc.ChanQueueSubscribe(tally.ReportSubjects, queue, reports)
	if err != nil {
		return fmt.Errorf("subscribe to usage: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	gathered := counts{}
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-reports:
			r, err := tally.DecodeReport(m.Data)
			if err != nil || tally.ReportSubject(r.Edge) != m.Subject {
				slog.Warn("usage report not understood", "subject", m.Subject, "error", err)
				continue
			}
			gathered.add(r)
		case <-tick.C:
			if len(gathered) == 0 {
				continue
			}
			if err := t.total(ctx, gathered); err != nil && ctx.Err() == nil {
				slog.Warn("total usage", "error", err)
			}
			gathered = counts{}
		}
	}
}

// counts are gathered reports: of each counter the highest value.
type counts map[uuid.UUID]map[counter]int64

type counter struct {
	month  time.Time
	metric tally.Metric
	source string
}

func (c counts) add(r tally.Report) {
	for _, said := range r.Counts {
		of := c[said.Project]
		if of == nil {
			of = map[counter]int64{}
			c[said.Project] = of
		}
		key := counter{said.Month, said.Metric, r.Source}
		of[key] = max(of[key], int64(said.Value))
	}
}

func (t *Totaller) total(ctx context.Context, c counts) error {
	projects := make([]uuid.UUID, 0, len(c))
	for p := range c {
		projects = append(projects, p)
	}
	slices.SortFunc(projects, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	// What fails for some projects need not fail for others. But a database that is silent
	// is not waited for a chunk at a time: newer reports have come by then.
	ctx, cancel := context.WithTimeout(ctx, 4*t.patience)
	defer cancel()
	var failed []error
	for some := range slices.Chunk(projects, chunk) {
		if ctx.Err() != nil {
			break
		}
		if err := t.totalSome(ctx, some, c); err != nil {
			failed = append(failed, fmt.Errorf("%d projects from %s: %w", len(some), some[0], err))
		}
	}
	return errors.Join(failed...)
}

func (t *Totaller) totalSome(ctx context.Context, projects []uuid.UUID, c counts) error {
	ctx, cancel := context.WithTimeout(ctx, t.patience)
	defer cancel()
	return t.store.InTx(ctx, commit.Origin{Actor: commit.Actor{ID: "system:quota"}}, func(tx *commit.Tx) error {
		return t.totalIn(ctx, tx, projects, c)
	})
}

func (t *Totaller) totalIn(ctx context.Context, tx *commit.Tx, projects []uuid.UUID, c counts) error {
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(lockKey)); err != nil {
		return fmt.Errorf("lock usage: %w", err)
	}
	if err := raise(ctx, tx, projects, c); err != nil {
		return err
	}
	now := t.now().UTC()
	month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	usages, err := load(ctx, tx, projects, month)
	if err != nil {
		return err
	}
	for _, u := range usages {
		if err := u.warn(ctx, tx, month); err != nil {
			return err
		}
		if !u.matters(now) {
			continue
		}
		if err := u.send(ctx, tx, month, now); err != nil {
			return err
		}
	}
	return nil
}

const raiseSQL = `
INSERT INTO usage_counts AS u (project_id, month, metric, source, value)
SELECT * FROM unnest($1::uuid[], $2::date[], $3::text[], $4::text[], $5::bigint[])
ON CONFLICT (project_id, month, metric, source) DO UPDATE SET value = excluded.value WHERE excluded.value > u.value`

func raise(ctx context.Context, tx *commit.Tx, projects []uuid.UUID, c counts) error {
	var ids []uuid.UUID
	var months []time.Time
	var metrics, sources []string
	var values []int64
	for _, p := range projects {
		keys := make([]counter, 0, len(c[p]))
		for k := range c[p] {
			keys = append(keys, k)
		}
		slices.SortFunc(keys, func(a, b counter) int {
			return cmp.Or(a.month.Compare(b.month), cmp.Compare(a.metric, b.metric), cmp.Compare(a.source, b.source))
		})
		for _, k := range keys {
			ids, months, metrics = append(ids, p), append(months, k.month), append(metrics, k.metric.String())
			sources, values = append(sources, k.source), append(values, c[p][k])
		}
	}
	if _, err := tx.Exec(ctx, raiseSQL, ids, months, metrics, sources, values); err != nil {
		return fmt.Errorf("keep usage: %w", err)
	}
	return nil
}

// usage is a project's month.
type usage struct {
	project, organization string
	quotas                state.Quotas // in force
	total                 state.Usage
	sent                  state.Usage // what edges were told last; another month's counts as nothing
	sentAt                *time.Time
}

// Until the totals are written down, no project is deleted: its total would be left at
// the edges.
const loadSQL = `
SELECT p.id::text, p.organization_id::text, o.tier, p.quotas, s.month, coalesce(s.events, 0), coalesce(s.handshakes, 0), s.sent_at
FROM projects p JOIN organizations o ON o.id = p.organization_id LEFT JOIN usage_sent s ON s.project_id = p.id
WHERE p.id = ANY($1) AND p.deleted_at IS NULL ORDER BY p.id FOR KEY SHARE OF p`

func load(ctx context.Context, tx *commit.Tx, projects []uuid.UUID, month time.Time) ([]*usage, error) {
	byID := map[string]*usage{}
	scan := func(row pgx.CollectableRow) (*usage, error) {
		u := &usage{}
		var tier string
		var own state.Quotas
		var sentMonth *time.Time
		if err := row.Scan(&u.project, &u.organization, &tier, &own, &sentMonth, &u.sent.Events, &u.sent.Handshakes, &u.sentAt); err != nil {
			return nil, err
		}
		if sentMonth == nil || !sentMonth.Equal(month) {
			u.sent, u.sentAt = state.Usage{}, nil
		}
		u.quotas = access.EffectiveQuotas(tier, own)
		u.total = state.Usage{Month: month.Format("2006-01"), EventsBy: map[string]int64{}, HandshakesBy: map[string]int64{}}
		byID[u.project] = u
		return u, nil
	}
	usages, err := postgres.All(ctx, tx, "read projects", scan, loadSQL, projects)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `SELECT project_id::text, metric, source, value FROM usage_counts WHERE project_id = ANY($1) AND month = $2`, projects, month)
	if err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	var project, metric, source string
	var value int64
	_, err = pgx.ForEachRow(rows, []any{&project, &metric, &source, &value}, func() error {
		u := byID[project]
		switch {
		case u == nil: // deleted
		case metric == tally.Events.String():
			u.total.Events += value
			u.total.EventsBy[source] = value
		default:
			u.total.Handshakes += value
			u.total.HandshakesBy[source] = value
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	return usages, nil
}

// metrics are the parts of a usage that have a quota.
func (u *usage) metrics() []part {
	return []part{
		{tally.Events, u.total.Events, u.sent.Events, u.quotas.Events},
		{tally.Handshakes, u.total.Handshakes, u.sent.Handshakes, u.quotas.Handshakes},
	}
}

type part struct {
	metric      tally.Metric
	total, sent int64
	quota       *int64
}

// matters tells whether edges have to hear of a total now: it is near its quota, or has
// come a hundredth of it further, or was last told a while ago. What has no quota
// concerns no edge.
func (u *usage) matters(now time.Time) bool {
	for _, p := range u.metrics() {
		if p.quota == nil || p.total == p.sent {
			continue
		}
		near := float64(p.total) >= 0.8*float64(*p.quota)
		far := p.total-p.sent >= max(*p.quota/100, 1)
		late := u.sentAt == nil || now.Sub(*u.sentAt) >= sendEvery
		if near || far || late {
			return true
		}
	}
	return false
}

func (u *usage) send(ctx context.Context, tx *commit.Tx, month, now time.Time) error {
	if err := tx.Put(replication.UsageSubject(u.project), u.total); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO usage_sent (project_id, month, events, handshakes, sent_at) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (project_id) DO UPDATE SET month = excluded.month, events = excluded.events, handshakes = excluded.handshakes, sent_at = excluded.sent_at`,
		u.project, month, u.total.Events, u.total.Handshakes, now)
	if err != nil {
		return fmt.Errorf("note what was sent: %w", err)
	}
	return nil
}

// warn writes an audit entry for each level that a metric has reached for the first
// time this month.
func (u *usage) warn(ctx context.Context, tx *commit.Tx, month time.Time) error {
	for _, p := range u.metrics() {
		for _, level := range access.WarningLevels {
			if p.quota == nil || float64(p.total)*100 < float64(*p.quota)*float64(level) || p.total == 0 {
				continue
			}
			tag, err := tx.Exec(ctx, `INSERT INTO quota_warnings (project_id, month, metric, level) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`,
				u.project, month, p.metric.String(), level)
			if err != nil {
				return fmt.Errorf("note a warning: %w", err)
			}
			if tag.RowsAffected() == 0 {
				continue
			}
			tx.Audit(commit.Entry{
				OrganizationID: u.organization, ProjectID: u.project,
				Action: "project.quota.warned", ResourceType: "project", ResourceID: u.project,
				After: map[string]any{"month": month.Format("2006-01"), "metric": p.metric.String(), "level": level, "current": p.total, "limit": *p.quota},
			})
		}
	}
	return nil
}
