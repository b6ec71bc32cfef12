// Package view holds what an edge reads to answer a request: API keys and, per
// environment of a project, one immutable compiled [Environment] behind an
// atomic pointer.
//
// It promises: a read never waits for the centre; an Environment never changes once
// handed out and is never half of a transaction; its revision never falls, is equal on
// every edge and never stands for other content; one changed document recompiles only
// what is made of it; memory is bounded in bytes, whatever the number of projects.
//
// It does not decide, render, or know HTTP: it compiles through the functions in [Hooks],
// and answers that were rendered from an Environment are kept by their makers, in its
// hooks or under keys that contain its revision.
//
// What is not in memory is read from the edge's disk, once however many ask (single
// flight). Absence is not cached: the disk's bloom filters answer for unknown keys, so
// there is no negative cache that could race with a new key.
package view

import (
	"slices"
	"strings"
	"time"

	"skerry/edgenode/store"
	"skerry/pkg/apikey"
	"skerry/pkg/predicate"
	"skerry/pkg/state"
	"skerry/replication"
)

// Key is what an API key opens. It is valid now: revoked keys and rotated ones past their
// grace are not found.
type Key struct {
	Hash        apikey.Hash
	ID          string
	ProjectID   string
	Environment string    // "live" or "test"
	ExpiresAt   time.Time // zero: until revoked
}

// Environment is all that an edge knows about one environment of a project. Read only:
// many requests share it.
type Environment struct {
	ProjectID   string
	ProjectName string
	Name        string // "live" or "test"

	// Revision covers flags, halts, config items, cohorts, surveys and the project's
	// settings; not keys, not usage.
	Revision     replication.Revision
	RevisionText []byte // Revision as "<normal>.<urgent>"
	Modules      Modules

	Settings state.Project
	Usage    state.Usage // as last totalled by the centre; zero when never

	Flags   []*Flag   // in order of key
	Items   []*Item   // config items, in order of key
	Cohorts []*Cohort // in order of name
	Surveys []*Survey // in order of id, which is the order of creation; every status, drafts included

	// Decisions and Pulse are what Hooks made of the documents above; nil without a hook.
	Decisions any
	Pulse     any

	at     [replication.Lanes]replication.Position // everything up to here is in it
	parts  [replication.Lanes]store.Positions      // what Revision and Modules are made of
	halts  map[string]*state.Halt                  // by key of the flag, which may not be there yet
	bytes  int64                                   // that the lists above hold, estimated
	hooked int64                                   // of the compiled forms
}

// Modules are the revisions of parts of an environment, each of its own documents alone.
// A tag that depends on several parts (a decision depends on cohorts too) is made of
// several of them.
type Modules struct {
	Switch   replication.Revision // flags (normal) and halts (urgent)
	Config   replication.Revision
	Cohorts  replication.Revision
	Pulse    replication.Revision // surveys
	Settings replication.Revision // the project's settings
}

// Flag is one flag with the halt that overlays it. To answer requests, use what the hooks
// have compiled from it.
type Flag struct {
	Key      string
	Halt     *state.Halt          // nil: not halted
	Position replication.Position // of the flag's own document
	// Definition is the flag's document. It is there for the hooks alone and only when it
	// is new to them: nil when just a halt has come or gone, and nil once the environment
	// is handed out.
	Definition *state.Flag
}

// Item is one config item. Its definition is the hooks' alone, as a flag's is.
type Item struct {
	Key        string
	Position   replication.Position
	Definition *state.ConfigItem
}

// Survey is one survey. Its definition is the hooks' alone, as a flag's is.
type Survey struct {
	ID         string
	Slug       string
	UpdatedAt  time.Time
	Position   replication.Position
	Definition *state.Survey
}

// Cohort is a set of users: by predicate, by a list of members, or both.
type Cohort struct {
	Name      string
	Predicate *predicate.Predicate // nil: by members alone

	members *memberList // nil: by predicate alone
}

// Flag finds a flag by its key. A halt without its flag is no flag: ok is false.
func (e *Environment) Flag(key string) (*Flag, bool) {
	i, ok := slices.BinarySearchFunc(e.Flags, key, func(f *Flag, k string) int { return strings.Compare(f.Key, k) })
	if !ok {
		return nil, false
	}
	return e.Flags[i], true
}

// Item finds a config item by its key.
func (e *Environment) Item(key string) (*Item, bool) {
	i, ok := slices.BinarySearchFunc(e.Items, key, func(f *Item, k string) int { return strings.Compare(f.Key, k) })
	if !ok {
		return nil, false
	}
	return e.Items[i], true
}

func (e *Environment) survey(id string) (*Survey, bool) {
	i, ok := slices.BinarySearchFunc(e.Surveys, id, func(s *Survey, id string) int { return strings.Compare(s.ID, id) })
	if !ok {
		return nil, false
	}
	return e.Surveys[i], true
}

// Cohort finds a cohort by its name.
func (e *Environment) Cohort(name string) (*Cohort, bool) {
	i, ok := slices.BinarySearchFunc(e.Cohorts, name, func(f *Cohort, k string) int { return strings.Compare(f.Name, k) })
	if !ok {
		return nil, false
	}
	return e.Cohorts[i], true
}

// Changed names what differs between an environment and its predecessor, for a hook that
// recompiles incrementally.
type Changed struct {
	All      bool     // the first compilation, or everything came anew: prev is nil
	Flags    []string // keys of flags that are new, other or gone (halts and resumes included)
	Items    []string // keys of config items, likewise
	Cohorts  []string // names of cohorts, likewise
	Surveys  []string // ids of surveys, likewise
	Settings bool
	Usage    bool
}

// Hooks are compiled into every environment. Each is called before the environment is
// handed out, with everything but the hooks' own fields set, and returns its compiled
// form and how many bytes that holds (for the memory bound). prev is what it returned for
// the predecessor, nil at first; it may be shared in parts but not changed. What it needs
// of a new document it takes from its Definition now: later that is gone, for all
// definitions together take several times what their compiled forms do. A hook is pure,
// quick (one change must not cost a whole compilation) and called from one goroutine per
// environment.
type Hooks struct {
	Decisions func(prev any, env *Environment, changed Changed) (compiled any, bytes int)
	Pulse     func(prev any, env *Environment, changed Changed) (compiled any, bytes int)
}

// ModuleSet is a set of modules that a change touched.
type ModuleSet uint8

// The modules of the change stream.
const (
	SwitchChanged ModuleSet = 1 << iota
	ConfigChanged
	PulseChanged
	CohortsChanged
	SettingsChanged
)
