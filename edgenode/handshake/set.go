package handshake

import (
	"log/slog"

	"skerry/edgenode/view"
	"skerry/pkg/decide"
)

// Set is an environment's decisions, compiled. It is immutable.
type Set struct {
	Flags   []*decide.Entry // in order of key; empty while the module is off
	Items   []*decide.Entry // config items, likewise
	Cohorts *decide.CohortSet

	// allFlags and allItems are there whether or not their modules are on.
	allFlags, allItems []*decide.Entry
	open               []*decide.Entry // flags and items under one order of keys; of two with one key the flag
	head               []byte          // the answer up to the user's id
}

// Compile is the hook by which an environment's decisions are compiled: once per change,
// one changed flag at a time.
func Compile(prev any, env *view.Environment, changed view.Changed) (compiled any, bytes int) {
	before, _ := prev.(*Set)
	if before == nil {
		before = &Set{}
	}
	s := &Set{allFlags: before.allFlags, allItems: before.allItems, Cohorts: before.Cohorts}
	if changed.All || len(changed.Flags) > 0 {
		s.allFlags = recompile(before.allFlags, env.Flags, changed.Flags, func(f *view.Flag) string { return f.Key }, compileFlag)
	}
	if changed.All || len(changed.Items) > 0 {
		s.allItems = recompile(before.allItems, env.Items, changed.Items, func(i *view.Item) string { return i.Key },
			func(i *view.Item, _ *decide.Entry) (*decide.Entry, error) { return decide.CompileItem(i.Definition) })
	}
	if changed.All || len(changed.Cohorts) > 0 || s.Cohorts == nil {
		s.Cohorts = cohortSet(env)
	}
	if env.Settings.Modules.Switch {
		s.Flags = s.allFlags
	}
	if env.Settings.Modules.Config {
		s.Items = s.allItems
	}
	s.open = merge(s.Flags, s.Items)
	s.head = head(env)
	for _, e := range s.allFlags {
		bytes += e.Size()
	}
	for _, e := range s.allItems {
		bytes += e.Size()
	}
	return s, bytes + 8*(len(s.allFlags)+len(s.allItems)+len(s.open)) + 64*len(env.Cohorts) + len(s.head)
}

// recompile makes the entries of definitions, in order of key, out of the former entries
// where nothing changed. When everything did, there are no former entries.
func recompile[D any](before []*decide.Entry, definitions []D, changed []string, key func(D) string,
	compile func(of D, before *decide.Entry) (*decide.Entry, error)) []*decide.Entry {
	fresh := make(map[string]bool, len(changed))
	for _, k := range changed {
		fresh[k] = true
	}
	out := make([]*decide.Entry, 0, len(definitions))
	for _, d := range definitions {
		k := key(d)
		for len(before) > 0 && before[0].Key < k {
			before = before[1:]
		}
		var former *decide.Entry
		if len(before) > 0 && before[0].Key == k {
			former = before[0]
		}
		if former != nil && !fresh[k] {
			out = append(out, former)
			continue
		}
		entry, err := compile(d, former)
		if err != nil {
			slog.Error("a definition cannot be evaluated; its default is served", "key", k, "error", err)
		}
		out = append(out, entry)
	}
	return out
}

// compileFlag compiles a new flag, or one whose halt alone has come or gone.
func compileFlag(f *view.Flag, former *decide.Entry) (*decide.Entry, error) {
	if f.Definition == nil {
		return former.Halted(f.Halt), nil
	}
	return decide.CompileFlag(f.Definition, f.Halt)
}

func cohortSet(env *view.Environment) *decide.CohortSet {
	list := make([]decide.Cohort, len(env.Cohorts))
	for i, c := range env.Cohorts {
		list[i] = decide.Cohort{Name: c.Name, Predicate: c.Predicate}
		if members := env.Members(c); members != nil {
			list[i].Members = members
		}
	}
	return decide.NewCohortSet(list)
}

func merge(flags, items []*decide.Entry) []*decide.Entry {
	if len(items) == 0 {
		return flags
	}
	out := make([]*decide.Entry, 0, len(flags)+len(items))
	for len(flags) > 0 || len(items) > 0 {
		switch {
		case len(items) == 0 || len(flags) > 0 && flags[0].Key < items[0].Key:
			out = append(out, flags[0])
			flags = flags[1:]
		case len(flags) > 0 && flags[0].Key == items[0].Key:
			items = items[1:]
		default:
			out = append(out, items[0])
			items = items[1:]
		}
	}
	return out
}

func head(env *view.Environment) []byte {
	b := append([]byte(`{"project_id":"`), env.ProjectID...)
	b = append(append(b, `","environment":"`...), env.Name...)
	b = append(append(b, `","revision":"`...), env.RevisionText...)
	return append(b, `","distinct_id":`...)
}

// Of is the set of an environment that was compiled with Compile as its hook.
func Of(env *view.Environment) *Set { return env.Decisions.(*Set) }

// OpenFeature is all flags and config items of modules that are on, in order of key; of
// two with one key the flag.
func (s *Set) OpenFeature() []*decide.Entry { return s.open }

// Find looks up a flag or config item for OpenFeature; nil when there is none.
func (s *Set) Find(key []byte) *decide.Entry {
	lo, hi := 0, len(s.open)
	for lo < hi { // by hand: the library's search would make a string of the key at every step
		mid := int(uint(lo+hi) >> 1)
		if s.open[mid].Key < string(key) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(s.open) && s.open[lo].Key == string(key) {
		return s.open[lo]
	}
	return nil
}
