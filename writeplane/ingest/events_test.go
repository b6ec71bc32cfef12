package ingest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"skerry/replication/up"
	"skerry/writeplane/identity"
)

// TestWindowsOfAnySizeFindWhatASortWouldFind: one history, many window sizes and page
// lengths, one answer.
func TestWindowsOfAnySizeFindWhatASortWouldFind(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	rng := rand.New(rand.NewPCG(7, 7))
	now := time.Now()
	var requests []request
	for i := range 400 {
		at := now.Add(-time.Duration(rng.ExpFloat64() * float64(time.Hour)))
		switch i % 5 {
		case 0: // a crowd
			at = now.Add(-9 * time.Hour).Add(time.Duration(rng.IntN(20_000)) * time.Microsecond)
		case 1: // all at once
			at = now.Add(-30 * time.Minute)
		case 2:
			at = now.Add(-time.Duration(rng.IntN(3*365*24)) * time.Hour)
		case 3:
			at = now.Add(time.Duration(rng.IntN(150*365*24)) * time.Hour) // clocks that are far ahead
		}
		op := track(fmt.Sprint("e", i%3), "u1")
		op.Timestamp = at.UnixMicro()
		received := now // an edge sees to it that no timestamp is more than a day ahead of its receipt
		if at.After(now) {
			received = at
		}
		requests = append(requests, in(projectA, received, op))
	}
	b.send(t, "e1", up.LaneEvent, requests...)
	scope := identity.Scope{Project: projectA, Environment: up.Live}
	since, until := now.Add(-20*time.Hour), now.Add(-10*time.Minute)
	for name, f := range map[string]filter{
		"all": {scope: scope}, "named": {scope: scope, name: "e1"}, "since": {scope: scope, since: &since},
		"until": {scope: scope, until: &until}, "between": {scope: scope, since: &since, until: &until},
	} {
		where, args := f.where()
		rows, err := b.db.App.Query(t.Context(), `SELECT id FROM events e WHERE `+where+` ORDER BY timestamp DESC, id DESC`, args...)
		if err != nil {
			t.Fatal(err)
		}
		want, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		if err != nil {
			t.Fatal(err)
		}
		for _, most := range []int{1, 7, 50, 10_000} {
			var got []uuid.UUID
			page := f
			for len(got) <= len(want) {
				keys, err := newest(t.Context(), b.db.App, page, 60, most)
				if err != nil {
					t.Fatal(err)
				}
				if len(keys) == 0 {
					break
				}
				for _, k := range keys {
					got = append(got, k.ID)
				}
				page.after = &keys[len(keys)-1]
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s, windows of %d: %d events, want %d, or another order", name, most, len(got), len(want))
			}
		}
	}
}
