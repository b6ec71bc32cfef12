package stage

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
)

// Query asks the centre's database for one value.
func Query[T any](ctx context.Context, s *Stage, sql string, args ...any) (value T, err error) {
	conn, err := pgx.Connect(ctx, s.Credentials.PostgresURL)
	if err != nil {
		return value, fmt.Errorf("reach the benchmark's database: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if err := conn.QueryRow(ctx, sql, args...).Scan(&value); err != nil {
		return value, fmt.Errorf("ask the benchmark's database: %w", err)
	}
	return value, nil
}

// Settled waits until the edges serve everything that is committed.
func (s *Stage) Settled(ctx context.Context, edges ...*Edge) error {
	committed, err := Query[uint64](ctx, s, "SELECT position FROM lanes WHERE lane = 0")
	if err != nil {
		return err
	}
	for _, e := range edges {
		err := e.Until(ctx, "an edge to catch up", func() error {
			var status struct {
				Lanes []struct {
					Lane     string `json:"lane"`
					Position uint64 `json:"position"`
				} `json:"lanes"`
			}
			if err := getJSON(ctx, "http://"+e.OperatorAddress+"/status", &status); err != nil {
				return err
			}
			for _, lane := range status.Lanes {
				if lane.Lane == "normal" && lane.Position >= committed {
					return nil
				}
			}
			return fmt.Errorf("not at %d yet", committed)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// eventLane is the number of the lane of events on the wire and in the database.
const eventLane = 3

// Stored waits until the centre has stored a number of events of an edge, and tells how
// many there are when it gives up.
func (s *Stage) Stored(ctx context.Context, e *Edge, want int64) (int64, error) {
	conn, err := pgx.Connect(ctx, s.Credentials.PostgresURL)
	if err != nil {
		return 0, fmt.Errorf("reach the benchmark's database: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var stored int64
		// The cursors' counters, because counting rows would be a load of its own.
		err := conn.QueryRow(ctx, "SELECT coalesce(sum(stored), 0)::bigint FROM ingest_cursors WHERE edge = $1 AND lane = $2", e.ID, eventLane).Scan(&stored)
		if err != nil {
			return stored, fmt.Errorf("count stored events: %w", err)
		}
		if stored >= want {
			return stored, nil
		}
		select {
		case <-ctx.Done():
			return stored, fmt.Errorf("%d of %d events are stored: %w", stored, want, ctx.Err())
		case <-tick.C:
		}
	}
}

func getJSON(ctx context.Context, url string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return json.NewDecoder(response.Body).Decode(into)
}
