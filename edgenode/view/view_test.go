package view

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"skerry/edgenode/store"
	"skerry/pkg/apikey"
	"skerry/pkg/decide"
	"skerry/pkg/state"
	"skerry/replication"
	"skerry/replication/down"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const project = "0190a3c1-7d2e-7c3a-9f10-0a1b2c3d4e5f"

// edge is a disk with views, written to as followers do.
type edge struct {
	t     testing.TB
	disk  *store.Store
	views *Store
	at    [replication.Lanes]replication.Position
	all   map[replication.Subject]replication.Document
	shown func() // called when a change can be read from the disk and the views have not heard of it; may be nil
}

func newEdge(t testing.TB, options Options) *edge {
	t.Helper()
	options.Log = slog.New(slog.DiscardHandler)
	e := &edge{t: t, views: New(options), all: map[replication.Subject]replication.Document{}}
	disk, err := store.Open(store.Config{Dir: "state", FS: vfs.NewMem(), Log: options.Log}, e.observe)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = disk.Close() })
	e.disk = disk
	e.views.Attach(disk)
	return e
}

func (e *edge) observe(c store.Change) {
	if e.shown != nil {
		e.shown()
	}
	e.views.Apply(c)
}

// serve takes everything anew, with a floor, in both lanes.
func (e *edge) serve(floor replication.Position) {
	e.t.Helper()
	for lane := range replication.Lanes {
		e.serveLane(lane, floor)
	}
}

func (e *edge) serveLane(lane replication.Lane, floor replication.Position) {
	e.t.Helper()
	g, err := e.disk.Begin(lane)
	if err != nil {
		e.t.Fatal(err)
	}
	var documents []replication.Document
	for _, d := range e.all {
		if d.Lane == lane {
			documents = append(documents, d)
		}
	}
	if err := g.Add(documents); err != nil {
		e.t.Fatal(err)
	}
	if err := g.Serve(down.Cursor{Epoch: replication.Epoch{1}, Position: e.at[lane], Floor: floor}); err != nil {
		e.t.Fatal(err)
	}
}

// put stores one transaction; a nil body deletes.
func (e *edge) put(bodies map[replication.Subject]any) {
	e.t.Helper()
	for lane, documents := range e.commit(bodies) {
		if len(documents) == 0 {
			continue
		}
		if err := e.disk.Apply(replication.Lane(lane), documents, down.Cursor{Epoch: replication.Epoch{1}, Position: e.at[lane]}); err != nil {
			e.t.Fatal(err)
		}
	}
}

// commit makes the documents of one transaction, which the edge has not heard of yet.
func (e *edge) commit(bodies map[replication.Subject]any) (documents [replication.Lanes][]replication.Document) {
	e.t.Helper()
	for _, s := range slices.Sorted(maps.Keys(bodies)) {
		lane := s.Lane()
		e.at[lane]++
		d := replication.Document{Lane: lane, Subject: s, Position: e.at[lane], Epoch: replication.Epoch{1}}
		if body := bodies[s]; body != nil {
			var err error
			if d.Body, err = json.Marshal(body); err != nil {
				e.t.Fatal(err)
			}
		}
		documents[lane] = append(documents[lane], d)
		e.all[s] = d
	}
	return documents
}

func (e *edge) env(name string) *Environment {
	e.t.Helper()
	env, ok := e.views.Environment(project, name)
	if !ok {
		e.t.Fatalf("no environment %s", name)
	}
	return env
}

func settings(name string) state.Project { return state.Project{ID: project, Name: name} }

func flag(key string) replication.Subject { return replication.FlagSubject(project, "live", key) }

func flagBody(key string, version int64) state.Flag {
	return state.Flag{ID: "id-" + key, Key: key, Kind: "boolean", DefaultValue: "false", Enabled: true, Version: version}
}

