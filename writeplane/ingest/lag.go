package ingest

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"skerry/pkg/problem"
	"skerry/pkg/reply"
	"skerry/replication/up"
	"skerry/writeplane/access"
	"skerry/writeplane/postgres"
)

// EdgeLag is an edge in the answer (supplement §3).
type EdgeLag struct {
	EdgeID string    `json:"edge_id"`
	Lanes  []LaneLag `json:"lanes"`
}

// LaneLag is one lane's books: received = stored + duplicate + erased + dead + pending.
// An edge says what it has received about every second; what was taken since then
// counts as received too.
type LaneLag struct {
	Lane             string  `json:"lane"`
	Received         int64   `json:"received"`
	Stored           int64   `json:"stored"`
	Duplicate        int64   `json:"duplicate"`
	Erased           int64   `json:"erased"`
	Dead             int64   `json:"dead"`
	Pending          int64   `json:"pending"`
	PendingBytes     int64   `json:"pending_bytes"`
	OldestAgeSeconds float64 `json:"oldest_age_seconds"`
}

const lagSQL = `
WITH taken AS (
	SELECT edge, lane, sum(stored)::bigint AS stored, sum(duplicate)::bigint AS duplicate, sum(erased)::bigint AS erased, sum(dead)::bigint AS dead
	FROM ingest_cursors GROUP BY edge, lane
)
SELECT edge, lane, coalesce(t.stored, 0), coalesce(t.duplicate, 0), coalesce(t.erased, 0), coalesce(t.dead, 0),
	CASE WHEN x.edge IS NULL THEN coalesce(r.base + r.received, 0) ELSE 0 END,
	coalesce(r.pending_bytes, 0), greatest(extract(epoch FROM now() - r.oldest_at), 0)::float8
FROM taken t FULL JOIN ingest_reports r USING (edge, lane) LEFT JOIN ingest_retired x USING (edge)
ORDER BY edge, lane`

// Lag reads the books of every edge and lane.
func (s *Store) Lag(ctx context.Context) ([]EdgeLag, error) {
	rows, err := s.db.App.Query(ctx, lagSQL)
	if err != nil {
		return nil, fmt.Errorf("read the books: %w", err)
	}
	edges := []EdgeLag{}
	var edge string
	var lane int16
	var l LaneLag
	var age *float64
	_, err = pgx.ForEachRow(rows, []any{&edge, &lane, &l.Stored, &l.Duplicate, &l.Erased, &l.Dead, &l.Received, &l.PendingBytes, &age}, func() error {
		taken := l.Stored + l.Duplicate + l.Erased + l.Dead
		l.Lane, l.Received = up.Lane(lane).String(), max(l.Received, taken)
		l.Pending, l.OldestAgeSeconds = l.Received-taken, 0
		if l.Pending == 0 {
			l.PendingBytes = 0
		} else if age != nil {
			l.OldestAgeSeconds = *age
		}
		if len(edges) == 0 || edges[len(edges)-1].EdgeID != edge {
			edges = append(edges, EdgeLag{EdgeID: edge})
		}
		last := &edges[len(edges)-1]
		last.Lanes = append(last.Lanes, l)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the books: %w", err)
	}
	return edges, nil
}

// Lag serves GET /api/v1/ingest/lag.
func (m *Module) Lag(w http.ResponseWriter, r *http.Request, _ *access.Call) error {
	edges, err := m.store.Lag(r.Context())
	if err != nil {
		return err
	}
	return reply.JSON(w, http.StatusOK, map[string]any{"edges": edges})
}

// Gap is a run of numbers that a lane passed over.
type Gap struct {
	Edge        string    `json:"edge"`
	Lane        string    `json:"lane"`
	Incarnation string    `json:"incarnation"`
	First       int64     `json:"first"`
	Last        int64     `json:"last"`
	MayReturn   bool      `json:"may_return"`
	NotedAt     time.Time `json:"noted_at"`
}

// Status is the store's part of /status.
type Status struct {
	Edges []EdgeLag `json:"edges"`
	Gaps  []Gap     `json:"gaps"` // the newest hundred
	Fault string    `json:"fault,omitempty"`
}

// Status tells the books and the gaps.
func (s *Store) Status(ctx context.Context) Status {
	edges, err := s.Lag(ctx)
	if err != nil {
		return Status{Fault: err.Error()}
	}
	scan := func(row pgx.CollectableRow) (g Gap, err error) {
		var lane int16
		err = row.Scan(&g.Edge, &lane, &g.Incarnation, &g.First, &g.Last, &g.MayReturn, &g.NotedAt)
		g.Lane = up.Lane(lane).String()
		return g, err
	}
	gaps, err := postgres.All(ctx, s.db.App, "list gaps", scan, `
		SELECT edge, lane, incarnation::text, first_number, last_number, may_return, noted_at FROM ingest_gaps ORDER BY noted_at DESC LIMIT 100`)
	if err != nil {
		return Status{Edges: edges, Gaps: []Gap{}, Fault: err.Error()}
	}
	return Status{Edges: edges, Gaps: gaps}
}

// Retire serves POST /edges/{edge}/retire on the operators' listener, not on the API:
// edges belong to the installation and to no organization, so no organization's role
// can decide over one. heard tells when an edge was last heard of by this process.
//
// From then on the edge's lanes pass over what is missing; the gaps are recorded. An
// edge that comes back with its disk is asked for what was passed over.
func (s *Store) Retire(heard func(edge string) time.Time) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		edge := r.PathValue("edge")
		if err := s.retire(r.Context(), edge, heard(edge)); err != nil {
			reply.Error(w, r, err)
			return
		}
		_ = reply.JSON(w, http.StatusOK, map[string]any{"edge_id": edge, "retired": true}) // a map of that always marshals
	}
}

