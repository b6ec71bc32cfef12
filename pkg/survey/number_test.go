package survey

import (
	"math/big"
	"strings"
	"testing"
)

func TestWholeNumbersAreReadExactly(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]whole{
		"7":                                   {isWhole, 7},
		"-7":                                  {isWhole, -7},
		"7.0":                                 {isWhole, 7},
		"7.000":                               {isWhole, 7},
		"70e-1":                               {isWhole, 7},
		"0.7E+1":                              {isWhole, 7},
		"0":                                   {isWhole, 0},
		"-0.0":                                {isWhole, 0},
		"0e999":                               {isWhole, 0},
		"0e-99999999999999999999":             {isWhole, 0},
		"1e17":                                {isWhole, 100000000000000000},
		"7.5":                                 {notWhole, 0},
		"75e-2":                               {notWhole, 0},
		"1e-400":                              {notWhole, 0},
		"7.00000000000000000001":              {notWhole, 0},
		"1e-99999999999999999999":             {notWhole, 0},
		"1e999":                               {beyond, 0},
		"-1e999":                              {beyond, 0},
		"1e99999999999999999999999":           {beyond, 0},
		"9223372036854775808":                 {beyond, 0},
		"1" + strings.Repeat("0", 100000):     {beyond, 0},
		"7." + strings.Repeat("0", 100000):    {isWhole, 7},
		"0." + strings.Repeat("0", 50) + "e9": {isWhole, 0},
	} {
		if got := readWhole(text); got != want {
			t.Errorf("%.40s: %+v, want %+v", text, got, want)
		}
	}
}

func FuzzReadWhole(f *testing.F) {
	for _, seed := range []string{"7.0", "1e2", "-12.50e1", "0.001e3", "123456789012345678"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 40 || strings.ContainsAny(text, "/_xXbBoOpP") || strings.HasPrefix(text, "+") {
			return
		}
		if e := strings.IndexAny(text, "eE"); e >= 0 && len(text)-e > 4 {
			return // big.Rat would compute what it cannot hold
		}
		exact, ok := new(big.Rat).SetString(text)
		if !ok || !jsonNumber(text) {
			return
		}
		got := readWhole(text)
		switch {
		case !exact.IsInt():
			if got.state != notWhole {
				t.Fatalf("%s has a fraction, read as %+v", text, got)
			}
		case got.state == isWhole:
			if exact.Cmp(new(big.Rat).SetInt64(got.value)) != 0 {
				t.Fatalf("%s read as %d", text, got.value)
			}
		case got.state == notWhole || exact.Num().CmpAbs(big.NewInt(1e18)) < 0:
			t.Fatalf("%s read as %+v", text, got)
		}
	})
}