// withProject is an edge with a project and the named flags, at positions 1, 2, …
func withProject(t testing.TB, options Options, keys ...string) *edge {
	t.Helper()
	e := newEdge(t, options)
	e.serve(0)
	e.put(map[replication.Subject]any{replication.ProjectSubject(project): settings("Shop")})
	for _, k := range keys {
		e.put(map[replication.Subject]any{flag(k): flagBody(k, 1)})
	}
	return e
}

func TestUnknownProjectHasNoEnvironment(t *testing.T) {
	t.Parallel()
	e := newEdge(t, Options{})
	if _, ok := e.views.Environment(project, "live"); ok || e.views.Ready() {
		t.Error("an edge without state has an environment")
	}
	e.serve(0)
	if _, ok := e.views.Environment(project, "live"); ok || !e.views.Ready() {
		t.Error("a project that does not exist has an environment")
	}
	e.put(map[replication.Subject]any{replication.ProjectSubject(project): settings("Shop")})
	if env := e.env("live"); env.ProjectName != "Shop" || env.Name != "live" || string(env.RevisionText) != "1.0" {
		t.Errorf("%s %s %s", env.ProjectName, env.Name, env.RevisionText)
	}
	e.put(map[replication.Subject]any{replication.ProjectSubject(project): nil})
	if _, ok := e.views.Environment(project, "live"); ok {
		t.Error("a deleted project has an environment")
	}
}

func TestHaltOverlaysItsFlagWhicheverComesFirst(t *testing.T) {
	t.Parallel()
	e := withProject(t, Options{}, "a")
	halt := replication.HaltSubject(project, "live", "b")
	e.put(map[replication.Subject]any{halt: state.Halt{Key: "b", Reason: "smoke", Version: 2}})
	if _, ok := e.env("live").Flag("b"); ok {
		t.Error("a halt alone makes a flag")
	}
	e.put(map[replication.Subject]any{flag("b"): flagBody("b", 2)})
	if f, ok := e.env("live").Flag("b"); !ok || f.Halt == nil || f.Halt.Reason != "smoke" {
		t.Errorf("%+v", f)
	}
	if f, _ := e.env("live").Flag("a"); f.Halt != nil {
		t.Error("the other flag is halted")
	}
	before := e.env("live")
	e.put(map[replication.Subject]any{halt: nil})
	if f, _ := e.env("live").Flag("b"); f.Halt != nil {
		t.Error("resumed and still halted")
	}
	if f, _ := before.Flag("b"); f.Halt == nil {
		t.Error("an environment that was handed out has changed")
	}
	if got := e.env("live").Revision.String(); got != "3.2" {
		t.Errorf("revision %s, want 3.2", got)
	}
	if got := e.env("test").Revision.String(); got != "1.0" {
		t.Errorf("revision of the other environment %s, want 1.0", got)
	}
}

func TestKeysThatAreHardForStreamsWork(t *testing.T) {
	t.Parallel()
	e := withProject(t, Options{}, "v1.", ".v1", "a..b")
	for _, k := range []string{"v1.", ".v1", "a..b"} {
		if f, ok := e.env("live").Flag(k); !ok || f.Key != k {
			t.Errorf("%s: %+v", k, f)
		}
	}
}

