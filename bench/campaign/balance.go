package campaign

import (
	"bufio"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const drainTime = 2 * time.Minute

// balance waits until the edges have nothing left to ship and compares.
func (l *ledger) balance(ctx context.Context, r *Result) error {
	conn, err := pgx.Connect(ctx, l.c.postgresURL)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	began := time.Now()
	if err := l.drained(ctx); err != nil {
		r.Broken = append(r.Broken, err.Error())
	}
	r.Books.DrainSeconds = time.Since(began).Seconds()
	for _, check := range []func(context.Context, *pgx.Conn, *Result) error{l.balanceEvents, l.balanceResponses, l.balanceVersions} {
		if err := check(ctx, conn, r); err != nil {
			return err
		}
	}
	if r.Books.ReadsFailed = l.readsFailed.Load(); r.Books.ReadsFailed > 0 {
		r.Broken = append(r.Broken, fmt.Sprintf("%d reads failed at living edges, first %s", r.Books.ReadsFailed, l.firstRead))
	}
	r.Books.Reads, r.Books.Changes = l.reads.Load(), l.changes.Load()
	if err := l.converged(ctx); err != nil {
		r.Broken = append(r.Broken, err.Error())
	}
	if l.fallen != "" {
		r.Broken = append(r.Broken, l.fallen)
	}
	var verdict struct {
		OK    bool   `json:"ok"`
		First *int64 `json:"first_broken_seq"`
	}
	if err := l.manage(ctx, "GET", "/api/v1/audit/verify", nil, &verdict); err != nil {
		return err
	}
	if !verdict.OK {
		r.Broken = append(r.Broken, "the audit chain is broken")
	}
	return nil
}

// drained waits until no edge has anything pending.
func (l *ledger) drained(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	var pending int64
	for {
		pending = 0
		for _, e := range l.c.edges {
			n, err := pendingAt(e)
			if err != nil {
				n = 1
			}
			pending += n
		}
		if pending == 0 {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%d operations were still pending after %s", pending, drainTime)
		}
		sleep(ctx, 50*time.Millisecond)
	}
}

// pendingMetric is what an edge has accepted and the centre has not yet stored, by lane.
const pendingMetric = "skerry_ingest_pending{"

// pendingAt reads the edge's own metric, summed over lanes.
func pendingAt(e *edge) (int64, error) {
	response, err := client.Get("http://" + e.ops + "/metrics")
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	var sum float64
	lanes := 0
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), pendingMetric) {
			continue
		}
		_, value, _ := strings.Cut(lines.Text(), "} ")
		pending, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("read metric: %w", err)
		}
		sum += pending
		lanes++
	}
	if lanes == 0 {
		return 0, fmt.Errorf("the edge's metrics do not name %s…}", pendingMetric)
	}
	return int64(sum), lines.Err()
}

func (l *ledger) balanceEvents(ctx context.Context, conn *pgx.Conn, r *Result) error {
	stored := map[int64]int{}
	rows, err := conn.Query(ctx, "SELECT distinct_id FROM events WHERE event_name = 'campaign'")
	if err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	for _, id := range ids {
		number, err := strconv.ParseInt(strings.TrimPrefix(id, "campaign-"), 10, 64)
		if err != nil {
			return fmt.Errorf("an event that nobody sent: %q", id)
		}
		stored[number]++
	}
	if err := conn.QueryRow(ctx, "SELECT count(*) FROM dead_letters").Scan(&r.Books.EventsDead); err != nil {
		return fmt.Errorf("count dead letters: %w", err)
	}
	r.Books.EventsStored = int64(len(ids))
	r.Books.Restores = l.restores
	for _, s := range l.answered {
		r.Books.EventsAnswered += s.count
		for n := s.first; n < s.first+s.count; n++ {
			if stored[n] > 0 {
				continue
			}
			if n <= l.forgiven {
				r.Books.EventsUndone++
			} else {
				r.Books.EventsLost++
			}
		}
	}
	for _, s := range l.unknown {
		r.Books.EventsUnknown += s.count
	}
	for _, times := range stored {
		if times > 1 {
			r.Books.EventsDoubled++
		}
	}
	if lost := r.Books.EventsLost - r.Books.EventsDead; lost > 0 {
		r.Broken = append(r.Broken, fmt.Sprintf("%d answered events are lost", lost))
	}
	if r.Books.EventsDoubled > 0 {
		r.Broken = append(r.Broken, fmt.Sprintf("%d events are stored more than once", r.Books.EventsDoubled))
	}
	return nil
}

func (l *ledger) balanceResponses(ctx context.Context, conn *pgx.Conn, r *Result) error {
	rows, err := conn.Query(ctx, "SELECT id FROM survey_responses")
	if err != nil {
		return fmt.Errorf("read responses: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("read responses: %w", err)
	}
	stored := map[string]bool{}
	for _, id := range ids {
		stored[id] = true
	}
	missing := 0
	for id, since := range l.responses {
		if !stored[id] && since > l.forgiven {
			missing++
		}
	}
	r.Books.ResponsesAnswered, r.Books.ResponsesStored = int64(len(l.responses)), int64(len(ids))
	if missing > 0 {
		r.Broken = append(r.Broken, fmt.Sprintf("%d responses answered 201 are not stored", missing))
	}
	var doubled int64
	err = conn.QueryRow(ctx, `SELECT count(*) FROM (SELECT external_id FROM survey_responses GROUP BY 1 HAVING count(*) > 1) d`).Scan(&doubled)
	if err != nil {
		return fmt.Errorf("count doubled responses: %w", err)
	}
	if doubled > 0 {
		r.Broken = append(r.Broken, fmt.Sprintf("%d responses are stored twice under one idempotency key", doubled))
	}
	return nil
}

func (l *ledger) balanceVersions(ctx context.Context, conn *pgx.Conn, r *Result) error {
	var count, highest, different int64
	err := conn.QueryRow(ctx, "SELECT count(*), max(version_number), count(DISTINCT version_number) FROM config_versions WHERE item_id = $1", l.item).
		Scan(&count, &highest, &different)
	if err != nil {
		return fmt.Errorf("read versions: %w", err)
	}
	if count != highest || count != different || count < l.confirmed.Load()+1 {
		r.Broken = append(r.Broken, fmt.Sprintf("%d versions, the highest %d, %d different numbers, %d changes confirmed", count, highest, different, l.confirmed.Load()))
	}
	return nil
}

// converged waits until every edge serves the same revision, that of one more change.
func (l *ledger) converged(ctx context.Context) error {
	if err := l.manage(ctx, "PATCH", "/api/v1/config/items/"+l.item, map[string]any{"default_value": "987654321"}, nil); err != nil {
		return err
	}
	return eventually(ctx, func() error {
		var first string
		for _, e := range l.c.edges {
			answer, err := l.handshake(ctx, e)
			if err != nil {
				return err
			}
			if !strings.Contains(string(answer), "987654321") {
				return fmt.Errorf("edge %s does not serve the last change: %.300s", e.id, answer)
			}
			if first == "" {
				first = string(answer)
			} else if first != string(answer) {
				return fmt.Errorf("edges serve different states:\n%s\n%s", first, answer)
			}
		}
		return nil
	})
}
