package parties

import (
	"net/netip"
	"testing"
)

func TestWhoHoldsMoreYields(t *testing.T) {
	t.Parallel()
	here, there := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for name, c := range map[string]struct {
		asks, has Holding
		want      bool
	}{
		"both differ, it holds as much afterwards": {Holding{Of("a", here), [2]int64{1, 1}, 2}, Holding{Of("b", there), [2]int64{5, 5}, 2}, true},
		"both differ, it would hold one less":      {Holding{Of("a", here), [2]int64{1, 1}, 2}, Holding{Of("b", there), [2]int64{5, 4}, 2}, false},
		"the same project, a heavier address":      {Holding{Of("a", here), [2]int64{9, 0}, 1}, Holding{Of("a", there), [2]int64{9, 9}, 1}, true},
		"a heavier project, the same address":      {Holding{Of("a", here), [2]int64{0, 9}, 1}, Holding{Of("b", here), [2]int64{9, 9}, 1}, true},
		"the same parties":                         {Holding{Of("a", here), [2]int64{9, 9}, 1}, Holding{Of("a", here), [2]int64{9, 9}, 8}, false},
	} {
		if got := Evens(c.asks, c.has); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