func TestRevisionsChangeWithTheirModuleOnly(t *testing.T) {
	t.Parallel()
	e := withProject(t, Options{}, "a")
	revisions := func() map[string]string {
		env := e.env("live")
		m := env.Modules
		return map[string]string{"whole": env.Revision.String(), "switch": m.Switch.String(), "config": m.Config.String(),
			"cohorts": m.Cohorts.String(), "pulse": m.Pulse.String(), "settings": m.Settings.String()}
	}
	for _, c := range []struct {
		subject replication.Subject
		body    any
		changes []string
	}{
		{flag("a"), flagBody("a", 2), []string{"switch", "whole"}},
		{replication.HaltSubject(project, "live", "a"), state.Halt{Key: "a"}, []string{"switch", "whole"}},
		{replication.ConfigSubject(project, "live", "c"), state.ConfigItem{Key: "c"}, []string{"config", "whole"}},
		{replication.CohortSubject(project, "beta"), state.Cohort{Name: "beta", Shards: 1}, []string{"cohorts", "whole"}},
		{replication.CohortShardSubject(project, "beta", 0), state.CohortShard{Members: []string{"u1"}}, []string{"cohorts", "whole"}},
		{replication.SurveySubject(project, "psv_1"), state.Survey{}, []string{"pulse", "whole"}},
		{replication.SurveySubject(project, "psv_1"), nil, []string{"pulse", "whole"}},
		{replication.ProjectSubject(project), settings("New"), []string{"settings", "whole"}},
		{replication.UsageSubject(project), state.Usage{Month: "2026-01", Events: 7}, nil},
		{replication.KeySubject(apikey.Of("k").String()), state.Key{ProjectID: project}, nil},
		{replication.FlagSubject(project, "test", "a"), flagBody("a", 1), nil},
		{flag("a"), nil, []string{"switch", "whole"}},
	} {
		before := revisions()
		e.put(map[replication.Subject]any{c.subject: c.body})
		after := revisions()
		var changed []string
		for _, k := range slices.Sorted(maps.Keys(after)) {
			if before[k] != after[k] {
				changed = append(changed, k)
			}
		}
		if !slices.Equal(changed, c.changes) {
			t.Errorf("%s changed %v, want %v", c.subject, changed, c.changes)
		}
	}
	if got := e.env("live").Usage.Events; got != 7 {
		t.Errorf("usage %d, want 7", got)
	}
}

func TestFloorLiftsEveryRevision(t *testing.T) {
	t.Parallel()
	e := withProject(t, Options{}, "a")
	if got := e.env("live").Modules.Config.String(); got != "0.0" {
		t.Errorf("config without items: %s", got)
	}
	marker := replication.Document{Lane: replication.Normal, Subject: replication.EpochSubject(replication.Normal), Position: 20, Body: []byte(`{}`)}
	if err := e.disk.Apply(replication.Normal, []replication.Document{marker}, down.Cursor{Epoch: replication.Epoch{1}, Position: 20, Floor: 15}); err != nil {
		t.Fatal(err)
	}
	if env := e.env("live"); env.Modules.Config.String() != "15.0" || env.Revision.String() != "15.0" {
		t.Errorf("config %s, whole %s, want the floor 15.0", env.Modules.Config, env.Revision)
	}
}

func TestSubscriptionsCoalesce(t *testing.T) {
	t.Parallel()
	e := withProject(t, Options{}, "a")
	live, test := e.views.Subscribe(project, "live"), e.views.Subscribe(project, "test")
	defer live.Close()
	defer test.Close()
	for n := range 100 {
		e.put(map[replication.Subject]any{flag("a"): flagBody("a", int64(n)), replication.ConfigSubject(project, "live", "c"): state.ConfigItem{Key: "c"}})
	}
	<-live.C()
	if got := live.Take(); got != SwitchChanged|ConfigChanged {
		t.Errorf("changed %b", got)
	}
	select {
	case <-live.C():
		t.Error("announced twice")
	case <-test.C():
		t.Error("announced to the other environment")
	default:
	}
	e.put(map[replication.Subject]any{replication.CohortSubject(project, "x"): state.Cohort{Name: "x"}})
	for _, s := range []*Subscription{live, test} {
		<-s.C()
		if got := s.Take(); got != CohortsChanged {
			t.Errorf("changed %b, want cohorts", got)
		}
	}
	e.put(map[replication.Subject]any{replication.UsageSubject(project): state.Usage{Events: 1}})
	select {
	case <-live.C():
		t.Error("usage is announced")
	default:
	}
	e.serve(0)
	<-live.C()
}

