package access_test

import (
	"context"
	"testing"
	"time"

	"skerry/pkg/natsserver/natstest"
	"skerry/replication/tally"
)

func TestUsesHereAndAtEdgesBecomeTheLastUse(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	nc := natstest.New(t).Connect(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- p.store.HearUses(ctx, nc) }()
	go func() { ended <- p.store.Run(ctx) }()

	if _, ok, err := p.store.ByKey(t.Context(), p.founding.Keys["test"].Secret); !ok || err != nil {
		t.Fatal(ok, err)
	}
	// Reports may come before anybody listens: edges tell again while the key is used.
	used := func(environment string) (at *time.Time) {
		if err := p.db.App.QueryRow(t.Context(), `SELECT last_used_at FROM api_keys WHERE id = $1`, p.founding.Keys[environment].ID).Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	ahead := tally.KeyUseReport{Edge: "e1", At: time.Now().Add(time.Hour), Keys: []string{p.founding.Keys["live"].ID}}
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for used("live") == nil || used("test") == nil {
		if err := nc.Publish("tally.keys.e1", ahead.Encode()); err != nil {
			t.Fatal(err)
		}
		_ = nc.Publish("tally.keys.e1", []byte("garbage"))
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatal("no use was written")
		}
	}
	if at := used("live"); at.After(time.Now()) {
		t.Errorf("a use in the future: %v", at)
	}
	cancel()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
