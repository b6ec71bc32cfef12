package handshake_test

import (
	"fmt"
	"runtime"
	"testing"

	"skerry/edgenode/edgetest"
	"skerry/edgenode/handshake"
	"skerry/edgenode/view"
	"skerry/pkg/decide"
	"skerry/pkg/state"
	"skerry/replication"
)

// ruled is a flag as the benchmarks have it: one predicate and a two-way split.
func ruled(i int) state.Flag {
	return state.Flag{
		ID: fmt.Sprintf("0190a3c1-7d2e-7c3a-9f10-%012d", i), Key: fmt.Sprintf("flag-%05d", i), Kind: decide.Boolean, Enabled: true,
		DefaultValue: "false", DefaultVariant: "off", Version: 1,
		Variants: []decide.Variant{{Key: "on", Value: "true"}, {Key: "off", Value: "false"}},
		Rule: &decide.Rule{
			Overrides: []decide.Override{{Predicate: fmt.Sprintf(`props.plan = "plan-%d"`, i), Variant: text("on")}},
			Rollout: &decide.Rollout{BucketBy: "distinct_id", Salt: fmt.Sprintf("k3JxQ0vWm7%05d", i), Buckets: []decide.Range{
				{Variant: text("on"), Start: 0, End: 50_000}, {Variant: text("off"), Start: 50_000, End: 100_000}}},
		},
	}
}

// held is how much views take of the heap once all is read.
func held(read func() *view.Store) (*view.Store, int64) {
	read() // what the disk keeps of what is read is not meant
	heap := func() int64 {
		runtime.GC()
		runtime.GC() // what the first one finalized
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	views := read()
	after := heap()
	runtime.KeepAlive(views)
	return views, after - before
}

// fill puts projects on an edge's disk. What it returns makes views and reads all their environments.
func fill(t testing.TB, projects int, put func(w *edgetest.World, project string)) (read func() *view.Store) {
	t.Helper()
	w := edgetest.New(t, view.Hooks{})
	ids := make([]string, projects)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s%05d", edgetest.Project[:len(edgetest.Project)-5], i)
		settings := w.Settings
		settings.ID = ids[i]
		w.Put(replication.ProjectSubject(ids[i]), settings)
		put(w, ids[i])
	}
	w.FreshViews(view.Hooks{}).Environment(ids[0], "live") // what the disk itself keeps is not meant
	return func() *view.Store {
		views := w.FreshViews(view.Hooks{Decisions: handshake.Compile})
		for _, id := range ids {
			if _, ok := views.Environment(id, "live"); !ok {
				t.Fatal("no environment")
			}
		}
		return views
	}
}

// The bound of memory counts reckoned bytes, so they must be about the bytes that are held, whatever an environment is
// made of.
func TestReckonedMemoryIsAboutWhatIsHeld(t *testing.T) {
	long := make([]byte, 3000)
	for i := range long {
		long[i] = 'v'
	}
	for name, c := range map[string]struct {
		projects int
		put      func(w *edgetest.World, project string)
	}{
		"nothing": {500, func(*edgetest.World, string) {}},
		"ruled flags": {20, func(w *edgetest.World, project string) {
			for i := range 100 {
				w.Put(replication.FlagSubject(project, "live", ruled(i).Key), ruled(i))
			}
		}},
		"halted flags": {20, func(w *edgetest.World, project string) {
			for i := range 100 {
				f := ruled(i)
				w.Put(replication.FlagSubject(project, "live", f.Key), f)
				w.Put(replication.HaltSubject(project, "live", f.Key), state.Halt{Key: f.Key, FlagID: f.ID, Version: 2, DefaultValue: "false", DefaultVariant: "off"})
			}
		}},
		"plain flags": {20, func(w *edgetest.World, project string) {
			for i := range 100 {
				w.Put(replication.FlagSubject(project, "live", fmt.Sprint(i)), state.Flag{Kind: decide.Boolean, DefaultValue: "false"})
			}
		}},
		"long values": {20, func(w *edgetest.World, project string) {
			for i := range 20 {
				w.Put(replication.ConfigSubject(project, "live", fmt.Sprint(i)), state.ConfigItem{Type: decide.String, DefaultValue: fmt.Sprintf(`"%s"`, long)})
			}
		}},
		"cohorts": {20, func(w *edgetest.World, project string) {
			for i := range 100 {
				w.Put(replication.CohortSubject(project, fmt.Sprint("c", i)), state.Cohort{Predicate: `OR(props.plan = "pro", AND(session_count >= 3, props.country = "DE"))`})
			}
		}},
	} {
		read := fill(t, c.projects, c.put)
		views, heap := held(read)
		reckoned := views.Stats().Bytes
		t.Logf("%s: %d bytes reckoned, %d held, %d an environment", name, reckoned, heap, heap/int64(c.projects))
		if ratio := float64(reckoned) / float64(heap); ratio < 0.75 || ratio > 1.4 {
			t.Errorf("%s: %d bytes reckoned, %d held", name, reckoned, heap)
		}
	}
}

// BenchmarkMemory reads environments of 100 flags, each with one predicate and a two-way split, from the disk.
func BenchmarkMemory(b *testing.B) {
	const projects, flags = 100, 100
	read := fill(b, projects, func(w *edgetest.World, project string) {
		for i := range flags {
			w.Put(replication.FlagSubject(project, "live", ruled(i).Key), ruled(i))
		}
	})
	var heap int64
	for b.Loop() {
		_, heap = held(read)
	}
	b.ReportMetric(float64(heap)/(projects*flags), "B/flag")
}