// retireAfter is how long an edge must have been silent.
const retireAfter = time.Minute

func (s *Store) retire(ctx context.Context, edge string, heard time.Time) error {
	var reported *time.Time
	var known bool
	err := s.db.App.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM ingest_cursors WHERE edge = $1) OR EXISTS (SELECT FROM ingest_reports WHERE edge = $1),
			(SELECT max(reported_at) FROM ingest_reports WHERE edge = $1)`, edge).Scan(&known, &reported)
	if err != nil {
		return fmt.Errorf("look for an edge: %w", err)
	}
	if !known {
		return problem.New(problem.NotFound, "not_found")
	}
	if reported != nil && reported.After(heard) {
		heard = *reported
	}
	if time.Since(heard) < retireAfter {
		return problem.Newf(problem.Conflict, "edge_alive", "the edge was heard of %s ago; stop it first", time.Since(heard).Round(time.Second))
	}
	if _, err := s.db.App.Exec(ctx, `INSERT INTO ingest_retired (edge) VALUES ($1) ON CONFLICT DO NOTHING`, edge); err != nil {
		return fmt.Errorf("retire an edge: %w", err)
	}
	return nil
}

// Collector shows the books as metrics.
type Collector struct {
	store *Store
	count *prometheus.Desc
	bytes *prometheus.Desc
	age   *prometheus.Desc
}

// NewCollector returns the store's metrics.
func NewCollector(store *Store) *Collector {
	return &Collector{
		store: store,
		count: prometheus.NewDesc("skerry_ingest_operations", "Operations of an edge's lane by what became of them; received is the sum of the others.", []string{"edge", "lane", "fate"}, nil),
		bytes: prometheus.NewDesc("skerry_ingest_pending_bytes", "Bytes that wait in an edge's log.", []string{"edge", "lane"}, nil),
		age:   prometheus.NewDesc("skerry_ingest_oldest_age_seconds", "Age of the oldest operation that is not stored.", []string{"edge", "lane"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	out <- c.count
	out <- c.bytes
	out <- c.age
}

// Collect implements prometheus.Collector. Without the database there is nothing to tell.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	edges, err := c.store.Lag(ctx)
	if err != nil {
		return
	}
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	for _, e := range edges {
		for _, l := range e.Lanes {
			for fate, n := range map[string]int64{"received": l.Received, "stored": l.Stored, "duplicate": l.Duplicate,
				"erased": l.Erased, "dead": l.Dead, "pending": l.Pending} {
				gauge(c.count, float64(n), e.EdgeID, l.Lane, fate)
			}
			gauge(c.bytes, float64(l.PendingBytes), e.EdgeID, l.Lane)
			gauge(c.age, l.OldestAgeSeconds, e.EdgeID, l.Lane)
		}
	}
}
