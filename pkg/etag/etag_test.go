package etag_test

import (
	"testing"

	"skerry/pkg/etag"
)

func TestNoneMatchComparesWeaklyOverLists(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]bool{
		`"a"`:             true,
		`W/"a"`:           true,
		`"b", "a"`:        true,
		`"b",W/"a" , "c"`: true,
		`*`:               true,
		``:                false,
		`"b"`:             false,
		`a`:               false,
		`"a`:              false,
		`"aa"`:            false,
		`W/`:              false,
		`"b,\"a\""`:       false,
	} {
		if got := etag.NoneMatch([]byte(header), []byte(`"a"`)); got != want {
			t.Errorf("If-None-Match %s: %v, want %v", header, got, want)
		}
		if got := etag.NoneMatch([]byte(header), []byte(`W/"a"`)); got != want {
			t.Errorf("If-None-Match %s against a weak tag: %v, want %v", header, got, want)
		}
	}
}

func TestMatchRefusesWeakTags(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]bool{
		`"a"`:        true,
		`W/"a"`:      false,
		`"x", "a"`:   true,
		`*`:          true,
		`W/"a", "a"`: true,
	} {
		if got := etag.Match([]byte(header), []byte(`"a"`)); got != want {
			t.Errorf("If-Match %s: %v, want %v", header, got, want)
		}
	}
}

func TestNoneMatchDoesNotAllocate(t *testing.T) {
	header, tag := []byte(`"b", W/"a"`), []byte(`W/"a"`)
	if n := testing.AllocsPerRun(100, func() { etag.NoneMatch(header, tag) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzNoneMatch(f *testing.F) {
	f.Add([]byte(`W/"a", "b"`), []byte(`"b"`))
	f.Fuzz(func(t *testing.T, header, tag []byte) { etag.NoneMatch(header, tag) })
}
