package view

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"

	"skerry/edgenode/store"
	"skerry/pkg/decide"
	"skerry/pkg/state"
	"skerry/replication"
)

// A cohort may have a million members. They lie on disk in hash shards, and a lookup needs one of them; those in use are
// kept in memory, within a bound, as sorted 128-bit hashes: 16 bytes a member whatever its id. The hashes are seeded
// anew by every process, so nobody can construct an id that is taken for a member's.

type memberKey struct {
	project, cohort string
	shard           int
}

type memberHash struct{ a, b uint64 }

// memberSet is one shard.
type memberSet struct{ hashes []memberHash }

func (m *memberSet) weigh() int64 { return 128 + 16*int64(len(m.hashes)) }

// memberList is a cohort's list, by its shards.
type memberList struct {
	views   *Store
	project string
	cohort  string
	shards  int
}

func (l *memberList) has(id string) bool {
	if l == nil {
		return false
	}
	key := memberKey{l.project, l.cohort, decide.Shard(id, l.shards)}
	set, ok := l.views.members.get(key)
	if !ok {
		set = l.views.loadMembers(key)
	}
	_, found := slices.BinarySearchFunc(set.hashes, l.views.hashMember(id), compareHashes)
	return found
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

// loadMembers reads a shard. One that is absent has no members. One that cannot be read is counted: see Store.Unsure.
func (s *Store) loadMembers(key memberKey) *memberSet {
	name := key.project + "/" + strconv.Itoa(key.shard) + "/" + key.cohort
	set, _, err := s.members.load(key, name, func() (*memberSet, bool, error) {
		set := &memberSet{}
		err := s.disk.Read(func(look *store.Snapshot) error {
			entry, ok, err := look.Get(replication.CohortShardSubject(key.project, key.cohort, key.shard))
			if err != nil || !ok {
				return err
			}
			var body state.CohortShard
			if err := json.Unmarshal(entry.Body, &body); err != nil {
				return fmt.Errorf("members of a cohort: %w", err)
			}
			set.hashes = make([]memberHash, len(body.Members))
			for i, m := range body.Members {
				set.hashes[i] = s.hashMember(m)
			}
			slices.SortFunc(set.hashes, compareHashes)
			return nil
		})
		return set, err == nil, err
	})
	if err != nil {
		s.unsure.Add(1)
		s.log.Error("read the members of a cohort", "project_id", key.project, "cohort", key.cohort, "error", err)
		return &memberSet{}
	}
	return set
}
