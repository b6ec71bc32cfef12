package view

import (
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"skerry/pkg/decide"
	"skerry/pkg/state"
	"skerry/replication"
)

// beta is the nth shard of a cohort's members.
func beta(n int) replication.Subject { return replication.CohortShardSubject(project, "beta", n) }

// withBeta is an edge with a cohort of so many shards, which are empty.
func withBeta(t *testing.T, shards int) *edge {
	t.Helper()
	e := withProject(t, Options{})
	bodies := map[replication.Subject]any{replication.CohortSubject(project, "beta"): state.Cohort{Name: "beta", Shards: shards}}
	for n := range shards {
		bodies[beta(n)] = state.CohortShard{}
	}
	e.put(bodies)
	return e
}

func inBeta(env *Environment, id string) (in, known bool) {
	c, _ := env.Cohort("beta")
	return env.Members(c).Has(id)
}

// A tag is made of the environment's positions, so one environment has one answer to one user, or none.
func TestMembersAreOfTheirEnvironmentsState(t *testing.T) {
	t.Parallel()
	for _, kept := range []bool{true, false} {
		e := withBeta(t, 1)
		old := e.env("live")
		if kept {
			inBeta(old, "ann")
		}
		e.shown = func() {
			if in, known := inBeta(old, "ann"); in {
				t.Errorf("kept %t: the old environment has the new members (known: %t)", kept, known)
			}
			// Compiled from the changed disk, while what is kept of the members is not.
			if in, known := inBeta(e.env("test"), "ann"); !in || !known {
				t.Errorf("kept %t: the new environment has the old members (known: %t)", kept, known)
			}
		}
		e.put(map[replication.Subject]any{beta(0): state.CohortShard{Members: []string{"ann"}}})
		if in, _ := inBeta(old, "ann"); in {
			t.Errorf("kept %t: afterwards the old environment has the new members", kept)
		}
		for _, name := range []string{"live", "test"} {
			if in, known := inBeta(e.env(name), "ann"); !in || !known {
				t.Errorf("kept %t: afterwards %s: %t, known: %t", kept, name, in, known)
			}
		}
		// A shard that has gone has no position of its own.
		old, e.shown = e.env("live"), nil
		e.put(map[replication.Subject]any{beta(0): nil})
		if _, known := inBeta(old, "ann"); known {
			t.Errorf("kept %t: the old environment knows members that are gone", kept)
		}
		if in, known := inBeta(e.env("live"), "ann"); in || !known {
			t.Errorf("kept %t: the shard is gone: %t, known: %t", kept, in, known)
		}
	}
}

func TestNothingChangesMembersOfASettledEnvironment(t *testing.T) {
	t.Parallel()
	e := withBeta(t, 1)
	var storing sync.WaitGroup
	ok := e.views.Settled(project, "live", func(env *Environment) {
		storing.Go(func() { e.put(map[replication.Subject]any{beta(0): state.CohortShard{Members: []string{"ann"}}}) })
		for range 1000 {
			if in, known := inBeta(env, "ann"); in || !known {
				t.Fatalf("%t, known: %t", in, known)
			}
		}
	})
	storing.Wait()
	if !ok {
		t.Error("no environment")
	}
	if e.views.Settled("0190a3c1-7d2e-7c3a-9f10-000000000000", "live", func(*Environment) { t.Error("an environment of no project") }) {
		t.Error("an unknown project is known")
	}
}

