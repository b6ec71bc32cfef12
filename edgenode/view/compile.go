package view

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"skerry/edgenode/store"
	"skerry/pkg/predicate"
	"skerry/pkg/state"
	"skerry/replication"
)

// errNoProject means that there is no such project here (or no longer).
var errNoProject = errors.New("no such project")

// draft is an environment while it is being made: from nothing, or from its predecessor
// by some changed documents.
type draft struct {
	views   *Store
	old     *Environment // nil: from nothing
	env     Environment
	changed Changed
	owned   owned // parts of env that are no longer shared with old
}

type owned struct{ flags, items, cohorts, surveys, halts bool }

// compile makes an environment from what is on disk.
func (s *Store) compile(of envKey) (*Environment, error) {
	d := draft{views: s, changed: Changed{All: true}, owned: owned{true, true, true, true, true}}
	d.env.ProjectID, d.env.Name = of.project, of.env
	d.env.halts = make(map[string]*state.Halt)
	if err := s.disk.Read(func(look *store.Snapshot) error { return d.read(look) }); err != nil {
		return nil, err
	}
	return d.finish()
}

func (d *draft) read(look *store.Snapshot) (err error) {
	project, env := d.env.ProjectID, d.env.Name
	for lane := range replication.Lanes {
		d.env.at[lane] = look.Position(lane)
		if d.env.parts[lane], err = look.Positions(lane, project, env); err != nil {
			return err
		}
	}
	settings := replication.ProjectSubject(project)
	entry, ok, err := look.Get(settings)
	if err != nil || !ok {
		return err
	}
	d.take(settings, entry)
	// Halts first: each flag then finds its own. Members are left on disk.
	ranges := []struct {
		lane   replication.Lane
		prefix string
	}{
		{replication.Urgent, replication.EnvironmentPrefix(replication.Urgent, project, env)},
		{replication.Normal, replication.EnvironmentPrefix(replication.Normal, project, env)},
		{replication.Normal, replication.ProjectPrefix(replication.Normal, project) + "cohort."},
		{replication.Normal, replication.ProjectPrefix(replication.Normal, project) + "survey."},
		{replication.Normal, replication.ProjectPrefix(replication.Normal, project) + "usage"},
	}
	for _, r := range ranges {
		err := look.Scan(r.lane, r.prefix, func(subject replication.Subject, entry store.Entry) error {
			d.take(subject, entry)
			return nil
		})
		if err != nil {
			return err
		}
	}
	d.sort()
	return nil
}

// take applies one document from disk.
func (d *draft) take(subject replication.Subject, entry store.Entry) {
	p, err := subject.Parse()
	if err != nil {
		return // of a newer version's kind
	}
	d.apply(parsed{p, &replication.Document{Lane: p.Lane, Subject: subject, Position: entry.Position, Body: entry.Body}})
}

