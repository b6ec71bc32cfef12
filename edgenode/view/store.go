package view

import (
	"cmp"
	"encoding/hex"
	"errors"
	"hash/maphash"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"skerry/edgenode/store"
	"skerry/pkg/apikey"
	"skerry/replication"
)

// Options bound the views. Zero values mean the defaults.
type Options struct {
	Bytes       int64 // of environments in memory, estimated; 0 means 96 MiB. The one in use stays, however large.
	Keys        int64 // API keys in memory; 0 means 65,536
	MemberBytes int64 // of cohorts' members in memory; 0 means 32 MiB
	Hooks       Hooks
	Log         *slog.Logger // nil means slog.Default()
}

// Store hands out keys and environments. Its disk must be set with Attach before anything
// else is called.
type Store struct {
	disk  *store.Store
	hooks Hooks
	room  int64
	log   *slog.Logger
	seeds [2]maphash.Seed

	keys        *filled[apikey.Hash, *Key]
	members     *filled[memberKey, *memberSet]
	subscribers subscribers
	floors      [replication.Lanes]atomic.Uint64
	// applied is the position in the normal lane up to which members that changed have
	// been dropped from memory; 0: nothing is known, because the lane came anew and that
	// could not be taken in yet.
	applied atomic.Uint64

	mu    sync.RWMutex
	slots map[envKey]*slot
	// held is the sum of the slots' costs. It is written under mu.
	held int64

	minute atomic.Int64 // a coarse clock for the slots' use
	fills  atomic.Int64
	faults atomic.Uint64 // times that the disk could not be read and nothing stood in for it
}

type envKey struct{ project, env string }

// slot is where an environment stands. Whoever compiles holds mu; who reads does not.
type slot struct {
	of    envKey
	mu    sync.Mutex
	env   atomic.Pointer[Environment]
	stale atomic.Bool  // everything may be different: it is compiled from disk when it is asked for next
	again atomic.Int64 // while it is stale and cannot be read: when to try next, in ms since 1970
	used  atomic.Int64 // when, by Store.minute
	cost  int64        // as counted in Store.held; under Store.mu
}