// A read that began before a change must not answer whoever asks after it.
func TestMembersAreNotThoseOfAReadBegunBefore(t *testing.T) {
	t.Parallel()
	e := withBeta(t, 1)
	key := memberKey{project, "beta", 0}
	begun, done := make(chan struct{}), make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() {
		_, _, err := e.views.members.load(key, key.name(), func() (*memberSet, bool, error) {
			close(begun)
			<-done
			return &memberSet{}, true, nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-begun
	e.put(map[replication.Subject]any{beta(0): state.CohortShard{Members: []string{"ann"}}})
	env := e.env("live")
	var in, known bool
	reading.Go(func() { in, known = inBeta(env, "ann") })
	for range 1000 { // so that it most likely waits for the other read; if not, this shows nothing
		runtime.Gosched()
	}
	close(done)
	reading.Wait()
	if !in || !known {
		t.Errorf("%t, known: %t", in, known)
	}
}

func TestAChangeOfOneShardLeavesTheOthersInMemory(t *testing.T) {
	t.Parallel()
	const shards = 8
	e := withBeta(t, shards)
	of := make(map[int]string) // an id of each shard
	for i := 0; len(of) < shards; i++ {
		id := "user-" + string(rune('a'+i%26)) + string(rune('a'+i/26))
		of[decide.Shard(id, shards)] = id
	}
	read := func() int64 {
		before := e.views.members.reads.Load()
		for _, id := range of {
			if _, known := inBeta(e.env("live"), id); !known {
				t.Errorf("%s is not known", id)
			}
		}
		return e.views.members.reads.Load() - before
	}
	if n := read(); n != shards {
		t.Errorf("%d shards were read at first", n)
	}
	e.put(map[replication.Subject]any{beta(3): state.CohortShard{Members: []string{of[3]}}})
	if n := read(); n != 1 {
		t.Errorf("%d shards were read after a change of one", n)
	}
	if in, _ := inBeta(e.env("live"), of[3]); !in {
		t.Error("the change is not seen")
	}
	e.put(map[replication.Subject]any{replication.CohortSubject(project, "beta"): state.Cohort{Name: "beta", Shards: shards}, flag("a"): flagBody("a", 1)})
	if n := read(); n != 0 {
		t.Errorf("%d shards were read after a change of none", n)
	}
}

// someShards divides half of the users over the shards of the cohort beta, and gives a third of the shards.
func someShards(r *rand.Rand, shards, users int) map[replication.Subject]any {
	lists := make([]state.CohortShard, shards)
	for n := range users {
		if id := "user-" + strconv.Itoa(n); r.IntN(2) == 0 {
			in := &lists[decide.Shard(id, shards)]
			in.Members = append(in.Members, id)
		}
	}
	bodies := map[replication.Subject]any{}
	for n, list := range lists {
		if r.IntN(3) == 0 {
			bodies[beta(n)] = list
		}
	}
	return bodies
}

// However environments and members come into memory and leave it, while everything changes: of one state of the cohorts
// there is one answer.
func TestOneStateOneAnswer(t *testing.T) {
	t.Parallel()
	const shards, users, changes = 4, 40, 300
	e := withProject(t, Options{Bytes: 1}) // so that one environment stays
	e.put(map[replication.Subject]any{replication.CohortSubject(project, "beta"): state.Cohort{Name: "beta", Shards: shards}})
	type question struct {
		at replication.Position
		id string
	}
	var mu sync.Mutex
	answers := map[question]bool{}
	look := func(env *Environment) {
		for n := range users {
			id := "user-" + strconv.Itoa(n)
			in, known := inBeta(env, id)
			if !known {
				continue
			}
			q := question{env.Modules.Cohorts.Normal, id}
			mu.Lock()
			if before, asked := answers[q]; asked && before != in {
				t.Errorf("at %d, %s: %t, and %t before", q.at, id, in, before)
			}
			answers[q] = in
			mu.Unlock()
		}
	}
	done := make(chan struct{})
	var reading sync.WaitGroup
	for _, name := range []string{"live", "live", "test"} {
		reading.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if env, ok := e.views.Environment(project, name); ok {
					look(env)
				}
			}
		})
	}
	e.shown = func() {
		for _, name := range []string{"live", "test"} {
			look(e.env(name))
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for n := range changes {
		bodies := someShards(r, shards, users)
		bodies[flag("a")] = flagBody("a", int64(n))
		e.put(bodies)
		if n%50 == 49 {
			e.serve(0)
		}
	}
	close(done)
	reading.Wait()
	if !e.views.Settled(project, "live", look) || len(answers) < users {
		t.Errorf("%d answers", len(answers))
	}
}
