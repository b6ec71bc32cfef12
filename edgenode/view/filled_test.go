package view

import "testing"

// A large cohort's members in use take a third of the room, in lists of a quarter of a mebibyte. All of them fit, so none
// is read twice.
func TestMembersThatFitAreReadOnce(t *testing.T) {
	t.Parallel()
	const lists = 40
	members := New(Options{}).members
	for round := range 3 {
		for n := range lists {
			key := memberKey{project, "beta", n}
			if _, ok := members.get(key); ok {
				continue
			}
			_, _, err := members.load(key, key.name(), func() (*memberSet, bool, error) {
				return &memberSet{hashes: make([]memberHash, 16_400)}, true, nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if n := members.reads.Load(); n != lists {
			t.Fatalf("after round %d, %d lists have been read %d times", round+1, lists, n)
		}
	}
}
