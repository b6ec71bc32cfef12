package identity

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"skerry/replication/up"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

var scope = Scope{Project: uuid.MustParse("018f0000-0000-7000-8000-00000000000a"), Environment: up.Live}

// vectors reads a file of test vectors.
func vectors[T any](t *testing.T, name string) []T {
	t.Helper()
	raw, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []T `json:"cases"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) == 0 {
		t.Fatalf("%s has no cases", name)
	}
	return file.Cases
}

type linkCase struct {
	Name      string            `json:"name"`
	Claims    [][2]string       `json:"claims"`
	Effects   []Effect          `json:"effects"`
	Links     map[string]string `json:"links"`
	Conflicts [][3]string       `json:"conflicts"`
}

func TestLinksFollowTheVectors(t *testing.T) {
	t.Parallel()
	for _, c := range vectors[linkCase](t, "links.json") {
		links := NewLinks()
		for i, claim := range c.Claims {
			if effect, _ := links.Claim(claim[0], claim[1]); effect != c.Effects[i] {
				t.Errorf("%s: claim %d is %s, want %s", c.Name, i, effect, c.Effects[i])
			}
		}
		if !maps.Equal(links.canonical, c.Links) {
			t.Errorf("%s: links %v, want %v", c.Name, links.canonical, c.Links)
		}
	}
}

// apply commits claims in transactions of the given sizes.
func apply(t *testing.T, db *postgres.DB, s Scope, claims [][2]string, size int) {
	t.Helper()
	for part := range slices.Chunk(claims, size) {
		err := pgx.BeginFunc(t.Context(), db.App, func(tx pgx.Tx) error {
			if err := LockExclusive(t.Context(), tx, []Scope{s}); err != nil {
				return err
			}
			var all []Claim
			for _, c := range part {
				all = append(all, Claim{Scope: s, AliasID: c[0], DistinctID: c[1], AliasedAt: time.Unix(1, 0), ReceivedAt: time.Unix(2, 0)})
			}
			return Apply(t.Context(), tx, all)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func storedLinks(t *testing.T, db *postgres.DB, s Scope) map[string]string {
	t.Helper()
	rows, err := db.App.Query(t.Context(), `SELECT alias_id, canonical_id FROM aliases WHERE project_id = $1 AND environment = $2`, s.Project, int16(s.Environment))
	if err != nil {
		t.Fatal(err)
	}
	links := map[string]string{}
	var alias, canonical string
	if _, err := pgx.ForEachRow(rows, []any{&alias, &canonical}, func() error { links[alias] = canonical; return nil }); err != nil {
		t.Fatal(err)
	}
	return links
}

func TestStoredLinksFollowTheVectorsHoweverTheyAreBatched(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	for _, size := range []int{1, 2, 100} {
		for _, c := range vectors[linkCase](t, "links.json") {
			s := Scope{Project: uuid.New(), Environment: up.Test}
			apply(t, db, s, c.Claims, size)
			if got := storedLinks(t, db, s); !maps.Equal(got, c.Links) {
				t.Errorf("%s, %d at a time: links %v, want %v", c.Name, size, got, c.Links)
			}
			rows, err := db.App.Query(t.Context(), `SELECT alias_id, kept_distinct_id, refused_distinct_id FROM identity_conflicts
				WHERE project_id = $1 ORDER BY 1, 3`, s.Project)
			if err != nil {
				t.Fatal(err)
			}
			got, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c [3]string, err error) {
				return c, row.Scan(&c[0], &c[1], &c[2])
			})
			if err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(got) != fmt.Sprint(c.Conflicts) {
				t.Errorf("%s, %d at a time: conflicts %v, want %v", c.Name, size, got, c.Conflicts)
			}
		}
	}
}

func TestLinksStayAtDepthOneAndBatchingChangesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"})
		links := NewLinks()
		for range rapid.IntRange(0, 20).Draw(t, "claims") {
			before := maps.Clone(links.canonical)
			alias, distinct := id.Draw(t, "alias"), id.Draw(t, "distinct")
			effect, _ := links.Claim(alias, distinct)
			for a, root := range links.canonical {
				if _, linked := links.canonical[root]; linked || a == root {
					t.Fatalf("%s → %s is not at depth one: %v", a, root, links.canonical)
				}
			}
			if effect != Linked && !maps.Equal(before, links.canonical) {
				t.Fatalf("%s changed %v to %v", effect, before, links.canonical)
			}
			if effect == Linked && links.Root(alias) != links.Root(distinct) {
				t.Fatalf("%s and %s are linked and apart: %v", alias, distinct, links.canonical)
			}
		}
	})
}

func TestOfConcurrentClaimsTheFirstToCommitWins(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	var running sync.WaitGroup
	for i := range 6 {
		running.Go(func() { apply(t, db, scope, [][2]string{{"shared", fmt.Sprint("u", i)}}, 1) })
	}
	running.Wait()
	links := storedLinks(t, db, scope)
	if len(links) != 1 {
		t.Fatalf("links %v", links)
	}
	var conflicts int
	var kept string
	if err := db.App.QueryRow(t.Context(), `SELECT count(*), min(kept_distinct_id) FROM identity_conflicts`).Scan(&conflicts, &kept); err != nil {
		t.Fatal(err)
	}
	if conflicts != 5 || kept != links["shared"] {
		t.Errorf("%d conflicts that keep %s, link %s", conflicts, kept, links["shared"])
	}
}

type profileCase struct {
	Name    string `json:"name"`
	Changes []struct {
		At         int64           `json:"at"`
		Edge       string          `json:"edge"`
		Number     uint64          `json:"number"`
		Properties json.RawMessage `json:"properties"`
	} `json:"changes"`
	Profile map[string]json.RawMessage `json:"profile"`
}

func (c profileCase) changes(s Scope, ids ...string) []Change {
	var changes []Change
	for i, said := range c.Changes {
		at := time.UnixMilli(said.At)
		change := Change{Scope: s, DistinctID: ids[i%len(ids)], ReceivedAt: at,
			Stamp: NewStamp(at, said.Edge, said.Number), Properties: said.Properties}
		if err := change.Read(); err != nil {
			panic(err) // the vectors are valid JSON
		}
		changes = append(changes, change)
	}
	return changes
}

func storedProfile(t *testing.T, db *postgres.DB, s Scope, id string) map[string]json.RawMessage {
	t.Helper()
	raw, err := properties(t.Context(), db.App, s, id)
	if err != nil {
		t.Fatal(err)
	}
	var profile map[string]json.RawMessage
	if err := json.Unmarshal(raw, &profile); err != nil {
		t.Fatal(err)
	}
	return profile
}

func merge(t *testing.T, db *postgres.DB, changes []Change) {
	t.Helper()
	if err := pgx.BeginFunc(t.Context(), db.App, func(tx pgx.Tx) error { return Merge(t.Context(), tx, changes) }); err != nil {
		t.Fatal(err)
	}
}

func TestProfilesFollowTheVectorsInEveryOrder(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	rng := rand.New(rand.NewPCG(3, 1))
	for _, c := range vectors[profileCase](t, "profiles.json") {
		for round := range 6 {
			s := Scope{Project: uuid.New(), Environment: up.Live}
			changes := c.changes(s, "u")
			if round > 0 {
				rng.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
			}
			if round%2 == 0 {
				merge(t, db, changes)
			} else {
				for _, change := range changes {
					merge(t, db, []Change{change})
				}
			}
			if got := storedProfile(t, db, s, "u"); fmt.Sprintf("%s", got) != fmt.Sprintf("%s", c.Profile) {
				t.Errorf("%s, round %d: profile %s, want %s", c.Name, round, got, c.Profile)
			}
		}
	}
}

func TestProfilesOfLinkedIDsMergeAsIfTheyHadBeenOne(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	for _, c := range vectors[profileCase](t, "profiles.json") {
		s := Scope{Project: uuid.New(), Environment: up.Live}
		merge(t, db, c.changes(s, "a", "u", "b"))
		apply(t, db, s, [][2]string{{"a", "u"}, {"b", "u"}}, 2)
		if got := storedProfile(t, db, s, "u"); fmt.Sprintf("%s", got) != fmt.Sprintf("%s", c.Profile) {
			t.Errorf("%s: profile %s, want %s", c.Name, got, c.Profile)
		}
		if got := storedProfile(t, db, s, "a"); len(got) != 0 {
			t.Errorf("%s: the alias still has a profile %s", c.Name, got)
		}
	}
}

// More profiles at once than are merged at once, three of each root, and one trait that all of them have.
func TestManyProfilesMergeInOneBatch(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	const people, devices = 2*profilesAtOnce/3 + 1, 3
	var changes []Change
	var claims [][2]string
	for i := range people {
		for d := range devices {
			device := fmt.Sprintf("d%d-%d", i, d)
			at := time.Unix(int64(100+(i+d)%devices), 0)
			changes = append(changes, Change{Scope: scope, DistinctID: device, ReceivedAt: at, Stamp: NewStamp(at, "e", uint64(d)),
				Properties: fmt.Appendf(nil, `{"last":%d,"$set_once":{"first":%d},"of%d":true}`, d, d, d)})
			claims = append(claims, [2]string{device, fmt.Sprint("u", i)})
			if err := changes[len(changes)-1].Read(); err != nil {
				t.Fatal(err)
			}
		}
	}
	merge(t, db, changes)
	apply(t, db, scope, claims, len(claims))
	for i := range people {
		newest, oldest := (devices-1-i%devices+devices)%devices, (devices-i%devices)%devices
		want := fmt.Sprintf("map[first:%d last:%d of0:true of1:true of2:true]", oldest, newest)
		if got := fmt.Sprintf("%s", storedProfile(t, db, scope, fmt.Sprint("u", i))); got != want {
			t.Fatalf("u%d: profile %s, want %s", i, got, want)
		}
	}
	var profiles, seen int
	if err := db.App.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE last_seen - first_seen = interval '2 seconds') FROM profiles`).Scan(&profiles, &seen); err != nil {
		t.Fatal(err)
	}
	if profiles != people || seen != people {
		t.Errorf("%d profiles, %d of them seen for two seconds; want %d of each", profiles, seen, people)
	}
}

