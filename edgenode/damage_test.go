package edgenode

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skerry/pkg/apikey"
	"skerry/pkg/decide"
	"skerry/pkg/state"
	"skerry/replication"
	"skerry/replication/down/downtest"
)

const clubID, clubKey = "0190a3c1-7d2e-7c3a-9f10-0a1b2c3d4eff", "sk_live_MMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMM"

// newClub is another project, with a cohort whose members take far more room than everything else together. It returns a
// member whose shard lies in the middle of them, in the order of subjects.
func newClub() (club map[replication.Subject]any, member string) {
	const shards = 40
	random := rand.New(rand.NewPCG(1, 2))
	var members [shards]state.CohortShard
	for range 20_000 {
		id := fmt.Sprintf("user-%016x", random.Uint64())
		in := &members[decide.Shard(id, shards)]
		in.Members = append(in.Members, id)
	}
	club = map[replication.Subject]any{
		replication.ProjectSubject(clubID): state.Project{
			ID: clubID, Name: "Club", Tier: "pro", Modules: state.Modules{Switch: true},
			RateLimits: state.RateLimits{IngestPerMinute: 1 << 20, HandshakePerMinute: 1 << 20},
		},
		replication.KeySubject(apikey.Of(clubKey).String()):    state.Key{ID: "k2", ProjectID: clubID, Environment: "live"},
		replication.CohortSubject(clubID, "club"):              state.Cohort{Name: "club", Shards: shards},
		replication.FlagSubject(clubID, "live", "for-members"): state.Flag{ID: "f2", Key: "for-members", Kind: "boolean", DefaultValue: "false", Enabled: true, Version: 1},
	}
	for i, m := range members {
		club[replication.CohortShardSubject(clubID, "club", i)] = m
	}
	return club, members[26].Members[0]
}

// TestDamagedStateIsNeverAWrongAnswer damages the members of a cohort on the disk of an edge whose centre is gone.
func TestDamagedStateIsNeverAWrongAnswer(t *testing.T) {
	t.Parallel()
	c := newCentre(t)
	c.shop()
	club, someone := newClub()
	c.commit(club)
	member := "/api/v1/handshake?distinct_id=" + someone
	data := t.TempDir()
	first := c.edge(data)
	downtest.Eventually(t, func() string {
		status, body, _ := first.ask("GET", member, "", "x-api-key", clubKey)
		if status != 200 || !strings.Contains(body, `"cohorts":["club"]`) {
			return fmt.Sprint(status, body)
		}
		return ""
	})
	first.stop()
	start(t, c.config(data)).stop() // what stood in the log is now in a table
	c.nats.Stop()
	scribbleLargest(t, filepath.Join(data, "state", "db"))

	e := start(t, c.config(data))
	if e.views.Ready() || e.Status().Damage == nil {
		t.Error("it calls itself ready")
	}
	if status, body, _ := e.ask("GET", decision, "", "x-api-key", key); status != 200 {
		t.Errorf("what can be read: %d %s", status, body)
	}
	for what, one := range map[string]struct{ path, key string }{
		"a member": {member, clubKey}, "an unknown key": {decision, "sk_live_UNKNOWN"},
	} {
		if status, body, h := e.ask("GET", one.path, "", "x-api-key", one.key); status != 503 || strings.Contains(body, "cohorts") || h.Get("ETag") != "" {
			t.Errorf("%s: %d %s %v", what, status, body, h)
		}
	}
	if status, body, _ := e.ask("POST", "/api/v1/track", `{"event_name":"e","distinct_id":"user-17"}`, "x-api-key", key, "content-type", "application/json"); status != 200 {
		t.Errorf("an event: %d %s", status, body)
	}

	c.nats.Start()
	downtest.Eventually(t, func() string {
		if status, body, _ := e.ask("GET", decision, "", "x-api-key", key); status != 200 && status != 503 {
			t.Errorf("meanwhile a valid key: %d %s", status, body)
		}
		if status, body, _ := e.ask("GET", member, "", "x-api-key", clubKey); status != 200 || !strings.Contains(body, `"cohorts":["club"]`) {
			return fmt.Sprint(status, body)
		}
		if !e.views.Ready() {
			return "it is not ready"
		}
		return ""
	})
	if d := e.Status().Damage; d == nil || !strings.Contains(d.Path, ".damaged-") {
		t.Errorf("%+v", d)
	}
	if status, body, _ := e.ask("GET", decision, "", "x-api-key", "sk_live_UNKNOWN"); status != http.StatusUnauthorized && status != http.StatusForbidden {
		t.Errorf("afterwards an unknown key: %d %s", status, body)
	}
}

// scribbleLargest changes the middle third of the largest table.
func scribbleLargest(t *testing.T, dir string) {
	t.Helper()
	tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	if err != nil {
		t.Fatal(err)
	}
	var largest string
	var body []byte
	for _, path := range tables {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > len(body) {
			largest, body = path, b
		}
	}
	if len(body) < 100_000 {
		t.Fatalf("%d tables, the largest of %d bytes", len(tables), len(body))
	}
	for i := len(body) / 3; i < len(body)*2/3; i++ {
		body[i] ^= 1
	}
	if err := os.WriteFile(largest, body, 0o600); err != nil {
		t.Fatal(err)
	}
}
