package view

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"sync"
	"testing"

	"skerry/pkg/state"
	"skerry/pkg/survey"
	"skerry/replication"
)

// remember is a hook that keeps every definition it is shown, as one that compiles does.
func remember(prev any, env *Environment, changed Changed) (any, int) {
	before, _ := prev.(map[string]any)
	now := map[string]any{}
	keep := func(kind, key string, definition any, here bool) {
		if here {
			now[kind+key] = definition
		} else if now[kind+key] = before[kind+key]; now[kind+key] == nil {
			panic("neither new nor known: " + kind + key)
		}
	}
	for _, f := range env.Flags {
		keep("flag ", f.Key, f.Definition, f.Definition != nil)
	}
	for _, i := range env.Items {
		keep("item ", i.Key, i.Definition, i.Definition != nil)
	}
	for _, s := range env.Surveys {
		keep("survey ", s.ID, s.Definition, s.Definition != nil)
	}
	return now, 0
}

// version is that of a flag in an environment with remember as its hook; -1: none.
func version(env *Environment, key string) int64 {
	if f, ok := env.Decisions.(map[string]any)["flag "+key].(*state.Flag); ok {
		return f.Version
	}
	return -1
}

func TestOneChangeRecompilesWhatItTouches(t *testing.T) {
	t.Parallel()
	var calls []Changed
	hook := func(prev any, env *Environment, changed Changed) (any, int) {
		calls = append(calls, changed)
		n, _ := prev.(int)
		return n + 1, 1000
	}
	e := withProject(t, Options{Hooks: Hooks{Decisions: hook}}, "a", "b")
	if got := e.env("live").Decisions; got != 1 {
		t.Errorf("compiled %v times, want once", got)
	}
	e.put(map[replication.Subject]any{flag("b"): flagBody("b", 2), flag("c"): flagBody("c", 1)})
	e.put(map[replication.Subject]any{replication.HaltSubject(project, "live", "a"): state.Halt{Key: "a"}})
	e.put(map[replication.Subject]any{replication.ConfigSubject(project, "live", "x"): state.ConfigItem{Key: "x"}, replication.CohortShardSubject(project, "m", 3): state.CohortShard{}})
	want := []Changed{
		{All: true, Settings: true},
		{Flags: []string{"b", "c"}},
		{Flags: []string{"a"}},
		{Items: []string{"x"}, Cohorts: []string{"m"}},
	}
	if !reflect.DeepEqual(calls, want) {
		t.Errorf("hook was called with\n%+v, want\n%+v", calls, want)
	}
	if got := e.env("live").Decisions; got != 4 {
		t.Errorf("prev was not handed on: %v", got)
	}
}

// TestHoweverItWasMadeItIsTheSame compares environments that were changed step by step with ones made at once.
func TestHoweverItWasMadeItIsTheSame(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 7))
	hooks := Hooks{Decisions: remember}
	e := withProject(t, Options{Hooks: hooks})
	e.env("live")
	e.env("test")
	for n := range 300 {
		bodies := map[replication.Subject]any{}
		for range 1 + r.IntN(4) {
			s, body := randomDocument(r, n)
			bodies[s] = body
		}
		e.put(bodies)
		if n%10 == 0 {
			e.serve(0) // as after a reset: everything must come out the same again
		}
		for _, name := range []string{"live", "test"} {
			stepwise := e.env(name)
			fresh := New(Options{Hooks: hooks})
			fresh.Attach(e.disk)
			once, ok := fresh.Environment(project, name)
			if !ok {
				t.Fatal("gone")
			}
			if a, b := describe(t, stepwise), describe(t, once); a != b {
				t.Fatalf("after %d transactions, step by step:\n%s\nat once:\n%s", n, a, b)
			}
		}
	}
}

func randomDocument(r *rand.Rand, n int) (replication.Subject, any) {
	env, key := []string{"live", "test"}[r.IntN(2)], "k"+strconv.Itoa(r.IntN(6))
	gone := r.IntN(4) == 0
	pick := func(s replication.Subject, body any) (replication.Subject, any) {
		if gone {
			return s, nil
		}
		return s, body
	}
	switch r.IntN(6) {
	case 0, 1:
		return pick(replication.FlagSubject(project, env, key), flagBody(key, int64(n)))
	case 2:
		return pick(replication.HaltSubject(project, env, key), state.Halt{Key: key, Version: int64(n)})
	case 3:
		return pick(replication.ConfigSubject(project, env, key), state.ConfigItem{Key: key, Type: "int", DefaultValue: strconv.Itoa(n)})
	case 4:
		return pick(replication.CohortSubject(project, key), state.Cohort{Name: key, Predicate: "session_count >= 2"})
	default:
		return pick(replication.SurveySubject(project, key), state.Survey{Bundle: survey.Bundle{Survey: survey.Survey{ID: key, Name: strconv.Itoa(n)}}})
	}
}

// describe writes down what others can see of an environment, and what it is reckoned to hold.
func describe(t *testing.T, e *Environment) string {
	t.Helper()
	text := fmt.Sprintf("%s %+v %d bytes\n", e.RevisionText, e.Modules, e.bytes)
	for _, list := range []any{e.Flags, e.Items, e.Surveys, e.Settings, e.Usage, e.halts, e.Decisions} {
		b, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		if string(b) == "null" {
			b = []byte("[]") // how nothing is held is nobody's matter
		}
		text += string(b) + "\n"
	}
	for _, c := range e.Cohorts {
		text += c.Name + " " + c.Predicate.String() + "\n"
	}
	return text
}

func TestUpdateBeatsAConcurrentCompilation(t *testing.T) {
	t.Parallel()
	e := withProject(t, Options{Bytes: 1, Hooks: Hooks{Decisions: remember}}, "a") // no room: every read may compile anew
	e.put(map[replication.Subject]any{flag("a"): flagBody("a", 3)})                // from here on the version is the position
	var reading sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		reading.Go(func() {
			last := replication.Revision{}
			for {
				select {
				case <-stop:
					return
				default:
				}
				env, ok := e.views.Environment(project, "live")
				if !ok {
					t.Error("gone")
					return
				}
				e.views.Environment(project, "test") // pushes the other out
				if env.Revision.Normal < last.Normal {
					t.Errorf("revision fell from %s to %s", last, env.Revision)
				}
				if replication.Position(version(env, "a")) != env.Revision.Normal {
					t.Errorf("version %d at revision %s", version(env, "a"), env.Revision)
				}
				last = env.Revision
			}
		})
	}
	for n := range 500 {
		e.put(map[replication.Subject]any{flag("a"): flagBody("a", int64(n+4))})
	}
	close(stop)
	reading.Wait()
}

func TestEnvironmentIsCompiledOnceHoweverManyAsk(t *testing.T) {
	t.Parallel()
	e := withProject(t, Options{}, "a")
	var asking sync.WaitGroup
	for range 50 {
		asking.Go(func() { e.views.Environment(project, "live") })
	}
	asking.Wait()
	if s := e.views.Stats(); s.Fills != 1 {
		t.Errorf("compiled %d times", s.Fills)
	}
}
