package view

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"

	"skerry/edgenode/store"
	"skerry/pkg/apikey"
	"skerry/pkg/decide"
	"skerry/pkg/state"
	"skerry/replication"
)

// A cohort may have a million members. They lie on disk in hash shards, and a lookup
// needs one of them; those in use are kept in memory, within a bound, as sorted 128-bit
// hashes: 16 bytes a member whatever its id. The hashes are seeded anew by every process,
// so nobody can construct an id that is taken for a member's.
//
// An environment never changes, the shards do, and an answer must be of one state: its
// tag names the environment's. So every shard in memory knows of which state of the
// project's cohorts it is, as the highest position of any of their documents, and a
// lookup that finds another state than its environment's says so instead of answering.

type memberKey struct {
	project, cohort string
	shard           int
}

func (k memberKey) name() string { return k.project + "/" + strconv.Itoa(k.shard) + "/" + k.cohort }

type memberHash struct{ a, b uint64 }

// memberSet is one shard, as it was when the project's cohorts were at asOf, and as it
// still is while it is kept: a change drops it.
type memberSet struct {
	hashes []memberHash
	asOf   replication.Position
}

func (m *memberSet) weigh() int64 { return 128 + 16*int64(len(m.hashes)) }

// memberList is a cohort's list, by its shards.
type memberList struct {
	views   *Store
	project string
	cohort  string
	shards  int
}

// Members is a cohort's list as one environment has it.
type Members struct {
	list *memberList
	at   replication.Position // of the newest document of the environment's cohorts
}

// Members is the list of a cohort of this environment; nil: the cohort is by
// predicate alone.
func (e *Environment) Members(c *Cohort) *Members {
	if c.members == nil {
		return nil
	}
	return &Members{c.members, e.Modules.Cohorts.Normal}
}

// Has tells whether the list names the id. It does not evaluate the cohort's predicate,
// and may read the disk. known is false when that cannot be read, or is of another state
// than the environment, which is then an old one: see Store.Settled.
func (m *Members) Has(distinctID string) (in, known bool) {
	s := m.list.views
	key := memberKey{m.list.project, m.list.cohort, decide.Shard(distinctID, m.list.shards)}
	applied := replication.Position(s.applied.Load()) // first: what is kept afterwards has not changed up to there
	set, fit := s.members.get(key)
	fit = fit && (set.asOf >= m.at || applied >= m.at)
	for tries := 0; !fit && tries < 2; tries++ { // the first may be a read that others began before the last change
		var err error
		if set, err = s.loadMembers(key); err != nil {
			s.log.Error("read the members of a cohort", "project_id", key.project, "cohort", key.cohort, "error", err)
			return false, false
		}
		fit = set.asOf >= m.at
	}
	if !fit || set.asOf > m.at {
		return false, false
	}
	_, in = slices.BinarySearchFunc(set.hashes, s.hashMember(distinctID), compareHashes)
	return in, true
}

func compareHashes(x, y memberHash) int {
	switch {
	case x.a < y.a || (x.a == y.a && x.b < y.b):
		return -1
	case x == y:
		return 0
	}
	return 1
}

func (s *Store) hashMember(id string) memberHash {
	return memberHash{maphash.String(s.seeds[0], id), maphash.String(s.seeds[1], id)}
}

// loadMembers reads a shard. One that is absent has no members.
func (s *Store) loadMembers(key memberKey) (*memberSet, error) {
	set, _, err := s.members.load(key, key.name(), func() (set *memberSet, ok bool, err error) {
		err = s.disk.Read(func(look *store.Snapshot) error {
			set, err = s.readMembers(look, key)
			return err
		})
		return set, err == nil, err
	})
	return set, err
}

func (s *Store) readMembers(look *store.Snapshot, key memberKey) (*memberSet, error) {
	at, err := look.Positions(replication.Normal, key.project, apikey.Live) // cohorts are of all environments
	if err != nil {
		return nil, err
	}
	set := &memberSet{asOf: at[store.Cohorts]}
	entry, ok, err := look.Get(replication.CohortShardSubject(key.project, key.cohort, key.shard))
	if err != nil || !ok {
		return set, err
	}
	var body state.CohortShard
	if err := json.Unmarshal(entry.Body, &body); err != nil {
		return nil, fmt.Errorf("members of a cohort: %w", err)
	}
	set.hashes = make([]memberHash, len(body.Members))
	for i, m := range body.Members {
		set.hashes[i] = s.hashMember(m)
	}
	slices.SortFunc(set.hashes, compareHashes)
	return set, nil
}