// New makes views that keep nothing yet.
func New(options Options) *Store {
	if options.Bytes == 0 {
		options.Bytes = 96 << 20
	}
	if options.Keys == 0 {
		options.Keys = 1 << 16
	}
	if options.MemberBytes == 0 {
		options.MemberBytes = 32 << 20
	}
	if options.Log == nil {
		options.Log = slog.Default()
	}
	return &Store{
		hooks:       options.Hooks,
		room:        options.Bytes,
		log:         options.Log,
		seeds:       [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		keys:        newFilled[apikey.Hash](options.Keys, 64, func(*Key) int64 { return 1 }),
		members:     newFilled[memberKey](options.MemberBytes, 4, (*memberSet).weigh),
		subscribers: subscribers{of: make(map[envKey]map[*Subscription]struct{})},
		slots:       make(map[envKey]*slot),
	}
}

// Attach gives the views their disk. (The disk is opened with Apply as its observer, so
// one of the two must come first.)
func (s *Store) Attach(disk *store.Store) {
	s.disk = disk
	s.applied.Store(1)
	for lane := range replication.Lanes {
		s.floors[lane].Store(uint64(disk.Floor(lane)))
	}
}

// Ready tells whether this edge has state to serve from. What is in memory is served even
// when it has not.
func (s *Store) Ready() bool { return s.disk.Serving() }

// Faults counts the times that a key or an environment could not be read from the disk.
// If the count rises during a look-up that finds nothing, then the thing may exist all
// the same: it may only be unreadable.
func (s *Store) Faults() uint64 { return s.faults.Load() }

// Tick moves the clock by which the least used environments are found. It is to be called
// now and then.
func (s *Store) Tick() { s.minute.Store(time.Now().Unix() / 60) }

// retry is how long what cannot be compiled anew is served as it was before it is
// tried again.
const retry = 250 * time.Millisecond

// Environment finds an environment by the project's id. ok is false when the project is
// unknown here.
func (s *Store) Environment(project, env string) (*Environment, bool) {
	of := envKey{project, env}
	s.mu.RLock()
	found := s.slots[of]
	s.mu.RUnlock()
	if found != nil {
		if e := found.env.Load(); e != nil && (!found.stale.Load() || time.Now().UnixMilli() < found.again.Load()) {
			if now := s.minute.Load(); found.used.Load() != now {
				found.used.Store(now)
			}
			return e, true
		}
	}
	return s.fill(of)
}

// Settled runs fn with an environment as Environment finds it, while no change of the
// normal lane is stored or taken in: what fn asks of its cohorts' members is then of the
// environment's state too. Changes wait meanwhile, so this is for whoever has asked in
// vain (Members.Has). It reports whether there is such an environment.
func (s *Store) Settled(project, env string, fn func(*Environment)) (ok bool) {
	s.disk.Still(replication.Normal, func() {
		var e *Environment
		if e, ok = s.Environment(project, env); ok {
			fn(e)
		}
	})
	return ok
}

// fill compiles an environment from disk, once however many ask.
func (s *Store) fill(of envKey) (*Environment, bool) {
	s.Tick()
	at := s.slotFor(of)
	at.mu.Lock()
	defer at.mu.Unlock()
	if e := at.env.Load(); e != nil && !at.stale.Load() {
		return e, true // somebody else was faster
	}
	at.stale.Store(false) // before reading: what changes from here on makes it stale again
	e, err := s.compile(of)
	switch {
	case errors.Is(err, errNoProject):
		s.remove(at)
		return nil, false
	case err != nil:
		at.stale.Store(true)
		if !errors.Is(err, store.ErrNoState) {
			s.log.Error("compile an environment", "project_id", of.project, "environment", of.env, "error", err)
		}
		// What was served so far goes on being served, and is not held up by looking
		// again for every request.
		if old := at.env.Load(); old != nil {
			at.again.Store(time.Now().Add(retry).UnixMilli())
			return old, true
		}
		s.faults.Add(1)
		s.remove(at)
		return nil, false
	}
	s.fills.Add(1)
	s.put(at, e)
	return e, true
}

func (s *Store) slotFor(of envKey) *slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.slots[of]
	if at == nil {
		at = &slot{of: of}
		s.slots[of] = at
	}
	at.used.Store(s.minute.Load())
	return at
}