// sort puts what was appended in order of subject into order of key, in lists as long as
// they must be.
func (d *draft) sort() {
	e := &d.env
	e.Flags, e.Items, e.Cohorts, e.Surveys = slices.Clone(e.Flags), slices.Clone(e.Items), slices.Clone(e.Cohorts), slices.Clone(e.Surveys)
	slices.SortFunc(e.Flags, func(a, b *Flag) int { return strings.Compare(a.Key, b.Key) })
	slices.SortFunc(e.Items, func(a, b *Item) int { return strings.Compare(a.Key, b.Key) })
	slices.SortFunc(e.Cohorts, func(a, b *Cohort) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(e.Surveys, func(a, b *Survey) int { return strings.Compare(a.ID, b.ID) })
}

// apply takes one changed document in. A body that does not parse (a newer version's,
// say) counts as absent: on every edge alike, however it came to it.
func (d *draft) apply(p parsed) {
	env := &d.env
	env.at[p.Parts.Lane] = max(env.at[p.Parts.Lane], p.Position)
	switch p.Kind {
	case replication.KindProject:
		d.applySettings(p)
	case replication.KindUsage:
		env.Usage = state.Usage{}
		d.decode(p, &env.Usage)
		d.changed.Usage = true
	case replication.KindFlag:
		d.applyFlag(p)
	case replication.KindHalt:
		d.applyHalt(p)
	case replication.KindConfig:
		d.applyItem(p)
	case replication.KindCohort:
		d.applyCohort(p)
	case replication.KindCohortShard:
		env.parts[p.Parts.Lane][store.Cohorts] = max(env.parts[p.Parts.Lane][store.Cohorts], p.Position)
		d.note(&d.changed.Cohorts, p.Parts.Name)
	case replication.KindSurvey:
		d.applySurvey(p)
	}
}

// decode reads a document's body; false: it is a tombstone, or unreadable.
func (d *draft) decode(p parsed, into any) bool {
	if p.Tombstone() {
		return false
	}
	if err := json.Unmarshal(p.Body, into); err != nil {
		d.views.log.Error("unreadable document, taken for absent", "subject", string(p.Subject), "error", err)
		return false
	}
	return true
}

func (d *draft) raise(p parsed, part store.Part) {
	d.env.parts[p.Parts.Lane][part] = max(d.env.parts[p.Parts.Lane][part], p.Position)
}

// note adds a name to a list of changes, once.
func (d *draft) note(names *[]string, name string) {
	if !d.changed.All && !slices.Contains(*names, name) {
		*names = append(*names, name)
	}
}

func (d *draft) applySettings(p parsed) {
	d.raise(p, store.Settings)
	d.changed.Settings = true
	d.env.Settings = state.Project{}
	d.decode(p, &d.env.Settings)
	d.env.ProjectName = d.env.Settings.Name
}

func (d *draft) applyFlag(p parsed) {
	d.raise(p, store.Flags)
	key := p.Parts.Name
	d.note(&d.changed.Flags, key)
	own(&d.owned.flags, &d.env.Flags)
	var flag *Flag
	definition := new(state.Flag)
	if d.decode(p, definition) {
		definition.Key = strings.Clone(key) // the subject is longer
		flag = &Flag{Key: definition.Key, Position: p.Position, Halt: d.env.halts[key], Definition: definition}
	}
	put(d, &d.env.Flags, key, flag, func(f *Flag) string { return f.Key })
}

func (d *draft) applyHalt(p parsed) {
	d.raise(p, store.Flags)
	key := p.Parts.Name
	d.note(&d.changed.Flags, key)
	if !d.owned.halts {
		d.env.halts, d.owned.halts = maps.Clone(d.env.halts), true
	}
	halt := new(state.Halt)
	if d.decode(p, halt) {
		d.env.halts[key] = halt
	} else {
		halt = nil
		delete(d.env.halts, key)
	}
	if flag, ok := d.env.Flag(key); ok {
		own(&d.owned.flags, &d.env.Flags)
		overlaid := *flag
		overlaid.Halt = halt
		put(d, &d.env.Flags, key, &overlaid, func(f *Flag) string { return f.Key })
	}
}

func (d *draft) applyItem(p parsed) {
	d.raise(p, store.Items)
	key := p.Parts.Name
	d.note(&d.changed.Items, key)
	own(&d.owned.items, &d.env.Items)
	var item *Item
	definition := new(state.ConfigItem)
	if d.decode(p, definition) {
		definition.Key = strings.Clone(key)
		item = &Item{Key: definition.Key, Position: p.Position, Definition: definition}
	}
	put(d, &d.env.Items, key, item, func(i *Item) string { return i.Key })
}

func (d *draft) applyCohort(p parsed) {
	d.raise(p, store.Cohorts)
	name := p.Parts.Name
	d.note(&d.changed.Cohorts, name)
	own(&d.owned.cohorts, &d.env.Cohorts)
	var body state.Cohort
	var cohort *Cohort
	if d.decode(p, &body) {
		cohort = &Cohort{Name: name, Predicate: d.predicate(name, body.Predicate)}
		if body.Shards > 0 {
			cohort.members = &memberList{views: d.views, project: d.env.ProjectID, cohort: name, shards: body.Shards}
		}
	}
	put(d, &d.env.Cohorts, name, cohort, func(c *Cohort) string { return c.Name })
}

func (d *draft) predicate(cohort, text string) *predicate.Predicate {
	if text == "" {
		return nil
	}
	p, err := predicate.Parse(text)
	if err != nil {
		d.views.log.Error("unreadable predicate of a cohort, matches nobody", "cohort", cohort, "error", err)
		return nil
	}
	return p
}

func (d *draft) applySurvey(p parsed) {
	d.raise(p, store.Surveys)
	id := p.Parts.Name
	d.note(&d.changed.Surveys, id)
	own(&d.owned.surveys, &d.env.Surveys)
	var survey *Survey
	definition := new(state.Survey)
	if d.decode(p, definition) {
		definition.Bundle.Survey.ID = strings.Clone(id)
		survey = &Survey{ID: definition.Bundle.Survey.ID, Slug: strings.Clone(definition.Bundle.Survey.Slug),
			UpdatedAt: definition.UpdatedAt, Position: p.Position, Definition: definition}
	}
	put(d, &d.env.Surveys, id, survey, func(s *Survey) string { return s.ID })
}

// own makes a list the draft's own before it is changed: the predecessor is being read
// by others.
func own[T any](owned *bool, list *[]T) {
	if !*owned {
		*list, *owned = slices.Clone(*list), true
	}
}

// put replaces, inserts or (nil) removes one entry of a list in order of key. A draft
// from nothing appends and sorts once.
func put[T any, P interface {
	*T
	cost() int64
}](d *draft, list *[]P, key string, entry P, of func(P) string) {
	if entry != nil {
		d.env.bytes += entry.cost()
	}
	if d.old == nil {
		if entry != nil {
			*list = append(*list, entry)
		}
		return
	}
	i, found := slices.BinarySearchFunc(*list, key, func(e P, k string) int { return strings.Compare(of(e), k) })
	if found {
		d.env.bytes -= (*list)[i].cost()
	}
	switch {
	case found && entry != nil:
		(*list)[i] = entry
	case found:
		*list = slices.Delete(*list, i, i+1)
	case entry != nil:
		*list = slices.Insert(*list, i, entry)
	}
}

// finish computes what depends on all documents and runs the hooks.
func (d *draft) finish() (*Environment, error) {
	e := &d.env
	if e.Settings.ID == "" {
		return nil, fmt.Errorf("project %s: %w", e.ProjectID, errNoProject)
	}
	normal, urgent := &e.parts[replication.Normal], &e.parts[replication.Urgent]
	of := func(p store.Part) replication.Revision {
		return replication.Revision{Normal: normal[p], Urgent: urgent[p]}
	}
	e.Modules = Modules{
		Switch: of(store.Flags), Config: of(store.Items), Cohorts: of(store.Cohorts),
		Pulse: of(store.Surveys), Settings: of(store.Settings),
	}
	e.Revision = replication.Revision{Normal: slices.Max(normal[:]), Urgent: slices.Max(urgent[:])}
	e.RevisionText = e.Revision.Append(nil)
	var before Environment
	if d.old != nil {
		before = *d.old
	}
	var decisions, pulse int
	if hook := d.views.hooks.Decisions; hook != nil {
		e.Decisions, decisions = hook(before.Decisions, e, d.changed)
	}
	if hook := d.views.hooks.Pulse; hook != nil {
		e.Pulse, pulse = hook(before.Pulse, e, d.changed)
	}
	d.forget()
	e.hooked = int64(decisions) + int64(pulse)
	return e, nil
}