func TestCohortFindsItsMembersAndNobodyElse(t *testing.T) {
	t.Parallel()
	e := withProject(t, Options{})
	const shards, members = 4, 1000
	bodies := map[replication.Subject]any{replication.CohortSubject(project, "beta"): state.Cohort{Name: "beta", Shards: shards}}
	lists := make([]state.CohortShard, shards)
	for i := range members {
		id := "user-" + strconv.Itoa(i)
		s := decide.Shard(id, shards)
		lists[s].Members = append(lists[s].Members, id)
	}
	for i, l := range lists {
		bodies[replication.CohortShardSubject(project, "beta", i)] = l
	}
	e.put(bodies)
	has := func(cohort, id string) bool {
		t.Helper()
		env := e.env("live")
		c, ok := env.Cohort(cohort)
		if !ok {
			t.Fatalf("no cohort %s", cohort)
		}
		in, known := env.Members(c).Has(id)
		if !known {
			t.Fatalf("%s: cannot tell", id)
		}
		return in
	}
	for i := range members {
		if !has("beta", "user-"+strconv.Itoa(i)) {
			t.Fatalf("user-%d is no member", i)
		}
		if has("beta", "other-"+strconv.Itoa(i)) {
			t.Fatalf("other-%d is a member", i)
		}
	}
	e.put(map[replication.Subject]any{replication.CohortShardSubject(project, "beta", decide.Shard("user-1", shards)): state.CohortShard{}})
	if has("beta", "user-1") {
		t.Error("removed, and still a member")
	}
	e.put(map[replication.Subject]any{replication.CohortSubject(project, "empty"): state.Cohort{Name: "empty", Predicate: "session_count >= 2"}})
	env := e.env("live")
	if empty, ok := env.Cohort("empty"); !ok || env.Members(empty) != nil || empty.Predicate == nil {
		t.Errorf("%+v", empty)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	const room = 512 << 10
	e := newEdge(t, Options{Bytes: room})
	e.serve(0)
	const projects = 300
	bodies := map[replication.Subject]any{}
	for i := range projects {
		id := fmt.Sprintf("%s%04d", project[:len(project)-4], i)
		bodies[replication.ProjectSubject(id)] = state.Project{ID: id}
		for n := range 10 {
			k := "f" + strconv.Itoa(n)
			bodies[replication.FlagSubject(id, "live", k)] = flagBody(k, 1)
		}
	}
	e.put(bodies)
	for i := range projects {
		id := fmt.Sprintf("%s%04d", project[:len(project)-4], i)
		if env, ok := e.views.Environment(id, "live"); !ok || len(env.Flags) != 10 {
			t.Fatalf("project %d: %v", i, ok)
		}
		if s := e.views.Stats(); s.Bytes > room {
			t.Fatalf("%d bytes in %d environments", s.Bytes, s.Environments)
		}
	}
	if s := e.views.Stats(); s.Environments < 10 || s.Environments >= projects {
		t.Errorf("%d environments in memory", s.Environments)
	}
}

func TestUnreadableDocumentIsAbsentWhicheverWayItComes(t *testing.T) {
	t.Parallel()
	e := withProject(t, Options{}, "a", "b")
	e.env("live")
	e.put(map[replication.Subject]any{flag("a"): "not an object"})
	if _, ok := e.env("live").Flag("a"); ok {
		t.Error("still there")
	}
	e.serve(0)
	if _, ok := e.env("live").Flag("a"); ok {
		t.Error("there again")
	}
	if _, ok := e.env("live").Flag("b"); !ok {
		t.Error("the other one is gone")
	}
}

func TestLookingUpAllocatesNothing(t *testing.T) {
	e := withProject(t, Options{}, "a")
	key := []byte("sk_live_LLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLL")
	e.put(map[replication.Subject]any{replication.KeySubject(apikey.OfBytes(key).String()): state.Key{ID: "1", ProjectID: project, Environment: "live"}})
	if n := testing.AllocsPerRun(1000, func() {
		k, ok := e.views.Key(apikey.OfBytes(key))
		if !ok {
			t.Fatal("no key")
		}
		if _, ok := e.views.Environment(k.ProjectID, k.Environment); !ok {
			t.Fatal("no environment")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
