package soak

import (
	"testing"
	"time"
)

func TestOnlyGrowthAfterTheFirstThirdCounts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		values []float64
		grows  bool
	}{
		"flat":                    {[]float64{100, 100, 100, 100, 100, 100}, false},
		"warming up":              {[]float64{10, 50, 100, 100, 101, 102}, false},
		"swinging":                {[]float64{100, 90, 110, 90, 110, 90}, false},
		"leaking":                 {[]float64{100, 150, 200, 250, 300, 350}, true},
		"too short to say a word": {[]float64{1, 1000}, false},
	} {
		if got := grew(c.values, memoryFactor, memorySlack); (got != "") != c.grows {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestConfigNamesTheFlagThatIsWrong(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{{Length: time.Second}, {Window: time.Millisecond}, {Rate: -1}} {
		if c.Validate() == nil {
			t.Errorf("%+v passes", c)
		}
	}
	full := Config{}.withDefaults()
	if full.Length != 30*time.Minute || full.Window != time.Minute || full.Rate != 5000 {
		t.Errorf("defaults %+v", full)
	}
}
