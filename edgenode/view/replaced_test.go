package view

import (
	"log/slog"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"skerry/edgenode/store"
	"skerry/pkg/state"
	"skerry/replication"
)

// A damaged store is replaced by an empty one, which is filled lane by lane. What changes between the first lane and the
// second must not be put on top of an environment, or of members, that have missed what changed before.
func TestWhatIsInMemoryOverAReplacedStoreIsServedAsItWas(t *testing.T) {
	t.Parallel()
	e := withBeta(t, 1)
	e.views.hooks.Decisions = remember
	e.put(map[replication.Subject]any{flag("a"): flagBody("a", 1), flag("b"): flagBody("b", 1)})
	old := e.env("live")
	inBeta(old, "ann") // so that the members are in memory

	disk, err := store.Open(store.Config{Dir: "new", FS: vfs.NewMem(), Log: slog.New(slog.DiscardHandler)}, e.observe)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = disk.Close() })
	e.disk, e.views.disk = disk, disk
	e.commit(map[replication.Subject]any{flag("b"): flagBody("b", 2), beta(0): state.CohortShard{Members: []string{"ann"}}}) // missed
	e.serveLane(replication.Normal, 0)
	e.put(map[replication.Subject]any{flag("a"): flagBody("a", 2)})
	env := e.env("live")
	if env.Revision != old.Revision || version(env, "a") != 1 || version(env, "b") != 1 {
		t.Errorf("while a lane is missing: revision %s, a %d, b %d", env.Revision, version(env, "a"), version(env, "b"))
	}
	if in, known := inBeta(env, "ann"); in || !known {
		t.Errorf("while a lane is missing: a member: %t, known: %t", in, known)
	}
	e.shown = func() {
		if in, known := inBeta(e.env("test"), "ann"); !in || !known {
			t.Errorf("when both lanes are stored: a member: %t, known: %t", in, known)
		}
	}
	e.serveLane(replication.Urgent, 0)
	env = e.env("live")
	if in, known := inBeta(env, "ann"); version(env, "a") != 2 || version(env, "b") != 2 || !in || !known {
		t.Errorf("a %d, b %d, a member: %t, known: %t", version(env, "a"), version(env, "b"), in, known)
	}
}
