package ingest

import (
	"fmt"
	"testing"
	"time"

	"skerry/replication/up"
)

func TestPayloadsThatNothingRefersToAreSwept(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	key := func(lane up.Lane, number int) string {
		return fmt.Sprintf("ingest/e1/%x/%s/%d", life1.ID, lane, number)
	}
	put := func(key string) {
		t.Helper()
		w, err := b.blobs.Create(t.Context(), key, "application/json")
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	kept := map[string]string{
		key(up.LanePeople, 1):                         "a dead letter's",
		key(up.LaneEvent, 3):                          "of an operation that has not come",
		key(up.LaneCrash, 1):                          "of a lane of which nothing has come",
		fmt.Sprintf("ingest/e1/%x/event/1", life2.ID): "of an incarnation of which nothing has come",
		"ingest/e1/notes":                             "nobody's",
		"ingest/e1/zz/event/1":                        "nobody's",
		fmt.Sprintf("ingest/e1/%x/event/0", life1.ID): "nobody's",
	}
	for k := range kept {
		put(k)
	}
	put(key(up.LaneEvent, 1))
	put(key(up.LaneEvent, 2))
	b.send(t, "e1", up.LaneEvent, in(projectA, noon, track("a", "u"), track("b", "u")))
	letter := &up.Reference{Key: key(up.LanePeople, 1), Size: 1}
	b.send(t, "e1", up.LanePeople, in(projectA, noon, up.Operation{DistinctID: []byte("u"), Ref: letter})) // a profile that large is a dead letter
	for _, c := range []struct {
		ahead, age time.Duration
		want       int
	}{{0, time.Hour, 0}, {48 * time.Hour, time.Hour, 0}, {48 * time.Hour, 0, 2}, {0, 0, 0}} {
		if got, err := b.removeLeftovers(t.Context(), time.Now().Add(c.ahead), c.age); err != nil || got != c.want {
			t.Errorf("older than %s by a clock %s ahead: %d removed, want %d, %v", c.age, c.ahead, got, c.want, err)
		}
	}
	left := map[string]bool{}
	if err := b.blobs.Walk(t.Context(), "ingest/", func(key string, _ int64, _ time.Time) error { left[key] = true; return nil }); err != nil {
		t.Fatal(err)
	}
	for k, what := range kept {
		if !left[k] {
			t.Errorf("%s, %s, is gone", k, what)
		}
	}
	if len(left) != len(kept) {
		t.Errorf("left: %v", left)
	}
}