func TestTheTwoMergesAgree(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	rng := rand.New(rand.NewPCG(5, 1))
	for round := range 60 {
		id := fmt.Sprint("u", round)
		var mine Trait
		for range 4 {
			var said Trait
			at := NewStamp(time.UnixMilli(int64(rng.IntN(5))), "e", uint64(rng.IntN(3)))
			switch rng.IntN(3) {
			case 0:
				said = Trait{Value: fmt.Appendf(nil, "%d", rng.IntN(9)), Stamp: at}
			case 1:
				said = Trait{Stamp: at}
			case 2:
				said = Trait{Once: fmt.Appendf(nil, "%d", rng.IntN(9)), OnceStamp: at}
			}
			mine = mine.Merge(said)
			err := pgx.BeginFunc(t.Context(), db.App, func(tx pgx.Tx) error {
				return upsertValues(t.Context(), tx, map[traitKey]Trait{{ID{scope, id}, "k"}: said})
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		want := map[string]json.RawMessage{}
		if shown := mine.Shown(); shown != nil {
			want["k"] = shown
		}
		if got := storedProfile(t, db, scope, id); fmt.Sprintf("%s", got) != fmt.Sprintf("%s", want) {
			t.Errorf("round %d: the database has %s, Merge %s", round, got, want)
		}
	}
}

func FuzzChanges(f *testing.F) {
	f.Add([]byte(`{"a":1,"$set_once":{"b":null,"c":[]}}`))
	f.Add([]byte(`{"$set_once":5}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, properties []byte) {
		c := Change{Stamp: NewStamp(time.Unix(1, 0), "e", 1), Properties: properties}
		if err := c.Read(); err != nil {
			return
		}
		for name, trait := range c.traits {
			if v := trait.Shown(); v != nil && !json.Valid(v) {
				t.Errorf("%q is not JSON: %q", name, v)
			}
			if again := trait.Merge(trait); string(again.Shown()) != string(trait.Shown()) {
				t.Errorf("%q merged with itself is %q, was %q", name, again.Shown(), trait.Shown())
			}
		}
	})
}
