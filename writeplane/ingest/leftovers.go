package ingest

import (
	"context"
	"encoding/hex"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"skerry/replication/up"
	"skerry/writeplane/postgres"
)

const (
	leftoversEvery = 6 * time.Hour
	// leftoversAge is how old a payload must be: an edge that has not heard that its
	// operation is stored may put the payload again, just now.
	leftoversAge = 24 * time.Hour
)

// SweepLeftovers removes, until ctx ends, payloads that nothing refers to any more: a
// process died between the commit of an operation and the removal of its payload, or
// an edge put one again. leader says whether this process is the one that sweeps.
func (s *Store) SweepLeftovers(ctx context.Context, leader func(ctx context.Context, name string, term time.Duration) (bool, error)) error {
	tick := time.NewTicker(leftoversEvery)
	defer tick.Stop()
	for {
		if lead, err := leader(ctx, "ingest-leftovers", time.Hour); err == nil && lead {
			removed, err := s.removeLeftovers(ctx, time.Now(), leftoversAge)
			switch {
			case err != nil && ctx.Err() == nil:
				slog.Warn("sweeping payloads was put off", "error", err)
			case removed > 0:
				slog.Info("payloads that nothing refers to were removed", "payloads", removed)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// removeLeftovers removes payloads that are older than age at a time, by the database's clock
// too, and whose operation has been taken and is no dead letter. What has not been taken is kept however old it is: the edge that
// put it has it in its log still. So is what does not look like a payload.
func (s *Store) removeLeftovers(ctx context.Context, now time.Time, age time.Duration) (removed int, err error) {
	agreed, err := postgres.Earlier(ctx, s.db.App, now)
	if err != nil {
		return 0, err
	}
	before := agreed.Add(-age)
	var candidates []string
	err = s.blobs.Walk(ctx, "ingest/", func(key string, _ int64, modified time.Time) error {
		if modified.After(before) {
			return nil
		}
		taken, err := s.taken(ctx, key)
		if taken {
			candidates = append(candidates, key)
		}
		return err
	})
	if err != nil || len(candidates) == 0 {
		return 0, err
	}
	// A dead letter is committed with the cursor that shows its operation as taken, so it
	// is visible by now.
	leftovers, err := postgres.All(ctx, s.db.App, "look for dead letters of payloads", pgx.RowTo[string], `
		SELECT key FROM unnest($1::text[]) AS c (key) WHERE NOT EXISTS (SELECT FROM dead_letters d WHERE d.blob_key = c.key)`, candidates)
	if err != nil {
		return 0, err
	}
	for _, key := range leftovers {
		if err := s.blobs.Delete(ctx, key); err != nil {
			return removed, err
		}
		removed++
	}
	return removed, nil
}

// taken tells whether the operation that a payload belongs to has been taken.
func (s *Store) taken(ctx context.Context, key string) (bool, error) {
	edge, in, lane, number, ok := payloadKey(key)
	if !ok {
		return false, nil
	}
	through, err := s.Stored(ctx, edge, lane, in)
	return number <= through, err
}

// payloadKey reads ingest/<edge>/<incarnation in hex>/<lane>/<number>.
func payloadKey(key string) (edge string, in up.Incarnation, lane up.Lane, number uint64, ok bool) {
	parts := strings.Split(key, "/")
	if len(parts) != 5 || !up.ValidEdge(parts[1]) {
		return "", in, 0, 0, false
	}
	raw, err := hex.DecodeString(parts[2])
	if err != nil || len(raw) != len(uuid.UUID{}) {
		return "", in, 0, 0, false
	}
	in.ID = [16]byte(raw)
	lane, ok = up.ParseLane(parts[3])
	number, err = strconv.ParseUint(parts[4], 10, 64)
	return parts[1], in, lane, number, ok && err == nil && number > 0
}