// put hands an environment out and makes room for it. The caller holds at.mu.
func (s *Store) put(at *slot, e *Environment) {
	at.env.Store(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots[at.of] != at {
		return // it was pushed out meanwhile; whoever holds it reads it to the end
	}
	s.held += e.cost() - at.cost
	at.cost = e.cost()
	if s.held > s.room {
		s.evict(at)
	}
}

// evict pushes out what was not used for longest, down to nine tenths of the room,
// sparing one slot.
func (s *Store) evict(spare *slot) {
	all := make([]*slot, 0, len(s.slots))
	for _, at := range s.slots {
		all = append(all, at)
	}
	slices.SortFunc(all, func(a, b *slot) int { return cmp.Compare(a.used.Load(), b.used.Load()) })
	for _, at := range all {
		if s.held <= s.room/10*9 {
			return
		}
		if at != spare {
			s.held -= at.cost
			delete(s.slots, at.of)
		}
	}
}

func (s *Store) remove(at *slot) {
	at.env.Store(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots[at.of] == at {
		s.held -= at.cost
		at.cost = 0
		delete(s.slots, at.of)
	}
}

// Stats are for metrics.
type Stats struct {
	Environments int
	Bytes        int64 // estimated
	Fills        int64 // environments compiled from disk
}

// Stats tells what is in memory.
func (s *Store) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return Stats{Environments: len(s.slots), Bytes: s.held, Fills: s.fills.Load()}
}

// Apply takes in what was just stored. It is the disk's observer.
func (s *Store) Apply(c store.Change) {
	if floor := s.floors[c.Lane].Load(); c.Anew || uint64(c.Floor) > floor {
		s.floors[c.Lane].Store(uint64(c.Floor))
		s.applyAnew()
		return
	}
	changed := s.sort(c.Documents)
	if n := len(c.Documents); n > 0 && c.Lane == replication.Normal && s.applied.Load() > 0 {
		s.applied.Store(uint64(c.Documents[n-1].Position))
	}
	for of, documents := range changed {
		s.update(of, c.Lane, documents)
	}
}

// applyAnew makes everything be read from the disk. While a damaged store is being filled
// anew, one lane stands there before the other, and nothing can be read: then what is in
// memory holds until the other one is there too. It is stale all the same: what changes
// meanwhile must not be put on top of it.
func (s *Store) applyAnew() {
	s.applied.Store(0)
	if s.disk != nil && !s.disk.Serving() {
		s.expire()
		return
	}
	s.keys.dropAll()
	s.members.dropAll()
	s.applied.Store(1)
	s.expire()
	s.subscribers.announceAll()
}

// expire makes every environment be compiled from disk when it is asked for next.
func (s *Store) expire() {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, at := range s.slots {
		at.stale.Store(true)
		at.again.Store(0)
	}
}

// parsed is a changed document with its subject read.
type parsed struct {
	replication.Parts
	*replication.Document
}

// sort drops changed keys and members from memory and gives every environment its
// documents, in order.
func (s *Store) sort(documents []replication.Document) map[envKey][]parsed {
	to := make(map[envKey][]parsed)
	for i := range documents {
		d := &documents[i]
		p, err := d.Subject.Parse()
		if err != nil {
			continue // of a newer version's kind
		}
		switch p.Kind {
		case replication.KindKey, replication.KindRevoked:
			s.dropKey(p.Name)
			continue
		case replication.KindEpoch:
			continue
		case replication.KindCohortShard:
			s.members.drop(memberKey{p.Project, p.Name, p.Shard})
		}
		for _, env := range []string{apikey.Live, apikey.Test} {
			if p.Env == "" || p.Env == env {
				of := envKey{p.Project, env}
				to[of] = append(to[of], parsed{p, d})
			}
		}
	}
	return to
}

func (s *Store) dropKey(name string) {
	var hash apikey.Hash
	if n, err := hex.Decode(hash[:], []byte(name)); err != nil || n != len(hash) {
		s.log.Error("BUG: a key's subject holds no hash", "subject", name)
		return
	}
	s.keys.drop(hash)
}

// update brings an environment in memory up to date, by compiling what has changed, and
// announces it in any case.
func (s *Store) update(of envKey, lane replication.Lane, documents []parsed) {
	s.mu.RLock()
	at := s.slots[of]
	s.mu.RUnlock()
	if at != nil {
		at.mu.Lock()
		if old := at.env.Load(); old != nil && !at.stale.Load() {
			s.advance(at, old, lane, documents)
		}
		at.mu.Unlock()
	}
	s.subscribers.announce(of, touched(documents))
}

func (s *Store) advance(at *slot, old *Environment, lane replication.Lane, documents []parsed) {
	d := draft{views: s, env: *old, old: old}
	for _, p := range documents {
		if p.Position > old.at[lane] {
			d.apply(p)
		}
	}
	e, err := d.finish()
	if err != nil {
		s.remove(at) // the project is gone
		return
	}
	s.put(at, e)
}

func touched(documents []parsed) (set ModuleSet) {
	for _, p := range documents {
		switch p.Kind {
		case replication.KindFlag, replication.KindHalt:
			set |= SwitchChanged
		case replication.KindConfig:
			set |= ConfigChanged
		case replication.KindSurvey:
			set |= PulseChanged
		case replication.KindCohort, replication.KindCohortShard:
			set |= CohortsChanged
		case replication.KindProject:
			set |= SettingsChanged
		}
	}
	return set
}
