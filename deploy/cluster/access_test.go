package cluster_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"
)

// admin calls the write plane as org_admin and returns the answer's members.
func (c *cluster) admin(method, path, body string) map[string]any {
	c.t.Helper()
	status, answer, _ := c.do(method, c.plane.URL()+path, body, "Authorization", "Bearer "+c.tokens["admin"])
	if status < 200 || status > 299 {
		c.t.Fatalf("%s %s: %d %s", method, path, status, answer)
	}
	var members map[string]any
	if err := json.Unmarshal([]byte(answer), &members); err != nil {
		c.t.Fatal(err)
	}
	return members
}

// holds waits until every edge answers a key's call with the status, and returns how
// long the slowest took. It asks for decisions, which have no rate limit by default:
// asking every millisecond would use the handshake's up.
func (c *cluster) holds(key string, status int) time.Duration {
	c.t.Helper()
	begun := time.Now()
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for _, edge := range c.edges {
		for {
			got, answer, _ := c.do("GET", "http://"+edge.Addr().String()+"/api/switch/decisions?distinct_id=ada", "", "x-api-key", key)
			if got == status {
				break
			}
			if time.Since(begun) > 30*time.Second {
				c.t.Fatalf("an edge still answers %d %s, not %d", got, answer, status)
			}
			<-poll.C
		}
	}
	return time.Since(begun)
}

func TestKeysBeginAndEndAtEveryEdge(t *testing.T) {
	c := newCluster(t, 3)
	path := "/api/v1/projects/" + c.founding.ProjectID + "/api-keys"
	var took []time.Duration
	within := func(what string, d time.Duration) {
		t.Logf("%s: %v", what, d)
		took = append(took, d)
	}
	for range 5 {
		made := c.admin("POST", path, `{"name":"k","environment":"live"}`)
		id, first := made["api_key"].(map[string]any)["id"].(string), made["secret"].(string)
		within("new key", c.holds(first, 200))
		second := c.admin("POST", "/api/v1/api-keys/"+id+"/rotate", `{"grace_period_seconds":600}`)["secret"].(string)
		within("second secret", c.holds(second, 200))
		c.holds(first, 200) // within its grace
		third := c.admin("POST", "/api/v1/api-keys/"+id+"/rotate", `{"grace_period_seconds":0}`)["secret"].(string)
		within("ended without grace", c.holds(second, 401))
		c.holds(first, 401)
		within("third secret", c.holds(third, 200))
		c.admin("DELETE", "/api/v1/api-keys/"+id, "")
		within("revoked", c.holds(third, 401))
	}
	// Supplement §2: within a second. The median says what the system does; a busy
	// machine may hold a single one back.
	slices.Sort(took)
	if median := took[len(took)/2]; median > time.Second {
		t.Errorf("half of the changes took longer than %v", median)
	}

	// A grace that ends does so at the edges by their own clocks.
	made := c.admin("POST", path, `{"name":"short","environment":"live"}`)
	c.holds(made["secret"].(string), 200)
	c.admin("POST", "/api/v1/api-keys/"+made["api_key"].(map[string]any)["id"].(string)+"/rotate", `{"grace_period_seconds":1}`)
	c.holds(made["secret"].(string), 401)
}

func TestRevocationReachesAnEdgeThatWasAway(t *testing.T) {
	c := newCluster(t, 1)
	made := c.admin("POST", "/api/v1/projects/"+c.founding.ProjectID+"/api-keys", `{"name":"k","environment":"live"}`)
	c.holds(made["secret"].(string), 200)
	c.stopEdge(0)
	c.admin("DELETE", "/api/v1/api-keys/"+made["api_key"].(map[string]any)["id"].(string), "")
	c.startEdge(0)
	c.holds(made["secret"].(string), 401)
}

func TestDeletedProjectIsGoneFromEveryEdge(t *testing.T) {
	c := newCluster(t, 2)
	id := c.admin("POST", "/api/v1/projects", `{"name":"Second"}`)["project"].(map[string]any)["id"].(string)
	key := c.admin("POST", "/api/v1/projects/"+id+"/api-keys", `{"name":"k","environment":"test"}`)["secret"].(string)
	c.admin("POST", "/api/v1/cohorts?project_id="+id, `{"name":"beta","predicate":null,"members":["ada"]}`)
	c.holds(key, 200)
	c.admin("DELETE", "/api/v1/projects/"+id, "")
	c.holds(key, 401)
	c.holds(c.founding.Keys["live"].Secret, 200)
}

func TestUseOfAKeyAtAnEdgeIsTold(t *testing.T) {
	c := newCluster(t, 1)
	deadline := time.After(time.Minute)
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for {
		c.holds(c.founding.Keys["test"].Secret, 200)
		for _, key := range c.admin("GET", "/api/v1/projects/"+c.founding.ProjectID+"/api-keys", "")["api_keys"].([]any) {
			if key := key.(map[string]any); key["environment"] == "test" && key["last_used_at"] != nil {
				return
			}
		}
		select {
		case <-deadline:
			t.Fatal("no use was told")
		case <-poll.C:
		}
	}
}
